//! What a request costs a server does not grow with the number of sharers, slots and waiters.
//!
//! Compared are the least of several calls, by the server's own count of microseconds, with 50 and with 5,000 others in
//! one run: a busy machine makes single calls slower, hardly all of them.

use std::ops::Range;

use crate::support::script_calls::{self, Asker};
use crate::support::{Client, Redis, wait_until};

const FEW: usize = 50;
const MANY: usize = 5000;
/// What grows with the number costs at least twenty times as much.
const BOUND: u64 = 5;
const TRIES: usize = 15;

/// A server that knows the scripts, and a connection to it.
struct Server {
    client: Client,
    _redis: Redis,
}

impl Server {
    fn start() -> Server {
        let redis = Redis::start();
        let mut client = redis.connect();
        for command in script_calls::load() {
            client.cmd(&command);
        }
        Server { client, _redis: redis }
    }

    fn call(&mut self, words: &[String]) -> String {
        self.client.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn expect(&mut self, words: &[String], wanted: &str) {
        let reply = self.call(words);
        assert!(reply.starts_with(wanted), "{reply:?} to {words:?}");
    }

    /// The server's time for this call, in microseconds.
    #[track_caller]
    fn micros(&mut self, words: &[String], wanted: &str) -> u64 {
        let before = self.script_micros();
        self.expect(words, wanted);
        self.script_micros() - before
    }

    fn script_micros(&mut self) -> u64 {
        let stats = self.client.cmd(&["INFO", "commandstats"]);
        let line =
            stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).expect("EVALSHA was called");
        let micros = line.split(',').find_map(|part| part.strip_prefix("usec="));
        micros.and_then(|n| n.parse().ok()).expect("a time")
    }

    #[track_caller]
    fn granted(&mut self, numbers: Range<usize>, asker: impl Fn(usize) -> Asker) {
        numbers.for_each(|number| self.expect(&asker(number).acquire(), "granted"));
    }
}

/// The least time of the calls that `measured` makes: with few others, then with many. `crowd` brings the others, each
/// with a number from the range. What is measured has numbers from 100,000 on.
#[track_caller]
fn flat(
    what: &str,
    crowd: impl Fn(&mut Server, Range<usize>),
    mut measured: impl FnMut(&mut Server, usize) -> u64,
) {
    let mut server = Server::start();
    let mut next = 100_000..;
    let mut least = |server: &mut Server| {
        (0..TRIES).map(|_| measured(server, next.next().expect("a number"))).min().expect("several tries")
    };
    crowd(&mut server, 0..FEW);
    let few = least(&mut server);
    crowd(&mut server, FEW..MANY);
    let many = least(&mut server);
    assert!(many <= few * BOUND, "{what}: {few} us with {FEW}, {many} us with {MANY}");
}

fn reader(number: usize) -> Asker {
    Asker::new(number, &["k"]).mode("shared:")
}

/// More than are ever taken.
fn slot(number: usize) -> Asker {
    Asker::new(number, &["k"]).mode("slots:6000")
}

fn sharers_are_cheap(what: &str, asker: impl Fn(usize) -> Asker + Copy) {
    let crowd = |server: &mut Server, numbers: Range<usize>| server.granted(numbers, asker);
    flat(&format!("{what} joins"), crowd, |server, number| {
        server.micros(&asker(number).acquire(), "granted")
    });
    flat(&format!("{what} renews"), crowd, |server, number| {
        server.micros(&asker(number % FEW).extend(), "extended")
    });
    flat(&format!("{what} leaves"), crowd, |server, number| {
        server.expect(&asker(number).acquire(), "granted");
        server.micros(&asker(number).release(), "released")
    });
}

#[test]
fn a_sharer_costs_the_same_beside_few_and_many() {
    sharers_are_cheap("a reader", reader);
    sharers_are_cheap("a reader of two keys", |number| Asker::new(number, &["k", "l"]).mode("shared:"));
}

#[test]
fn a_slot_costs_the_same_beside_few_and_many() {
    sharers_are_cheap("a slot", slot);
}

#[test]
fn waiting_for_sharers_costs_the_same_for_few_and_many() {
    let crowd = |server: &mut Server, numbers: Range<usize>| server.granted(numbers, reader);
    flat("a writer that waits for sharers", crowd, |server, number| {
        let writer = Asker::new(number, &["k"]);
        let micros = server.micros(&writer.acquire(), "blocked");
        server.call(&writer.release());
        micros
    });
    flat("a reader that gives up behind a writer", crowd, |server, number| {
        let (writer, reader) = (Asker::new(1_000_000, &["k"]), reader(number));
        server.expect(&writer.acquire(), "blocked");
        server.expect(&reader.acquire(), "blocked");
        let micros = server.micros(&reader.release(), "expired");
        server.call(&writer.release());
        micros
    });
}

#[test]
fn slots_that_an_older_version_took_or_gave_back_are_seen() {
    let mut server = Server::start();
    let number_of = |reply: String| reply.lines().nth(3).expect("a slot").to_owned();
    let take = |server: &mut Server, number| number_of(server.call(&slot(number).acquire()));
    assert_eq!([0, 1, 2].map(|number| take(&mut server, number)), ["0", "1", "2"]);
    // It writes an entry and a record, and nothing else.
    let until = server.client.cmd(&["ZSCORE", "lock-shared:k", &format!("{}.1/1", slot(1).waiter())]);
    let older = format!("{}.1/3", slot(3).waiter());
    server.client.cmd(&["ZADD", "lock-shared:k", &until, &older]);
    server.client.cmd(&["HSET", "lock-info:k", slot(3).waiter(), &format!("{{\"claim\":\"{older}\"}}")]);
    assert_eq!(take(&mut server, 4), "4");
    server.client.cmd(&["ZREM", "lock-shared:k", &format!("{}.1/1", slot(1).waiter())]);
    server.client.cmd(&["HDEL", "lock-info:k", slot(1).waiter()]);
    assert_eq!(take(&mut server, 5), "1");
    server.expect(&slot(2).release(), "released");
    assert_eq!(take(&mut server, 6), "2");
}

#[test]
fn a_sharer_that_asks_again_after_an_unheard_grant_expired_keeps_its_record() {
    for asker in [reader, slot] {
        let mut server = Server::start();
        server.granted(0..1, asker);
        let mut unheard = asker(1);
        unheard.ttl = std::time::Duration::from_millis(50);
        server.expect(&unheard.acquire(), "granted");
        let entry = server.client.cmd(&["ZRANGE", "lock-shared:k", "0", "0"]);
        assert!(entry.starts_with(unheard.waiter()), "{entry}");
        wait_until("its grant has expired", || {
            let until = server.client.cmd(&["ZSCORE", "lock-shared:k", &entry]);
            server.client.now_ms() > until.parse().expect("ms")
        });
        let mut again = asker(1);
        again.attempt = 2;
        server.expect(&again.acquire(), "granted");
        let record = server.client.cmd(&["HGET", "lock-info:k", again.waiter()]);
        assert!(record.contains(&format!("\"{}.2", again.waiter())), "its record: {record:?}");
        assert_eq!(server.client.cmd(&["ZCARD", "lock-shared:k"]), "2");
        server.expect(&again.extend(), "extended");
        // The holder that a writer is told of is one of ours, with its record.
        server.expect(&asker(0).release(), "released");
        let told = server.call(&Asker::new(9, &["k"]).mode("shared:other").acquire());
        assert!(told.contains("command\ntrue") || told.starts_with("slots_mismatch"), "{told}");
        server.expect(&again.release(), "released");
        assert_eq!(server.client.cmd(&["EXISTS", "lock:k", "lock-shared:k", "lock-info:k"]), "0");
    }
}
