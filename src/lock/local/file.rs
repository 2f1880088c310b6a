//! The lock file: where it is, who may open it, and what is written in it.
//!
//! What is written is a convenience (the next ticket, the last fencing token, who holds it); who holds
//! the lock is decided by the kernel alone, so nobody gets in by truncating or rewriting the file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc;
use nix::poll::PollFlags;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, fstatfs};
use uuid::Uuid;

use super::ranges::{Kind, Ranges};
use crate::lock::later::Later;
use crate::lock::wait::{Wait, wait};
use crate::lock::{BootTime, Error, Fault, NodeError, Observer, Who};

/// Tickets are bytes below this; the short lock on the counter is one above.
const TICKETS_END: u64 = 1 << 61;
const COUNTER: Range<u64> = 1 << 62..(1 << 62) + 1;

/// Next ticket and last fencing token, eight bytes each; then the records.
const HEADER: usize = 16;
/// Others are in and out within microseconds.
const TURN_COMES_WITHIN: Duration = Duration::from_secs(5);
const RECORD: usize = 1024;
const RECORDS: u64 = 64;

/// A year. Tokens are milliseconds, and more than one in each is not granted for long.
const FAR_FUTURE_MS: u64 = 365 * 24 * 3600 * 1000;

/// Where all users of a host can meet, the first that is there.
const FOLDERS: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];

/// Not in nix: the one that today's Windows shares are mounted as.
const SMB2_SUPER_MAGIC: i64 = 0xfe53_4d42;
const LONGEST_NAME: usize = 200;

/// How the folder of the lock file is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mount {
    OnThisHost,
    OverNetwork,
}

/// A folder of the system in which everyone may make files and nobody may delete another's.
pub fn default_folder() -> Option<PathBuf> {
    let is_shared = |path: &&&str| {
        fs::symlink_metadata(path)
            .is_ok_and(|folder| folder.is_dir() && folder.uid() == 0 && folder.mode() & 0o1002 == 0o1002)
    };
    FOLDERS.iter().find(is_shared).map(PathBuf::from)
}

/// What a holder has written about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub claim: String,
    pub since: BootTime,
    pub who: Who,
}

impl Record {
    fn to_bytes(&self, ticket: u64) -> [u8; RECORD] {
        let since = self.since.as_nanos().to_string();
        let mut text = vec![self.claim.as_str(), &since];
        for (name, value) in self.who.fields() {
            text.extend([name, value]);
        }
        let text = text.iter().flat_map(|part| part.bytes().filter(|&b| b != 0).chain([0]));
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&ticket.to_le_bytes());
        for (place, byte) in bytes[8..].iter_mut().zip(text) {
            *place = byte;
        }
        bytes
    }

    /// `None` if it is another ticket's, or no record at all.
    fn from_bytes(bytes: &[u8; RECORD], ticket: u64) -> Option<Self> {
        let (owner, text) = bytes.split_at(8);
        let mut parts = text.split(|&b| b == 0).map(<[u8]>::to_vec);
        let claim = String::from_utf8(parts.next()?).ok()?;
        let since = String::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let fields: Vec<Vec<u8>> = parts.collect();
        (owner == ticket.to_le_bytes()).then(|| Self {
            claim,
            since: BootTime::from_nanos(since),
            who: Who::from_fields(&fields),
        })
    }
}

pub struct LockFile {
    path: PathBuf,
    ranges: Ranges,
}

impl LockFile {
    pub fn open(folder: &Path, name: &[u8]) -> Result<Self, NodeError> {
        let path = folder.join(file_name(name));
        let fail = |fault, text: String| NodeError { fault, node: path.display().to_string(), text };
        let about =
            fs::metadata(folder).map_err(|e| fail(Fault::Unfit, format!("cannot use the folder: {e}")))?;
        if !about.is_dir() {
            return Err(fail(Fault::Unfit, "--local-dir is not a folder".into()));
        }
        if about.mode() & 0o1002 == 0o0002 {
            let text =
                "everyone may delete files in this folder: set its sticky bit (chmod +t) or name another";
            return Err(fail(Fault::Unfit, text.into()));
        }
        // Whoever may make files in the folder may use the locks in it.
        let file = open_or_make(&path, about.mode() & 0o666).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied if path.exists() => {
                fail(Fault::Refused, "no permission to use this lock file; it belongs to another user".into())
            }
            io::ErrorKind::PermissionDenied => {
                fail(Fault::Refused, "no permission to make a lock file in this folder".into())
            }
            _ if e.raw_os_error() == Some(libc::ELOOP) => {
                fail(Fault::Refused, "is a symbolic link, which is not followed; remove it".into())
            }
            _ if matches!(e.raw_os_error(), Some(libc::EISDIR | libc::ENXIO)) => {
                fail(Fault::Refused, "is not a plain file; remove it".into())
            }
            _ => fail(Fault::Unavailable, e.to_string()),
        })?;
        let about = file.metadata().map_err(|e| fail(Fault::Unavailable, e.to_string()))?;
        if !about.is_file() || about.nlink() > 1 {
            return Err(fail(Fault::Refused, "is not a plain file of its own; remove it".into()));
        }
        Ok(Self { path, ranges: Ranges::new(file) })
    }

    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Tells it from every other file of this host.
    pub fn identity(&self) -> (u64, u64) {
        self.ranges.file().metadata().map_or((0, 0), |about| (about.dev(), about.ino()))
    }

    pub fn mount(&self) -> Mount {
        let over_network = [NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, FsType(SMB2_SUPER_MAGIC)];
        match fstatfs(self.ranges.file()) {
            Ok(about) if over_network.contains(&about.filesystem_type()) => Mount::OverNetwork,
            _ => Mount::OnThisHost,
        }
    }

    /// Alone with the file, for as long as the answer lives: a few system calls. Whoever stays longer is not
    /// redlock, or is stopped.
    pub fn enter(&self, observer: &mut dyn Observer) -> Result<Turn<'_>, Error> {
        let fail = |e: &io::Error| Error::Node(self.error(Fault::Unavailable, e));
        if !self.ranges.try_lock(COUNTER, Kind::Write).map_err(|e| fail(&e))? {
            let ranges = self.ranges.clone_handle().map_err(|e| fail(&e))?;
            let turn =
                Later::start("turn", move || ranges.lock(COUNTER, Kind::Write)).map_err(|e| fail(&e))?;
            let until = BootTime::now() + TURN_COMES_WITHIN;
            loop {
                match wait(&[(turn.bell(), PollFlags::POLLIN)], until, Some(&mut *observer)) {
                    Wait::Ready => break,
                    Wait::Cancelled => return Err(Error::Cancelled),
                    Wait::Over if until.has_passed() => {
                        let text = "somebody keeps this file locked as a whole, which redlock never does";
                        return Err(Error::Node(self.error_text(Fault::Unavailable, text)));
                    }
                    Wait::Over => {}
                }
            }
            turn.answer().unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into())).map_err(|e| fail(&e))?;
        }
        let turn = Turn { file: self };
        match self.ranges.file().metadata() {
            Ok(about) if about.nlink() == 0 => {
                Err(Error::Node(self.error_text(Fault::Unavailable, "was deleted while in use; try again")))
            }
            Ok(_) => Ok(turn),
            Err(e) => Err(fail(&e)),
        }
    }

    /// What the holder of this ticket has written, if it still stands there.
    pub fn record(&self, ticket: u64) -> Option<Record> {
        let mut bytes = [0; RECORD];
        self.ranges.file().read_exact_at(&mut bytes, record_place(ticket)).ok()?;
        Record::from_bytes(&bytes, ticket)
    }

    pub fn error(&self, fault: Fault, error: &io::Error) -> NodeError {
        self.error_text(fault, &error.to_string())
    }

    pub fn error_text(&self, fault: Fault, text: &str) -> NodeError {
        NodeError { fault, node: self.path.display().to_string(), text: text.into() }
    }
}

/// The right to change the file's contents.
pub struct Turn<'a> {
    file: &'a LockFile,
}

impl Turn<'_> {
    fn ranges(&self) -> &Ranges {
        &self.file.ranges
    }

    /// The lock itself, if nobody earlier is in the way.
    pub fn try_all_before(&self, ticket: u64, kind: Kind) -> Result<bool, NodeError> {
        self.ranges().try_lock(0..ticket, kind).map_err(|e| self.file.error(Fault::Unavailable, &e))
    }

    /// A ticket larger than all that are in use, and its byte locked.
    pub fn draw_ticket(&mut self, kind: Kind) -> Result<u64, NodeError> {
        let fail = |e| self.file.error(Fault::Unavailable, &e);
        let [next, fence] = self.header();
        let mut ticket = next.clamp(1, TICKETS_END / 2);
        // The file's word is not enough: it may have been truncated under us.
        while ticket < TICKETS_END
            && let Some(locked) = self.ranges().any_locked_in(ticket..TICKETS_END).map_err(fail)?
        {
            ticket = locked.end;
        }
        if ticket >= TICKETS_END || !self.ranges().try_lock(ticket..ticket + 1, kind).map_err(fail)? {
            return Err(self.file.error_text(Fault::Unavailable, "somebody locks it who is not redlock"));
        }
        self.write_header([ticket + 1, fence])?;
        Ok(ticket)
    }

    /// Write down that the ticket's owner holds the lock now. Returns its fencing token.
    pub fn sign(&mut self, ticket: u64, record: &Record) -> Result<u64, NodeError> {
        let [next, last] = self.header();
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = u64::try_from(millis).unwrap_or(u64::MAX);
        // A token from the far future is somebody's scribble.
        let fence = if last > now.saturating_add(FAR_FUTURE_MS) { now } else { now.max(last + 1) };
        self.write_header([next, fence])?;
        self.write(&record.to_bytes(ticket), record_place(ticket))?;
        Ok(fence)
    }

    /// Zeros if there is none yet, or it makes no sense.
    fn header(&self) -> [u64; 2] {
        let mut bytes = [0; HEADER];
        if self.file.ranges.file().read_exact_at(&mut bytes, 0).is_err() {
            return [0, 0];
        }
        let number = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        [number(0), number(8)]
    }

    fn write_header(&self, [next, fence]: [u64; 2]) -> Result<(), NodeError> {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&next.to_le_bytes());
        bytes[8..].copy_from_slice(&fence.to_le_bytes());
        self.write(&bytes, 0)
    }

    fn write(&self, bytes: &[u8], place: u64) -> Result<(), NodeError> {
        self.file
            .ranges
            .file()
            .write_all_at(bytes, place)
            .map_err(|e| self.file.error(Fault::Unavailable, &e))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.file.ranges.unlock(COUNTER);
    }
}

fn record_place(ticket: u64) -> u64 {
    HEADER as u64 + ticket % RECORDS * RECORD as u64
}

/// Never through a symbolic link, never truncating, never waiting for a pipe's other end. Asks to create
/// only where nothing is: Linux refuses that for another's file in a folder like /tmp.
fn open_or_make(path: &Path, mode: u32) -> io::Result<File> {
    let mut existing = OpenOptions::new();
    existing.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    loop {
        match existing.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        // Whatever the umask says: others are to use it too, and from the first moment.
        let usual = umask(Mode::empty());
        let made = existing.clone().create_new(true).mode(mode).open(path);
        umask(usual);
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
}

/// Readable, and different for different keys: harmless characters stand for themselves, all others as
/// %XX, and what would be too long for a file name as a digest.
fn file_name(name: &[u8]) -> String {
    let mut encoded = String::from("redlock-");
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"_-".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() > LONGEST_NAME {
        encoded.truncate(LONGEST_NAME / 2);
        encoded.push_str(&format!("~{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, name)));
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_its_tickets() {
        let who = Who { host: "web1".into(), label: "x\0y".into(), ..Who::default() };
        let record = Record { claim: "c.1".into(), since: BootTime::from_nanos(42), who };
        let bytes = record.to_bytes(7);
        assert_eq!(Record::from_bytes(&bytes, 7).unwrap().who.host, "web1");
        assert_eq!(Record::from_bytes(&bytes, 8), None);
        assert_eq!(Record::from_bytes(&[0; RECORD], 0), None);
    }

    #[test]
    fn odd_keys_become_harmless_names() {
        assert_eq!(file_name(b"lock:deploy"), "redlock-lock%3Adeploy");
        assert_eq!(file_name(b"../a b"), "redlock-%2E%2E%2Fa%20b");
        assert_ne!(file_name(&[b'x'; 400]), file_name(&[b'x'; 401]));
    }

    proptest! {
        #[test]
        fn every_key_has_a_short_plain_name(name: Vec<u8>) {
            let name = file_name(&name);
            prop_assert!(name.len() < 255 && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
        }

        #[test]
        fn different_keys_have_different_files(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }

        #[test]
        fn no_bytes_can_upset_a_record(bytes: Vec<u8>) {
            let mut record = [0; RECORD];
            record.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let _ = Record::from_bytes(&record, 0);
        }
    }
}
