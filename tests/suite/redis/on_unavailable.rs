//! --on-unavailable: what to do where the exit code would be 69, and only there.

use std::time::Duration;

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};

use crate::support::{
    Blackhole, Done, Nodes, Redis, Refused, Run, TREE, alive, assert_stays_free, hold, holder, tree_of,
    wait_for_sleeping_waiter, wait_until, wait_until_within,
};

/// Prints the fence and the token that the command got.
const SHOW: &str = "echo \"fence [${REDLOCK_FENCE-unset}] token [${REDLOCK_TOKEN-unset}]\"; exit 7";

/// What SHOW prints without a lock.
const NO_LOCK: &str = "fence [] token []\n";

#[track_caller]
fn assert_skipped(done: &Done) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("redlock: "), "one line with the reason: {done:?}");
}

#[track_caller]
fn assert_ran_unlocked(done: &Done) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(7), NO_LOCK), "{done:?}");
    assert!(done.stderr.starts_with("redlock: "), "a warning at every verbosity: {done:?}");
}

/// All three choices, for servers without a serving majority.
#[track_caller]
fn assert_fails_skips_or_runs(run: &Run) {
    let tried = |how: &[&str]| run.clone().args(how).sh(SHOW).done();
    for how in [&[][..], &["--on-unavailable", "fail"]] {
        assert_eq!(tried(how).expect_code(69).stdout, "");
    }
    assert_skipped(&tried(&["--on-unavailable", "skip"]));
    let quiet = tried(&["--on-unavailable", "skip", "-q"]).expect_code(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    for voice in [&[][..], &["-q"], &["-v"]] {
        let how = [&["--on-unavailable", "run"], voice].concat();
        assert_ran_unlocked(&tried(&how));
    }
}

#[test]
fn the_option_applies_to_a_server_that_is_down_at_the_start() {
    let refused = Refused::new();
    let run = Run::at(&refused.url(), "k");
    assert_fails_skips_or_runs(&run);
    assert_fails_skips_or_runs(&run.clone().arg("-n"));
    assert_fails_skips_or_runs(&run.clone().args(&["-w", "30"])); // at once, as always
    // Neither the conflict exit code nor an inherited token matters here.
    assert_fails_skips_or_runs(&run.args(&["-E", "9"]).env("REDLOCK_FENCE", "5").env("REDLOCK_TOKEN", "old"));
}

#[test]
fn the_option_applies_to_a_blackhole() {
    let hole = Blackhole::new();
    assert_fails_skips_or_runs(&Run::at(&hole.url(), "k").args(&["--node-timeout", "200ms"]));
}

#[test]
fn the_option_applies_to_a_majority_that_is_down() {
    let mut nodes = Nodes::start(3);
    nodes[2].kill();
    for how in ["fail", "skip", "run"] {
        let run = nodes.run("k").args(&["--on-unavailable", how]).sh(SHOW);
        let done = run.done().expect_code(7);
        assert!(!done.stdout.contains("[]"), "a missing minority changes nothing: {done:?}");
    }
    nodes[0].kill();
    assert_fails_skips_or_runs(&nodes.run("k"));
    nodes.all_free();
}

#[test]
fn the_option_applies_to_a_quarantined_majority() {
    let nodes = Nodes::start(3); // new, so quarantined
    assert_fails_skips_or_runs(&nodes.run_quarantined("k").arg("-n"));
}

#[test]
fn the_option_applies_to_a_server_out_of_memory() {
    let redis = Redis::start();
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100kb"]);
    assert_fails_skips_or_runs(&Run::key(&redis, "k"));
    assert_eq!(redis.keys(), Vec::<String>::new());
}

#[test]
fn the_option_applies_to_servers_that_go_away_during_a_wait() {
    for how in ["fail", "skip", "run"] {
        let mut nodes = Nodes::start(3);
        let _holder = hold(nodes.run("k").args(&["--ttl", "90s"]));
        let run = nodes.run("k").args(&["-w", "5", "--on-unavailable", how]);
        let waiter = run.sh(SHOW).spawn();
        wait_for_sleeping_waiter(&nodes[0]);
        nodes[0].kill();
        nodes[1].kill();
        let done = waiter.wait();
        let (code, message) = match how {
            "fail" => (69, ""),
            "skip" => (0, ""),
            _ => (7, NO_LOCK),
        };
        assert_eq!((done.code, done.stdout.as_str()), (Some(code), message), "{how}: {done:?}");
        assert!(done.stderr.starts_with("redlock: "), "{how}: {done:?}");
    }
}

#[test]
fn the_option_applies_to_a_single_server_that_goes_away_during_a_wait() {
    for (how, code, message) in [("fail", 69, ""), ("skip", 0, ""), ("run", 7, NO_LOCK)] {
        let mut redis = Redis::start();
        let _holder = holder(&redis, "k", &["--ttl", "90s"]);
        let waiter = Run::key(&redis, "k").args(&["-w", "5", "--on-unavailable", how]).sh(SHOW).spawn();
        wait_for_sleeping_waiter(&redis);
        redis.kill();
        let done = waiter.wait();
        assert_eq!((done.code, done.stdout.as_str()), (Some(code), message), "{how}: {done:?}");
    }
}

#[test]
fn a_grant_that_comes_too_late_is_released() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0); // loads the scripts
    for how in ["skip", "run"] {
        redis.stop();
        let run = Run::key(&redis, "k").args(&["--ttl", "60s", "--on-unavailable", how]);
        let code = run.cmd(&["true"]).done().code;
        redis.cont();
        assert_eq!(code, Some(0), "{how}");
        let free = || !redis.held("k") && redis.queue_len("k") == 0;
        wait_until_within(Duration::from_secs(8), "the late grant is released", free);
        assert_stays_free(&redis);
    }
}

#[test]
fn a_held_lock_prevents_an_unlocked_run() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "90s"]);
    for how in ["skip", "run"] {
        for wait in [&["-n"][..], &["-w", "1.5"], &["--retries", "1", "--retry-interval", "9ms"]] {
            let run = Run::key(&redis, "k").args(&["--on-unavailable", how]).args(wait);
            assert_eq!(run.sh(SHOW).done().expect_code(75).stdout, "", "{how} {wait:?}");
        }
    }
    first.wait().expect_code(0);
}

#[test]
fn a_refused_password_still_exits_77_and_an_unfit_server_78() {
    let redis = Redis::start_with(&["--requirepass", "the-right-one"]);
    let wrong = format!("redis://:not-this-word@127.0.0.1:{}", redis.port());
    let unfit = Redis::start();
    unfit.cmd(&["RPUSH", "lock:k", "a list"]);
    for how in ["skip", "run"] {
        for (url, code) in [(&wrong, 77), (&redis.url(), 77), (&unfit.url(), 78)] {
            let done = Run::at(url, "k").args(&["--on-unavailable", how]).sh(SHOW).done();
            assert_eq!(done.expect_code(code).stdout, "", "{how}");
        }
    }
}

#[test]
fn a_lost_lock_still_exits_79() {
    let mut redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--on-unavailable", "run"]);
    let job = run.sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    redis.kill();
    job.wait().expect_code(79);
}

#[test]
fn a_healthy_server_grants_the_lock_as_usual() {
    let redis = Redis::start();
    for how in ["fail", "skip", "run"] {
        let job = hold(Run::key(&redis, "k").args(&["--on-unavailable", how]));
        assert!(redis.held("k"));
        assert_eq!(job.wait().expect_code(0).stderr, "");
        assert!(!redis.held("k"));
    }
}

#[test]
fn an_unlocked_command_is_supervised_as_usual() {
    let refused = Refused::new();
    let run = Run::at(&refused.url(), "k").args(&["--on-unavailable", "run"]);
    let job = run.clone().sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32), "the signal is forwarded, and kills the command");
    let job = run.clone().sh(TREE).spawn();
    let tree = tree_of(&job);
    job.signal(SIGKILL);
    wait_until("the whole tree is gone", || !tree.iter().any(|pid| alive(*pid)));
    run.clone().args(&["--max-hold", "300ms"]).sh("exec sleep 60").done().expect_code(124);
    run.clone().cmd(&["/no/such/command"]).done().expect_code(127);
    // A nested run cannot wait for a lock that is not held.
    let inner = run.clone().cmd(&["echo", "inside"]).shell_line();
    assert_eq!(run.sh(&inner).done().expect_code(0).stdout, "inside\n");
}
