//! A TCP proxy in front of a server that can delay, hold back, lose or refuse what passes. Its settings can be
//! changed while it runs, and are in effect when the call that changes them returns.
//!
//! It knows nothing of Redis and of the rest of the rig, so that the benchmark can use it, too. wire.rs moves
//! the bytes.

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

/// What the proxy's owner and the thread that moves the bytes both know.
#[derive(Default)]
pub(super) struct Shared {
    settings: Mutex<Changing>,
    in_effect: Condvar,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct Changing {
    settings: Settings,
    /// Changes made, and those of them that are in effect.
    made: u64,
    done: u64,
}

#[derive(Clone, Default)]
pub(super) struct Settings {
    pub to_server: Duration,
    pub to_client: Duration,
    /// Up to so much is added to a delay, by the dice.
    pub jitter: Duration,
    /// The first bytes of a connection come a round trip later.
    pub handshake: bool,
    pub paused: bool,
    /// Requests of connections up to this number are kept back.
    pub stranded: u64,
    pub drop_replies: bool,
    pub door: Door,
    /// How often every connection was to be ended.
    pub cuts: u64,
    pub closed: bool,
}

/// What becomes of a client that connects.
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
    /// When bytes of a client were last delivered to the server.
    pub last_delivery: Mutex<Option<Instant>>,
}

impl Proxy {
    /// On a free port. A client that connects while the target refuses sees a connection that ends at once.
    pub fn to_port(target: u16) -> Proxy {
        Proxy::listening(bound_anywhere(), target)
    }

    /// On the first port after the target's that is free: sorted by address, the proxy is where the server was.
    /// (The servers of a test are 13 ports apart, see `free_port`.)
    pub fn next_to(target: u16) -> Proxy {
        let near = (1..13).find_map(|step| bound(target + step).ok());
        near.map_or_else(|| Proxy::to_port(target), |socket| Proxy::listening(socket, target))
    }

    /// One to each of these, on free ports that are in the same order.
    pub fn to_ports(targets: &[u16]) -> Vec<Proxy> {
        let mut sockets: Vec<Socket> = targets.iter().map(|_| bound_anywhere()).collect();
        sockets.sort_by_key(port_of);
        sockets.into_iter().zip(targets).map(|(socket, target)| Proxy::listening(socket, *target)).collect()
    }

    fn listening(listener: Socket, target: u16) -> Proxy {
        listener.set_nonblocking(true).expect("non-blocking");
        // To listen again beside connections that have not ended entirely; only now, as two could bind to one port.
        listener.set_reuse_address(true).expect("listen again");
        listener.listen(super::wire::BACKLOG).expect("listen");
        let port = port_of(&listener);
        let (bell, ear) = UnixStream::pair().expect("a pair of sockets");
        bell.set_nonblocking(true).expect("non-blocking");
        ear.set_nonblocking(true).expect("non-blocking");
        let shared = Arc::new(Shared::default());
        let wire = Wire::new(listener, target, ear, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || wire.run());
        Proxy { port, shared, bell, thread: Some(thread.expect("a thread")) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What comes from now on arrives this much later, in each direction: a round trip takes twice as long. Delays
    /// keep the order of the bytes and do not limit how many are under way.
    pub fn each_way(&self, by: Duration) {
        self.set(|settings| (settings.to_server, settings.to_client) = (by, by));
    }

    /// What clients send from now on arrives this much later.
    pub fn to_server(&self, by: Duration) {
        self.set(|settings| settings.to_server = by);
    }

    /// What the server answers from now on arrives this much later.
    pub fn to_client(&self, by: Duration) {
        self.set(|settings| settings.to_client = by);
    }

    /// The same as `to_client`.
    pub fn delay(&self, by: Duration) {
        self.to_client(by);
    }

    /// Each delay is longer by anything up to this.
    pub fn jitter(&self, up_to: Duration) {
        self.set(|settings| settings.jitter = up_to);
    }

    /// The kernel answers a connect at once, whatever the delays. With this a connection's first bytes come a round
    /// trip later, as they would if the connect had taken its time.
    pub fn handshake(&self, yes: bool) {
        self.set(|settings| settings.handshake = yes);
    }

    /// Stops forwarding in both directions; sockets stay open, new ones are accepted.
    pub fn pause(&self) {
        self.set(|settings| settings.paused = true);
    }

    /// Forwards again, beginning with what was kept back.
    pub fn resume(&self) {
        self.set(|settings| settings.paused = false);
    }

    /// Keeps back what clients send from now on over the connections they have; new ones work.
    pub fn strand(&self) {
        let connections = self.connections();
        self.set(|settings| settings.stranded = connections);
    }

    /// Delivers what was stranded, late.
    pub fn deliver(&self) {
        self.set(|settings| settings.stranded = 0);
    }

    /// Requests pass, answers are thrown away.
    pub fn drop_replies(&self, yes: bool) {
        self.set(|settings| settings.drop_replies = yes);
    }

    /// Ends every connection; new ones work. What was under way is lost.
    pub fn cut(&self) {
        self.set(|settings| settings.cuts += 1);
    }

    /// Ends every connection and refuses new ones, until `mend`.
    pub fn refuse(&self) {
        self.set(|settings| settings.door = Door::Refusing);
    }

    /// Nothing passes and a connect is never answered, until `mend`; connections stay open.
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

    /// Reads from clients so far: an upper bound of their round trips' requests.
    pub fn requests(&self) -> u64 {
        self.shared.counters.requests.load(SeqCst)
    }

    /// Writes to clients so far.
    pub fn replies(&self) -> u64 {
        self.shared.counters.replies.load(SeqCst)
    }

    /// When the server was last given what a client had sent.
    pub fn last_delivery(&self) -> Option<Instant> {
        *lock(&self.shared.counters.last_delivery)
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut changing = lock(&self.shared.settings);
        change(&mut changing.settings);
        changing.made += 1;
        let made = changing.made;
        let _ = (&self.bell).write(b"!"); // a full pipe will be heard, too
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
    /// The settings of now, once `apply` has put them into effect.
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

/// A socket with this port of the loopback address.
fn bound(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    Ok(socket)
}

/// A socket with a free port. It was asked for by its number: a socket loses a port that the kernel chose for it when
/// it listens no more.
fn bound_anywhere() -> Socket {
    let free = || Some(port_of(&bound(0).ok()?)); // and it is given back
    (0..100).find_map(|_| bound(free()?).ok()).expect("a free port")
}

fn port_of(socket: &Socket) -> u16 {
    socket.local_addr().ok().and_then(|address| address.as_socket()).expect("its address").port()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
