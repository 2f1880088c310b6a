//! A TCP proxy in front of a server that can delay, hold back, lose or refuse traffic. Its settings
//! can be changed while it runs, and are in effect when the call that changes them returns.
//!
//! It does not depend on Redis or on the rest of the rig, so that the benchmark can use it, too.
//! wire.rs moves the bytes.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::wire::Wire;

pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// State that the proxy's owner shares with the thread that moves the bytes.
#[derive(Default)]
pub(super) struct Shared {
    settings: Mutex<Changing>,
    in_effect: Condvar,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct Changing {
    settings: Settings,
    /// The number of changes made, and of those in effect.
    made: u64,
    done: u64,
}

#[derive(Clone, Default)]
pub(super) struct Settings {
    pub to_server: Duration,
    pub to_client: Duration,
    /// A random duration up to this is added to each delay.
    pub jitter: Duration,
    /// The first bytes of a connection arrive a round trip later.
    pub handshake: bool,
    pub paused: bool,
    /// Requests on connections up to this number are held back.
    pub stranded: u64,
    pub drop_replies: bool,
    pub door: Door,
    /// How often all connections have been closed.
    pub cuts: u64,
    pub closed: bool,
}

/// How the proxy treats a client that connects.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Door {
    #[default]
    Open,
    Refusing,
    Silent,
}

#[derive(Default)]
pub(super) struct Counters {
    pub connections: AtomicU64,
    pub requests: AtomicU64,
    pub replies: AtomicU64,
    /// When a client's bytes were last delivered to the server.
    pub last_delivery: Mutex<Option<Instant>>,
}

impl Proxy {
    /// On a free port. While the target refuses connections, a client sees its own connection
    /// closed at once.
    pub fn to_port(target: u16) -> Proxy {
        Proxy::listening(bound_anywhere(), target)
    }

    /// On the first free port after the target's: sorted by address, the proxy takes the server's
    /// place. (The servers of a test are 13 ports apart, see `free_port`.)
    pub fn next_to(target: u16) -> Proxy {
        let near = (1..13).find_map(|step| bound(target + step).ok());
        near.map_or_else(|| Proxy::to_port(target), |socket| Proxy::listening(socket, target))
    }

    /// A proxy for each of these, on free ports in the same order.
    pub fn to_ports(targets: &[u16]) -> Vec<Proxy> {
        let mut sockets: Vec<Socket> = targets.iter().map(|_| bound_anywhere()).collect();
        sockets.sort_by_key(port_of);
        sockets.into_iter().zip(targets).map(|(socket, target)| Proxy::listening(socket, *target)).collect()
    }

    fn listening(listener: Socket, target: u16) -> Proxy {
        listener.set_nonblocking(true).expect("non-blocking");
        // Allows listening again beside connections that have not closed entirely; set only now,
        // since otherwise two proxies could bind to one port.
        listener.set_reuse_address(true).expect("listen again");
        listener.listen(super::wire::BACKLOG).expect("listen");
        let port = port_of(&listener);
        let (bell, wake_end) = UnixStream::pair().expect("a pair of sockets");
        bell.set_nonblocking(true).expect("non-blocking");
        wake_end.set_nonblocking(true).expect("non-blocking");
        let shared = Arc::new(Shared::default());
        let wire = Wire::new(listener, target, wake_end, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || wire.run());
        Proxy { port, shared, bell, thread: Some(thread.expect("a thread")) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Traffic from now on arrives this much later in each direction: a round trip takes twice as
    /// long. Delays keep the order of the bytes and do not limit how many are in transit.
    pub fn each_way(&self, by: Duration) {
        self.set(|settings| (settings.to_server, settings.to_client) = (by, by));
    }

    /// Delays requests from now on.
    pub fn to_server(&self, by: Duration) {
        self.set(|settings| settings.to_server = by);
    }

    /// Delays replies from now on.
    pub fn to_client(&self, by: Duration) {
        self.set(|settings| settings.to_client = by);
    }

    /// The same as `to_client`.
    pub fn delay(&self, by: Duration) {
        self.to_client(by);
    }

    /// Adds a random duration up to this to each delay.
    pub fn jitter(&self, up_to: Duration) {
        self.set(|settings| settings.jitter = up_to);
    }

    /// The kernel completes a connect at once, whatever the delays. With this a connection's first
    /// bytes arrive a round trip later, as if the connect had taken that long.
    pub fn handshake(&self, yes: bool) {
        self.set(|settings| settings.handshake = yes);
    }

    /// Stops forwarding in both directions; sockets stay open, new ones are accepted.
    pub fn pause(&self) {
        self.set(|settings| settings.paused = true);
    }

    /// Resumes forwarding, starting with what was held back.
    pub fn resume(&self) {
        self.set(|settings| settings.paused = false);
    }

    /// Holds back requests from now on, on existing connections; new ones work.
    pub fn strand(&self) {
        let connections = self.connections();
        self.set(|settings| settings.stranded = connections);
    }

    /// Delivers the stranded requests, late.
    pub fn deliver(&self) {
        self.set(|settings| settings.stranded = 0);
    }

    /// Forwards requests, discards replies.
    pub fn drop_replies(&self, yes: bool) {
        self.set(|settings| settings.drop_replies = yes);
    }

    /// Closes every connection; new ones work. Bytes in transit are lost.
    pub fn cut(&self) {
        self.set(|settings| settings.cuts += 1);
    }

    /// Closes every connection and refuses new ones, until `mend`.
    pub fn refuse(&self) {
        self.set(|settings| settings.door = Door::Refusing);
    }

    /// Forwards nothing, and connects never complete, until `mend`; connections stay open.
    pub fn blackhole(&self) {
        self.set(|settings| settings.door = Door::Silent);
    }

    /// Accepts connections again.
    pub fn mend(&self) {
        self.set(|settings| settings.door = Door::Open);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.counters.connections.load(SeqCst)
    }

    /// Reads from clients so far: an upper bound for their requests.
    pub fn requests(&self) -> u64 {
        self.shared.counters.requests.load(SeqCst)
    }

    /// Writes to clients so far.
    pub fn replies(&self) -> u64 {
        self.shared.counters.replies.load(SeqCst)
    }

    /// When a client's bytes were last delivered to the server.
    pub fn last_delivery(&self) -> Option<Instant> {
        *lock(&self.shared.counters.last_delivery)
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut changing = lock(&self.shared.settings);
        change(&mut changing.settings);
        changing.made += 1;
        let made = changing.made;
        let _ = (&self.bell).write(b"!"); // if the pipe is full, the thread wakes up anyway
        while changing.done < made && self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            let woken = self.shared.in_effect.wait_timeout(changing, Duration::from_secs(1));
            changing = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        assert!(changing.done >= made || std::thread::panicking(), "the proxy has failed");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(|settings| settings.closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The current settings, after `apply` has put them into effect.
    pub(super) fn apply(&self, apply: impl FnOnce(&Settings)) -> Settings {
        let mut changing = lock(&self.settings);
        if changing.done < changing.made {
            apply(&changing.settings);
            changing.done = changing.made;
            self.in_effect.notify_all();
        }
        changing.settings.clone()
    }
}

/// A socket bound to this port of the loopback address.
fn bound(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    Ok(socket)
}

/// A socket bound to a free port by its number: a socket that stops listening loses a port that the
/// kernel chose.
fn bound_anywhere() -> Socket {
    let free = || Some(port_of(&bound(0).ok()?)); // and released again
    (0..100).find_map(|_| bound(free()?).ok()).expect("a free port")
}

fn port_of(socket: &Socket) -> u16 {
    socket.local_addr().ok().and_then(|address| address.as_socket()).expect("its address").port()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
