//! A TCP proxy in front of a Redis that can stop, delay or lose what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::Redis;

pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    paused: AtomicBool,
    drop_replies: AtomicBool,
    delay_ms: AtomicU64,
    request_delay_ms: AtomicU64,
    connections: AtomicU64,
    /// Requests of connections up to this number are kept back.
    stranded: AtomicU64,
    requests: AtomicU64,
    /// Every socket of ours with its connection's number, to cut them.
    sockets: Mutex<Vec<(u64, TcpStream)>>,
    closed: AtomicBool,
}

impl Proxy {
    pub fn to(redis: &Redis) -> Proxy {
        Proxy::to_port(redis.port())
    }

    pub fn to_port(target: u16) -> Proxy {
        Proxy::between(0, target)
    }

    /// On a port of one's choice; 0 is any that is free.
    pub fn between(port: u16, target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let port = listener.local_addr().expect("its port").port();
        let state = Arc::new(State::default());
        let theirs = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if theirs.closed.load(SeqCst) {
                    return;
                }
                let number = theirs.connections.fetch_add(1, SeqCst) + 1;
                // A refused target shows as a connection that ends at once.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                    theirs.serve(number, client, server);
                }
            }
        });
        Proxy { port, state }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Stops forwarding in both directions; sockets stay open, new ones are accepted.
    pub fn pause(&self) {
        self.state.paused.store(true, SeqCst);
    }

    /// Forwards again, beginning with what was kept back.
    pub fn resume(&self) {
        self.state.paused.store(false, SeqCst);
    }

    /// Keeps back what clients send from now on over the connections they have; new ones work.
    pub fn strand(&self) {
        self.state.stranded.store(self.connections(), SeqCst);
    }

    /// Delivers what was stranded, late.
    pub fn deliver(&self) {
        self.state.stranded.store(0, SeqCst);
    }

    /// Server answers that come from now on arrive this much later.
    pub fn delay(&self, by: Duration) {
        self.state.delay_ms.store(by.as_millis() as u64, SeqCst);
    }

    /// Requests that come from now on arrive this much later.
    #[allow(dead_code)] // tests/chaos does
    pub fn delay_requests(&self, by: Duration) {
        self.state.request_delay_ms.store(by.as_millis() as u64, SeqCst);
    }

    /// Requests pass, answers are thrown away.
    pub fn drop_replies(&self, yes: bool) {
        self.state.drop_replies.store(yes, SeqCst);
    }

    /// Ends every connection.
    pub fn cut(&self) {
        for (_, socket) in self.state.sockets.lock().expect("the sockets").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(SeqCst)
    }

    /// Reads from clients so far: an upper bound of their round trips' requests.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closed.store(true, SeqCst);
        self.state.paused.store(false, SeqCst);
        self.deliver();
        self.cut();
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the listener to its end
    }
}

impl State {
    fn serve(self: &Arc<Self>, number: u64, client: TcpStream, server: TcpStream) {
        let copy = |s: &TcpStream| s.try_clone().expect("a second handle");
        for socket in [&client, &server] {
            let _ = socket.set_nodelay(true);
            self.sockets.lock().expect("the sockets").push((number, copy(socket)));
        }
        let (from, to, state) = (copy(&client), copy(&server), Arc::clone(self));
        thread::spawn(move || state.requests_of(number, from, to));
        let state = Arc::clone(self);
        thread::spawn(move || state.answers_of(number, server, client));
    }

    fn requests_of(&self, number: u64, mut client: TcpStream, mut server: TcpStream) {
        let mut buffer = [0; 65536];
        while let Ok(n @ 1..) = client.read(&mut buffer) {
            self.requests.fetch_add(1, SeqCst);
            thread::sleep(Duration::from_millis(self.request_delay_ms.load(SeqCst)));
            self.wait_while_paused();
            self.wait_while_stranded(number);
            if server.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        self.wait_while_paused();
        self.wait_while_stranded(number);
        let _ = server.shutdown(Shutdown::Write);
    }

    fn answers_of(self: &Arc<Self>, number: u64, mut server: TcpStream, mut client: TcpStream) {
        let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
        let state = Arc::clone(self);
        thread::spawn(move || {
            for (due, bytes) in receive {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                state.wait_while_paused();
                if client.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(Shutdown::Both);
            state.sockets.lock().expect("the sockets").retain(|(of, _)| *of != number);
        });
        let mut buffer = [0; 65536];
        while let Ok(n @ 1..) = server.read(&mut buffer) {
            if self.drop_replies.load(SeqCst) {
                continue;
            }
            let due = Instant::now() + Duration::from_millis(self.delay_ms.load(SeqCst));
            if send.send((due, buffer[..n].to_vec())).is_err() {
                break;
            }
        }
    }

    fn wait_while_paused(&self) {
        while self.paused.load(SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_while_stranded(&self, number: u64) {
        while number <= self.stranded.load(SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
