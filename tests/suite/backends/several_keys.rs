//! `--key` several times: all of them or none, one lease, one release, no deadlock.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Backend, Job, TREE, alive, expect_success, hold, tree_of, wait_until};

on_backends!(one_server, three_servers, this_host:
    ten_runs_with_crossed_orders_all_finish_and_never_overlap_on_a_key,
    readers_and_writers_of_crossed_keys_never_overlap_even_if_some_are_killed,
    the_command_sees_the_keys_and_their_tokens_in_the_order_given,
    no_other_run_gets_any_of_the_held_keys,
    one_held_key_prevents_taking_the_others,
    a_waiter_gets_all_keys_when_the_last_is_free,
    a_long_wait_names_all_keys,
    a_cancelled_waiter_leaves_every_queue,
    readers_share_several_keys,
    the_same_key_twice_is_a_usage_error,
    many_keys_work,
    the_keys_of_a_killed_holder_become_free,
);

/// Enters each of the keys, stays for a moment, and leaves. The kernel is the judge: a lock of
/// flock(1) lives as long as any process of the command.
fn enter(keys: &[&str], mode: &str, inside: &str) -> String {
    let entries = keys.iter().enumerate().map(|(i, key)| {
        format!("exec {0}>>in-{key}; flock -n {mode} {0} || echo {key} {mode} >> overlaps; ", i + 3)
    });
    entries.collect::<String>() + &format!("echo inside; sleep {inside}; echo $REDLOCK_TOKEN >> order")
}

fn ten_runs_with_crossed_orders_all_finish_and_never_overlap_on_a_key(backend: &Backend) {
    let sets: [&[&str]; 5] = [&["a", "b"], &["b", "a"], &["c", "b", "a"], &["b", "c"], &["c", "a"]];
    let run = |keys: &[&str]| backend.run_on(keys).sh(&enter(keys, "-x", "0.03")).spawn();
    let jobs: Vec<Job> = (0..10).map(|i| run(sets[i % 5])).collect();
    expect_success(jobs);
    assert_eq!(backend.noted("overlaps"), Vec::<String>::new());
    assert_eq!(backend.order().len(), 10);
    backend.all_free(&["a", "b", "c"]);
}

fn readers_and_writers_of_crossed_keys_never_overlap_even_if_some_are_killed(backend: &Backend) {
    const SETS: [&[&str]; 6] = [&["a"], &["b", "a"], &["a", "b"], &["c", "b", "a"], &["b", "c"], &["c", "a"]];
    let dice = RandomState::new();
    let any = |id: usize, of: usize| (dice.hash_one((id, of)) % of as u64) as usize;
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let any = &any;
            scope.spawn(move || {
                for id in worker * 6..worker * 6 + 6 {
                    let keys = SETS[any(id, SETS.len())];
                    // redlock and flock(1) have the same options
                    let mode = ["-x", "-s"][any(id, 2)];
                    let prefer = ["fair", "fair", "writers", "readers"][any(id, 4)];
                    let run = backend.run_on(keys).args(&[mode, "-q", "--prefer", prefer]);
                    if id % 11 == 4 {
                        let victim = run.args(backend.short_ttl()).sh(&enter(keys, mode, "60")).spawn();
                        victim.wait_for_line("inside");
                        victim.signal(Signal::SIGKILL);
                        victim.wait();
                    } else {
                        run.sh(&enter(keys, mode, "0.03")).done().expect_code(0);
                    }
                }
            });
        }
    });
    assert_eq!(backend.noted("overlaps"), Vec::<String>::new());
}

fn the_command_sees_the_keys_and_their_tokens_in_the_order_given(backend: &Backend) {
    // After some runs the tokens of "a" are ahead of those of "b", and those of "c" begin here.
    (0..3).for_each(|_| drop(backend.run_on(&["a"]).cmd(&["true"]).done().expect_code(0)));
    let script = "echo \"$REDLOCK_KEY\"; echo $REDLOCK_FENCE; echo $REDLOCK_TOKEN; echo $REDLOCK_ATTEMPTS";
    let seen = |keys: &[&str]| {
        let done = backend.run_on(keys).env("REDLOCK_KEY", "x").sh(script).done().expect_code(0);
        let lines: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), keys.len() + 3, "{done:#?}");
        assert_eq!(lines[..keys.len()], *keys);
        let fences = lines[keys.len()].split(' ').map(|fence| fence.parse().expect("a number"));
        assert_eq!(lines[keys.len() + 1].split(' ').count(), 1, "one token for all: {done:#?}");
        fences.collect::<Vec<u64>>()
    };
    let first = seen(&["b", "a"]);
    let second = seen(&["a", "c", "b"]);
    assert_eq!((first.len(), second.len()), (2, 3));
    assert!(second[0] > first[1], "a: {second:?} after {first:?}");
    assert!(second[2] > first[0], "b: {second:?} after {first:?}");
}

fn no_other_run_gets_any_of_the_held_keys(backend: &Backend) {
    let holder = hold(backend.run_on(&["b", "a", "c"]));
    for keys in [&["a"][..], &["b"], &["c"], &["d", "c"], &["a", "b"]] {
        assert!(!backend.run_on(keys).try_acquire(), "{keys:?}");
    }
    assert!(backend.run_on(&["d", "e"]).try_acquire(), "other keys are other locks");
    holder.wait().expect_code(0);
    backend.all_free(&["a", "b", "c", "d"]);
}

fn one_held_key_prevents_taking_the_others(backend: &Backend) {
    for taken in ["a", "b", "c"] {
        let other = hold(backend.run_on(&[taken]).args(&["--label", "other job"]));
        let tried = backend.run_on(&["b", "a", "c"]).arg("-n").sh("echo ran").done().expect_code(75);
        assert_eq!(tried.stdout, "");
        assert!(tried.stderr.contains(&format!("\"{taken}\"")), "the key is named: {tried:?}");
        assert!(tried.stderr.contains("other job"), "the holder is named: {tried:?}");
        let free: Vec<&str> = ["a", "b", "c"].into_iter().filter(|key| *key != taken).collect();
        assert!(backend.run_on(&free).try_acquire(), "no other key is left taken");
        let retried = backend.run_on(&["b", "a", "c"]).args(&["--retries", "3", "--retry-interval", "10ms"]);
        retried.sh("echo ran").done().expect_code(75);
        assert!(backend.run_on(&free).try_acquire(), "a retry leaves nothing either");
        other.wait().expect_code(0);
    }
}

/// Starts a waiter and waits until it reports that it waits.
#[track_caller]
fn waiter(backend: &Backend, keys: &[&str], script: &str) -> Job {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = format!("events-{}", COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let job = backend.run_on(keys).args(&["--events", &name]).sh(script).spawn();
    wait_until("the wait is reported", || {
        backend.noted(&name).iter().any(|line| line.contains("\"waiting\""))
    });
    job
}

fn a_waiter_gets_all_keys_when_the_last_is_free(backend: &Backend) {
    let holders = ["c", "a", "b"].map(|key| hold(backend.run_on(&[key])));
    let next = waiter(backend, &["a", "b", "c"], "echo \"$REDLOCK_KEY\" > order");
    for holder in holders {
        assert_eq!(backend.order(), Vec::<String>::new());
        holder.wait().expect_code(0);
    }
    next.wait().expect_code(0);
    assert_eq!(backend.order(), ["a", "b", "c"]);
    backend.all_free(&["a", "b", "c"]);
}

fn a_long_wait_names_all_keys(backend: &Backend) {
    let holder = hold(backend.run_on(&["a"]).args(&["--label", "nightly"]));
    let next = backend.run_on(&["b", "a"]).cmd(&["true"]).spawn();
    let message = next.wait_for_stderr("waiting");
    assert!(message.starts_with("redlock: waiting for "), "{message}");
    for part in ["\"a\"", "\"b\"", "nightly"] {
        assert!(message.contains(part), "{part} is missing in {message:?}");
    }
    holder.wait().expect_code(0);
    next.wait().expect_code(0);
}

fn a_cancelled_waiter_leaves_every_queue(backend: &Backend) {
    let holder = hold(backend.run_on(&["b"]));
    let cancelled = waiter(backend, &["c", "b", "a"], "echo ran");
    cancelled.signal(Signal::SIGTERM);
    let done = cancelled.wait();
    assert_eq!((done.signal, done.stdout.as_str()), (Some(15), ""), "{done:?}");
    assert!(backend.run_on(&["a", "c"]).try_acquire());
    holder.wait().expect_code(0);
    backend.all_free(&["a", "b", "c"]);
}

fn readers_share_several_keys(backend: &Backend) {
    let reader = |keys: &[&str]| backend.run_on(keys).arg("--shared");
    let readers = [hold(reader(&["a", "b"])), hold(reader(&["b", "a"])), hold(reader(&["c", "b"]))];
    assert!(!backend.run_on(&["b"]).try_acquire() && !backend.run_on(&["d", "c"]).try_acquire());
    let writer = waiter(backend, &["d", "b"], "echo writer > order");
    for job in readers {
        assert_eq!(backend.order(), Vec::<String>::new());
        job.wait().expect_code(0);
    }
    writer.wait().expect_code(0);
}

fn the_same_key_twice_is_a_usage_error(backend: &Backend) {
    let done = backend.run_on(&["a", "b", "a"]).sh("echo ran").done().expect_code(64).expect_stderr(&["key"]);
    assert_eq!(done.stdout, "");
    backend.run_on(&["a", ""]).cmd(&["true"]).done().expect_code(64);
}

fn many_keys_work(backend: &Backend) {
    let names: Vec<String> = (0..40).map(|i| format!("key-{}", i * 7 % 40)).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = backend.run_on(&keys).sh("echo $REDLOCK_FENCE | wc -w").done().expect_code(0);
    assert_eq!(done.stdout.trim(), "40");
    backend.all_free(&keys);
}

fn the_keys_of_a_killed_holder_become_free(backend: &Backend) {
    let victim = backend.run_on(&["b", "a"]).args(backend.short_ttl()).sh(TREE).spawn();
    let tree = tree_of(&victim);
    let waiters = [waiter(backend, &["a"], "echo mine"), waiter(backend, &["b"], "echo mine")];
    victim.signal(Signal::SIGKILL);
    victim.wait();
    let killed = Instant::now();
    for next in waiters {
        next.wait_for_line("mine");
        assert!(tree.iter().all(|pid| !alive(*pid)), "its command still runs: {tree:?}");
        next.wait().expect_code(0);
    }
    assert!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
    backend.all_free(&["a", "b"]);
}
