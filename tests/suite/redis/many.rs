//! The cost of a request on a server does not grow with the number of sharers, slots and waiters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::Redis;
use crate::support::crowd::{
    LOCKS, READERS, READERS_OF_TWO, SHARERS, SLOTS, Scenario, Server, WRITERS, newcomer, reader,
    reader_of_two, slot, writer,
};
use crate::support::script_calls::Requester;

const FEW: usize = 50;
/// `scripts/bench --many` goes to 5,000.
const MANY: usize = 2000;
/// A cost that grows with the number would grow at least tenfold.
const BOUND: u64 = 5;

/// Runs `work` with a server that has loaded the scripts.
fn with_server<T>(work: impl FnOnce(&mut Server) -> T) -> T {
    let redis = Redis::start();
    let mut client = redis.connect();
    work(&mut Server::new(|words| client.cmd(words)))
}

/// Compares the cost beside few clients with that beside many, in one run.
#[track_caller]
fn assert_flat(scenarios: &[Scenario]) {
    for (what, measure) in scenarios {
        let [few, many] = [FEW, MANY].map(|others| with_server(|server| measure(server, others)));
        for ((row, few), (_, many)) in few.into_iter().zip(many) {
            assert!(many <= few * BOUND, "{what} {row}: {few} us with {FEW}, {many} us with {MANY}");
        }
    }
}

/// Only one of these tests runs at a time: each keeps a server busy, and together they would starve
/// those of other modules.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_lock_costs_the_same_beside_few_and_many_others() {
    let _alone = alone();
    assert_flat(&LOCKS);
}

#[test]
fn sharers_cost_the_same_beside_few_and_many() {
    let _alone = alone();
    assert_flat(&SHARERS);
}

#[test]
fn a_queue_of_writers_costs_the_same_for_few_and_many() {
    let _alone = alone();
    assert_flat(&WRITERS);
}

#[test]
fn a_queue_of_readers_costs_the_same_for_few_and_many() {
    let _alone = alone();
    assert_flat(&READERS);
}

#[test]
fn a_queue_of_readers_of_two_keys_costs_the_same_for_few_and_many() {
    let _alone = alone();
    assert_flat(&READERS_OF_TWO);
}

#[test]
fn a_queue_for_slots_costs_the_same_for_few_and_many() {
    let _alone = alone();
    assert_flat(&SLOTS);
}

#[test]
fn dead_entries_cost_something_once() {
    let _alone = alone();
    let cost = |others: usize, server: &mut Server, call: &[String]| {
        let before = server.commands();
        server.expect(call, "");
        let commands = server.commands() - before;
        assert!(commands < 100 + 2 * others as u64, "{commands} commands for {others}");
        let before = server.commands();
        server.expect(call, "");
        assert!(server.commands() - before < 100, "the second time");
    };
    for asker in [writer, reader, reader_of_two] {
        with_server(|server| {
            server.expect(&Requester::new(newcomer(0), &["k", "l"]).acquire(), "granted");
            server.queued(1000, asker);
            server.renew_all_waiters_for(-1);
            cost(1000, server, &writer(newcomer(1)).acquire());
            assert_eq!(server.cmd(&["ZCARD", "lock-queue:k"]), "1", "the requester");
        });
    }
    for asker in [reader, slot] {
        with_server(|server| {
            server.granted(1000, asker);
            for entry in server.cmd(&["ZRANGE", "lock-shared:k", "1", "-1"]).lines() {
                server.cmd(&["ZADD", "lock-shared:k", "1", entry]);
            }
            cost(1000, server, &asker(newcomer(0)).acquire());
            assert_eq!(server.cmd(&["ZCARD", "lock-shared:k"]), "2");
        });
    }
}

#[test]
fn readers_enter_past_many_that_wait_for_another_key() {
    with_server(|server| {
        server.expect(&Requester::new(newcomer(0), &["l"]).acquire(), "granted");
        (0..100).for_each(|number| server.expect(&reader_of_two(number).acquire(), "blocked"));
        server.expect(&reader(newcomer(1)).acquire(), "granted");
        server.expect(&writer(newcomer(2)).acquire(), "blocked");
        server.expect(&reader(newcomer(3)).acquire(), "blocked"); // must not overtake a writer
        server.expect(&writer(newcomer(2)).release(), "foreign");
        server.expect(&reader(newcomer(3)).again(2).acquire(), "granted");
    });
}

#[test]
fn a_queue_with_older_versions_is_served_in_order() {
    with_server(|server| {
        server.expect(&writer(newcomer(0)).acquire(), "granted");
        (0..4).for_each(|number| server.expect(&reader(number).acquire(), "blocked"));
        // Older versions do not write lock-modes:K: as if the first two were such readers, and a
        // third one had come and gone.
        let entries = server.cmd(&["ZRANGE", "lock-modes:k", "0", "-1"]);
        let entries: Vec<&str> = entries.lines().collect();
        server.cmd(&["ZREM", "lock-modes:k", entries[0], entries[1]]);
        server.expect(&writer(newcomer(0)).release(), "released");
        server.expect(&reader(2).again(2).acquire(), "blocked");
        server.expect(&reader(0).again(2).acquire(), "granted");
        server.expect(&reader(1).again(2).acquire(), "granted");
        server.expect(&reader(2).again(3).acquire(), "granted");
        // A reader that an older version removed from the queue leaves its entry behind, and a
        // writer has its place.
        server.expect(&writer(newcomer(1)).acquire(), "blocked");
        (5..7).for_each(|number| server.expect(&reader(number).acquire(), "blocked"));
        let first = server.cmd(&["ZRANGE", "lock-queue:k", "0", "0"]);
        server.cmd(&["ZREM", "lock-queue:k", &first]);
        server.cmd(&["ZREM", "lock-waiters:k", &first]);
        server.expect(&writer(newcomer(1)).again(2).acquire(), "blocked");
        for attempt in 2..5 {
            (5..7).for_each(|number| server.expect(&reader(number).again(attempt).acquire(), "blocked"));
        }
    });
}

#[test]
fn slots_that_an_older_version_took_or_released_are_seen() {
    with_server(|server| {
        let number_of = |reply: String| reply.lines().nth(3).expect("a slot").to_owned();
        let take = |server: &mut Server, number| number_of(server.call(&slot(number).acquire()));
        assert_eq!([0, 1, 2].map(|number| take(server, number)), ["0", "1", "2"]);
        // An older version writes an entry and a record, and nothing else.
        let until = server.cmd(&["ZSCORE", "lock-shared:k", &format!("{}.1/1", slot(1).waiter())]);
        let older = format!("{}.1/3", slot(3).waiter());
        server.cmd(&["ZADD", "lock-shared:k", &until, &older]);
        server.cmd(&["HSET", "lock-info:k", slot(3).waiter(), &format!("{{\"claim\":\"{older}\"}}")]);
        assert_eq!(take(server, 4), "4");
        server.cmd(&["ZREM", "lock-shared:k", &format!("{}.1/1", slot(1).waiter())]);
        server.cmd(&["HDEL", "lock-info:k", slot(1).waiter()]);
        assert_eq!(take(server, 5), "1");
        server.expect(&slot(2).release(), "released");
        assert_eq!(take(server, 6), "2");
    });
}

#[test]
fn a_sharer_that_retries_after_an_unread_grant_expired_keeps_its_record() {
    for asker in [reader, slot] {
        with_server(|server| {
            server.granted(2, asker);
            let entry = server.cmd(&["ZRANGE", "lock-shared:k", "1", "1"]);
            assert!(entry.starts_with(asker(1).waiter()), "{entry}");
            server.cmd(&["ZADD", "lock-shared:k", "1", &entry]); // the grant has expired
            let again = asker(1).again(2);
            server.expect(&again.acquire(), "granted");
            let record = server.cmd(&["HGET", "lock-info:k", again.waiter()]);
            assert!(record.contains(&format!("\"{}.2", again.waiter())), "its record: {record:?}");
            assert_eq!(server.cmd(&["ZCARD", "lock-shared:k"]), "2");
            server.expect(&again.extend(), "extended");
            // The holder reported to another client is this one, with its record.
            server.expect(&asker(0).release(), "released");
            let reply = server.call(&writer(newcomer(0)).mode("shared:other").acquire());
            assert!(reply.contains("command\ntrue") || reply.starts_with("slots_mismatch"), "{reply}");
            server.expect(&again.release(), "released");
            assert_eq!(server.cmd(&["EXISTS", "lock:k", "lock-shared:k", "lock-info:k"]), "0");
        });
    }
}
