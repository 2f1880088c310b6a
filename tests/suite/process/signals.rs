//! Signals that a process sends to redlock: forwarded while the command runs, obeyed while waiting.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{
    self, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::support::processes::{self, guardian_of, pid_in, wait_until_a_signal_counts_again};
use crate::support::{Redis, Run, alive, assert_stays_free, process_state, wait_until};

fn name(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

#[test]
fn a_signal_that_kills_the_command_kills_redlock_and_frees_the_key() {
    let redis = Redis::start();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let job =
            Run::key(&redis, "k").via("ulimit -c 0; exec \"$@\"").sh("echo main $$; exec sleep 60").spawn();
        let child = pid_in(&job.wait_for_line("main"));
        job.signal(signal);
        let done = job.wait();
        assert_eq!((done.code, done.signal), (None, Some(signal as i32)), "{signal}: {}", done.stderr);
        assert!(!alive(child), "{signal} left the command running");
        assert!(!redis.held("k"), "{signal}");
    }
}

#[test]
fn the_command_gets_the_signal_that_was_sent_exactly_once() {
    let redis = Redis::start();
    // Each trap prints its name; the loop ends when the test ends it, so that a second copy would
    // show.
    let script = "for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo got=$s\" $s; done
        echo ready; while [ ! -e \"$END\" ]; do sleep 0.02; done; exit 4";
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH] {
        let dir = tempfile::tempdir().unwrap();
        let end = dir.path().join("end");
        let job = Run::key(&redis, "k").env("END", &end).sh(script).spawn();
        job.wait_for_line("ready");
        job.signal(signal);
        let line = format!("got={}", name(signal));
        job.wait_for_line(&line);
        assert!(redis.held("k"), "the lock is kept while the command continues after {signal}");
        fs::write(&end, "").unwrap();
        let done = job.wait();
        assert_eq!(done.stdout, format!("ready\n{line}\n"));
        assert_eq!(done.code, Some(4), "a command that handles {signal} decides its own exit code");
        assert!(!redis.held("k"));
    }
}

#[test]
fn every_copy_of_a_user_signal_is_forwarded() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k")
        .sh("n=0; trap 'n=$((n+1)); echo usr=$n' USR1; echo ready; while [ $n -lt 5 ]; do sleep 0.02; done")
        .spawn();
    job.wait_for_line("ready");
    for n in 1..=5 {
        job.signal(SIGUSR1);
        job.wait_for_line(&format!("usr={n}"));
    }
    assert_eq!(job.wait().code, Some(0));
}

#[test]
fn stop_and_continue_are_forwarded() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "120s"]).sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    for _ in 0..2 {
        job.signal(SIGTSTP);
        wait_until("the command is stopped", || process_state(main) == Some('T'));
        job.signal(SIGCONT);
        wait_until("the command continues", || process_state(main) == Some('S'));
        wait_until("redlock continues", || process_state(job.pid()) == Some('S'));
    }
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    assert!(!redis.held("k"));
}

#[test]
fn the_lock_is_kept_while_the_command_handles_a_signal() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let (end, events) = (dir.path().join("end"), dir.path().join("events"));
    let job = Run::key(&redis, "k")
        .args(&["--ttl", "4s", "--node-timeout", "1s", "--kill-after", "100ms", "--events"])
        .arg(&events)
        .env("END", &end)
        .sh("trap 'echo ending; while [ ! -e \"$END\" ]; do sleep 0.02; done; exit 3' TERM
            echo ready; while :; do sleep 0.02; done")
        .spawn();
    job.wait_for_line("ready");
    job.signal(SIGTERM);
    job.wait_for_line("ending");
    let refreshed = || fs::read_to_string(&events).unwrap_or_default().matches("\"refreshed\"").count();
    let before = refreshed();
    // Six refreshes take two whole leases, far longer than the grace of a forced stop.
    wait_until("the lock is refreshed while the command cleans up", || refreshed() >= before + 6);
    assert!(redis.held("k"));
    fs::write(&end, "").unwrap();
    let done = job.wait();
    assert_eq!((done.code, done.signal), (Some(3), None), "{}", done.stderr);
    assert!(!redis.held("k"));
}

#[test]
fn a_second_term_or_int_kills_the_whole_tree_at_once_and_still_releases() {
    let redis = Redis::start();
    for (first, second) in [(SIGTERM, SIGTERM), (SIGINT, SIGINT), (SIGTERM, SIGINT), (SIGINT, SIGTERM)] {
        let job = Run::key(&redis, "k")
            .args(&["--ttl", "90s", "--kill-after", "30s"])
            .sh("trap 'echo first' TERM INT
                setsid sh -c 'trap \"\" TERM INT; echo away $$; while :; do sleep 1; done' &
                sh -c 'trap \"\" TERM INT; echo near $$; while :; do sleep 1; done' &
                echo main $$; while :; do wait; done")
            .spawn();
        let tree = ["main", "near", "away"].map(|who| pid_in(&job.wait_for_line(who)));
        job.signal(first);
        job.wait_for_line("first");
        wait_until_a_signal_counts_again();
        let asked = Instant::now();
        job.signal(second);
        let done = job.wait();
        assert!(asked.elapsed() < Duration::from_secs(15), "{second} waited for the grace of 30 s");
        assert!(tree.iter().all(|pid| !alive(*pid)), "{first}, {second} left {tree:?} alive");
        assert_ne!(done.code, Some(0), "a killed command is not a success");
        assert!(!redis.held("k"), "{first}, {second}");
    }
}

#[test]
fn a_second_hangup_is_forwarded_and_kills_nothing() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k")
        .sh("n=0; trap 'n=$((n+1)); echo hup=$n' HUP; echo ready; while [ $n -lt 3 ]; do sleep 0.02; done; exit 6")
        .spawn();
    job.wait_for_line("ready");
    for n in 1..=3 {
        job.signal(SIGHUP);
        job.wait_for_line(&format!("hup={n}"));
    }
    assert_eq!(job.wait().code, Some(6));
}

/// Sends SIGTERM after a delay that sweeps over the whole life of a run, so that it hits every gap
/// between its steps.
fn sweep(script: &str, allowed: impl Fn(Option<i32>, Option<i32>) -> bool) {
    let redis = Redis::start();
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(Run::key(&redis, "k").sh(":").done().code, Some(0));
    }
    let span = started.elapsed() / 2;
    const ROUNDS: u32 = 60;
    for round in 0..ROUNDS {
        let mark = processes::mark();
        let job = Run::key(&redis, "k").env("TEST_MARK", &mark).sh(script).spawn();
        // no fact to wait for: the moment itself is under test
        std::thread::sleep(span * round / ROUNDS);
        job.signal(SIGTERM);
        let done = job.wait();
        assert!(
            allowed(done.code, done.signal),
            "round {round}: {:?} {:?} {}",
            done.code,
            done.signal,
            done.stderr
        );
        assert!(!redis.held("k"), "round {round} left the key");
        assert_eq!(redis.queue_len("k"), 0, "round {round} left a waiter");
        processes::wait_until_none_marked(&mark);
    }
}

#[test]
fn a_signal_between_the_grant_and_the_start_of_the_command_leaves_nothing() {
    sweep("exec sleep 60", |code, signal| (code, signal) == (None, Some(SIGTERM as i32)));
}

#[test]
fn a_signal_between_the_commands_exit_and_the_release_leaves_nothing() {
    sweep(":", |code, signal| code == Some(0) || signal == Some(SIGTERM as i32));
}

#[test]
fn an_interrupt_before_the_grant_prevents_the_command() {
    let redis = Redis::start();
    for round in 0..8 {
        let mark = processes::mark();
        redis.stop();
        let run = Run::key(&redis, "k").args(&["--node-timeout", "10s"]).env("TEST_MARK", &mark);
        let job = run.sh("echo ran").spawn();
        // The guardian is forked after signals are blocked and the first request is sent.
        guardian_of(job.pid());
        job.signal(SIGINT);
        redis.cont();
        let done = job.wait();
        assert_eq!((done.code, done.signal), (None, Some(SIGINT as i32)), "round {round}: {done:?}");
        assert_eq!(done.stdout, "", "round {round}: the command ran");
        processes::wait_until_none_marked(&mark);
        wait_until("the key is free", || !redis.held("k"));
    }
    assert_stays_free(&redis);
    let left: Vec<_> = redis.keys().into_iter().filter(|key| key != "lock-fence:k").collect();
    assert_eq!(left, Vec::<String>::new(), "left on the server");
}

#[test]
fn a_signal_reaches_the_remaining_tree_with_wait_tree() {
    let redis = Redis::start();
    let away = [
        "trap \"echo heard; exit 0\" TERM; echo away $$; while :; do sleep 0.05; done",
        "echo away $$; exec sleep 60",
    ];
    for (away, hears) in away.into_iter().zip([true, false]) {
        let script = format!("setsid sh -c '{away}' & echo main $$; exit 4");
        let job = Run::key(&redis, "k").arg("--wait-tree").sh(&script).spawn();
        let [main, away] = ["main", "away"].map(|who| pid_in(&job.wait_for_line(who)));
        wait_until("the command has exited and was reaped", || process_state(main).is_none());
        assert!(alive(away) && redis.held("k"), "the lock is held for the remaining tree");
        job.signal(SIGTERM);
        if hears {
            job.wait_for_line("heard");
        }
        let done = job.wait();
        assert_eq!((done.code, done.signal), (Some(4), None), "the command's exit code: {done:?}");
        assert!(!alive(away));
        assert!(!redis.held("k"));
    }
}
