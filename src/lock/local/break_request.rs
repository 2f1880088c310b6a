//! Asking a holder on this host to give its lock back. No lock can be taken from a living process, so it must do that
//! itself: it gets a signal, which only its own user and root can send. The signal carries a number, and under this number
//! the lock file says who asks; a signal without it means nothing.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use nix::poll::PollFlags;
use uuid::Uuid;

use super::admission::Admission;
use super::file_name;
use super::format::BREAK_REQUEST;
use super::lock_file::LockFile;
use super::look::{Participant, Present, holder_id};
use super::record::{RECORD, Record};
use super::release_watch::ReleaseWatch;
use super::reservation::Reservation;
use crate::clock::BootTime;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, BreakWatch, Breaker, Broken, Error, FileProblem, Freed, Holder, HolderInfo, How, Mode,
    Notice, Renewal, Told, Untold,
};

/// A request that is older means nothing.
const VALID_FOR: Duration = Duration::from_secs(10);

/// How long a request is left alone before it is repeated: another one may have been written over it.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// In the place of the claim, in a request to kill the command instead of stopping it.
const KILL: &str = "kill";

/// The same in a request by the bearer of the token.
pub(super) const RELEASE: &str = "release";

/// Signals the process that holds this lock.
pub(crate) type AskProcess = Box<dyn Fn(&HostHolder, u32) -> Asked>;

/// Where the lock of a holder shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostHolder {
    pub device: u64,
    pub inode: u64,
    pub offset: u64,
    /// As it has told.
    pub pid: Option<i32>,
}

/// What came of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Yes,
    NotFound,
    Refused,
    TooOld,
}

pub(crate) struct HostBreaker {
    /// `None` if the lock was never used.
    file: Option<LockFile>,
    who: HolderInfo,
    ask: AskProcess,
    /// Wakes us when a holder has left.
    released: Option<ReleaseWatch>,
}

impl HostBreaker {
    pub(crate) fn open(
        directory: &Path,
        name: &[u8],
        who: HolderInfo,
        ask: AskProcess,
    ) -> Result<Self, BackendError> {
        let file_name = file_name::encode(name);
        let exists = LockFile::open_to_look(directory, file_name.as_ref())?.is_some();
        let file = if exists { Some(LockFile::open(directory, name)?) } else { None };
        Ok(Self { file, who, ask, released: None })
    }
}

/// Write down who asks this holder, and how, and signal it.
pub(super) fn ask_run(
    file: &LockFile,
    holder: &Participant,
    who: &HolderInfo,
    how: &str,
    ask: &AskProcess,
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
    let written = file.locks().file().write_all_at(&request.to_bytes(number.into()), BREAK_REQUEST);
    written.map_err(|e| file.io_error(&e))?;
    let (device, inode) = file.identity();
    let pid = pid_of(file, holder);
    let problem = match ask(&HostHolder { device, inode, offset: holder.offset, pid }, number) {
        Asked::Yes => return Ok(()),
        Asked::NotFound if is_gone(file, holder)? => return Ok(()),
        Asked::NotFound => FileProblem::HolderNotFound,
        Asked::Refused => FileProblem::HolderOfAnotherUser,
        Asked::TooOld => FileProblem::HolderTooOld,
    };
    Err(file.error(problem))
}

/// The number of the process that holds it, as it has told.
pub(super) fn pid_of(file: &LockFile, holder: &Participant) -> Option<i32> {
    let info = file.record(holder.ticket)?.info;
    match info.renewal {
        Renewal::Keeper(keeper) => i32::try_from(keeper).ok(),
        Renewal::Run | Renewal::Nobody => info.pid.parse().ok(),
    }
}

fn is_gone(file: &LockFile, holder: &Participant) -> Result<bool, BackendError> {
    let present = Present::look(file).map_err(|e| file.io_error(&e))?;
    Ok(!present.holders.contains(holder))
}

impl Breaker for HostBreaker {
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let present = Present::look(file).map_err(|e| file.io_error(&e))?;
        Ok(present.described_holders(file).into_iter().map(|(holder, _)| holder).collect())
    }

    fn tell(&mut self, holders: &[Holder], how: How) -> Result<Told, BackendError> {
        let mut untold = Vec::new();
        let Some(file) = &self.file else { return Ok(Told { untold, freed: Freed::No }) };
        let present = Present::look(file).map_err(|e| file.io_error(&e))?;
        let mut released = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
        let described = present.described_holders(file);
        for (Holder { id, .. }, participant) in described {
            let Some(holder) = participant.filter(|_| holders.iter().any(|meant| meant.id == id)) else {
                continue;
            };
            match ask_run(file, &holder, &self.who, if how == How::AtOnce { KILL } else { "" }, &self.ask) {
                Ok(()) => released.watch(holder.offset).map_err(|e| file.io_error(&e))?,
                Err(error) => untold.push(Untold { id, error }),
            }
        }
        for kept in &present.kept {
            let id = holder_id(file, kept.ticket);
            if holders.iter().any(|meant| meant.id == id) {
                end(file, *kept)?;
            }
        }
        self.released = Some(released);
        Ok(Told { untold, freed: Freed::No })
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

/// What only a minimum hold keeps has no command that could be in the way.
fn end(file: &LockFile, kept: Reservation) -> Result<(), BackendError> {
    let ended = Admission::begin(file, None)
        .and_then(|mut admission| Ok(admission.reserve(Reservation { until: BootTime::now(), ..kept })?));
    match ended {
        Err(Error::Backend(error)) => Err(error),
        // Without an observer nothing else can come of it.
        Ok(()) | Err(Error::Held(_) | Error::Nested | Error::Superseded(_) | Error::Cancelled(_)) => Ok(()),
    }
}

/// The holder's side.
pub(super) struct HostBreakWatch {
    pub files: std::sync::Arc<Vec<LockFile>>,
}

impl BreakWatch for HostBreakWatch {
    fn poll_for(&self) -> Vec<(std::os::fd::BorrowedFd<'_>, PollFlags)> {
        Vec::new()
    }

    fn next_moment(&self) -> Option<BootTime> {
        None
    }

    fn advance(&mut self) -> Option<Notice> {
        None
    }

    fn asked(&mut self, number: u64) -> Option<Notice> {
        self.files.iter().find_map(|file| {
            let mut bytes = [0; RECORD];
            file.locks().file().read_exact_at(&mut bytes, BREAK_REQUEST).ok()?;
            let request = Record::from_bytes(&bytes, number)?;
            let is_valid = request.since <= BootTime::now() && request.since.elapsed() < VALID_FOR;
            is_valid.then(|| match request.claim.as_str() {
                RELEASE => Notice::Released { by: request.info },
                how => Notice::Broken(Broken { by: request.info, at_once: how == KILL }),
            })
        })
    }
}
