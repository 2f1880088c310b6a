//! Asking a holder on this host to release its lock. A kernel lock cannot be taken from a living
//! process, so it must release it itself: it gets a signal, which only its own user and root can
//! send. The signal carries a number that says what is asked for; any other number is ignored. Who
//! asks is in the lock file, for people.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::admission::Admission;
use super::byte_map::byte;
use super::file_name;
use super::format::BREAK_REQUEST;
use super::lock_file::LockFile;
use super::name_lock::is_held_without_file;
use super::record::Record;
use super::release_watch::ReleaseWatch;
use super::reservation::Reservation;
use super::view::{Present, holder_id};
use crate::clock::BootTime;
use crate::lock::{
    AncestorLock, BackendError, BreakMode, BreakWatch, Breaker, Done, FileProblem, Freed, Holder, HolderInfo,
    Mode, Notice, Notified, Reason, Renewal, UnreachableHolder,
};

/// An older request is ignored.
const VALID_FOR: Duration = Duration::from_secs(10);

/// When to repeat a request: another one may have overwritten it.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// The upper half of the number of a request, so that a stray signal is none.
const REQUEST: u32 = 0x7264_0000;

/// The lowest bits of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// A keeper must look at its control file.
    Wake,
    Break,
    /// Kill the command without notice.
    Kill,
    /// By the bearer of the token.
    Release,
    /// By a newer run with `--cancel-in-progress`.
    Supersede,
}

impl Verb {
    /// A new number for each request.
    fn number(self) -> u32 {
        let (_, random) = Uuid::new_v4().as_u64_pair();
        let random = u32::try_from(random & 0x1fff).unwrap_or(0) << 3;
        let verb = match self {
            Self::Wake => 0,
            Self::Break => 1,
            Self::Kill => 2,
            Self::Release => 3,
            Self::Supersede => 4,
        };
        REQUEST | random | verb
    }

    fn from_number(number: u64) -> Option<Self> {
        let number = u32::try_from(number).ok().filter(|number| number & 0xffff_0000 == REQUEST)?;
        Some(match number & 7 {
            0 => Self::Wake,
            1 => Self::Break,
            2 => Self::Kill,
            3 => Self::Release,
            4 => Self::Supersede,
            _ => return None,
        })
    }
}

/// The processes of this host that hold locks.
pub(crate) trait HolderProcesses {
    /// The processes that have a file of this name open, among those whose files we may open; and
    /// the file.
    fn with_open_file(&self, link: &str) -> Vec<(i32, File)>;

    /// Whether this process has the lock.
    fn holds(&self, pid: i32, holder: &HostHolder) -> bool;

    /// The locks of the runs that this process runs under, if we may see its environment.
    fn held(&self, pid: i32) -> Vec<AncestorLock>;

    /// Send a signal with this number to the process that has the lock, or only find it.
    fn signal(&self, holder: &HostHolder, number: Option<u32>) -> Signalled;
}

/// The kernel lock by which a holder can be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostHolder {
    pub device: u64,
    pub inode: u64,
    pub offset: u64,
    /// According to its record.
    pub pid: Option<i32>,
}

impl HostHolder {
    pub(super) fn new(file: &LockFile, offset: u64, pid: Option<i32>) -> Self {
        let (device, inode) = file.identity();
        Self { device, inode, offset, pid }
    }
}

/// The result of sending a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// The process with this ID.
    Yes(i32),
    NotFound,
    Refused,
    TooOld,
}

pub(crate) struct HostBreaker {
    /// `None` if the lock was never used.
    file: Option<LockFile>,
    who: HolderInfo,
    processes: Box<dyn HolderProcesses>,
    reason: Reason,
    /// Wakes us when a holder leaves.
    released: Option<ReleaseWatch>,
}

impl HostBreaker {
    pub(crate) fn open(
        directory: &Path,
        name: &[u8],
        who: HolderInfo,
        processes: Box<dyn HolderProcesses>,
    ) -> Result<Self, BackendError> {
        let file_name = file_name::encode(name);
        let exists = LockFile::open_to_look(directory, file_name.as_ref())?.is_some();
        let is_needed = exists || is_held_without_file(&directory.join(&file_name));
        let file = if is_needed { Some(LockFile::open(directory, name)?) } else { None };
        Ok(Self { file, who, processes, reason: Reason::Broken, released: None })
    }

    /// The holder is asked for this reason instead of a break.
    pub(crate) fn with_reason(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }
}

/// Signal the process that has locked this byte, perhaps this one; the file shows it who asks. Without
/// a verb only find it. Returns its PID, unless it has just exited.
pub(super) fn ask_run(
    file: &LockFile,
    (offset, pid): (u64, Option<i32>),
    who: &HolderInfo,
    verb: Option<Verb>,
    processes: &dyn HolderProcesses,
) -> Result<Option<i32>, BackendError> {
    let number = verb.map(Verb::number);
    let request = Record {
        claim: String::new(),
        since: BootTime::now(),
        since_ms: 0,
        mode: Mode::Exclusive,
        info: who.clone(),
        tenure: None,
    };
    if let Some(number) = number.filter(|_| verb != Some(Verb::Wake)) {
        // The holder stops without it as well.
        let _ = file.write_record(BREAK_REQUEST, number.into(), &request);
    }
    let asked = HostHolder::new(file, offset, pid);
    let problem = match processes.signal(&asked, number) {
        Signalled::Yes(pid) => return Ok(Some(pid)),
        Signalled::NotFound if is_gone(file, offset)? => return Ok(None),
        Signalled::NotFound => FileProblem::HolderNotFound,
        Signalled::Refused => FileProblem::HolderOfAnotherUser,
        Signalled::TooOld => FileProblem::HolderTooOld,
    };
    Err(file.error(problem))
}

/// The pid of a holder, according to its record: where to look first.
pub(super) fn pid_of(record: Option<Record>) -> Option<i32> {
    let info = record?.info;
    match info.renewal {
        Renewal::Keeper(keeper) => i32::try_from(keeper).ok(),
        Renewal::Run | Renewal::Nobody => info.pid.parse().ok(),
    }
}

/// Whether the holder has unlocked this byte.
pub(super) fn is_gone(file: &LockFile, offset: u64) -> Result<bool, BackendError> {
    Ok(file.locks().writer_in(byte(offset)).map_err(|e| file.io_error(&e))?.is_none())
}

impl Breaker for HostBreaker {
    fn holders(&mut self) -> Result<Vec<Holder>, BackendError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let present = Present::look(file)?;
        Ok(present.described_holders(file).into_iter().map(|(holder, _)| holder).collect())
    }

    fn done(&self) -> Option<Done> {
        self.file.as_ref()?.done()
    }

    fn forget_done(&mut self) -> Result<(), BackendError> {
        let Some(file) = &self.file else { return Ok(()) };
        let _mutex = Admission::begin(file)?;
        if Present::look(file)?.holders.is_empty() {
            file.forget_done().map_err(|e| file.io_error(&e))?;
        }
        Ok(())
    }

    fn notify(&mut self, holders: &[Holder], how: BreakMode) -> Result<Notified, BackendError> {
        let mut unreachable = Vec::new();
        let Some(file) = &self.file else { return Ok(Notified { unreachable, freed: Freed::No }) };
        if let Some(problem) = holders.iter().find_map(|holder| holder.info.protocol_problem()) {
            return Err(BackendError { at: None, problem });
        }
        let present = Present::look(file)?;
        let mut released = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
        let verb = match (how, self.reason) {
            (BreakMode::Immediate, _) => Verb::Kill,
            (BreakMode::Gentle, Reason::Broken) => Verb::Break,
            (BreakMode::Gentle, Reason::Released) => Verb::Release,
            (BreakMode::Gentle, Reason::Superseded) => Verb::Supersede,
        };
        for (Holder { id, .. }, participant) in present.described_holders(file) {
            if present.is_elsewhere {
                unreachable.push(UnreachableHolder { id, error: file.error(FileProblem::HolderElsewhere) });
                continue;
            }
            let Some(holder) = participant.filter(|_| holders.iter().any(|meant| meant.id == id)) else {
                continue;
            };
            let asked = (holder.offset, pid_of(file.record(holder.ticket)));
            match ask_run(file, asked, &self.who, Some(verb), &*self.processes) {
                Ok(_) => released.watch(holder.offset),
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
        if let Some(released) = &mut self.released {
            let _ = released.wait(until);
        }
    }

    fn frees_at_once(&self) -> bool {
        false
    }
}

/// The holder's side.
pub(super) struct HostBreakWatch {
    pub files: Arc<Vec<LockFile>>,
    /// This run was started with --cancel-in-progress. Its record, which a newer run has read, may be
    /// forged.
    pub is_cancellable: bool,
}

impl BreakWatch for HostBreakWatch {
    /// Only our user and root can send it. Any user can change the record, so it decides nothing.
    fn on_signal(&mut self, number: u64) -> Option<Notice> {
        let verb = Verb::from_number(number)?;
        let is_valid =
            |request: &Record| request.since <= BootTime::now() && request.since.elapsed() < VALID_FOR;
        // A repeated request may have replaced the one that this signal belongs to.
        let request = self.files.iter().find_map(|file| {
            let number = file.number_at(BREAK_REQUEST);
            Verb::from_number(number).and_then(|_| file.record_at(BREAK_REQUEST, number))
        });
        let by = request.filter(is_valid).map(|request| request.info).unwrap_or_default();
        let (reason, at_once) = match verb {
            Verb::Wake => return None,
            Verb::Break => (Reason::Broken, false),
            Verb::Kill => (Reason::Broken, true),
            Verb::Release => (Reason::Released, false),
            Verb::Supersede if !self.is_cancellable => return None,
            Verb::Supersede => (Reason::Superseded, false),
        };
        Some(Notice::Lost { loss: reason.loss(by), at_once })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LockDirectory;
    use super::*;

    #[test]
    fn only_a_run_that_has_agreed_is_superseded() {
        let directory = LockDirectory::new();
        let files = Arc::new(vec![directory.observer_handle()]);
        for is_cancellable in [false, true] {
            let mut holder = HostBreakWatch { files: Arc::clone(&files), is_cancellable };
            let mut is_obeyed = |verb: Verb| holder.on_signal(verb.number().into()).is_some();
            assert_eq!([Verb::Supersede, Verb::Break].map(&mut is_obeyed), [is_cancellable, true]);
        }
    }

    #[test]
    fn a_number_that_is_no_request_has_no_verb() {
        for verb in [Verb::Wake, Verb::Break, Verb::Kill, Verb::Release, Verb::Supersede] {
            assert_eq!(Verb::from_number(verb.number().into()), Some(verb));
        }
        for number in [0, 1, 3, u64::from(REQUEST) | 7, u64::from(REQUEST) << 32, u64::MAX] {
            assert_eq!(Verb::from_number(number), None, "{number}");
        }
    }
}
