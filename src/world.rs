//! Everything that the lock on servers asks of the world around it: the time, sleep, connections
//! (with the names of their hosts), and randomness.
//!
//! lock/redis reads no clock, blocks in no call, opens no socket, starts no thread and draws no
//! random number except through this file and clock.rs, which is built on it. In the program each
//! function here is the system call that its name suggests. In tests a thread can [`enter`] a
//! [`World`] that answers instead, so that real clients run on virtual time against virtual
//! servers, and the same seed gives the same run. The switch exists only in builds for tests.
//!
//! A virtual connection still has a descriptor. It is never read: it stands for the connection
//! wherever the code names what it waits for, beside real descriptors such as those of signals.
//!
//! TLS is outside: rustls reads the wall clock when it verifies a certificate, and ring draws its
//! own random numbers.

use std::io::{self, PipeReader, Read, Write};
use std::net::{Shutdown, ToSocketAddrs};
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc::EINPROGRESS;
use nix::poll::{PollFd, poll};
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};
use uuid::Uuid;

use crate::clock::BootTime;

#[cfg(test)]
#[allow(unused_imports, reason = "tests/sim uses all of them")]
pub(crate) use simulated::{LeftOut, World, enter, leave_out};

/// A router or a proxy may forget a connection that is idle for some minutes.
const KEEP_ALIVE_AFTER: Duration = Duration::from_mins(1);

/// Time since the machine was started, suspension included.
pub(crate) fn boot_time() -> Duration {
    #[cfg(test)]
    if let Some(world) = simulated::current() {
        return world.boot_time();
    }
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has a boot-time clock").into()
}

/// Time since 1970. It may jump.
pub(crate) fn wall_clock() -> Duration {
    #[cfg(test)]
    if let Some(world) = simulated::current() {
        return world.wall_clock();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A random UUID, version 4.
pub(crate) fn random_uuid() -> Uuid {
    #[cfg(test)]
    if let Some(world) = simulated::current() {
        return uuid::Builder::from_random_bytes(world.random()).into_uuid();
    }
    Uuid::new_v4()
}

/// A rule of the protocol that a simulation can leave out, to show that it would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A grant that arrives after its deadline does not count.
    Deadline,
    /// A lease counts from before the request was sent.
    LeaseFromRequest,
    /// A vote holds for the ttl that it was requested with.
    OwnTtl,
    /// The lock needs more than half of the configured servers.
    Majority,
    /// A token is used only after a majority has stored it.
    StoredToken,
    /// A release waits for the gate, and until the kernel has the other requests.
    ReleaseIsSent,
    /// A connection that the server has closed is opened again for a release.
    ReleaseReconnects,
    /// A request over a connection that the server has closed is sent once more.
    Resend,
    /// A client whose connection ends while it sleeps for a wake-up asks again: it may have missed it.
    WokenByEnd,
    /// A request whose sender gives up is not delivered any more.
    Abort,
    /// Neither is a request to a gate that was silent, and is none now.
    AbortAside,
    /// A client with the gate's vote waits for the others and keeps its turn.
    KeepTurn,
    /// A client with the gate's vote asks the others once more before it steps back.
    SecondChance,
    /// Every voter confirms a grant that no process will renew.
    ConfirmToken,
    /// The younger of two clients with different gates steps back.
    Yield,
    /// So does one that waits behind a waiter which cannot go on.
    YieldToWaiter,
    /// A client that continues under another name releases what the former one may have left.
    ReleaseFormer,
    /// Votes tell the gate and the stamp of a client that waits for others.
    CarryPlace,
    /// A newcomer that the gate queues releases the votes of the other servers.
    ReleaseStrays,
    /// A vote of a young server counts only if no server knows a longer bound.
    WaitForOldServers,
    /// A server votes beside a longer bound only if it has kept its data since the bound was raised.
    RaisedBound,
    AcknowledgedTtl,
    /// A refusal reports the longest bound, too.
    RefusalsReport,
    /// Servers are healed only after a majority has renewed.
    HealAfterMajority,
    /// The votes of a failed attempt are released.
    ReleaseVotes,
    /// A release by token also releases claims of the grant's earlier attempts.
    ReleaseOlderAttempts,
    /// A release leaves a tombstone if a request may still be under way.
    Tombstone,
    /// A vote of a server that has not been known for long enough does not count.
    Memory,
    /// Only a command that has ended with 0 leaves the mark of success.
    OnlySuccessMarks,
    /// Only a holder that was started with --cancel-in-progress is stopped by a newer run.
    CancelAgreed,
    /// A newer run stops the grant that blocks it, and no later one.
    CancelNamesGrant,
    /// The next command starts when the stopped one is gone.
    CancelWaits,
    /// A vote lives for the ttl, not for the minimum hold.
    VoteTtl,
    /// Only the youngest waiter of a deadlock gives up.
    YoungestGivesUp,
    /// A waiter that may have died is in no deadlock.
    SignOfLife,
    /// Any holder of a slot that leaves makes room.
    AnySlot,
}

/// Whether this rule is in force. In the program every rule is.
#[inline]
pub(crate) fn follows(_rule: Rule) -> bool {
    #[cfg(test)]
    return simulated::left_out() != Some(_rule);
    #[cfg(not(test))]
    true
}

/// Sleep until one of these descriptors is ready, or until this moment; sometimes less. Returns
/// which of them are ready.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], until: BootTime) -> Vec<bool> {
    #[cfg(test)]
    if let Some(world) = simulated::current() {
        return world.sleep(fds, until);
    }
    // A failed poll is an interrupted one: no descriptor is marked.
    let _ = poll(fds, until.poll_timeout());
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}

/// A host name that is being resolved. The system's resolver blocks for as long as it likes, so it
/// has a thread of its own.
#[derive(Debug)]
pub(crate) enum Resolution {
    Thread {
        wake_fd: PipeReader,
        result: Receiver<io::Result<Vec<SockAddr>>>,
    },
    #[cfg(test)]
    Virtual(OwnedFd),
}

impl Resolution {
    pub(crate) fn start(host: &str, port: u16) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(world) = simulated::current() {
            return world.resolve(host, port).map(Self::Virtual);
        }
        let (wake_fd, mut waker) = io::pipe()?;
        let (sender, result) = sync_channel(1);
        let host = host.to_owned();
        thread::Builder::new().name("resolve".into()).spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs();
            // The receiver is gone if the name is no longer wanted.
            let _ = sender.send(addresses.map(|addresses| addresses.map(SockAddr::from).collect()));
            let _ = waker.write(&[1]);
        })?;
        Ok(Self::Thread { wake_fd, result })
    }

    /// Readable when there is a result.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Thread { wake_fd, .. } => wake_fd.as_fd(),
            #[cfg(test)]
            Self::Virtual(fd) => fd.as_fd(),
        }
    }

    /// All addresses of the host.
    pub(crate) fn result(&self) -> Option<io::Result<Vec<SockAddr>>> {
        match self {
            Self::Thread { result, .. } => result.try_recv().ok(),
            #[cfg(test)]
            Self::Virtual(fd) => simulated::required().resolved(fd.as_fd()),
        }
    }
}

/// A connection to a server, which never blocks.
#[derive(Debug)]
pub(crate) enum Wire {
    Socket(Socket),
    #[cfg(test)]
    Virtual(OwnedFd),
}

impl Wire {
    /// Start connecting.
    pub(crate) fn connect(address: &SockAddr) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(world) = simulated::current() {
            return world.connect(address).map(Self::Virtual);
        }
        let socket = Socket::new(address.domain(), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        if address.domain() != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        // Between processes of this host nothing forgets a connection.
        if address.as_socket().is_some_and(|address| !address.ip().is_loopback()) {
            socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE_AFTER))?;
        }
        match socket.connect(address) {
            Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
            Ok(()) | Err(_) => Ok(Self::Socket(socket)),
        }
    }

    /// Whether the server has accepted. An error ends the attempt.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        match self {
            Self::Socket(socket) => match socket.take_error()? {
                Some(error) => Err(error),
                None => Ok(socket.peer_addr().is_ok()),
            },
            #[cfg(test)]
            Self::Virtual(fd) => simulated::required().is_connected(fd.as_fd()),
        }
    }

    /// Closing it will not deliver what the other side has not received by then. A server that cannot
    /// be reached now must not execute a request whose sender has given up.
    pub(crate) fn abort(&self) {
        match self {
            // Takes effect when the last copy of the descriptor is closed.
            Self::Socket(socket) => drop(socket.set_linger(Some(Duration::ZERO))),
            #[cfg(test)]
            Self::Virtual(fd) => simulated::required().abort(fd.as_fd()),
        }
    }

    pub(crate) fn is_tcp(&self) -> bool {
        match self {
            Self::Socket(socket) => socket.domain().is_ok_and(|domain| domain != Domain::UNIX),
            #[cfg(test)]
            Self::Virtual(_) => true,
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(socket) => socket.as_fd(),
            #[cfg(test)]
            Self::Virtual(fd) => fd.as_fd(),
        }
    }
}

impl Read for &Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Socket(socket) => (&mut &*socket).read(bytes),
            #[cfg(test)]
            Wire::Virtual(fd) => simulated::required().read(fd.as_fd(), bytes),
        }
    }
}

impl Write for &Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Socket(socket) => (&mut &*socket).write(bytes),
            #[cfg(test)]
            Wire::Virtual(fd) => simulated::required().write(fd.as_fd(), bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The guardian has a copy of every descriptor that was open when it was forked: closing ours alone
/// would leave the server waiting for us.
impl Drop for Wire {
    fn drop(&mut self) {
        match self {
            Self::Socket(socket) => drop(socket.shutdown(Shutdown::Both)),
            #[cfg(test)]
            Self::Virtual(fd) => simulated::close(fd.as_fd()),
        }
    }
}

#[cfg(test)]
mod simulated {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A world that a test has made up. A descriptor that it hands out stays open, and so
    /// identifies its connection or look-up, until that is dropped.
    pub(crate) trait World {
        fn boot_time(&self) -> Duration;

        fn wall_clock(&self) -> Duration;

        fn random(&self) -> [u8; 16];

        /// As `poll`: returns at once if one of these is ready, or the moment has passed; otherwise
        /// lets time pass until then. Also called with descriptors that the world has not handed
        /// out.
        fn sleep(&self, fds: &[PollFd<'_>], until: BootTime) -> Vec<bool>;

        /// Begin to look up the addresses of a host. Not called for a host that is an address.
        fn resolve(&self, host: &str, port: u16) -> io::Result<OwnedFd>;

        /// The addresses, or why there are none, once that is known.
        fn resolved(&self, lookup: BorrowedFd<'_>) -> Option<io::Result<Vec<SockAddr>>>;

        /// Begin to connect.
        fn connect(&self, address: &SockAddr) -> io::Result<OwnedFd>;

        fn is_connected(&self, wire: BorrowedFd<'_>) -> io::Result<bool>;

        /// `WouldBlock` if nothing has arrived, 0 at the end of the stream.
        fn read(&self, wire: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize>;

        /// `WouldBlock` if nothing more can be sent now.
        fn write(&self, wire: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize>;

        fn close(&self, wire: BorrowedFd<'_>);

        /// What the server's host has not received is forgotten. [`World::close`] follows.
        fn abort(&self, _wire: BorrowedFd<'_>) {}
    }

    thread_local! {
        static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
    }

    /// This thread lives in that world until the returned value is dropped.
    #[must_use]
    pub(crate) fn enter(world: Rc<dyn World>) -> Entered {
        Entered(WORLD.replace(Some(world)))
    }

    /// The world from which the thread came.
    pub(crate) struct Entered(Option<Rc<dyn World>>);

    impl Drop for Entered {
        fn drop(&mut self) {
            WORLD.set(self.0.take());
        }
    }

    thread_local! {
        static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// This thread does without the rule until the returned value is dropped.
    #[must_use]
    #[allow(dead_code, reason = "tests/sim uses it")]
    pub(crate) fn leave_out(rule: Option<Rule>) -> LeftOut {
        LeftOut(LEFT_OUT.replace(rule))
    }

    /// The rule that was left out before.
    pub(crate) struct LeftOut(Option<Rule>);

    impl Drop for LeftOut {
        fn drop(&mut self) {
            LEFT_OUT.set(self.0);
        }
    }

    pub(super) fn left_out() -> Option<Rule> {
        LEFT_OUT.get()
    }

    pub(super) fn current() -> Option<Rc<dyn World>> {
        WORLD.with_borrow(Clone::clone)
    }

    pub(super) fn required() -> Rc<dyn World> {
        current().expect("a virtual connection is used in its world only")
    }

    /// A connection may outlive its world when a test ends.
    pub(super) fn close(wire: BorrowedFd<'_>) {
        if let Some(world) = WORLD.try_with(|world| world.borrow().clone()).ok().flatten() {
            world.close(wire);
        }
    }
}
