//! The fencing token and the environment that the command gets.

use std::fs;

use crate::support::{Job, Redis, Run, holder, wait_until};

/// The value of `NAME=value` in the command's environment.
fn variable<'a>(env: &'a str, name: &str) -> Option<&'a str> {
    let mut values = env.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix('='));
    let value = values.next();
    assert_eq!(values.next(), None, "{name} is set once");
    value
}

#[test]
fn fences_grow_from_run_to_run() {
    let redis = Redis::start();
    let fences: Vec<u64> = (0..10).map(|_| Run::key(&redis, "k").fence()).collect();
    assert!(fences.windows(2).all(|w| w[0] < w[1]), "{fences:?}");
}

#[test]
fn fences_grow_in_the_order_of_grants_under_contention() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let log = dir.path().join("log");
    let jobs: Vec<Job> = (0..12)
        .map(|_| Run::key(&redis, "k").dir(dir.path()).sh("echo $REDLOCK_FENCE >> log").spawn())
        .collect();
    for job in jobs {
        job.wait().expect_code(0);
    }
    let log = fs::read_to_string(log).unwrap();
    let fences: Vec<u64> = log.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(fences.len(), 12);
    assert!(fences.windows(2).all(|w| w[0] < w[1]), "{fences:?}");
}

#[test]
fn fences_grow_after_flushall_restart_and_a_lost_counter() {
    let mut redis = Redis::start();
    let mut last = Run::key(&redis, "k").fence();
    let mut check = |what: &str, now: u64| {
        assert!(now > last, "{now} after {last}, {what}");
        last = now;
    };
    redis.cmd(&["FLUSHALL"]);
    check("after FLUSHALL", Run::key(&redis, "k").fence());
    redis.restart();
    check("after a restart without memory", Run::key(&redis, "k").fence());
    redis.cmd(&["DEL", "lock-fence:k"]);
    check("after the counter was deleted", Run::key(&redis, "k").fence());
    // A counter ahead of the clock (a server whose clock was set back) still grows, and no digit is
    // lost: the number is below 2^53, but longer than the 14 digits that Lua prints of a double.
    redis.cmd(&["SET", "lock-fence:k", "9007199254740001", "EX", "1000"]);
    check("after a counter far ahead", Run::key(&redis, "k").fence());
    assert_eq!(Run::key(&redis, "k").fence(), 9_007_199_254_740_003);
}

/// Lua counts up to 2^53 - 1.
#[test]
fn a_token_that_cannot_grow_is_refused_and_none_is_granted_twice() {
    let redis = Redis::start();
    redis.cmd(&["SET", "lock-fence:k", "9007199254740988"]);
    let fences = [(); 3].map(|()| Run::key(&redis, "k").fence());
    assert_eq!(fences, [9_007_199_254_740_989, 9_007_199_254_740_990, 9_007_199_254_740_991]);
    for counter in ["9007199254740991", "9223372036854775807", "18446744073709551616", "1e400", "nan", "x"] {
        redis.cmd(&["SET", "lock-fence:k", counter]);
        let done = Run::key(&redis, "k").sh("echo ran").done().expect_code(78);
        assert!(done.stdout.is_empty() && done.stderr.contains("lock-fence:k"), "{counter}: {done:?}");
        assert!(!redis.held("k"));
    }
    redis.cmd(&["DEL", "lock-fence:k"]);
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn the_counter_outlives_the_lease_but_not_forever() {
    let redis = Redis::start();
    Run::key(&redis, "k").fence();
    let left: i64 = redis.cmd(&["TTL", "lock-fence:k"]).parse().unwrap();
    assert!(left > 3600, "{left} s");
}

#[test]
fn a_waiter_gets_a_larger_fence_than_the_holder_it_waited_for() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &[]);
    let held: u64 = redis.cmd(&["GET", "lock-fence:k"]).parse().unwrap();
    let waiter = Run::key(&redis, "k").sh("echo $REDLOCK_FENCE $REDLOCK_ATTEMPTS $REDLOCK_TOKEN");
    let waiter = waiter.spawn();
    wait_until("queued", || redis.queue_len("k") == 1);
    first.wait().expect_code(0);
    let done = waiter.wait().expect_code(0);
    let words: Vec<&str> = done.stdout.split_whitespace().collect();
    assert!(words[0].parse::<u64>().unwrap() > held, "{done:?}");
    assert!(words[1].parse::<u64>().unwrap() > 1, "requested, was woken, requested once more: {done:?}");
    assert!(words[2].ends_with(&format!(".{}", words[1])), "{done:?}");
}

#[test]
fn the_command_gets_key_token_fence_attempts_and_held() {
    let redis = Redis::start();
    let job = Run::key(&redis, "a key").stdin_pipe().sh("env; echo ready; read x; exit 0").spawn();
    job.wait_for_line("ready");
    let claim = redis.cmd(&["GET", "lock:a key"]);
    let counter = redis.cmd(&["GET", "lock-fence:a key"]);
    let env = job.wait().expect_code(0).stdout;
    assert_eq!(variable(&env, "REDLOCK_KEY"), Some("a key"));
    assert_eq!(variable(&env, "REDLOCK_TOKEN"), Some(claim.as_str()));
    assert_eq!(variable(&env, "REDLOCK_FENCE"), Some(counter.as_str()));
    assert_eq!(variable(&env, "REDLOCK_ATTEMPTS"), Some("1"));
    let held = variable(&env, "REDLOCK_HELD").expect("REDLOCK_HELD");
    assert_eq!(held.split(' ').count(), 1, "{held}");
    assert!(claim.ends_with(".1"), "{claim}");
    assert_eq!(claim.len(), 36 + 2, "a uuid and the attempt: {claim}");
}

#[test]
fn inherited_values_are_overridden() {
    let redis = Redis::start();
    let mut run = Run::key(&redis, "k");
    for name in ["REDLOCK_KEY", "REDLOCK_TOKEN", "REDLOCK_FENCE", "REDLOCK_ATTEMPTS"] {
        run = run.env(name, "inherited");
    }
    let env = run.env("OTHER", "kept").cmd(&["env"]).done().expect_code(0).stdout;
    assert_eq!(variable(&env, "REDLOCK_KEY"), Some("k"));
    assert_eq!(variable(&env, "REDLOCK_ATTEMPTS"), Some("1"));
    assert!(variable(&env, "REDLOCK_FENCE").unwrap().parse::<u64>().is_ok(), "{env}");
    assert!(variable(&env, "REDLOCK_TOKEN").unwrap().ends_with(".1"), "{env}");
    assert_eq!(variable(&env, "OTHER"), Some("kept"));
    assert!(!env.contains("inherited"), "{env}");
}

#[test]
fn nested_runs_on_different_keys_accumulate_held_locks() {
    let redis = Redis::start();
    let line = |run: Run| run.shell_line();
    let print = "echo held $REDLOCK_HELD; echo token $REDLOCK_TOKEN; echo key $REDLOCK_KEY";
    let inner = Run::key(&redis, "c").sh(print);
    let middle = Run::key(&redis, "b").sh(&format!("{print}; {}", line(inner)));
    let outer = Run::key(&redis, "a").sh(&format!("{print}; {}", line(middle)));
    let done = outer.done().expect_code(0);
    let of = |word: &str| -> Vec<String> {
        let lines = done.stdout.lines().filter_map(|l| l.strip_prefix(&format!("{word} ")));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(of("key"), ["a", "b", "c"], "{done:?}");
    let held = of("held");
    assert_eq!(held.len(), 3, "{done:?}");
    // Each level holds the locks of its ancestors, and its own.
    assert!(held[1].starts_with(&format!("{} ", held[0])), "{held:?}");
    assert!(held[2].starts_with(&format!("{} ", held[1])), "{held:?}");
    assert_eq!(held[2].split(' ').count(), 3, "{held:?}");
    let tokens = of("token");
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2], "{tokens:?}");
}

#[test]
fn a_run_after_another_run_is_not_nested() {
    // The shell's own environment has no REDLOCK_HELD once the first run has ended.
    let redis = Redis::start();
    let run = Run::key(&redis, "k").cmd(&["true"]);
    run.clone().done().expect_code(0);
    run.done().expect_code(0);
}

#[test]
fn a_stale_held_variable_does_not_hide_the_lock() {
    // A daemon keeps REDLOCK_HELD after its run has ended, and by then another client holds the
    // key. redlock may refuse or wait, but it must not run the command beside the holder.
    let redis = Redis::start();
    let env = Run::key(&redis, "k").cmd(&["env"]).done().expect_code(0).stdout;
    let stale = variable(&env, "REDLOCK_HELD").unwrap().to_owned();
    let first = holder(&redis, "k", &[]);
    let nested = Run::key(&redis, "k").arg("-n").env("REDLOCK_HELD", stale).sh("echo ran").done();
    assert!(matches!(nested.code, Some(64 | 75)), "{nested:?}");
    assert_eq!(nested.stdout, "");
    first.wait().expect_code(0);
}

#[test]
fn the_key_reaches_server_and_command_byte_for_byte() {
    let redis = Redis::start();
    for key in ["a'b\"c", "]] .. redis.call('FLUSHALL') .. [[", "{tag}:x", "ü ☃", "a\nb", "%s%d\\0"] {
        redis.cmd(&["SET", "witness", "here"]);
        let job = Run::key(&redis, key)
            .stdin_pipe()
            .sh("printf %s \"$REDLOCK_KEY\"; echo '|ready'; read x; exit 0")
            .spawn();
        job.wait_for_line("|ready");
        assert!(redis.held(key), "{key:?}");
        let done = job.wait().expect_code(0);
        assert_eq!(done.stdout, format!("{key}|ready\n"));
        assert!(!redis.held(key), "{key:?}");
        assert_eq!(redis.cmd(&["GET", "witness"]), "here");
    }
}

#[test]
fn a_prefix_names_another_lock() {
    let redis = Redis::start();
    let first = holder(&redis, "k", &["--prefix", "mine", "--ttl", "60s"]);
    assert_eq!(redis.cmd(&["EXISTS", "mine:k"]), "1");
    assert!(!redis.held("k"));
    Run::key(&redis, "k").args(&["-n", "--prefix", "mine"]).cmd(&["true"]).done().expect_code(75);
    Run::key(&redis, "k").args(&["-n"]).cmd(&["true"]).done().expect_code(0);
    let bare = holder(&redis, "k", &["--prefix", "", "--ttl", "60s"]);
    assert_eq!(redis.cmd(&["EXISTS", "k"]), "1");
    Run::key(&redis, "k").args(&["-n", "--prefix", ""]).cmd(&["true"]).done().expect_code(75);
    bare.wait().expect_code(0);
    first.wait().expect_code(0);
    assert_eq!(redis.cmd(&["EXISTS", "k", "mine:k"]), "0");
}
