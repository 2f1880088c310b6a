//! Asking a holder on this host to release its lock. A kernel lock cannot be taken from a living
//! process, so it must release it itself: it gets a signal, which only its own user and root can
//! send. The signal carries a number, and the lock file has a request with this number; without one
//! the signal is ignored.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollFlags;
use uuid::Uuid;

use super::admission::Admission;
use super::file_name;
use super::format::BREAK_REQUEST;
use super::lock_file::LockFile;
use super::record::Record;
use super::release_watch::ReleaseWatch;
use super::reservation::Reservation;
use super::view::{Participant, Present, holder_id};
use crate::clock::BootTime;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, BreakMode, BreakWatch, Breaker, Broken, FileProblem, Freed, Holder, HolderInfo, Mode,
    Notice, Notified, Renewal, UnreachableHolder,
};

/// An older request is ignored.
const VALID_FOR: Duration = Duration::from_secs(10);

/// When to repeat a request: another one may have overwritten it.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// In the place of the claim: a request to kill the command without notice.
const KILL: &str = "kill";

/// In the place of the claim: a request by the bearer of the token.
pub(super) const RELEASE: &str = "release";

/// Sends a signal with this number to the process that holds this lock.
pub(crate) type SignalHolder = Box<dyn Fn(&HostHolder, u32) -> Signalled>;

/// The kernel lock by which a holder can be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostHolder {
    pub device: u64,
    pub inode: u64,
    pub offset: u64,
    /// According to its record.
    pub pid: Option<i32>,
}

/// The result of sending a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signalled {
    Yes,
    NotFound,
    Refused,
    TooOld,
}

pub(crate) struct HostBreaker {
    /// `None` if the lock was never used.
    file: Option<LockFile>,
    who: HolderInfo,
    signal_holder: SignalHolder,
    /// Wakes us when a holder leaves.
    released: Option<ReleaseWatch>,
}

impl HostBreaker {
    pub(crate) fn open(
        directory: &Path,
        name: &[u8],
        who: HolderInfo,
        signal_holder: SignalHolder,
    ) -> Result<Self, BackendError> {
        let file_name = file_name::encode(name);
        let exists = LockFile::open_to_look(directory, file_name.as_ref())?.is_some();
        let file = if exists { Some(LockFile::open(directory, name)?) } else { None };
        Ok(Self { file, who, signal_holder, released: None })
    }
}

/// Write a request to this holder into the file, and signal the holder.
pub(super) fn ask_run(
    file: &LockFile,
    holder: &Participant,
    who: &HolderInfo,
    how: &str,
    signal_holder: &SignalHolder,
) -> Result<(), BackendError> {
    let (high, _) = Uuid::new_v4().as_u64_pair();
    let number = u32::try_from(high >> 32).unwrap_or(0).max(1);
    let request = Record {
        claim: how.into(),
        since: BootTime::now(),
        since_ms: 0,
        mode: Mode::Exclusive,
        info: who.clone(),
        tenure: None,
    };
    file.write_record(BREAK_REQUEST, number.into(), &request).map_err(|e| file.io_error(&e))?;
    let (device, inode) = file.identity();
    let pid = pid_of(file, holder);
    let problem = match signal_holder(&HostHolder { device, inode, offset: holder.offset, pid }, number) {
        Signalled::Yes => return Ok(()),
        Signalled::NotFound if is_gone(file, holder)? => return Ok(()),
        Signalled::NotFound => FileProblem::HolderNotFound,
        Signalled::Refused => FileProblem::HolderOfAnotherUser,
        Signalled::TooOld => FileProblem::HolderTooOld,
    };
    Err(file.error(problem))
}

/// The pid of the holder, according to its record.
pub(super) fn pid_of(file: &LockFile, holder: &Participant) -> Option<i32> {
    let info = file.record(holder.ticket)?.info;
    match info.renewal {
        Renewal::Keeper(keeper) => i32::try_from(keeper).ok(),
        Renewal::Run | Renewal::Nobody => info.pid.parse().ok(),
    }
}

pub(super) fn is_gone(file: &LockFile, holder: &Participant) -> Result<bool, BackendError> {
    Ok(!Present::look(file)?.holders.contains(holder))
}

impl Breaker for HostBreaker {
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let present = Present::look(file)?;
        Ok(present.described_holders(file).into_iter().map(|(holder, _)| holder).collect())
    }

    fn notify(&mut self, holders: &[Holder], how: BreakMode) -> Result<Notified, BackendError> {
        let mut unreachable = Vec::new();
        let Some(file) = &self.file else { return Ok(Notified { unreachable, freed: Freed::No }) };
        let present = Present::look(file)?;
        let mut released = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
        let request = if how == BreakMode::Immediate { KILL } else { "" };
        for (Holder { id, .. }, participant) in present.described_holders(file) {
            let Some(holder) = participant.filter(|_| holders.iter().any(|meant| meant.id == id)) else {
                continue;
            };
            match ask_run(file, &holder, &self.who, request, &self.signal_holder) {
                Ok(()) => released.watch(holder.offset).map_err(|e| file.io_error(&e))?,
                Err(error) => unreachable.push(UnreachableHolder { id, error }),
            }
        }
        for kept in &present.kept {
            let id = holder_id(file, kept.ticket);
            if holders.iter().any(|meant| meant.id == id) {
                // No command is running under it any more.
                Admission::begin(file)?.reserve(Reservation { until: BootTime::now(), ..*kept })?;
            }
        }
        self.released = Some(released);
        Ok(Notified { unreachable, freed: Freed::No })
    }

    fn wait(&mut self, until: BootTime) {
        let until = until.min(BootTime::now() + REPEAT_AFTER);
        if let Some(released) = &self.released {
            wait(&[(released.wake_fd(), PollFlags::POLLIN)], until, None);
        }
    }

    fn frees_at_once(&self) -> bool {
        false
    }
}

/// The holder's side.
pub(super) struct HostBreakWatch {
    pub files: Arc<Vec<LockFile>>,
}

impl BreakWatch for HostBreakWatch {
    fn on_signal(&mut self, number: u64) -> Option<Notice> {
        self.files.iter().find_map(|file| {
            let request = file.record_at(BREAK_REQUEST, number)?;
            let is_valid = request.since <= BootTime::now() && request.since.elapsed() < VALID_FOR;
            is_valid.then(|| match request.claim.as_str() {
                RELEASE => Notice::Released { by: request.info },
                how => Notice::Broken(Broken { by: request.info, at_once: how == KILL }),
            })
        })
    }
}
