//! A history that cannot be written makes nothing else fail.

use nix::sys::signal::Signal::SIGKILL;

use crate::support::{Redis, Run, hold, holder, wait_until};

fn log_length(redis: &Redis) -> String {
    redis.cmd(&["XLEN", "lock-log:k"])
}

#[test]
fn a_user_without_permission_to_write_it_still_runs() {
    let redis = Redis::start();
    redis.cmd(&["ACL", "SETUSER", "limited", "reset", "on", ">word", "~*", "&*", "+@all", "-xadd"]);
    let url = format!("redis://limited:word@127.0.0.1:{}", redis.port());
    let run = |args: &[&str]| Run::at(&url, "k").args(args).cmd(&["true"]).done().expect_code(0);
    for args in [&[][..], &["-s"], &["--slots", "2"], &["--min-hold", "10ms"]] {
        let done = run(args);
        assert_eq!(done.stderr, "", "{args:?}");
        wait_until("the lock is free", || !redis.held("k"));
    }
    assert_eq!(log_length(&redis), "0");
    // Nor can it record a holder that was killed.
    let first = hold(Run::at(&url, "k").args(&["--ttl", "3s"]));
    first.signal(SIGKILL);
    first.wait();
    wait_until("the lease has ended", || !redis.held("k"));
    run(&[]);
    assert_eq!(log_length(&redis), "0");
}

#[test]
fn a_foreign_value_at_its_key_is_left_alone() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock-log:k", "mine"]);
    for args in [&[][..], &["-s"], &["-n"]] {
        let done = Run::key(&redis, "k").args(args).cmd(&["true"]).done().expect_code(0);
        assert_eq!(done.stderr, "");
    }
    assert_eq!(redis.cmd(&["GET", "lock-log:k"]), "mine");
    assert!(!redis.held("k"));
    let looked = Run::bare().args(&["history", "-r", &redis.url(), "k"]).done().expect_code(78);
    assert!(looked.stderr.contains("cannot look at \"k\""), "{looked:?}");
}

#[test]
fn a_lock_is_released_on_a_server_out_of_memory() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "600s"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("the server is out of memory", || redis.cmd(&["SET", "x", "1"]).contains("OOM"));
    let done = first.wait().expect_code(0);
    assert_eq!(done.stderr, "");
    assert!(!redis.held("k"));
}

#[test]
fn a_run_without_a_history_leaves_nothing() {
    let redis = Redis::start();
    let silent = |ttl: &str| Run::key(&redis, "k").args(&["--history", "0", "--ttl", ttl]);
    silent("30s").cmd(&["true"]).done().expect_code(0);
    silent("30s").arg("-s").cmd(&["true"]).done().expect_code(0);
    let first = hold(silent("3s"));
    silent("30s").arg("-n").cmd(&["true"]).done().expect_code(75);
    first.kill_with_guardian();
    wait_until("all its keys are gone", || !redis.keys().iter().any(|key| key.contains("info")));
    silent("30s").cmd(&["true"]).done().expect_code(0);
    assert_eq!(log_length(&redis), "0");
    assert_eq!(redis.keys(), ["lock-fence:k"]);
}
