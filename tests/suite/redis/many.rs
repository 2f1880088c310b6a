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

    /// How many commands the scripts have called.
    fn commands(&mut self) -> u64 {
        let stats = self.client.cmd(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let ours = ["evalsha", "info", "ping"].contains(&name);
            let calls: u64 = figures.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            (!ours).then_some(calls)
        };
        stats.lines().filter_map(calls).sum()
    }

    /// As if this exclusive holder had taken the lock again.
    fn restore(&mut self, holder: &Asker) {
        for key in holder.keys() {
            self.client.cmd(&["SET", &format!("lock:{key}"), &holder.claim(), "PX", "600000"]);
        }
    }

    /// As if all waiters had renewed now, and none been woken.
    fn all_live(&mut self) {
        let until = (self.client.now_ms() + 5000).to_string();
        self.all_live_until(&until);
    }

    fn all_live_until(&mut self, until: &str) {
        const SET_LEASES: &str = "for _, key in ipairs(KEYS) do
            redis.call('PEXPIRE', 'lock-queue:' .. key, 60000)
            redis.call('PEXPIRE', 'lock-modes:' .. key, 60000)
            for _, waiter in ipairs(redis.call('ZRANGE', 'lock-waiters:' .. key, 0, -1)) do
              redis.call('ZADD', 'lock-waiters:' .. key, ARGV[1], waiter)
            end
            redis.call('PEXPIRE', 'lock-waiters:' .. key, 60000)
          end";
        self.client.cmd(&["EVAL", SET_LEASES, "2", "k", "l", until]);
    }

    /// So many waiters, all of them alive.
    #[track_caller]
    fn queued(&mut self, others: usize, asker: impl Fn(usize) -> Asker) {
        for number in 0..others {
            self.expect(&asker(number).acquire(), "blocked");
            if number % 500 == 499 {
                self.all_live();
            }
        }
    }

    #[track_caller]
    fn granted(&mut self, numbers: Range<usize>, asker: impl Fn(usize) -> Asker) {
        numbers.for_each(|number| self.expect(&asker(number).acquire(), "granted"));
    }
}

/// What was measured, and the least time in microseconds.
type Row = (&'static str, u64);

/// Compares what is measured beside few others and beside many.
#[track_caller]
fn flat(what: &str, measure: impl Fn(&mut Server, usize) -> Vec<Row>) {
    let [few, many] = [FEW, MANY].map(|others| measure(&mut Server::start(), others));
    for ((row, few), (_, many)) in few.into_iter().zip(many) {
        assert!(many <= few * BOUND, "{what} {row}: {few} us with {FEW}, {many} us with {MANY}");
    }
}

/// The least time of several tries, each with its number.
fn least(micros: impl FnMut(usize) -> u64) -> u64 {
    (0..TRIES).map(micros).min().expect("several tries")
}

/// The number of one that is not of the crowd.
fn newcomer(number: usize) -> usize {
    MANY + number
}

fn writer(number: usize) -> Asker {
    Asker::new(number, &["k"])
}

fn reader_of_two(number: usize) -> Asker {
    Asker::new(number, &["k", "l"]).mode("shared:")
}

fn reader(number: usize) -> Asker {
    Asker::new(number, &["k"]).mode("shared:")
}

/// More than are ever taken.
fn slot(number: usize) -> Asker {
    Asker::new(number, &["k"]).mode("slots:6000")
}

fn sharers_are_cheap(what: &str, asker: impl Fn(usize) -> Asker) {
    flat(what, |server, others| {
        server.granted(0..others, &asker);
        let joins = |n| server.micros(&asker(newcomer(n)).acquire(), "granted");
        let joins = ("joins", least(joins));
        let renews = ("renews", least(|n| server.micros(&asker(n).extend(), "extended")));
        let leaves = ("leaves", least(|n| server.micros(&asker(n).release(), "released")));
        vec![joins, renews, leaves]
    });
}

#[test]
fn a_sharer_costs_the_same_beside_few_and_many() {
    sharers_are_cheap("a reader", reader);
    sharers_are_cheap("a reader of two keys", reader_of_two);
}

#[test]
fn a_slot_costs_the_same_beside_few_and_many() {
    sharers_are_cheap("a slot", slot);
}

#[test]
fn waiting_for_sharers_costs_the_same_for_few_and_many() {
    flat("behind sharers", |server, others| {
        server.granted(0..others, reader);
        let (first, second) = (writer(newcomer(0)), reader(newcomer(1)));
        let waits = ("a writer waits", least(|_| server.micros(&first.acquire(), "blocked")));
        let gives_up = |_| {
            server.expect(&second.acquire(), "blocked");
            server.micros(&second.release(), "expired")
        };
        vec![waits, ("a reader gives up", least(gives_up))]
    });
}

/// `asker`s wait for a lock that an exclusive holder of the same keys has.
fn queues_are_cheap(what: &str, asker: impl Fn(usize) -> Asker) {
    flat(what, |server, others| {
        let holder = asker(newcomer(TRIES)).exclusive();
        server.expect(&holder.acquire(), "granted");
        server.queued(others, &asker);
        let measure = |server: &mut Server, call: Vec<String>, wanted: &str| {
            server.all_live();
            server.micros(&call, wanted)
        };
        let comes = least(|n| measure(server, asker(newcomer(n)).acquire(), "blocked"));
        let renews = least(|n| measure(server, asker(TRIES + n).again(2).acquire(), "blocked"));
        let gives_up = least(|n| measure(server, asker(TRIES + n).again(3).release(), "foreign"));
        let leaves = least(|_| {
            server.restore(&holder);
            measure(server, holder.release(), "released")
        });
        let mut inside = None;
        let enters = least(|n| {
            let before = inside.replace(asker(n).again(2)).filter(Asker::is_exclusive);
            before.into_iter().for_each(|before| server.expect(&before.release(), "released"));
            measure(server, asker(n).again(2).acquire(), "granted")
        });
        vec![
            ("comes", comes),
            ("renews", renews),
            ("gives up", gives_up),
            ("is woken by a release", leaves),
            ("enters", enters),
        ]
    });
}

#[test]
fn a_queue_of_writers_costs_the_same_for_few_and_many() {
    queues_are_cheap("a writer", writer);
    queues_are_cheap("a preferred writer", |number| writer(number).preferred());
    queues_are_cheap("a writer of two keys", |number| Asker::new(number, &["k", "l"]));
}

#[test]
fn a_queue_of_readers_costs_the_same_for_few_and_many() {
    queues_are_cheap("a reader", reader);
    queues_are_cheap("a reader that joins", |number| reader(number).joins());
}

#[test]
fn a_queue_of_readers_of_two_keys_costs_the_same_for_few_and_many() {
    queues_are_cheap("a reader of two keys", reader_of_two);
    queues_are_cheap("a reader of two keys that joins", |number| reader_of_two(number).joins());
}

#[test]
fn groups_of_readers_in_a_queue_cost_the_same_for_few_and_many() {
    let asker = |number: usize| Asker::new(number, &["k"]).mode(&format!("shared:group {number}"));
    flat("a reader of a group of its own", |server, others| {
        server.expect(&writer(newcomer(0)).acquire(), "granted");
        server.queued(others, asker);
        server.all_live();
        server.expect(&writer(newcomer(0)).release(), "released");
        let in_and_out = |n| {
            server.all_live();
            let asker = asker(n).again(2);
            server.micros(&asker.acquire(), "granted") + server.micros(&asker.release(), "released")
        };
        vec![("enters and leaves", least(in_and_out))]
    });
}

#[test]
fn a_queue_for_slots_costs_the_same_for_few_and_many() {
    let asker = |number: usize| Asker::new(number, &["k"]).mode("slots:40");
    flat("a waiter for a slot", |server, others| {
        let holders: Vec<Asker> = (0..40).map(|number| asker(newcomer(number))).collect();
        holders.iter().for_each(|holder| server.expect(&holder.acquire(), "granted"));
        server.queued(others, asker);
        let renews = least(|n| {
            server.all_live();
            server.micros(&asker(TRIES + n).again(2).acquire(), "blocked")
        });
        let mut enters = u64::MAX;
        let leaves = least(|n| {
            server.all_live();
            let leaves = server.micros(&holders[n].release(), "released");
            enters = enters.min(server.micros(&asker(n).again(2).acquire(), "granted"));
            leaves
        });
        vec![("renews", renews), ("is woken by a release", leaves), ("enters", enters)]
    });
}

#[test]
fn what_is_dead_costs_something_once() {
    let cost = |others: usize, server: &mut Server, call: &[String]| {
        let before = server.commands();
        server.expect(call, "");
        let commands = server.commands() - before;
        assert!(commands < 100 + 2 * others as u64, "{commands} commands for {others}");
        let before = server.commands();
        server.expect(call, "");
        assert!(server.commands() - before < 100, "and again");
    };
    for asker in [writer, reader, reader_of_two] {
        let mut server = Server::start();
        server.expect(&Asker::new(newcomer(0), &["k", "l"]).acquire(), "granted");
        server.queued(1000, asker);
        server.all_live_until("0");
        cost(1000, &mut server, &writer(newcomer(1)).acquire());
        assert_eq!(server.client.cmd(&["ZCARD", "lock-queue:k"]), "1", "the one that asked");
    }
    for asker in [reader, slot] {
        let mut server = Server::start();
        server.granted(0..1000, asker);
        for entry in server.client.cmd(&["ZRANGE", "lock-shared:k", "1", "-1"]).lines() {
            server.client.cmd(&["ZADD", "lock-shared:k", "1", entry]);
        }
        cost(1000, &mut server, &asker(newcomer(0)).acquire());
        assert_eq!(server.client.cmd(&["ZCARD", "lock-shared:k"]), "2");
    }
}

#[test]
fn readers_behind_many_that_wait_for_another_key_enter() {
    let mut server = Server::start();
    server.expect(&Asker::new(newcomer(0), &["l"]).acquire(), "granted");
    (0..100).for_each(|number| server.expect(&reader_of_two(number).acquire(), "blocked"));
    server.expect(&reader(newcomer(1)).acquire(), "granted");
    server.expect(&writer(newcomer(2)).acquire(), "blocked");
    server.expect(&reader(newcomer(3)).acquire(), "blocked"); // not past a writer
    server.expect(&writer(newcomer(2)).release(), "foreign");
    server.expect(&reader(newcomer(3)).again(2).acquire(), "granted");
}

#[test]
fn a_queue_in_which_older_versions_stand_is_served_in_order() {
    let mut server = Server::start();
    server.expect(&writer(newcomer(0)).acquire(), "granted");
    (0..4).for_each(|number| server.expect(&reader(number).acquire(), "blocked"));
    // They keep no lock-modes:K: as if the first two were such readers, and a third one had come and gone.
    let entries = server.client.cmd(&["ZRANGE", "lock-modes:k", "0", "-1"]);
    let entries: Vec<&str> = entries.lines().collect();
    server.client.cmd(&["ZREM", "lock-modes:k", entries[0], entries[1]]);
    server.expect(&writer(newcomer(0)).release(), "released");
    server.expect(&reader(2).again(2).acquire(), "blocked");
    server.expect(&reader(0).again(2).acquire(), "granted");
    server.expect(&reader(1).again(2).acquire(), "granted");
    server.expect(&reader(2).again(3).acquire(), "granted");
    // A reader that an older version took out of the queue leaves its entry behind, and a writer stands in its place.
    server.expect(&writer(newcomer(1)).acquire(), "blocked");
    (5..7).for_each(|number| server.expect(&reader(number).acquire(), "blocked"));
    let first = server.client.cmd(&["ZRANGE", "lock-queue:k", "0", "0"]);
    server.client.cmd(&["ZREM", "lock-queue:k", &first]);
    server.client.cmd(&["ZREM", "lock-waiters:k", &first]);
    server.expect(&writer(newcomer(1)).again(2).acquire(), "blocked");
    for attempt in 2..5 {
        (5..7).for_each(|number| server.expect(&reader(number).again(attempt).acquire(), "blocked"));
    }
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
        let again = asker(1).again(2);
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
