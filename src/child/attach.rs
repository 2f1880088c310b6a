//! Runs inside a command that use the lock of the outer run. They attach to its guardian, which
//! waits for them as for the command: otherwise a run that the command leaves in the background
//! would continue without a lock.
//!
//! They connect to an abstract unix socket with an unguessable name, which the command has in its
//! environment. A connection is an attached run; it ends when the last process that has it open
//! exits, or detaches.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Pid, Uid, geteuid};
use uuid::Uuid;

use super::process_tree::ProcessTree;

/// A guardian that does not reply within this time is stopped, or busy killing its tree.
const REPLY_WITHIN: Duration = Duration::from_secs(2);

const WELCOME: u8 = 1;

fn address(id: Uuid) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("redlock-guardian-{id}"))
}

/// Where runs inside the command attach.
#[derive(Clone, Debug)]
pub(crate) struct AttachPoint {
    listener: Arc<UnixListener>,
    id: Uuid,
}

impl AttachPoint {
    pub(crate) fn open() -> io::Result<Self> {
        let id = Uuid::new_v4();
        let listener = UnixListener::bind_addr(&address(id)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: Arc::new(listener), id })
    }

    /// The ID that a run needs to attach.
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// Accept the runs that have connected: only those of this user or root, and only descendants
    /// of this process, as others would not be stopped with the tree.
    pub(super) fn accept(&self, tree: &ProcessTree) -> Vec<UnixStream> {
        let connections = std::iter::from_fn(|| self.listener.accept().ok());
        let runs = connections.map(|(stream, _)| stream).filter(|stream| is_in(tree, stream));
        runs.filter(|mut stream| {
            stream.set_nonblocking(true).is_ok() && stream.write(&[WELCOME]).is_ok_and(|sent| sent == 1)
        })
        .collect()
    }
}

impl AsFd for AttachPoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn is_in(tree: &ProcessTree, stream: &UnixStream) -> bool {
    peer(stream).is_some_and(|(pid, user)| {
        let is_trusted = user == geteuid() || user.is_root();
        is_trusted && tree.contains(pid)
    })
}

/// The process that connected; none of another PID namespace than one below ours.
pub(super) fn peer(stream: &UnixStream) -> Option<(Pid, Uid)> {
    let peer = getsockopt(stream, PeerCredentials).ok().filter(|peer| peer.pid() > 0)?;
    Some((Pid::from_raw(peer.pid()), Uid::from_raw(peer.uid())))
}

/// Whether an attached run has exited or detached.
pub(super) fn is_over(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

/// This process is attached to an outer run, which does not release its lock before this process
/// detaches or exits.
#[derive(Debug)]
pub(crate) struct Attachment(UnixStream);

impl Attachment {
    /// `None` if that run has ended, is being stopped, or is not an outer run.
    pub(crate) fn to(id: Uuid) -> Option<Self> {
        let mut stream = UnixStream::connect_addr(&address(id).ok()?).ok()?;
        stream.set_read_timeout(Some(REPLY_WITHIN)).ok()?;
        let mut reply = [0];
        stream.read_exact(&mut reply).ok()?;
        (reply[0] == WELCOME).then_some(Self(stream))
    }

    /// Every process that needs the lock must keep this file open.
    pub(crate) fn file(&self) -> io::Result<Arc<File>> {
        Ok(Arc::new(File::from(OwnedFd::from(self.0.try_clone()?))))
    }

    /// Detach every process that has the file open.
    pub(crate) fn detach(self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
