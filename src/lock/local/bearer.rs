//! Extending and releasing a lock by its token alone. Only the process that holds the lock can do
//! it: it gets a signal, and a keeper also finds the new lease in its control file (control.rs). If
//! there is no such process, the file shows what became of the grant.
//!
//! Any user of the directory can write into the lock file. So a holder is recognized by the byte that
//! it has locked for its token, and a keeper by its control file as well, not by their records.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::break_request::{HolderProcesses, HostHolder, Verb, ask_run, is_gone, pid_of};
use super::byte_map::token_byte;
use super::control::{self, KeeperControl};
use super::file_name;
use super::lock_file::{LockFile, check_directory, unusable};
use super::name_lock::is_held_without_file;
use super::record::Record;
use super::release_watch::ReleaseWatch;
use super::view::Present;
use crate::clock::BootTime;
use crate::lock::{
    BackendError, Bearer, Claim, Extended, FileProblem, HolderInfo, Lease, Loss, Outcome, Problem, Released,
    Renewal, Votes,
};

/// How long a run may take to stop its command and to release the lock.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a keeper may take to extend its lock.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct HostBearer {
    directory: PathBuf,
    names: Vec<Vec<u8>>,
    /// `None` if one of the locks was never used.
    files: Option<Vec<LockFile>>,
    claim: Claim,
    who: HolderInfo,
    ttl: Option<Duration>,
    processes: Box<dyn HolderProcesses>,
}

/// A process that holds the locks: for its token it has locked a byte of each file.
struct TokenHolder {
    /// If known; of a run, from its record.
    pid: Option<i32>,
    /// Of a keeper that we may ask.
    control: Option<KeeperControl>,
}

/// The grant, according to the kernel's locks and the files.
enum Grantee {
    /// Usually one.
    Holds(Vec<TokenHolder>),
    Lost(Loss),
}

impl HostBearer {
    pub(crate) fn open(
        directory: &Path,
        names: &[Vec<u8>],
        (claim, who): (Claim, HolderInfo),
        ttl: Option<Duration>,
        processes: Box<dyn HolderProcesses>,
    ) -> Result<Self, BackendError> {
        check_directory(directory)?;
        let look = |name: &Vec<u8>| LockFile::open_to_look(directory, OsStr::new(&file_name::encode(name)));
        let files: Vec<Option<LockFile>> = names.iter().map(look).collect::<Result<_, _>>()?;
        let (directory, names) = (directory.to_owned(), names.to_vec());
        let files = files.into_iter().collect();
        Ok(Self { directory, names, files, claim, who, ttl, processes })
    }

    fn find(&self, files: &[LockFile]) -> Result<Grantee, BackendError> {
        let keepers = self.keepers(files)?;
        if keepers.is_empty() { self.look(files) } else { Ok(Grantee::Holds(keepers)) }
    }

    /// The keepers of this token that hold these files and no others: a token covers all of them.
    fn keepers(&self, files: &[LockFile]) -> Result<Vec<TokenHolder>, BackendError> {
        let named: Vec<_> = files.iter().map(LockFile::identity).collect();
        let mut keepers = Vec::new();
        for (pid, file) in self.processes.with_open_file(&control::link(&self.claim)) {
            // Root may open the files of all users, who can give them any name.
            let holds = |file| self.processes.holds(pid, &HostHolder::new(file, self.byte(), Some(pid)));
            if !files.iter().any(holds) {
                continue;
            }
            let control = KeeperControl::new(file);
            let kept = control.files();
            if named.iter().any(|file| kept.contains(file)) && named.len() != kept.len() {
                return Err(BackendError { at: None, problem: Problem::OtherLockCount(kept.len()) });
            }
            if files.iter().all(holds) {
                self.check_protocol(&files[0], &control)?;
                keepers.push(TokenHolder { pid: Some(pid), control: Some(control) });
            }
        }
        Ok(keepers)
    }

    /// The byte that the holder of the token has locked.
    fn byte(&self) -> u64 {
        token_byte(&self.claim.to_string())
    }

    /// What its record says about the holder; any user may have written it.
    fn record(&self, file: &LockFile) -> Option<Record> {
        let claim = self.claim.to_string();
        file.open_records().into_iter().map(|(_, record)| record).find(|record| record.claim == claim)
    }

    /// The number in the record could keep a token from its keeper. The version only explains.
    fn check_protocol(&self, file: &LockFile, control: &KeeperControl) -> Result<(), BackendError> {
        let recorded = self.record(file).map(|record| record.info).unwrap_or_default();
        let info = HolderInfo { protocol: control.protocol(), ..recorded };
        info.protocol_problem().map_or(Ok(()), |problem| Err(BackendError { at: None, problem }))
    }

    /// Without a file there is no grant, unless the file was renamed or deleted.
    fn check_names(&self) -> Result<(), BackendError> {
        let mut paths = self.names.iter().map(|name| self.directory.join(file_name::encode(name)));
        match paths.find(|path| is_held_without_file(path)) {
            Some(path) => Err(unusable(&path, FileProblem::HolderElsewhere)),
            None => Ok(()),
        }
    }

    /// What the files show about the grant.
    fn look(&self, files: &[LockFile]) -> Result<Grantee, BackendError> {
        let claim = self.claim.to_string();
        let (mut ours, mut is_held, mut ended) = (0, false, None);
        for file in files {
            let present = Present::look(file)?;
            if present.is_elsewhere {
                return Err(file.error(FileProblem::HolderElsewhere));
            }
            is_held |= !present.holders.is_empty() || present.foreign.is_some();
            ours += usize::from(!is_gone(file, self.byte())?);
            let logged = file.logged_runs().into_iter().rev();
            ended =
                ended.or(logged.map(|(_, run)| run).find(|run| run.token == claim).map(|run| run.ended.how));
        }
        if ours == files.len() {
            let pid = pid_of(self.record(&files[0]));
            return Ok(Grantee::Holds(vec![TokenHolder { pid, control: None }]));
        }
        Ok(Grantee::Lost(match ended {
            Some(Outcome::Broken { by }) => Loss::Broken { by },
            Some(Outcome::Replaced { by }) => Loss::Superseded { by },
            Some(how) if how.is_clean() => Loss::Released { by: Box::default() },
            _ if is_held => Loss::Foreign,
            Some(_) | None => Loss::Expired,
        }))
    }

    /// The process stops its command, if it has one, and releases all its locks.
    fn ask_to_release(&self, found: &TokenHolder) -> Result<(), BackendError> {
        // The first file, opened for writing, for the request.
        let file = &LockFile::open(&self.directory, &self.names[0])?;
        let mut watch = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
        let pid = ask_run(file, (self.byte(), found.pid), &self.who, Some(Verb::Release), &*self.processes)?;
        match watch.wait_for_release(self.byte(), BootTime::now() + STOP_TIMEOUT) {
            Ok(true) => Ok(()),
            Ok(false) => Err(file.error(FileProblem::HolderSilent { pid })),
            Err(error) => Err(file.io_error(&error)),
        }
    }

    /// False if the lock is no longer held.
    fn ask_to_extend(&self, file: &LockFile, found: &TokenHolder) -> Result<bool, BackendError> {
        let holder = (self.byte(), found.pid);
        let is_run = self.record(file).is_none_or(|record| record.info.renewal == Renewal::Run);
        let Some(control) = &found.control else {
            let pid = ask_run(file, holder, &self.who, None, &*self.processes)?;
            // The lock of a run has no lease: it is held while the run lives.
            return if is_run { Ok(pid.is_some()) } else { Err(file.error(FileProblem::HolderTooOld)) };
        };
        let until = BootTime::now() + EXTEND_TIMEOUT;
        let pending = control.request(self.ttl, until).map_err(|e| file.io_error(&e))?;
        let pid = ask_run(file, holder, &self.who, Some(Verb::Wake), &*self.processes)?;
        let is_handled = pending.is_some_and(|mut pending| pending.wait(until));
        match is_gone(file, self.byte())? {
            true => Ok(false),
            false if is_handled => Ok(true),
            false => Err(file.error(FileProblem::HolderSilent { pid })),
        }
    }

    fn try_extend(&self) -> Result<Extended, BackendError> {
        let lease = Lease::new(BootTime::now(), self.ttl.unwrap_or(Duration::MAX / 4));
        let Some(files) = &self.files else {
            self.check_names()?;
            return Ok(Extended::Lost(Loss::Expired));
        };
        match self.find(files)? {
            Grantee::Lost(loss) => return Ok(Extended::Lost(loss)),
            Grantee::Holds(found) => {
                for found in &found {
                    if !self.ask_to_extend(&files[0], found)? {
                        return Ok(Extended::Lost(Loss::Expired));
                    }
                }
            }
        }
        Ok(Extended::Until(lease, Votes::default()))
    }

    fn try_release(&self) -> Result<Released, BackendError> {
        let Some(files) = &self.files else {
            self.check_names()?;
            return Ok(Released::Lost(Loss::Expired));
        };
        match self.find(files)? {
            Grantee::Lost(loss) => Ok(Released::Lost(loss)),
            Grantee::Holds(found) => {
                found.iter().try_for_each(|found| self.ask_to_release(found))?;
                Ok(Released::Done(Vec::new()))
            }
        }
    }
}

impl Bearer for HostBearer {
    fn extend(&mut self) -> Extended {
        self.try_extend().unwrap_or_else(Extended::Unknown)
    }

    fn release(&mut self) -> Released {
        self.try_release().unwrap_or_else(Released::Unknown)
    }
}
