//! --min-hold: the lock stays taken for that long after the grant, and redlock does not wait for it.

mod support;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use support::{Job, Nodes, Place, Redis, Run, TREE, alive, hold, pttl, tree_of, wait_until};

/// The server keeps the key until a minute after a grant that came later than `start`.
#[track_caller]
fn a_minute_from_the_grant(redis: &Redis, key: &str, start: Instant) {
    let left = pttl(redis, key);
    let least = 60_000 - start.elapsed().as_millis() as i64 - 5; // rounded more than once
    assert!(left >= least && left <= 60_000, "{left} ms left of {key:?}, at least {least}");
}

/// Holds the key with this --min-hold and more arguments, until its stdin is closed.
fn hold_at_least(place: &Place, time: &str, args: &[&str]) -> Job {
    hold(place.run_for_long().args(&["--min-hold", time]).args(args))
}

#[test]
fn on_one_server_it_stays_for_the_rest_of_the_time_however_the_command_ends() {
    let redis = Redis::start();
    for (key, end) in [("well", "exit 0"), ("badly", "exit 3"), ("killed", "kill -KILL $$")] {
        let start = Instant::now();
        let done = Run::key(&redis, key).args(&["--min-hold", "1m"]).sh(end).done();
        a_minute_from_the_grant(&redis, key, start); // so redlock did not wait for it
        assert_eq!(done.stderr, "");
        assert_eq!(redis.cmd(&["SET", &format!("lock:{key}"), "foreign", "NX"]), "", "no library gets in");
        Run::key(&redis, key).arg("-n").sh("echo ran").done().expect_code(75);
    }
    let start = Instant::now();
    let job = Run::key(&redis, "ended").args(&["--min-hold", "1m"]).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    a_minute_from_the_grant(&redis, "ended", start);
}

#[test]
fn it_may_be_longer_than_the_ttl() {
    let redis = Redis::start();
    let start = Instant::now();
    let run = Run::key(&redis, "k").args(&["--ttl", "500ms", "--min-hold", "1m"]).stdin_pipe();
    let job = run.sh("echo ready; sleep 1; exit 4").spawn();
    job.wait_for_line("ready");
    job.wait().expect_code(4);
    a_minute_from_the_grant(&redis, "k", start);
}

#[test]
fn on_three_servers_it_stays_on_all_of_them() {
    let nodes = Nodes::start(3);
    nodes.settle();
    // The quarantine is 30 s by default, which bounds the ttl, and not this.
    for (key, run) in [("k", nodes.run("k")), ("j", nodes.run_quarantined("j"))] {
        let start = Instant::now();
        run.args(&["--min-hold", "1m"]).sh("exit 3").done().expect_code(3);
        for node in nodes.iter() {
            wait_until("the slowest one has it too", || pttl(node, key) > 40_000);
            a_minute_from_the_grant(node, key, start);
        }
    }
    nodes.run("k").arg("-n").sh("echo ran").done().expect_code(75);
}

#[test]
fn nobody_gets_it_before_the_time_is_over_and_then_the_first_in_the_queue_does_by_itself() {
    const TIME: Duration = Duration::from_millis(1500);
    for place in Place::all() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let first = hold_at_least(&place, "1500ms", &[]);
        let waiters: Vec<Job> = (1..=2)
            .map(|n| place.waiter(place.run().dir(folder.path()).sh(&format!("echo {n} >> order")), n))
            .collect();
        first.wait().expect_code(0);
        let order = || std::fs::read_to_string(folder.path().join("order")).unwrap_or_default();
        wait_until("the first waiter has it", || !order().is_empty());
        assert!(start.elapsed() >= TIME, "{}: {:?} after the start", place.name(), start.elapsed());
        for waiter in waiters {
            waiter.wait().expect_code(0);
        }
        assert_eq!(order(), "1\n2\n", "{}", place.name());
    }
}

#[test]
fn while_it_stays_one_can_try_wait_for_a_while_or_be_cancelled_as_ever() {
    for place in Place::all() {
        hold_at_least(&place, "1m", &[]).wait().expect_code(0);
        place.run().arg("-n").sh("echo ran").done().expect_code(75);
        let start = Instant::now();
        place.run().args(&["-w", "0.4"]).sh("echo ran").done().expect_code(75);
        assert!(start.elapsed() >= Duration::from_millis(400), "{}: {:?}", place.name(), start.elapsed());
        place
            .run()
            .args(&["--retries", "1", "--retry-interval", "9ms"])
            .cmd(&["true"])
            .done()
            .expect_code(75);
        let waiter = place.waiter(place.run().sh("echo ran"), 1);
        waiter.signal(SIGTERM);
        assert_eq!(waiter.wait().signal, Some(SIGTERM as i32), "{}", place.name());
        assert!(!place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_command_that_took_longer_frees_the_lock_at_its_end() {
    for place in Place::all() {
        place.run_for_long().args(&["--min-hold", "300ms"]).sh("sleep 0.4").done().expect_code(0);
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_run_that_was_killed_keeps_it_too_and_its_tree_is_gone() {
    for place in Place::all() {
        let job = place.run_for_long().args(&["--min-hold", "1m"]).sh(TREE).spawn();
        let tree = tree_of(&job);
        job.signal(SIGKILL);
        job.wait();
        wait_until("the tree is gone", || !tree.iter().any(|pid| alive(*pid)));
        assert!(!place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_run_that_max_hold_ended_keeps_it_too() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--min-hold", "1m", "--max-hold", "300ms"]);
        run.sh("exec sleep 60").done().expect_code(124);
        assert!(!place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_command_that_could_not_be_started_frees_it_at_once() {
    for place in Place::all() {
        for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
            place.run().args(&["--min-hold", "1m"]).cmd(&[command]).done().expect_code(code);
            assert!(place.is_free(), "{}: {code}", place.name());
        }
    }
}

#[test]
fn a_waiter_that_was_cancelled_keeps_nothing() {
    for place in Place::all() {
        let first = hold(place.run_for_long());
        let waiter = place.waiter(place.run().args(&["--min-hold", "1m"]).sh("echo ran"), 1);
        waiter.signal(SIGTERM);
        assert_eq!(waiter.wait().signal, Some(SIGTERM as i32));
        place.run().args(&["-n", "--min-hold", "1m"]).cmd(&["true"]).done().expect_code(75);
        first.wait().expect_code(0);
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_lost_lock_is_not_taken_again_for_it() {
    let redis = Redis::start();
    for successor in [None, Some("foreign")] {
        let run = Run::key(&redis, "k").args(&["--ttl", "900ms", "--min-hold", "1m"]);
        let job = run.sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        redis.cmd(&["DEL", "lock:k"]);
        successor.map(|value| redis.cmd(&["SET", "lock:k", value, "PX", "20000"]));
        job.wait().expect_code(79);
        assert_eq!(redis.cmd(&["GET", "lock:k"]), successor.unwrap_or_default());
        assert!(pttl(&redis, "k") <= 20_000);
    }
}

#[test]
fn a_readers_entry_stays_and_keeps_writers_out_but_not_readers() {
    for place in Place::all() {
        hold_at_least(&place, "1m", &["-s"]).wait().expect_code(0);
        // Readers without that wish come and go; the entry is not theirs to remove.
        for _ in 0..2 {
            place.run().args(&["-n", "-s"]).cmd(&["true"]).done().expect_code(0);
        }
        // Nor does a lease that ran out take it along: that of one who was killed.
        let short: &[&str] = if matches!(place, Place::Here(_)) { &[] } else { &["--ttl", "300ms"] };
        let killed = hold(place.run().args(&["-n", "-s"]).args(short));
        killed.signal(SIGKILL);
        killed.wait();
        let writer = place.run().args(&["-w", "1"]).sh("echo ran").done();
        assert_eq!(writer.code, Some(75), "{}", place.name());
    }
}

#[test]
fn a_writer_gets_in_by_itself_when_the_readers_time_is_over() {
    for place in Place::all() {
        let start = Instant::now();
        let reader = hold_at_least(&place, "1500ms", &["-s"]);
        let writer = place.waiter(place.run().sh("echo mine"), 1);
        reader.wait().expect_code(0);
        writer.wait_for_line("mine");
        assert!(start.elapsed() >= Duration::from_millis(1500), "{}: {:?}", place.name(), start.elapsed());
        writer.wait().expect_code(0);
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_slot_stays_with_its_number() {
    for place in [Place::one(), Place::here()] {
        let slots = |args: &[&str]| place.run().args(&["--slots", "2"]).args(args);
        let number = |run: Run| run.sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout;
        assert_eq!(number(slots(&["--min-hold", "1m"])), "0\n", "{}", place.name());
        assert_eq!(number(slots(&["-n"])), "1\n", "{}: 0 is still taken", place.name());
        assert_eq!(number(slots(&["-n", "--min-hold", "1m"])), "1\n", "{}", place.name());
        slots(&["-n"]).sh("echo ran").done().expect_code(75);
    }
}

#[test]
fn a_waiter_gets_the_slot_by_itself_when_its_time_is_over() {
    for place in [Place::one(), Place::here()] {
        let slots = |args: &[&str]| place.run().args(&["--slots", "2"]).args(args);
        let start = Instant::now();
        let stays = hold(slots(&[]));
        slots(&["--min-hold", "1500ms"]).cmd(&["true"]).done().expect_code(0);
        let next = slots(&[]).sh("echo slot $REDLOCK_SLOT").done().expect_code(0);
        assert_eq!(next.stdout, "slot 1\n", "{}", place.name());
        assert!(start.elapsed() >= Duration::from_millis(1500), "{}: {:?}", place.name(), start.elapsed());
        stays.wait().expect_code(0);
    }
}

#[test]
fn all_of_several_keys_stay() {
    for place in Place::all() {
        let run = place.run().args(&["--key", "second", "--min-hold", "1m"]);
        run.sh("exit 3").done().expect_code(3);
        assert!(!place.is_free(), "{}: the first key", place.name());
        place.run_on("second").arg("-n").sh("echo ran").done().expect_code(75);
    }
}
