//! Extending and releasing a lock by its token alone. Only the process that holds the lock can do
//! it: a keeper receives a request over its socket, a run receives a signal. If there is no such
//! process, the file shows what became of the grant.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::PollFlags;

use super::break_request::{RELEASE, SignalHolder, ask_run, is_gone, pid_of};
use super::file_name;
use super::lock_file::{LockFile, check_directory};
use super::release_watch::ReleaseWatch;
use super::view::{Participant, Present};
use crate::clock::BootTime;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, Bearer, Claim, Extended, Fields, FileProblem, HolderInfo, Lease, Loss, Outcome, Problem,
    Released, Votes,
};

/// How long a run may take to stop its command and to release the lock.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

const RELEASED: &[u8] = b"released";
const EXTENDED: &[u8] = b"extended";
const OTHER: &[u8] = b"other";
/// Followed by the number of locks that the keeper holds, if the request names fewer or more.
const LOCKS: &str = "locks ";

/// Sends a request to the keeper with this name.
pub(crate) type AskKeeper = Box<dyn Fn(&str, &[u8]) -> KeeperReply>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeeperReply {
    Received(Vec<u8>),
    NotThere,
    /// The keeper belongs to another user.
    Refused,
    /// The keeper is stopped, or busy.
    Silent,
}

/// A request to a keeper on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeeperRequest {
    Release {
        by: HolderInfo,
    },
    /// `None` = forever.
    Extend {
        ttl: Option<Duration>,
    },
}

impl KeeperRequest {
    /// The keeper must hold all of these files.
    fn to_bytes(&self, files: &[LockFile]) -> Vec<u8> {
        let mut text = String::new();
        for (device, inode) in files.iter().map(LockFile::identity) {
            let _ = write!(text, "{device}:{inode} ");
        }
        let mut bytes = format!("{text}\0").into_bytes();
        match self {
            Self::Release { by } => {
                bytes.extend(b"release\0");
                bytes.extend(by.fields().into_zero_terminated());
            }
            Self::Extend { ttl } => {
                bytes.extend(format!("extend\0{}", ttl.map_or(0, |ttl| ttl.as_millis())).bytes());
            }
        }
        bytes
    }

    /// Returns the reply as an error if the message is invalid, or does not name exactly these
    /// files (by device and inode): a token covers all of them.
    pub(crate) fn parse(message: &[u8], files: &[(u64, u64)]) -> Result<Self, Vec<u8>> {
        let mut parts = message.split(|&byte| byte == 0).map(<[u8]>::to_vec);
        let named = parts.next().and_then(|named| String::from_utf8(named).ok()).unwrap_or_default();
        let file = |text: &str| -> Option<(u64, u64)> {
            let (device, inode) = text.split_once(':')?;
            Some((device.parse().ok()?, inode.parse().ok()?))
        };
        let named: Vec<_> = named.split_ascii_whitespace().map(file).collect();
        let is_ours = |file: &Option<(u64, u64)>| file.is_some_and(|file| files.contains(&file));
        if named.iter().any(is_ours) && named.len() != files.len() {
            return Err(format!("{LOCKS}{}", files.len()).into());
        }
        let is_about_us = !named.is_empty() && named.iter().all(is_ours);
        let request = if is_about_us { Self::parse_verb(parts) } else { None };
        request.ok_or_else(|| OTHER.to_vec())
    }

    fn parse_verb(mut parts: impl Iterator<Item = Vec<u8>>) -> Option<Self> {
        match parts.next()?.as_slice() {
            b"release" => Some(Self::Release {
                by: HolderInfo::from_fields(&Fields::from_list(&parts.collect::<Vec<_>>())),
            }),
            b"extend" => {
                let ttl: u64 = String::from_utf8(parts.next()?).ok()?.parse().ok()?;
                Some(Self::Extend { ttl: (ttl > 0).then(|| Duration::from_millis(ttl)) })
            }
            _ => None,
        }
    }

    /// The reply when it is done.
    pub(crate) fn done(&self) -> &'static [u8] {
        match self {
            Self::Release { .. } => RELEASED,
            Self::Extend { .. } => EXTENDED,
        }
    }
}

pub(crate) struct HostBearer {
    directory: PathBuf,
    names: Vec<Vec<u8>>,
    /// `None` if one of the locks was never used.
    files: Option<Vec<LockFile>>,
    claim: Claim,
    who: HolderInfo,
    ttl: Option<Duration>,
    ask_keeper: AskKeeper,
    signal_holder: SignalHolder,
}

/// The result of a request to the holder.
enum BearerOutcome {
    Done,
    Lost(Loss),
    Failed(BackendError),
    /// A run holds the lock: the index of each file, and the run's lock on it.
    HeldByRun(Vec<(usize, Participant)>),
}

impl HostBearer {
    pub(crate) fn open(
        directory: &Path,
        names: &[Vec<u8>],
        (claim, who): (Claim, HolderInfo),
        ttl: Option<Duration>,
        (ask_keeper, signal_holder): (AskKeeper, SignalHolder),
    ) -> Result<Self, BackendError> {
        check_directory(directory)?;
        let look = |name: &Vec<u8>| LockFile::open_to_look(directory, OsStr::new(&file_name::encode(name)));
        let files: Vec<Option<LockFile>> = names.iter().map(look).collect::<Result<_, _>>()?;
        let (directory, names) = (directory.to_owned(), names.to_vec());
        let files = files.into_iter().collect();
        Ok(Self { directory, names, files, claim, who, ttl, ask_keeper, signal_holder })
    }

    fn ask(&self, request: &KeeperRequest) -> BearerOutcome {
        let Some(files) = &self.files else { return BearerOutcome::Lost(Loss::Expired) };
        match (self.ask_keeper)(&self.claim.to_string(), &request.to_bytes(files)) {
            KeeperReply::Received(reply) if reply == request.done() => self.confirm(request, files),
            KeeperReply::Refused => BearerOutcome::Failed(files[0].error(FileProblem::HolderOfAnotherUser)),
            KeeperReply::Silent => BearerOutcome::Failed(self.silent_keeper(files)),
            KeeperReply::Received(reply) if reply.starts_with(LOCKS.as_bytes()) => {
                let count = String::from_utf8_lossy(&reply[LOCKS.len()..]).parse().unwrap_or(files.len());
                BearerOutcome::Failed(BackendError { at: None, problem: Problem::OtherLockCount(count) })
            }
            KeeperReply::Received(_) | KeeperReply::NotThere => {
                self.look(files).unwrap_or_else(BearerOutcome::Failed)
            }
        }
    }

    fn silent_keeper(&self, files: &[LockFile]) -> BackendError {
        let pid = match self.look(files) {
            Ok(BearerOutcome::HeldByRun(held)) => {
                held.first().and_then(|(at, holder)| pid_of(&files[*at], holder))
            }
            Ok(BearerOutcome::Done | BearerOutcome::Lost(_) | BearerOutcome::Failed(_)) | Err(_) => None,
        };
        files[0].error(FileProblem::HolderSilent { pid, is_keeper: true })
    }

    /// After a keeper has exited, any process that knows the token can take its name. So a lock
    /// that it claims to have extended must still be held.
    fn confirm(&self, request: &KeeperRequest, files: &[LockFile]) -> BearerOutcome {
        match request {
            KeeperRequest::Release { .. } => BearerOutcome::Done,
            KeeperRequest::Extend { .. } => match self.look(files) {
                Ok(BearerOutcome::HeldByRun(_)) => BearerOutcome::Done,
                other => other.unwrap_or_else(BearerOutcome::Failed),
            },
        }
    }

    /// What the files show about the grant.
    fn look(&self, files: &[LockFile]) -> Result<BearerOutcome, BackendError> {
        let claim = self.claim.to_string();
        let (mut ours, mut is_held, mut ended) = (Vec::new(), false, None);
        for (at, file) in files.iter().enumerate() {
            let present = Present::look(file)?;
            let is_ours = |holder: &&Participant| {
                file.record(holder.ticket).is_some_and(|record| record.claim == claim)
            };
            let holder = present.holders.iter().find(is_ours).copied();
            is_held |= !present.holders.is_empty() || present.foreign.is_some();
            ours.extend(holder.map(|holder| (at, holder)));
            let logged = file.logged_runs().into_iter().rev();
            ended =
                ended.or(logged.map(|(_, run)| run).find(|run| run.token == claim).map(|run| run.ended.how));
        }
        if ours.len() == files.len() {
            return Ok(BearerOutcome::HeldByRun(ours));
        }
        Ok(BearerOutcome::Lost(match ended {
            Some(Outcome::Broken { by }) => Loss::Broken { by },
            Some(how) if how.is_clean() => Loss::Released { by: Box::default() },
            _ if is_held => Loss::Foreign,
            Some(_) | None => Loss::Expired,
        }))
    }

    /// The run stops its command and releases all its locks.
    fn release_run(&self, held: &[(usize, Participant)]) -> Result<Released, BackendError> {
        let Some((at, holder)) = held.first() else { return Ok(Released::Lost(Loss::Expired)) };
        // Opened for writing, for the request.
        let file = &LockFile::open(&self.directory, &self.names[*at])?;
        let mut watch = ReleaseWatch::new(file.locks()).map_err(|e| file.io_error(&e))?;
        watch.watch(holder.offset).map_err(|e| file.io_error(&e))?;
        ask_run(file, holder, &self.who, RELEASE, &self.signal_holder)?;
        let until = BootTime::now() + STOP_TIMEOUT;
        while !until.has_passed() {
            if is_gone(file, holder)? {
                return Ok(Released::Done(Vec::new()));
            }
            wait(&[(watch.wake_fd(), PollFlags::POLLIN)], until, None);
        }
        Err(file.error(FileProblem::HolderSilent { pid: pid_of(file, holder), is_keeper: false }))
    }
}

impl Bearer for HostBearer {
    fn extend(&mut self) -> Extended {
        let lease = Lease::new(BootTime::now(), self.ttl.unwrap_or(Duration::MAX / 4));
        match self.ask(&KeeperRequest::Extend { ttl: self.ttl }) {
            // The lock of a run has no lease: it is held while the run lives.
            BearerOutcome::Done | BearerOutcome::HeldByRun(_) => Extended::Until(lease, Votes::default()),
            BearerOutcome::Lost(loss) => Extended::Lost(loss),
            BearerOutcome::Failed(error) => Extended::Unknown(error),
        }
    }

    fn release(&mut self) -> Released {
        match self.ask(&KeeperRequest::Release { by: self.who.clone() }) {
            BearerOutcome::Done => Released::Done(Vec::new()),
            BearerOutcome::HeldByRun(held) => self.release_run(&held).unwrap_or_else(Released::Unknown),
            BearerOutcome::Lost(loss) => Released::Lost(loss),
            BearerOutcome::Failed(error) => Released::Unknown(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_reads_back_for_the_same_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let files = [LockFile::open(directory.path(), b"lock:a").unwrap()];
        let known = [files[0].identity()];
        let by = HolderInfo { user: "alice".into(), label: "\u{fc}".into(), ..HolderInfo::default() };
        for request in [
            KeeperRequest::Release { by },
            KeeperRequest::Extend { ttl: None },
            KeeperRequest::Extend { ttl: Some(Duration::from_secs(5)) },
        ] {
            let bytes = request.to_bytes(&files);
            assert_eq!(KeeperRequest::parse(&bytes, &known), Ok(request));
            assert_eq!(KeeperRequest::parse(&bytes, &[(1, 2)]), Err(OTHER.to_vec()), "another file");
            let both = [known[0], (1, 2)];
            assert_eq!(KeeperRequest::parse(&bytes, &both), Err(b"locks 2".to_vec()), "one of two");
            let verb = bytes.iter().position(|byte| *byte == 0).expect("after the files");
            assert_eq!(KeeperRequest::parse(&bytes[verb..], &known), Err(OTHER.to_vec()), "no file");
        }
    }

    proptest! {
        #[test]
        fn parsing_survives_any_bytes(bytes: Vec<u8>) {
            let _ = KeeperRequest::parse(&bytes, &[]);
        }
    }
}
