//! Requests to a keeper on this host. A keeper has a file in memory that is named after its token.
//! The kernel opens it, through /proc, for processes of the keeper's user and for root only: other
//! users have nothing to connect to, and cannot take its name.
//!
//!     0    number of the last request
//!     8    its ttl in milliseconds; 0 = forever
//!     16   number of the last request that was handled
//!     24   the keeper's protocol
//!     32   the lock files, by device and inode, as text
//!
//! The keeper has locked the bytes from the number of the first unhandled request on, so a client
//! that waits for its byte learns that its request was handled, or that the keeper has exited.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::MFD_NOEXEC_SEAL;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::byte_map::END;
use super::format::number;
use super::ofd_lock::{LockKind, OfdLocks};
use super::release_watch::ReleaseWatch;
use crate::clock::BootTime;
use crate::lock::{Claim, PROTOCOL};

const HANDLED: u64 = 16;
const KEEPER_PROTOCOL: u64 = 24;
const FILES: u64 = 32;
/// Enough for the identities of more keys than a command line can name.
const LONGEST: usize = 1024 * 1024;

/// Between two attempts to be the only client that writes a request.
const PAUSE: Duration = Duration::from_millis(1);

fn name(claim: &Claim) -> String {
    format!("redlock-keeper-{claim}")
}

/// What /proc shows as the target of the file's descriptor.
pub(super) fn link(claim: &Claim) -> String {
    format!("/memfd:{} (deleted)", name(claim))
}

/// Hardened hosts refuse a file that could be executed; older kernels do not know the flag.
pub(crate) fn memory_file(name: &str) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC;
    memfd_create(name, flags | MFdFlags::from_bits_retain(MFD_NOEXEC_SEAL))
        .or_else(|error| if error == Errno::EINVAL { memfd_create(name, flags) } else { Err(error) })
}

/// The keeper's side.
pub(crate) struct ControlFile(OfdLocks);

impl ControlFile {
    /// For the keeper of these lock files.
    pub(crate) fn create(claim: &Claim, files: &[Arc<File>]) -> io::Result<Self> {
        let file = File::from(memory_file(&name(claim))?);
        let mut text = String::new();
        for about in files.iter().map(|file| file.metadata()) {
            let about = about?;
            text.push_str(&format!("{}:{} ", about.dev(), about.ino()));
        }
        file.write_all_at(&u64::from(PROTOCOL).to_le_bytes(), KEEPER_PROTOCOL)?;
        file.write_all_at(text.as_bytes(), FILES)?;
        let control = Self(OfdLocks::new(file));
        control.0.try_lock(1..END, LockKind::Write)?;
        Ok(control)
    }

    /// Call `extend` with the ttl of a new request, if there is one.
    pub(crate) fn on_extension(&self, extend: impl FnOnce(Option<Duration>)) {
        // A client that is writing wakes us afterwards.
        if self.0.file().try_lock().is_err() {
            return;
        }
        let [requested, ttl, handled] = numbers(self.0.file());
        let _ = self.0.file().unlock();
        if requested == handled {
            return;
        }
        extend((ttl > 0).then(|| Duration::from_millis(ttl)));
        let _ = self.0.file().write_all_at(&requested.to_le_bytes(), HANDLED);
        self.0.unlock(0..requested.saturating_add(1).min(END));
    }
}

fn numbers(file: &File) -> [u64; 3] {
    let mut bytes = [0; 24];
    let _ = file.read_exact_at(&mut bytes, 0);
    [0, 8, 16].map(|at| number(&bytes[at..at + 8]))
}

/// A client's side: the control file of a keeper, opened through /proc.
pub(super) struct KeeperControl(OfdLocks);

impl KeeperControl {
    pub(super) fn new(file: File) -> Self {
        Self(OfdLocks::new(file))
    }

    /// The lock files that the keeper holds, by device and inode.
    pub(super) fn files(&self) -> Vec<(u64, u64)> {
        let mut bytes = vec![0; LONGEST];
        let read = self.0.file().read_at(&mut bytes, FILES).unwrap_or(0);
        let file = |text: &str| {
            let (device, inode) = text.split_once(':')?;
            Some((device.parse().ok()?, inode.parse().ok()?))
        };
        String::from_utf8_lossy(&bytes[..read]).split_ascii_whitespace().filter_map(file).collect()
    }

    pub(super) fn protocol(&self) -> Option<u32> {
        let mut bytes = [0; 8];
        self.0.file().read_exact_at(&mut bytes, KEEPER_PROTOCOL).ok()?;
        u32::try_from(number(&bytes)).ok()
    }

    /// Leave a request to extend the lock; the keeper must be woken then. `None` if other clients
    /// leave no time for it.
    pub(super) fn request(&self, ttl: Option<Duration>, until: BootTime) -> io::Result<Option<Pending>> {
        let file = self.0.file();
        while file.try_lock().is_err() {
            if until.has_passed() {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        }
        let request = numbers(file)[0].saturating_add(1).min(END - 1);
        let ttl = ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1));
        let written = file.write_all_at(&[request, ttl].map(u64::to_le_bytes).concat(), 0);
        let _ = file.unlock();
        written?;
        let watch = ReleaseWatch::new(&self.0)?;
        Ok(Some(Pending { control: self.0.clone(), request, watch }))
    }
}

/// A request that the keeper has not handled yet.
pub(super) struct Pending {
    control: OfdLocks,
    request: u64,
    watch: ReleaseWatch,
}

impl Pending {
    /// Whether it was handled before this moment. False if the keeper has exited.
    pub(super) fn wait(&mut self, until: BootTime) -> bool {
        let _ = self.watch.wait_for_release(self.request, until);
        numbers(self.control.file())[2] >= self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::claim::WaiterId;

    #[test]
    fn a_request_is_handled_once_and_its_client_notified() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
        let lock_file = Arc::new(tempfile::tempfile().unwrap());
        let about = lock_file.metadata().unwrap();
        let keeper = ControlFile::create(&claim, &[lock_file]).unwrap();
        let open = || {
            use std::os::fd::AsRawFd;
            let path = format!("/proc/self/fd/{}", keeper.0.file().as_raw_fd());
            assert_eq!(std::fs::read_link(&path).unwrap().to_str(), Some(link(&claim).as_str()));
            KeeperControl::new(File::options().read(true).write(true).open(path).unwrap())
        };
        assert_eq!(open().files(), [(about.dev(), about.ino())]);
        let soon = || BootTime::now() + Duration::from_secs(20);
        for ttl in [Some(Duration::from_secs(7)), None] {
            let mut seen = Vec::new();
            let client = open();
            let mut pending = client.request(ttl, soon()).unwrap().unwrap();
            assert!(!pending.wait(BootTime::now()));
            keeper.on_extension(|ttl| seen.push(ttl));
            keeper.on_extension(|_| unreachable!("it was handled"));
            assert!(pending.wait(soon()));
            assert_eq!(seen, [ttl]);
        }
        keeper.0.file().write_all_at(&u64::MAX.to_le_bytes(), 0).unwrap();
        let mut pending = open().request(None, soon()).unwrap().unwrap();
        assert!(!pending.wait(BootTime::now()), "any number may be there");
        drop(keeper);
        assert!(!pending.wait(soon()), "the keeper has exited");
    }
}
