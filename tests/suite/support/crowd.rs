//! Crowds of sharers and waiters on one server, and what a request costs the server beside them.
//! The tests and the benchmark share this file.

use super::script_calls::{self, Requester};

/// What was measured, and the server's time for it in microseconds: the minimum of several tries,
/// since a busy machine slows down single calls, but hardly all of them.
pub type Row = (&'static str, u64);
/// The kind of client, and the measurement beside that many others.
pub type Scenario = (&'static str, fn(&mut Server, usize) -> Vec<Row>);

const TRIES: usize = 15;
/// Numbers from here on do not belong to the crowd.
const BEYOND: usize = 10_000;

pub const LOCKS: [Scenario; 2] = [
    ("a lock", |server, others| lock(server, others, &["k"])),
    ("a pair of locks", |server, others| lock(server, others, &["k", "l"])),
];
pub const SHARERS: [Scenario; 4] = [
    ("a reader", |server, others| sharers(server, others, reader)),
    ("a reader of two keys", |server, others| sharers(server, others, reader_of_two)),
    ("a slot", |server, others| sharers(server, others, slot)),
    ("a writer behind readers", behind_sharers),
];
pub const WRITERS: [Scenario; 3] = [
    ("a writer", |server, others| queue(server, others, writer)),
    ("a preferred writer", |server, others| queue(server, others, |number| writer(number).preferred())),
    ("a writer of two keys", |server, others| {
        queue(server, others, |number| Requester::new(number, &["k", "l"]))
    }),
];
pub const READERS: [Scenario; 3] = [
    ("a waiting reader", |server, others| queue(server, others, reader)),
    ("a reader that joins", |server, others| queue(server, others, |number| reader(number).joins())),
    ("one of many groups", groups),
];
pub const READERS_OF_TWO: [Scenario; 2] = [
    ("a waiting reader of two keys", |server, others| queue(server, others, reader_of_two)),
    ("one of two keys that joins", |server, others| {
        queue(server, others, |number| reader_of_two(number).joins())
    }),
];
pub const SLOTS: [Scenario; 1] = [("a waiter for a slot", slots)];

pub fn newcomer(number: usize) -> usize {
    BEYOND + number
}

pub fn writer(number: usize) -> Requester {
    Requester::new(number, &["k"])
}

pub fn reader(number: usize) -> Requester {
    writer(number).mode("shared:")
}

pub fn reader_of_two(number: usize) -> Requester {
    Requester::new(number, &["k", "l"]).mode("shared:")
}

/// A client for one of more slots than are ever taken.
pub fn slot(number: usize) -> Requester {
    writer(number).mode("slots:6000")
}

/// Sends a command and returns its reply.
type Send<'a> = dyn FnMut(&[&str]) -> String + 'a;

/// A server that has loaded the scripts.
pub struct Server<'a> {
    send: Box<Send<'a>>,
}

impl<'a> Server<'a> {
    /// `send` returns a reply as text, and an array as lines.
    pub fn new(send: impl FnMut(&[&str]) -> String + 'a) -> Server<'a> {
        let mut server = Server { send: Box::new(send) };
        script_calls::load().iter().for_each(|command| drop(server.cmd(command)));
        server
    }

    pub fn cmd(&mut self, words: &[&str]) -> String {
        (self.send)(words)
    }

    pub fn call(&mut self, words: &[String]) -> String {
        self.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    pub fn expect(&mut self, words: &[String], wanted: &str) {
        let reply = self.call(words);
        assert!(reply.starts_with(wanted), "{reply:?} to {words:?}");
    }

    /// The server's time for this call.
    #[track_caller]
    fn micros(&mut self, words: &[String], wanted: &str) -> u64 {
        let before = self.script_micros();
        self.expect(words, wanted);
        self.script_micros() - before
    }

    fn script_micros(&mut self) -> u64 {
        let stats = self.cmd(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let micros = line.split(',').find_map(|part| part.strip_prefix("usec="));
        micros.map_or(0, |micros| micros.parse().expect("a time"))
    }

    /// The number of commands that the scripts have called.
    pub fn commands(&mut self) -> u64 {
        let stats = self.cmd(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls: u64 = figures.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            (!["evalsha", "info"].contains(&name)).then_some(calls)
        };
        stats.lines().filter_map(calls).sum()
    }

    /// Restores the state in which this exclusive holder has the lock.
    fn restore(&mut self, holder: &Requester) {
        for key in holder.keys() {
            self.cmd(&["SET", &format!("lock:{key}"), &holder.claim(), "PX", "600000"]);
        }
    }

    /// Restores the state in which all waiters have just renewed, and none has been woken.
    fn renew_all_waiters(&mut self) {
        self.renew_all_waiters_for(5000);
    }

    /// The same, with waiter leases of `ms`. No script does this, since the next one would have to
    /// collect its garbage.
    pub fn renew_all_waiters_for(&mut self, ms: i64) {
        let time = self.cmd(&["TIME"]);
        let seconds: i64 = time.lines().next().and_then(|seconds| seconds.parse().ok()).expect("a time");
        let micros: i64 = time.lines().nth(1).and_then(|micros| micros.parse().ok()).expect("a time");
        let lease = (seconds * 1000 + micros / 1000 + ms).to_string();
        for key in ["k", "l"] {
            let leases = format!("lock-waiters:{key}");
            let waiters = self.cmd(&["ZRANGE", &leases, "0", "-1"]);
            for some in waiters.lines().collect::<Vec<_>>().chunks(500) {
                let renewed = some.iter().flat_map(|waiter| [lease.as_str(), waiter]);
                self.cmd(&["ZADD", &leases].into_iter().chain(renewed).collect::<Vec<_>>());
            }
            for role in ["queue", "waiters", "modes"] {
                self.cmd(&["PEXPIRE", &format!("lock-{role}:{key}"), "60000"]);
            }
        }
    }

    /// Adds `others` sharers that hold the lock.
    #[track_caller]
    pub fn granted(&mut self, others: usize, asker: impl Fn(usize) -> Requester) {
        (0..others).for_each(|number| self.expect(&asker(number).acquire(), "granted"));
    }

    /// Adds `others` live waiters.
    #[track_caller]
    pub fn queued(&mut self, others: usize, asker: impl Fn(usize) -> Requester) {
        for number in 0..others {
            self.expect(&asker(number).acquire(), "blocked");
            if number % 500 == 499 {
                self.renew_all_waiters();
            }
        }
    }

    /// The server's time for a call while all waiters are alive.
    #[track_caller]
    fn micros_live(&mut self, words: &[String], wanted: &str) -> u64 {
        self.renew_all_waiters();
        self.micros(words, wanted)
    }
}

fn least(micros: impl FnMut(usize) -> u64) -> u64 {
    (0..TRIES).map(micros).min().expect("several tries")
}

/// One lock beside `others` other locks.
pub fn lock(server: &mut Server, others: usize, keys: &[&str]) -> Vec<Row> {
    server.granted(others, |number| Requester::new(number, &[&format!("other-{number}")]));
    let (asker, mut renews, mut leaves) = (Requester::new(newcomer(0), keys), u64::MAX, u64::MAX);
    let takes = least(|_| {
        let takes = server.micros(&asker.acquire(), "granted");
        renews = renews.min(server.micros(&asker.extend(), "extended"));
        leaves = leaves.min(server.micros(&asker.release_with_history(), "released"));
        takes
    });
    vec![("is taken", takes), ("is renewed", renews), ("is released", leaves)]
}

fn sharers(server: &mut Server, others: usize, asker: fn(usize) -> Requester) -> Vec<Row> {
    server.granted(others, asker);
    let joins = least(|n| server.micros(&asker(newcomer(n)).acquire(), "granted"));
    let renews = least(|n| server.micros(&asker(n).extend(), "extended"));
    let leaves = least(|n| server.micros(&asker(n).release(), "released"));
    vec![("joins", joins), ("renews", renews), ("leaves", leaves)]
}

fn behind_sharers(server: &mut Server, others: usize) -> Vec<Row> {
    server.granted(others, reader);
    let (first, second) = (writer(newcomer(0)), reader(newcomer(1)));
    let waits = least(|_| server.micros(&first.acquire(), "blocked"));
    let gives_up = least(|_| {
        server.expect(&second.acquire(), "blocked");
        server.micros(&second.release(), "expired")
    });
    vec![("renews", waits), ("is left by a reader", gives_up)]
}

/// The crowd waits for a lock that an exclusive holder has on the same keys.
fn queue(server: &mut Server, others: usize, asker: fn(usize) -> Requester) -> Vec<Row> {
    let holder = asker(newcomer(TRIES)).exclusive();
    server.expect(&holder.acquire(), "granted");
    server.queued(others, asker);
    let comes = least(|n| server.micros_live(&asker(newcomer(n)).acquire(), "blocked"));
    let renews = least(|n| server.micros_live(&asker(TRIES + n).again(2).acquire(), "blocked"));
    let gives_up = least(|n| server.micros_live(&asker(TRIES + n).again(3).release(), "foreign"));
    let woken = least(|_| {
        server.restore(&holder);
        server.micros_live(&holder.release(), "released")
    });
    let mut inside: Option<Requester> = None;
    let enters = least(|n| {
        let asker = asker(n).again(2);
        if let Some(before) = inside.replace(asker.clone()).filter(Requester::is_exclusive) {
            server.expect(&before.release(), "released");
        }
        server.micros_live(&asker.acquire(), "granted")
    });
    vec![
        ("comes", comes),
        ("renews", renews),
        ("gives up", gives_up),
        ("is woken", woken),
        ("enters", enters),
    ]
}

/// Each reader has a group of its own.
fn groups(server: &mut Server, others: usize) -> Vec<Row> {
    let asker = |number: usize| writer(number).mode(&format!("shared:group {number}"));
    let holder = writer(newcomer(0));
    server.expect(&holder.acquire(), "granted");
    server.queued(others, asker);
    server.expect(&holder.release(), "released");
    let mut leaves = u64::MAX;
    let enters = least(|n| {
        let asker = asker(n).again(2);
        let enters = server.micros_live(&asker.acquire(), "granted");
        leaves = leaves.min(server.micros_live(&asker.release(), "released"));
        enters
    });
    vec![("enters", enters), ("leaves", leaves)]
}

fn slots(server: &mut Server, others: usize) -> Vec<Row> {
    let asker = |number: usize| writer(number).mode("slots:40");
    let holders: Vec<Requester> = (0..40).map(|number| asker(newcomer(number))).collect();
    holders.iter().for_each(|holder| server.expect(&holder.acquire(), "granted"));
    server.queued(others, asker);
    let renews = least(|n| server.micros_live(&asker(TRIES + n).again(2).acquire(), "blocked"));
    let mut enters = u64::MAX;
    let woken = least(|n| {
        let woken = server.micros_live(&holders[n].release(), "released");
        enters = enters.min(server.micros(&asker(n).again(2).acquire(), "granted"));
        woken
    });
    vec![("renews", renews), ("is woken", woken), ("enters", enters)]
}
