//! `redlock break`: a lock that will never be released is taken away.

use crate::support::{Nodes, Redis, Run, hold, holder, wait_until};

fn break_at(url: &str, args: &[&str]) -> Run {
    Run::bare().args(&["break", "--redis", url, "--key", "k"]).args(args)
}

#[test]
fn what_a_killed_run_without_expiry_left_is_taken_away_and_the_next_one_is_woken() {
    let redis = Redis::start();
    let dead = holder(&redis, "k", &["--ttl", "none", "-q"]);
    dead.signal(nix::sys::signal::Signal::SIGKILL);
    dead.wait();
    let next = Run::key(&redis, "k").cmd(&["echo", "mine"]).spawn();
    wait_until("it waits", || redis.queue_len("k") == 1);
    let done = break_at(&redis.url(), &["--yes"]).done().expect_code(0);
    assert!(done.stdout.contains("\"k\" was held by") && done.stdout.contains("pid"), "{done:?}");
    assert_eq!(next.wait().expect_code(0).stdout, "mine\n");
}

#[test]
fn without_yes_it_only_says_who_holds_it() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--label", "nightly"]);
    let done = break_at(&redis.url(), &[]).done().expect_code(64);
    assert!(done.stderr.contains("nightly") && done.stderr.contains("--yes"), "{done:?}");
    assert!(redis.held("k"));
    first.wait().expect_code(0);
    let done = break_at(&redis.url(), &[]).done().expect_code(0);
    assert_eq!(done.stdout, "\"k\" is free\n");
}

#[test]
fn a_run_whose_lock_is_broken_stops_its_command_at_the_next_refresh() {
    let redis = Redis::start();
    for mode in ["-x", "-s"] {
        let robbed = Run::key(&redis, "k").args(&["--ttl", "1s", mode]).sh("echo up; sleep 60").spawn();
        robbed.wait_for_line("up");
        break_at(&redis.url(), &["--yes"]).done().expect_code(0);
        robbed.wait().expect_code(79);
    }
}

#[test]
fn all_readers_lose_a_broken_lock_at_once_and_tokens_go_on_growing() {
    let redis = Redis::start();
    let fence = |run: Run| run.sh("echo $REDLOCK_FENCE").done().expect_code(0).stdout;
    let before = fence(Run::key(&redis, "k"));
    let _readers: Vec<_> = (0..3).map(|_| holder(&redis, "k", &["-s", "--ttl", "60s"])).collect();
    let done = break_at(&redis.url(), &["--yes"]).done().expect_code(0);
    assert!(done.stdout.contains("and 2 others"), "{done:?}");
    assert!(fence(Run::key(&redis, "k").arg("-n")) > before);
}

#[test]
fn on_several_servers_a_majority_must_be_asked() {
    let mut nodes = Nodes::start(3);
    let first = hold(nodes.run("k").args(&["--ttl", "20s"]));
    break_at(&nodes.urls().join(","), &["--yes"]).done().expect_code(0);
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
    drop(first);
    nodes[0].kill();
    break_at(&nodes.urls().join(","), &["--yes"]).done().expect_code(0);
    nodes[1].kill();
    break_at(&nodes.urls().join(","), &["--yes"]).done().expect_code(69);
}

#[test]
fn on_this_host_there_is_nothing_to_break() {
    let done = Run::bare().args(&["break", "--key", "k", "--yes"]).done().expect_code(64);
    assert!(done.stderr.contains("when its holder has ended"), "{done:?}");
}

#[test]
fn servers_come_from_the_environment_and_the_config_file_too() {
    let redis = Redis::start();
    let (_directory, path) = crate::support::config_file(&format!("redis = \"{}\"\nttl = 7\n", redis.url()));
    let bare = || Run::bare().args(&["break", "--key", "k"]);
    bare().env("REDLOCK_REDIS", redis.url()).done().expect_code(0);
    bare().env("REDLOCK_CONFIG", path).done().expect_code(0);
    bare().env("REDLOCK_REDIS", "redis://127.0.0.1:1").done().expect_code(69);
}
