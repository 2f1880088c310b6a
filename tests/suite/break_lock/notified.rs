//! The holder learns of a break at once, whatever its ttl: it stops its tree, releases the lock and
//! reports who broke it.

use std::time::{Duration, Instant};

use super::{break_in, our_user};
use crate::support::{Backend, REPORT_SURVIVORS, STUBBORN_TREE, TREE, alive, hold, tree_of, wait_until};

on_backends!(
    one_server, three_servers, this_host:
        the_tree_is_stopped_and_the_next_waiter_gets_the_lock,
        the_next_holder_starts_after_a_tree_that_ignores_sigterm,
        the_order_of_the_queue_is_kept_and_tokens_grow,
        events_name_who_broke_it,
        a_minimum_hold_does_not_keep_a_broken_lock,
        a_nested_run_is_stopped_with_the_broken_one,
        a_run_with_several_keys_releases_all_of_them,
        two_simultaneous_breaks_agree;
    one_server, three_servers:
        a_command_with_on_lost_warn_continues,
);

/// The next renewal would be ten seconds away.
const TTL: [&str; 2] = ["--ttl", "30s"];
const WELL_BEFORE_THE_RENEWAL: Duration = Duration::from_secs(7);

fn the_tree_is_stopped_and_the_next_waiter_gets_the_lock(backend: &Backend) {
    let job = backend.run().args(&TTL).sh(TREE).spawn();
    let tree = tree_of(&job);
    let pids: Vec<String> = tree.iter().map(i32::to_string).collect();
    let next = backend.waiter(backend.run().env("TREE", pids.join(" ")).sh(REPORT_SURVIVORS), 1);
    let start = Instant::now();
    let done = break_in(backend).arg("--yes").env("USER", "mallory").done().expect_code(0);
    assert!(start.elapsed() < WELL_BEFORE_THE_RENEWAL, "{:?}", start.elapsed());
    assert!(done.stdout.contains("broke \"k\": taken from "), "{done:?}");
    assert!(done.stdout.contains("its command was stopped after "), "{done:?}");
    let broken = job.wait().expect_code(79);
    let by = format!("lost the lock \"k\": broken by {}@", our_user());
    assert!(broken.stderr.contains(&by), "{broken:?}");
    assert_eq!(broken.stderr.lines().count(), 1, "{broken:?}");
    assert!(!tree.iter().any(|pid| alive(*pid)), "{tree:?}");
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
}

fn the_next_holder_starts_after_a_tree_that_ignores_sigterm(backend: &Backend) {
    let job = backend.run().args(&TTL).args(&["--kill-after", "1s"]).sh(STUBBORN_TREE).spawn();
    let tree: Vec<String> = tree_of(&job).iter().map(i32::to_string).collect();
    let next = backend.waiter(backend.run().env("TREE", tree.join(" ")).sh(REPORT_SURVIVORS), 1);
    break_in(backend).arg("--yes").done().expect_code(0);
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
    job.wait().expect_code(79);
}

fn the_order_of_the_queue_is_kept_and_tokens_grow(backend: &Backend) {
    let before = backend.run().fence();
    let first = hold(backend.run().args(&TTL));
    let waiters: Vec<_> = (1..=3)
        .map(|n| backend.waiter(backend.run().sh(&format!("echo {n} $REDLOCK_FENCE >> order")), n))
        .collect();
    break_in(backend).arg("--yes").done().expect_code(0);
    first.wait().expect_code(79);
    waiters.into_iter().for_each(|job| drop(job.wait().expect_code(0)));
    let order: Vec<(u32, u64)> = backend
        .order()
        .iter()
        .map(|line| line.split_once(' ').expect("a number and a token"))
        .map(|(n, fence)| (n.parse().expect("a number"), fence.parse().expect("a token")))
        .collect();
    assert_eq!(order.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(order[0].1 > before && order.is_sorted_by(|a, b| a.1 < b.1), "{before} {order:?}");
}

fn events_name_who_broke_it(backend: &Backend) {
    let job = hold(backend.run().args(&TTL).args(&["--events", "events"]));
    break_in(backend).arg("--yes").env("USER", "mallory").done().expect_code(0);
    job.wait().expect_code(79);
    let events = backend.noted("events");
    let lost = events.iter().find(|line| line.contains(r#""event":"lost""#)).expect("lost");
    assert!(lost.contains(r#""cause":"broken","action":"stop""#), "{lost}");
    let lost: serde_json::Value = serde_json::from_str(lost).expect("JSON");
    assert_eq!(lost["broken_by"]["user"], our_user(), "{lost}");
    let ended = events.last().expect("ended");
    assert!(ended.contains(r#""outcome":"lost","exit":79"#), "{ended}");
    assert!(ended.contains(r#""released":true"#), "{ended}");
}

fn a_minimum_hold_does_not_keep_a_broken_lock(backend: &Backend) {
    let job = hold(backend.run().args(&TTL).args(&["--min-hold", "10m"]));
    break_in(backend).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    assert!(backend.is_free());
}

/// The lock is no longer renewed, and ends with its lease.
fn a_command_with_on_lost_warn_continues(backend: &Backend) {
    let job = hold(backend.run().args(&["--ttl", "8s", "--on-lost", "warn"]));
    let done = break_in(backend).args(&["--yes", "-w", "1s"]).done().expect_code(75);
    assert!(done.stderr.contains("its lease ends in at most "), "{done:?}");
    job.wait_for_stderr("broken by ");
    let next = backend.run().args(&["-w", "20s"]).cmd(&["true"]).done().expect_code(0);
    assert_eq!(next.stderr.matches("gave up").count(), 0, "{next:?}");
    let ended = job.wait().expect_code(0);
    assert!(ended.stderr.contains("the command runs on without it"), "{ended:?}");
}

fn a_nested_run_is_stopped_with_the_broken_one(backend: &Backend) {
    let inner = format!("{} -- sh -c 'echo inner; sleep 300'", backend.run().arg("--reentrant").shell_line());
    let outer = backend.run().args(&TTL).sh(&inner).spawn();
    outer.wait_for_line("inner");
    let tree = crate::support::descendants(outer.pid());
    break_in(backend).arg("--yes").done().expect_code(0);
    outer.wait().expect_code(79);
    assert!(!tree.iter().any(|pid| alive(*pid)), "{tree:?}");
    assert!(backend.is_free());
}

fn a_run_with_several_keys_releases_all_of_them(backend: &Backend) {
    let job = hold(backend.run_on(&["k", "other"]).args(&TTL));
    break_in(backend).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    backend.all_free(&["k", "other"]);
}

fn two_simultaneous_breaks_agree(backend: &Backend) {
    let job = hold(backend.run().args(&TTL));
    let both = [(); 2].map(|()| break_in(backend).arg("--yes").spawn());
    both.into_iter().for_each(|done| drop(done.wait().expect_code(0)));
    job.wait().expect_code(79);
    wait_until("the lock is free", || backend.is_free());
}
