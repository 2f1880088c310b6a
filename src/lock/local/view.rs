//! Looking at the locks of this host. Read-only: no file is created or written, no byte is locked
//! in a way that another process would notice, and every user who can read a lock file can look at
//! it.
//!
//! The mutex is not taken, so no process waits for us, and the result may already be out of date.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::byte_map::{ALL_PARTICIPANTS, END, MARKS, Presence, UsageMode, byte, token_byte};
use super::file_name;
use super::history::killed;
use super::lock_file::{LockFile, check_directory, unusable};
use super::name_lock::{is_held_without_file, next_look, unseen_holder};
use super::ofd_lock::LockKind;
use super::release_watch::ReleaseWatch;
use super::reservation::Reservation;
use crate::clock::BootTime;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, Detail, FileProblem, FinishedRun, History, Holder, HolderInfo, HolderKind, Listing, Mode,
    Outcome, State, Status, Usual, View, WaitProgress, WaiterStatus, glob, lock_name,
};

/// How often to look at a file that a foreign program has locked for reading.
const FOREIGN_READER_PAUSE: Duration = Duration::from_secs(1);
/// Look again after this time even if nothing has happened.
const LONGEST_SLEEP: Duration = Duration::from_hours(24);

/// The lock files in one directory.
pub(crate) struct HostView {
    directory: PathBuf,
    prefix: String,
}

impl HostView {
    pub(crate) fn new(directory: PathBuf, prefix: String) -> Self {
        Self { directory, prefix }
    }

    /// `None` if the lock was never used.
    fn open(&self, key: &[u8]) -> Result<Option<LockFile>, BackendError> {
        check_directory(&self.directory)?;
        let file_name = file_name::encode(&lock_name(&self.prefix, key));
        LockFile::open_to_look(&self.directory, OsStr::new(&file_name))
    }

    /// Blocks until no process holds the lock or waits for it, or until this moment. Does not
    /// queue: it sleeps until one of those processes leaves, and looks again. `seen` is called with
    /// each status until then.
    pub(crate) fn wait_until_idle(
        &self,
        key: &[u8],
        until: Option<BootTime>,
        seen: &mut dyn FnMut(&Status),
    ) -> Result<Status, BackendError> {
        loop {
            let file = self.open(key)?;
            let (present, status) = self.look(file.as_ref(), key)?;
            if status.is_idle() || until.is_some_and(BootTime::has_passed) {
                return Ok(status);
            }
            seen(&status);
            match file {
                Some(file) => sleep_until_change(&file, &present, until).map_err(|e| file.io_error(&e))?,
                None => drop(wait(&[], next_look(), None)),
            }
        }
    }

    /// Without a file, no process has used the lock, or the file was renamed or deleted.
    fn look(&self, file: Option<&LockFile>, key: &[u8]) -> Result<(Present, Status), BackendError> {
        let Some(file) = file else {
            let name = file_name::encode(&lock_name(&self.prefix, key));
            if !is_held_without_file(&self.directory.join(name)) {
                return Ok((Present::default(), Status::free(key.to_vec())));
            }
            let (state, holders) = (State::Held, vec![unseen_holder()]);
            let held = Status { state, holders, holder_count: 1, ..Status::free(key.to_vec()) };
            return Ok((Present::default(), held));
        };
        let present = Present::look(file)?;
        let status = present.status(file, key.to_vec(), Detail::Full);
        Ok((present, status))
    }

    /// The key, if the file belongs to a lock with our prefix.
    fn key_of(&self, file: &LockFile) -> Option<Vec<u8>> {
        let name = file.name()?;
        name.strip_prefix(lock_name(&self.prefix, b"").as_slice()).map(<[u8]>::to_vec)
    }

    /// The matching keys and their files. Skips files that cannot be read or are not lock files.
    fn for_each_file(
        &self,
        pattern: Option<&[u8]>,
        mut visit: impl FnMut(Vec<u8>, &LockFile),
    ) -> Result<(), BackendError> {
        check_directory(&self.directory)?;
        let fail = |e: &io::Error| unusable(&self.directory, FileProblem::Directory(e.to_string()));
        for entry in self.directory.read_dir().map_err(|e| fail(&e))? {
            let file_name = entry.map_err(|e| fail(&e))?.file_name();
            if !file_name::may_be_ours(&file_name) {
                continue;
            }
            let Ok(Some(file)) = LockFile::open_to_look(&self.directory, &file_name) else { continue };
            let key = self.key_of(&file);
            if let Some(key) = key.filter(|key| pattern.is_none_or(|pattern| glob::matches(pattern, key))) {
                visit(key, &file);
            }
        }
        Ok(())
    }
}

impl View for HostView {
    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(WaitProgress<'_>),
    ) -> Result<Status, BackendError> {
        self.wait_until_idle(key, until, &mut |status| observer(WaitProgress::Taken(status)))
    }

    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError> {
        Ok(self.look(self.open(key)?.as_ref(), key)?.1)
    }

    /// The holder has locked a byte for its token. Any user of the directory can write its record, and
    /// can lock that byte once the holder has exited: whose lock it is, the kernel shows to the holder's
    /// user and root only.
    fn is_owner(&mut self, status: &Status, token: &str) -> Result<bool, BackendError> {
        let Some(file) = self.open(&status.key)? else { return Ok(false) };
        let owner = file.locks().writer_in(byte(token_byte(token))).map_err(|e| file.io_error(&e))?;
        Ok(owner.is_some())
    }

    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError> {
        let Some(file) = self.open(key)? else {
            return Ok(History::new(Vec::new(), Status::free(key.to_vec())));
        };
        // Read before the log: a run that ends in between is then in both, never in neither.
        let open = file.open_records();
        let present = Present::look(&file)?;
        let logged = file.logged_runs();
        let is_over = |ticket: &u64| {
            !present.holders.iter().any(|holder| holder.ticket == *ticket)
                && !logged.iter().any(|(logged, _)| logged == ticket)
        };
        // Killed, and no process has come since to log it.
        let killed: Vec<FinishedRun> = open
            .iter()
            .filter(|(ticket, _)| is_over(ticket))
            .map(|(_, record)| killed(record, None))
            .collect();
        let runs = logged.iter().map(|(_, run)| run.clone()).chain(killed);
        let runs = runs.filter(|run| since.is_none_or(|since| run.ended_at >= since)).collect();
        Ok(History::new(runs, present.status(&file, key.to_vec(), Detail::Full)))
    }

    fn logged_keys(&mut self, pattern: Option<&[u8]>) -> Result<Vec<Vec<u8>>, BackendError> {
        let mut keys = Vec::new();
        self.for_each_file(pattern, |key, _| keys.push(key))?;
        Ok(keys)
    }

    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError> {
        let mut locks = Vec::new();
        self.for_each_file(pattern, |key, file| match Present::look(file) {
            Ok(present) if present.state() != State::Free => locks.push(present.status(file, key, detail)),
            Ok(_) | Err(_) => {}
        })?;
        Ok(Listing { locks, servers: Vec::new(), missing: Vec::new(), undecided: None })
    }
}

/// Sleeps until a holder or waiter has left, or may have.
fn sleep_until_change(file: &LockFile, present: &Present, until: Option<BootTime>) -> io::Result<()> {
    let writer = present.foreign.filter(|foreign| foreign.is_writer).map(|foreign| foreign.offset);
    let holder = present.holders.first().map(|holder| holder.offset);
    let kept_until = present.kept.iter().map(|reservation| reservation.until).max();
    // A waiter unlocks its byte when it enters, which it cannot do during a minimum hold.
    let waiter = present.waiters.first().map(|waiter| waiter.offset).filter(|_| kept_until.is_none());
    // To be woken when a read lock ends we would need a write lock, which others would notice.
    let foreign_reader = present.foreign.filter(|foreign| !foreign.is_writer);
    let pause_until = foreign_reader.map(|_| BootTime::now() + FOREIGN_READER_PAUSE);
    let pause_until = pause_until.or(present.is_elsewhere.then(next_look));
    let until = [until, kept_until, pause_until].into_iter().flatten().min();
    let mut release_watch = ReleaseWatch::new(file.locks())?;
    if let Some(offset) = holder.or(writer).or(waiter) {
        release_watch.watch(offset);
    }
    release_watch.wait(until.unwrap_or(BootTime::now() + LONGEST_SLEEP))
}

/// The processes that the kernel's locks show. The file's contents only describe them.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// In the order of the queue.
    pub waiters: Vec<Participant>,
    pub holders: Vec<Participant>,
    /// A foreign program's lock, if the lock has no holder.
    pub foreign: Option<Foreign>,
    /// Active reservations whose holder has exited.
    pub kept: Vec<Reservation>,
    /// No process holds the lock with this file, but one with a file that has lost its name.
    pub is_elsewhere: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Participant {
    pub usage: UsageMode,
    pub ticket: u64,
    pub is_sharer: bool,
    /// The byte that it has locked.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    pub offset: u64,
    /// False if the byte is locked for reading only.
    pub is_writer: bool,
    /// `None` if the kernel does not know.
    pub pid: Option<i32>,
}

impl Present {
    pub(super) fn look(file: &LockFile) -> Result<Self, BackendError> {
        Self::read(file).map_err(|e| file.io_error(&e))
    }

    fn read(file: &LockFile) -> io::Result<Self> {
        let mut present = Self::default();
        // The waiters first: one that enters in between is seen twice, not missed.
        present.add_writers(file, 0..MARKS)?;
        present.add_writers(file, MARKS..END)?;
        let Self { waiters, holders, foreign, kept, is_elsewhere } = &mut present;
        let holds = |ticket| holders.iter().any(|holder| holder.ticket == ticket);
        waiters.retain(|waiter| !holds(waiter.ticket));
        *kept = file.reservations(&file.header());
        kept.retain(|reservation| !holds(reservation.ticket));
        if !holders.is_empty() {
            *foreign = None;
        } else if foreign.is_none() {
            *foreign = foreign_reader(file)?;
        }
        // A holder locks its mark first and unlocks it last.
        let marks = MARKS..ALL_PARTICIPANTS.end;
        *is_elsewhere = holders.is_empty()
            && foreign.is_none()
            && file.is_held_elsewhere()
            && file.locks().writer_in(marks)?.is_none()
            && file.is_held_elsewhere();
        Ok(present)
    }

    fn add_writers(&mut self, file: &LockFile, range: Range<u64>) -> io::Result<()> {
        for locked in file.locks().all_conflicts_in(range, LockKind::Read)? {
            let offset = locked.start;
            let presence =
                if is_longer_than_ours(&locked) { Presence::Foreign } else { UsageMode::presence(offset) };
            let of = |usage, ticket, is_sharer| Participant { usage, ticket, is_sharer, offset };
            match presence {
                Presence::Waiter(usage, ticket) => self.waiters.push(of(usage, ticket, false)),
                Presence::Owner(usage, ticket) => self.holders.push(of(usage, ticket, false)),
                Presence::Sharer(usage, ticket) => self.holders.push(of(usage, ticket, true)),
                Presence::Other => {}
                Presence::Foreign => {
                    let pid = file.locks().pid_of_conflict(&locked, LockKind::Read)?;
                    self.foreign = Some(Foreign { offset, is_writer: true, pid });
                }
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> State {
        match (self.holders.first(), &self.foreign) {
            (Some(holder), _) if holder.usage != UsageMode::PLAIN => {
                State::Slots { of: holder.usage.slots() }
            }
            (Some(holder), _) if holder.is_sharer => State::Shared,
            (Some(_), _) => State::Held,
            (None, _) if self.is_elsewhere => State::Held,
            (None, _) if !self.kept.is_empty() => State::Kept,
            (None, Some(_)) => State::Foreign,
            (None, None) => State::Free,
        }
    }

    /// All holders, each with its participant if it lives.
    pub(super) fn described_holders(&self, file: &LockFile) -> Vec<(Holder, Option<Participant>)> {
        let living =
            self.holders.iter().map(|holder| (described(file, holder.ticket, holder.usage), Some(*holder)));
        let kept = self.kept.iter().map(|reservation| Holder {
            kind: HolderKind::Reservation,
            expires_in: Some(reservation.until.remaining()),
            ..described(file, reservation.ticket, reservation.kind.usage())
        });
        let foreign = self.foreign.iter().filter(|_| self.holders.is_empty()).map(foreign_holder);
        let unseen = self.is_elsewhere.then(unseen_holder);
        living.chain(kept.chain(foreign).chain(unseen).map(|holder| (holder, None))).collect()
    }

    pub(super) fn status(&self, file: &LockFile, key: Vec<u8>, detail: Detail) -> Status {
        let mut holders: Vec<Holder> =
            self.described_holders(file).into_iter().map(|(holder, _)| holder).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
        let waiters = match detail {
            Detail::Summary => Vec::new(),
            Detail::Full => {
                let described = self.waiters.iter().zip(1..);
                described.map(|(waiter, position)| waiter_status(file, waiter, position)).collect()
            }
        };
        Status {
            key,
            state: self.state(),
            is_wrong_type: false,
            holder_count: holders.len(),
            holders,
            waiters,
            waiter_count: self.waiters.len(),
            servers: Vec::new(),
            undecided: None,
            done: file.done(),
            usual: if detail == Detail::Full { usual(file) } else { None },
        }
    }
}

fn usual(file: &LockFile) -> Option<Usual> {
    let runs = file.logged_runs().into_iter().map(|(_, run)| run);
    let ended_well = runs.filter(|run| run.ended.how == Outcome::Released && !run.ended.has_failed());
    Usual::of(ended_well.filter_map(|run| run.held).collect())
}

fn is_longer_than_ours(locked: &Range<u64>) -> bool {
    locked.end - locked.start > 1
}

/// A foreign read lock blocks our write locks.
fn foreign_reader(file: &LockFile) -> io::Result<Option<Foreign>> {
    let mut locks = file.locks().all_conflicts_in(0..END, LockKind::Write)?.into_iter();
    let Some(locked) = locks.find(is_longer_than_ours) else { return Ok(None) };
    let pid = file.locks().pid_of_conflict(&locked, LockKind::Write)?;
    Ok(Some(Foreign { offset: locked.start, is_writer: false, pid }))
}

fn foreign_holder(foreign: &Foreign) -> Holder {
    let pid = foreign.pid.map_or_else(String::new, |pid| pid.to_string());
    let info = HolderInfo { pid, ..HolderInfo::default() };
    Holder { kind: HolderKind::Foreign, info, ..Holder::default() }
}

/// Identifies the holder with this ticket for `break`, by its claim or, without a record, its
/// ticket.
pub(super) fn holder_id(file: &LockFile, ticket: u64) -> String {
    file.record(ticket).map_or_else(|| format!("ticket {ticket}"), |record| record.claim)
}

pub(super) fn described(file: &LockFile, ticket: u64, usage: UsageMode) -> Holder {
    let Some(record) = file.record(ticket) else {
        return Holder { id: holder_id(file, ticket), mode: usage.mode(), ..Holder::default() };
    };
    let has_slot = usage != UsageMode::PLAIN;
    let held_for = record.since.elapsed();
    Holder {
        kind: HolderKind::Run,
        info: record.info,
        // A lock with one slot is an exclusive lock.
        mode: if has_slot || matches!(record.mode, Mode::Slot { .. }) { usage.mode() } else { record.mode },
        token: Some(record.claim.clone()).filter(|claim| !claim.is_empty()),
        id: record.claim,
        fence: record.tenure.map(|tenure| tenure.fence),
        slot: record.tenure.filter(|_| has_slot).map(|tenure| tenure.slot),
        since: SystemTime::now().checked_sub(held_for),
        waited: record.tenure.map(|tenure| tenure.waited),
        held_for: Some(held_for),
        expires_in: record.tenure.and_then(|tenure| tenure.until).map(BootTime::remaining),
        broken_by: None,
    }
}

fn waiter_status(file: &LockFile, waiter: &Participant, position: usize) -> WaiterStatus {
    let record = file.waiter_record(waiter.ticket);
    let waited = record.as_ref().map(|record| record.since.elapsed());
    let (info, mode) = record
        .map_or_else(|| (HolderInfo::default(), waiter.usage.mode()), |record| (record.info, record.mode));
    WaiterStatus { info, mode, position, waited }
}
