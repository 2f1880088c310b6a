//! Several keys on servers: one script acquires them, one releases them, and losing one means
//! losing all.

use std::time::Instant;

use nix::sys::signal::Signal;

use crate::support::{
    Backend, Locks, Nodes, Redis, Run, TREE, Watch, alive, assert_stays_free, expect_success, hold, holder,
    measure_short_run, queued, tree_of, wait_until,
};

fn keys(redis: &Redis, keys: &[&str]) -> Run {
    keys[1..].iter().fold(Run::key(redis, keys[0]), |run, key| run.args(&["--key", key]))
}

#[test]
fn one_script_acquires_all_keys_and_one_releases_them() {
    let redis = Redis::start();
    let run = || keys(&redis, &["c", "a", "b"]).sh("set -- $REDLOCK_FENCE; exit $#").done().expect_code(3);
    run(); // loads the scripts
    run();
    for _ in 0..5 {
        let calls = measure_short_run(|| {
            let (before, start) = (redis.script_calls(), Instant::now());
            run();
            (start.elapsed(), redis.script_calls() - before)
        });
        assert_eq!(calls, 2, "one to take and one to release");
    }
}

#[test]
fn all_keys_share_one_token_and_each_has_its_own_fence() {
    let redis = Redis::start();
    let script = "echo $REDLOCK_TOKEN $REDLOCK_FENCE ready; read x; exit 0";
    let job = keys(&redis, &["b", "a"]).stdin_pipe().sh(script).spawn();
    let line = job.wait_for_line("ready");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 4, "{line}");
    assert_eq!([redis.cmd(&["GET", "lock:a"]), redis.cmd(&["GET", "lock:b"])], [words[0]; 2]);
    assert_eq!([redis.cmd(&["GET", "lock-fence:b"]), redis.cmd(&["GET", "lock-fence:a"])], words[1..3]);
    job.wait().expect_code(0);
}

#[test]
fn a_waiter_holds_no_key_while_another_run_holds_one() {
    let redis = Redis::start();
    for (taken, free) in [("a", "lock:b"), ("b", "lock:a")] {
        let other = hold(keys(&redis, &[taken]));
        let watch = Watch::start(&redis, move |client| client.cmd(&["EXISTS", free]));
        let waiters =
            [keys(&redis, &["a", "b"]), keys(&redis, &["b", "a"])].map(|run| run.cmd(&["true"]).spawn());
        for waiter in &waiters {
            waiter.wait_for_stderr("waiting"); // after two seconds, and so more than one attempt
        }
        assert_eq!(watch.finish(), ["0"], "{free} was taken while {taken} was not free");
        other.wait().expect_code(0);
        waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    }
}

#[test]
fn all_leases_are_renewed_together() {
    let redis = Redis::start();
    let job = keys(&redis, &["b", "a"]).args(&["--ttl", "3s"]).sh("echo ready; sleep 7; exit 6").spawn();
    job.wait_for_line("ready");
    let watch = Watch::start(&redis, |client| client.cmd(&["EXISTS", "lock:a", "lock:b"]));
    assert_eq!(job.wait().expect_code(6).stderr, "");
    let seen = watch.finish();
    // Both throughout, then (if the watcher was quick) none, and never one of them.
    assert!(seen == ["2"] || seen == ["2", "0"], "{seen:?}");
}

#[test]
fn losing_one_key_means_losing_all() {
    let redis = Redis::start();
    for lost in ["lock:k", "lock:a", "lock:z"] {
        let job = keys(&redis, &["k", "z", "a"]).args(&["--ttl", "3s"]).sh(TREE).spawn();
        let tree = tree_of(&job);
        redis.cmd(&["DEL", lost]);
        let done = job.wait().expect_code(79);
        assert!(done.stderr.contains("redlock: "), "{done:?}");
        assert!(tree.iter().all(|pid| !alive(*pid)), "still alive of {tree:?}");
        assert_eq!(redis.cmd(&["EXISTS", "lock:k", "lock:a", "lock:z"]), "0", "the others are released");
    }
    assert_stays_free(&redis);
}

#[test]
fn losing_one_key_to_another_program_leaves_it_alone_and_frees_the_rest() {
    let redis = Redis::start();
    let mut job = hold(keys(&redis, &["a", "b"]).args(&["--ttl", "3s"]));
    redis.cmd(&["SET", "lock:b", "someone else", "PX", "60000"]);
    wait_until("the command is stopped", || !job.is_running());
    job.wait().expect_code(79);
    assert_eq!(redis.cmd(&["GET", "lock:b"]), "someone else");
    assert!(!redis.held("a"));
}

#[test]
fn a_foreign_value_at_one_key_is_respected_and_no_other_key_is_taken() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock:b", "someone else", "PX", "60000"]);
    let before = redis.keys();
    keys(&redis, &["a", "b", "c"]).arg("-n").cmd(&["true"]).done().expect_code(75);
    assert_eq!(redis.keys(), before);
    assert_eq!(redis.cmd(&["GET", "lock:b"]), "someone else");
}

#[test]
fn a_key_of_another_type_is_refused_and_no_other_key_is_taken() {
    let redis = Redis::start();
    redis.cmd(&["LPUSH", "lock:b", "a list"]);
    for args in [&["-n"][..], &[]] {
        let done = keys(&redis, &["a", "b", "c"]).args(args).sh("echo ran").done().expect_code(78);
        assert_eq!(done.stdout, "");
        assert!(
            done.stderr.contains("\"b\"") || done.stderr.contains("lock:b"),
            "the key is named: {done:?}"
        );
        assert_eq!(redis.keys(), ["lock:b"]);
    }
}

#[test]
fn slots_of_several_keys_are_listed_in_the_order_given() {
    let redis = Redis::start();
    let slots = |names: &[&str]| keys(&redis, names).args(&["--slots", "3"]);
    let taken = [hold(slots(&["b"])), hold(slots(&["b", "c"]))];
    let done = slots(&["a", "b", "c"]).arg("-n").sh("echo $REDLOCK_SLOT").done().expect_code(0);
    assert_eq!(done.stdout, "0 2 1\n");
    let third = hold(slots(&["b"]));
    slots(&["a", "b"]).arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(!redis.held("a"), "all or nothing");
    taken.into_iter().chain([third]).for_each(|job| drop(job.wait().expect_code(0)));
}

#[test]
fn no_key_is_left_behind_or_ever_without_a_ttl() {
    let redis = Redis::start();
    let watch = Watch::start(&redis, |client| client.keys_without_ttl().join(" "));
    let first = hold(keys(&redis, &["a", "b"]));
    let waiters =
        [["b", "c"], ["c", "a"], ["a", "b"]].map(|names| keys(&redis, &names).cmd(&["true"]).spawn());
    let queued = || ["a", "b", "c"].iter().map(|key| redis.queue_len(key)).sum::<usize>();
    wait_until("all wait", || queued() >= 3);
    first.wait().expect_code(0);
    waiters.into_iter().for_each(|waiter| drop(waiter.wait().expect_code(0)));
    let stays = |key: &String| key.starts_with("lock-fence:") || key.starts_with("lock-tombstone:");
    wait_until("only the fences are left", || redis.keys().iter().all(stays));
    assert_eq!(watch.finish(), [""], "a key without a TTL");
}

#[test]
fn one_of_three_servers_may_be_down() {
    for down in [0, 2] {
        let backend = Backend::three_servers();
        let Locks::ThreeServers(mut nodes) = backend.locks else { unreachable!() };
        nodes[down].kill();
        let run = |names: [&str; 2]| nodes.run(names[0]).args(&["--key", names[1]]);
        let holder = hold(run(["b", "a"]));
        run(["a", "c"]).arg("-n").cmd(&["true"]).done().expect_code(75);
        assert!(nodes.up().all(|redis| !redis.held("c")), "all or nothing");
        holder.wait().expect_code(0);
        nodes.all_free();
    }
}

#[test]
fn losing_a_key_on_a_majority_loses_all_and_a_loss_on_a_minority_is_healed() {
    let nodes = Nodes::start(3);
    let job = nodes.run("a").args(&["--key", "b", "--ttl", "3s"]).sh(TREE).spawn();
    let tree = tree_of(&job);
    let has_both = |redis: &Redis| redis.held("a") && redis.held("b");
    wait_until("every server has voted", || nodes.iter().all(has_both));
    nodes[1].cmd(&["DEL", "lock:b"]);
    wait_until("healed", || has_both(&nodes[1]));
    assert!(tree.iter().all(|pid| alive(*pid)));
    for at in [1, 2] {
        nodes[at].cmd(&["DEL", "lock:b"]);
    }
    job.wait().expect_code(79);
    assert!(tree.iter().all(|pid| !alive(*pid)), "still alive of {tree:?}");
    nodes.all_free();
}

/// Two runs wait for "a" and "b"; the first is stopped, and loses its place at "a" alone: `lost_by`
/// this command, or since its turn came and passed to the second. It returns behind the second at
/// "a", and is before it at "b": each would wait for the other, beside two free locks.
fn assert_no_deadlock(lost_by: Option<&[&str]>) {
    let redis = Redis::start();
    let (at_a, at_b) = (holder(&redis, "a", &[]), holder(&redis, "b", &[]));
    let first = keys(&redis, &["a", "b"]).cmd(&["true"]).spawn();
    queued(&redis, "b", 1);
    let second = keys(&redis, &["b", "a"]).cmd(&["true"]).spawn();
    queued(&redis, "b", 2);
    first.stop();
    lost_by.into_iter().for_each(|command| drop(redis.cmd(command)));
    at_a.wait().expect_code(0);
    queued(&redis, "a", 1);
    first.signal(Signal::SIGCONT);
    queued(&redis, "a", 2);
    at_b.wait().expect_code(0);
    first.wait().expect_code(0);
    second.wait().expect_code(0);
}

#[test]
fn a_waiter_that_missed_its_turn_at_one_key_does_not_deadlock() {
    assert_no_deadlock(None);
}

#[test]
fn a_server_that_lost_one_queue_causes_no_deadlock() {
    assert_no_deadlock(Some(&["DEL", "lock-queue:a", "lock-waiters:a"]));
}

#[test]
fn waiters_blocked_by_another_key_do_not_block_this_one() {
    let redis = Redis::start();
    let other = holder(&redis, "b", &[]);
    let crowd: Vec<_> =
        (0..40).map(|_| Run::key(&redis, "a").args(&["--key", "b", "-s"]).cmd(&["true"]).spawn()).collect();
    queued(&redis, "a", 40);
    Run::key(&redis, "a").args(&["-s", "-n"]).cmd(&["true"]).done().expect_code(0);
    other.wait().expect_code(0);
    expect_success(crowd);
}
