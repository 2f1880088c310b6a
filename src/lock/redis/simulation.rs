//! Proof of the seam in world.rs: a real client waits for a lock, takes it and releases it, with a
//! virtual server on virtual time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::EventFd;
use socket2::SockAddr;

use super::resp::reply_length;
use super::script::{ACQUIRE, RELEASE};
use super::{Keys, RedisLock, Server, Timing};
use crate::clock::BootTime;
use crate::lock::checkup::{Unobserved, trial_request};
use crate::lock::{Ended, Grant, Lock, Outcome, Released, WaitPolicy};
use crate::world::{World, enter};

/// The lock is held by another client until then.
const HELD_UNTIL: Duration = Duration::from_mins(10);
/// From the client to the server, and back.
const LATENCY: Duration = Duration::from_millis(20);

/// One server, which holds the lock for another client in the first minutes.
#[derive(Default)]
struct ScriptedWorld(RefCell<WorldState>);

#[derive(Default)]
struct WorldState {
    now: Duration,
    random_numbers: u8,
    /// When each connection was opened and each look-up was started.
    begun: HashMap<RawFd, Duration>,
    wires: HashMap<RawFd, ScriptedWire>,
    /// What the server received, and when.
    requests: Vec<(Duration, Vec<String>)>,
}

#[derive(Default)]
struct ScriptedWire {
    received: Vec<u8>,
    /// When the server has executed all requests.
    idle_from: Duration,
    /// When each reply arrives at the client.
    replies: Vec<(Duration, Vec<u8>)>,
}

impl WorldState {
    fn begin(&mut self) -> OwnedFd {
        let fd = OwnedFd::from(EventFd::new().unwrap());
        self.begun.insert(fd.as_raw_fd(), self.now);
        fd
    }

    /// When a descriptor is ready, as far as that is known now.
    fn ready_at(&self, fd: BorrowedFd<'_>, flags: PollFlags) -> Option<Duration> {
        let begun = *self.begun.get(&fd.as_raw_fd())?;
        match self.wires.get(&fd.as_raw_fd()) {
            Some(wire) if !flags.contains(PollFlags::POLLOUT) => wire.replies.first().map(|(at, _)| *at),
            Some(_) | None => Some(begun + 2 * LATENCY),
        }
    }

    /// The server executes one request after the other.
    fn execute(&mut self, fd: RawFd) {
        let (arrives, wire) = (self.now + LATENCY, self.wires.get_mut(&fd).unwrap());
        while let Some(length) = reply_length(&wire.received).unwrap() {
            let request: Vec<u8> = wire.received.drain(..length).collect();
            let words: Vec<String> =
                redis::from_redis_value(redis::parse_redis_value(&request).unwrap()).unwrap();
            let executed = wire.idle_from.max(arrives);
            let is_free = executed >= HELD_UNTIL;
            let (takes, reply) = match words[0].as_str() {
                "BLPOP" => (Duration::from_secs_f64(words[2].parse().unwrap()), "*-1\r\n".to_owned()),
                "EVALSHA" if words[1] == RELEASE.hash => (Duration::ZERO, "+released\r\n".to_owned()),
                "EVALSHA" if words[1] == ACQUIRE.hash && is_free => {
                    (Duration::ZERO, array(&["granted", "", "7", "", "17", "0", "0 0"]))
                }
                "EVALSHA" if words[1] == ACQUIRE.hash => {
                    let fields = ["blocked", "0", "0", "c.1", "30000", "1000", "0", "", "17", "1", "0 0"];
                    (Duration::ZERO, array(&fields))
                }
                other => panic!("{other}"),
            };
            wire.idle_from = executed + takes;
            wire.replies.push((wire.idle_from + LATENCY, reply.into_bytes()));
            self.requests.push((executed, words));
        }
    }
}

fn array(fields: &[&str]) -> String {
    let items: String = fields.iter().map(|field| format!("${}\r\n{field}\r\n", field.len())).collect();
    format!("*{}\r\n{items}", fields.len())
}

impl World for ScriptedWorld {
    fn boot_time(&self) -> Duration {
        self.0.borrow().now
    }

    fn wall_clock(&self) -> Duration {
        self.0.borrow().now + 2_400_000 * HELD_UNTIL
    }

    fn random(&self) -> [u8; 16] {
        let mut state = self.0.borrow_mut();
        state.random_numbers += 1;
        [state.random_numbers; 16]
    }

    fn sleep(&self, fds: &[PollFd<'_>], until: BootTime) -> Vec<bool> {
        let mut state = self.0.borrow_mut();
        let ready_at: Vec<_> = fds.iter().map(|fd| state.ready_at(fd.as_fd(), fd.events())).collect();
        let until = Duration::from_nanos(until.as_nanos());
        state.now = ready_at.iter().flatten().copied().fold(until, Duration::min).max(state.now);
        ready_at.iter().map(|ready_at| ready_at.is_some_and(|at| at <= state.now)).collect()
    }

    fn resolve(&self, host: &str, _: u16) -> io::Result<OwnedFd> {
        assert_eq!(host, "db.example");
        Ok(self.0.borrow_mut().begin())
    }

    fn resolved(&self, lookup: BorrowedFd<'_>) -> Option<io::Result<Vec<SockAddr>>> {
        let state = self.0.borrow();
        let is_known = state.ready_at(lookup, PollFlags::POLLIN)? <= state.now;
        is_known.then(|| Ok(vec![std::net::SocketAddr::from(([10, 0, 0, 1], 6379)).into()]))
    }

    fn connect(&self, address: &SockAddr) -> io::Result<OwnedFd> {
        assert_eq!(address.as_socket().unwrap().to_string(), "10.0.0.1:6379");
        let mut state = self.0.borrow_mut();
        let fd = state.begin();
        state.wires.insert(fd.as_raw_fd(), ScriptedWire::default());
        Ok(fd)
    }

    fn is_connected(&self, wire: BorrowedFd<'_>) -> io::Result<bool> {
        let state = self.0.borrow();
        Ok(state.ready_at(wire, PollFlags::POLLOUT).is_some_and(|at| at <= state.now))
    }

    fn read(&self, wire: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        let now = state.now;
        let replies = &mut state.wires.get_mut(&wire.as_raw_fd()).unwrap().replies;
        match replies.first() {
            Some((at, reply)) if *at <= now => {
                let length = reply.len();
                bytes[..length].copy_from_slice(reply);
                replies.remove(0);
                Ok(length)
            }
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, wire: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        state.wires.get_mut(&wire.as_raw_fd()).unwrap().received.extend(bytes);
        state.execute(wire.as_raw_fd());
        Ok(bytes.len())
    }

    fn close(&self, wire: BorrowedFd<'_>) {
        let mut state = self.0.borrow_mut();
        state.begun.remove(&wire.as_raw_fd());
        state.wires.remove(&wire.as_raw_fd());
    }
}

/// What the server received while a client waited for the lock, took it and released it.
fn run() -> (Grant, Vec<(Duration, Vec<String>)>) {
    let world = Rc::new(ScriptedWorld::default());
    let _entered = enter(world.clone());
    let timing = Timing {
        ttl: Some(Duration::from_secs(30)),
        node_timeout: Duration::from_secs(1),
        quarantine: Duration::ZERO,
    };
    let server = Server::parse("redis://db.example").unwrap();
    let mut lock = RedisLock::new(vec![server], vec![Keys::new(&[], "lock", b"k")], timing);
    let request = trial_request(WaitPolicy::Queue { at_most: None });
    let grant = lock.acquire(&request, &mut Unobserved).unwrap();
    let released = lock.release(&grant, &Ended::new(Outcome::Released), Duration::ZERO);
    assert!(matches!(released, Released::Done(failed) if failed.is_empty()));
    drop(lock);
    assert!(world.0.borrow().wires.is_empty(), "every connection was closed");
    let requests = world.0.borrow().requests.clone();
    (grant, requests)
}

#[test]
fn a_client_runs_in_a_virtual_world_on_virtual_time() {
    let started = Instant::now();
    let (grant, requests) = run();
    assert!(started.elapsed() < Duration::from_secs(10), "ten minutes took {:?}", started.elapsed());
    assert_eq!(grant.claim.waiter.to_string(), "01010101-0101-4101-8101-010101010101");
    assert_eq!(grant.fences, [7]);
    assert!(
        grant.waited >= HELD_UNTIL && grant.waited < HELD_UNTIL + Duration::from_secs(10),
        "{:?}",
        grant.waited
    );
    assert!(requests.len() > 100, "renewals of the waiter: {}", requests.len());
    assert_eq!(requests, run().1, "the same once more");
}
