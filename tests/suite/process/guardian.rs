//! The command never outlives the lease, even if redlock is killed, stopped, or fails.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::support::processes::{
    self, Frozen, guardian_of, pid_in, send, status_field, wait_until_a_signal_counts_again,
};
use crate::support::{
    Job, Proxy, Pty, REPORT_SURVIVORS, Redis, Run, alive, executable, process_state, wait_until,
};

/// A command with a child, a child in a session of its own, and an orphan in another session.
const TREE: &str = "sh -c 'echo near $$; exec sleep 60' &
    setsid sh -c 'echo away $$; exec sleep 60' &
    (setsid sh -c 'echo orphan $$; exec sleep 60' &)
    echo main $$; wait";

/// The same, ignoring everything but SIGKILL (descendants inherit ignored signals).
fn stubborn() -> String {
    format!("trap '' TERM INT HUP\n{TREE}")
}

fn tree_of(job: &Job) -> [i32; 4] {
    ["near", "away", "orphan", "main"].map(|who| pid_in(&job.wait_for_line(who)))
}

fn living(tree: &[i32]) -> Vec<i32> {
    tree.iter().copied().filter(|pid| alive(*pid)).collect()
}

/// The run that gets the lock when it expires must not run beside the old command.
fn assert_gone_when_the_lease_ends(redis: &Redis, tree: &[i32]) {
    wait_until("the key expires", || !redis.held("k"));
    assert_eq!(living(tree), Vec::<i32>::new(), "alive after the lease");
}

#[test]
fn a_killed_redlock_takes_its_whole_tree_along_at_once() {
    let redis = Redis::start();
    for script in [TREE.to_owned(), stubborn()] {
        let mark = processes::mark();
        let run = Run::key(&redis, &mark).args(&["--ttl", "120s"]).env("TEST_MARK", &mark);
        let job = run.sh(&script).spawn();
        let tree = tree_of(&job);
        job.signal(SIGKILL);
        // Long before the lease of 120 s ends.
        wait_until("the tree is dead", || living(&tree).is_empty());
        processes::wait_until_none_marked(&mark);
    }
}

#[test]
fn a_redlock_killed_while_waiting_leaves_no_process() {
    let redis = Redis::start();
    let holder = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    holder.wait_for_line("ready");
    let mark = processes::mark();
    let waiter = Run::key(&redis, "k").env("TEST_MARK", &mark).sh("echo ran").spawn();
    wait_until("the waiter is queued", || redis.queue_len("k") == 1);
    assert!(!processes::marked(&mark).is_empty());
    waiter.signal(SIGKILL);
    processes::wait_until_none_marked(&mark);
    assert_eq!(waiter.wait().stdout, "");
}

#[test]
fn the_tree_of_a_redlock_stopped_past_its_lease_ends_within_the_lease() {
    let redis = Redis::start();
    for script in [TREE.to_owned(), stubborn()] {
        let job = Run::key(&redis, "k").args(&["--ttl", "5s", "--node-timeout", "1s"]).sh(&script).spawn();
        let tree = tree_of(&job);
        job.signal(SIGSTOP);
        assert_gone_when_the_lease_ends(&redis, &tree);
        job.signal(SIGCONT);
        let done = job.wait();
        assert_eq!(done.code, Some(79), "{}", done.stderr);
        assert!(done.stderr.starts_with("redlock: "), "{:?}", done.stderr);
    }
}

#[test]
fn a_redlock_stopped_for_less_than_its_lease_continues_normally() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let end = dir.path().join("end");
    let job = Run::key(&redis, "k")
        .args(&["--ttl", "9s", "--kill-after", "500ms"])
        .env("END", &end)
        .sh("echo ready; while [ ! -e \"$END\" ]; do sleep 0.02; done; exit 3")
        .spawn();
    job.wait_for_line("ready");
    job.signal(SIGSTOP);
    let left = || redis.cmd(&["PTTL", "lock:k"]).parse::<i64>().unwrap();
    wait_until("a refresh is overdue", || left() < 5_000);
    job.signal(SIGCONT);
    wait_until("the overdue refresh happens", || left() > 6_000);
    fs::write(&end, "").unwrap();
    let done = job.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), ""));
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_within_the_lease() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let job =
        Run::at(&proxy.url(), "k").args(&["--ttl", "5s", "--node-timeout", "1s"]).sh(&stubborn()).spawn();
    let tree = tree_of(&job);
    proxy.pause();
    assert_gone_when_the_lease_ends(&redis, &tree);
    assert_eq!(job.wait().code, Some(79));
}

#[test]
fn a_node_timeout_longer_than_the_lease_delays_neither_the_stop_nor_the_exit() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let run = Run::at(&proxy.url(), "k").args(&["--ttl", "5s", "--node-timeout", "1h"]);
    let job = run.sh(&stubborn()).spawn();
    let tree = tree_of(&job);
    proxy.pause();
    assert_gone_when_the_lease_ends(&redis, &tree);
    assert_eq!(job.wait().code, Some(79));
}

#[test]
fn a_stopped_command_is_killed_when_the_lock_is_lost() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k")
        // long enough for the command to handle TERM
        .args(&["--ttl", "9s", "--node-timeout", "1s"])
        .sh("trap 'echo asked to end; exit 1' TERM; echo main $$; kill -STOP $$; sleep 60")
        .spawn();
    let main = pid_in(&job.wait_for_line("main"));
    wait_until("the command is stopped", || process_state(main) == Some('T'));
    redis.cmd(&["DEL", "lock:k"]);
    let done = job.wait();
    assert_eq!(done.code, Some(79), "{}", done.stderr);
    assert!(!alive(main));
    assert!(done.stdout.contains("asked to end"), "TERM and CONT come before KILL: {:?}", done.stdout);
}

#[test]
fn a_lost_lock_stops_children_orphans_and_other_sessions() {
    let redis = Redis::start();
    for script in [TREE.to_owned(), stubborn()] {
        let job = Run::key(&redis, "k").args(&["--ttl", "5s", "--node-timeout", "1s"]).sh(&script).spawn();
        let tree = tree_of(&job);
        redis.cmd(&["DEL", "lock:k"]);
        let done = job.wait();
        assert_eq!(done.code, Some(79), "{}", done.stderr);
        assert_eq!(living(&tree), Vec::<i32>::new(), "alive after redlock has exited");
        assert!(!redis.held("k"), "a lost lock is not reacquired");
    }
}

#[test]
fn a_killed_guardian_means_the_command_is_stopped_and_the_lock_released() {
    let redis = Redis::start();
    for script in [TREE.to_owned(), stubborn()] {
        let job = Run::key(&redis, "k").args(&["--ttl", "120s"]).sh(&script).spawn();
        let tree = tree_of(&job);
        send(guardian_of(job.pid()), SIGKILL);
        let done = job.wait();
        assert_eq!(done.code, Some(125), "{}", done.stderr);
        assert!(done.stderr.starts_with("redlock: "), "{:?}", done.stderr);
        assert_eq!(living(&tree), Vec::<i32>::new(), "the command continues unprotected");
        assert!(!redis.held("k"));
    }
}

#[cfg(debug_assertions)] // release builds do not have the switch
#[test]
fn a_panic_in_the_refresh_thread_stops_the_tree_and_is_reported() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k")
        .args(&["--ttl", "9s", "--node-timeout", "1s"]) // long enough for the tree to start
        .env("REDLOCK_TEST_PANIC", "keeper");
    let job = run.sh(&stubborn()).spawn();
    let tree = tree_of(&job);
    let done = job.wait();
    assert_eq!(done.code, Some(125), "{}", done.stderr);
    assert_eq!(living(&tree), Vec::<i32>::new());
    assert!(done.stderr.starts_with("redlock: "), "{:?}", done.stderr);
    assert!(!done.stderr.contains("panicked at"), "{:?}", done.stderr);
}

#[test]
fn a_forced_stop_releases_only_after_the_whole_tree_is_gone() {
    let redis = Redis::start();
    let script = "trap 'echo first' TERM
        sh -c 'trap \"\" TERM; echo near $$; while :; do sleep 1; done' &
        setsid sh -c 'trap \"\" TERM; echo away $$; while :; do sleep 1; done' &
        (setsid sh -c 'trap \"\" TERM; echo orphan $$; while :; do sleep 1; done' &)
        echo main $$; while :; do wait; done";
    for round in 0..5 {
        let job = Run::key(&redis, "k").sh(script).spawn();
        let tree = tree_of(&job);
        let pids = tree.map(|pid| pid.to_string()).join(" ");
        let next = Run::key(&redis, "k").env("TREE", &pids).sh(REPORT_SURVIVORS).spawn();
        wait_until("the next holder waits", || redis.queue_len("k") == 1);
        job.signal(SIGTERM);
        job.wait_for_line("first");
        wait_until_a_signal_counts_again();
        job.signal(SIGTERM);
        assert_eq!(next.wait().stdout, "looked\n", "round {round}");
        job.wait();
    }
}

#[test]
fn the_locks_of_inner_runs_and_keepers_are_released_when_the_tree_is_killed() {
    let redis = Redis::start();
    let keeper = Run::bare().args(&["acquire", "--redis", &redis.url(), "--key", "kept"]);
    let keeper = keeper.args(&["--ttl", "120s", "--for-shell"]).shell_line();
    let inner = Run::key(&redis, "inner").args(&["--ttl", "120s"]);
    let inner = inner.sh("trap '' TERM; echo main $$; while :; do sleep 0.1; done").shell_line();
    let script = format!("trap 'echo first' TERM; {keeper} >/dev/null; {inner} & while :; do wait; done");
    for way in ["killed redlock", "forced stop", "killed guardian"] {
        let job = Run::key(&redis, "k").args(&["--ttl", "120s"]).sh(&script).spawn();
        let main = pid_in(&job.wait_for_line("main"));
        assert!(["k", "kept", "inner"].iter().all(|key| redis.held(key)));
        match way {
            "killed redlock" => job.signal(SIGKILL),
            "killed guardian" => send(guardian_of(job.pid()), SIGKILL),
            _ => {
                job.signal(SIGTERM);
                job.wait_for_line("first");
                wait_until_a_signal_counts_again();
                job.signal(SIGTERM);
            }
        }
        wait_until(way, || !["k", "kept", "inner"].iter().any(|key| redis.held(key)));
        assert!(!alive(main));
        job.wait();
    }
}

#[test]
fn a_process_with_the_name_of_a_keeper_does_not_outlive_the_lease() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("redlock-keeper");
    executable(&program, "#!/bin/sh\ntrap '' TERM\necho near $$\nwhile :; do sleep 0.1; done\n");
    let run = Run::at(&proxy.url(), "k").args(&["--ttl", "5s", "--node-timeout", "1s"]);
    let job = run.env("PROGRAM", &program).sh("\"$PROGRAM\" & echo main $$; wait").spawn();
    let tree = ["near", "main"].map(|who| pid_in(&job.wait_for_line(who)));
    assert_eq!(status_field(tree[0], "Name"), "redlock-keeper");
    proxy.pause();
    assert_gone_when_the_lease_ends(&redis, &tree);
    assert_eq!(job.wait().code, Some(79));
}

/// Stops and continues the command faster than its parent is notified, long enough to fill a pipe.
fn stop_and_continue(command: i32) {
    let pid = Pid::from_raw(command);
    let start = Instant::now();
    for _ in 0..700 {
        if start.elapsed() > Duration::from_secs(3) || kill(pid, SIGSTOP).is_err() {
            break;
        }
        while process_state(command).is_some_and(|state| !matches!(state, 'T' | 'Z' | 'X')) {
            std::thread::yield_now();
        }
        // paces the loop: the parent is notified of each stop
        std::thread::sleep(Duration::from_millis(1));
        if kill(pid, SIGCONT).is_err() {
            break;
        }
    }
}

#[test]
fn unread_stop_events_of_the_command_do_not_delay_the_guardian() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "6s"]).sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    job.signal(SIGSTOP);
    stop_and_continue(main);
    assert_gone_when_the_lease_ends(&redis, &[main]);
    job.signal(SIGCONT);
    assert_eq!(job.wait().code, Some(79));
}

/// The guardian notifies redlock of each stop of a job, and continues it with the command.
#[test]
fn unread_stop_events_do_not_delay_the_guardian_on_a_terminal() {
    let redis = Redis::start();
    let pty = Pty::shell();
    let run = Run::key(&redis, "k").args(&["--ttl", "6s"]).sh("echo ma''in $$ up; exec sleep 60");
    pty.type_in(&format!("{}\n", run.shell_line()));
    let main = pty.number_after("main ");
    let _redlock = Frozen::new(processes::children(pty.pid())[0]);
    stop_and_continue(main);
    assert_gone_when_the_lease_ends(&redis, &[main]);
}

/// Gives the lock to a foreign holder; `lease` lasts as long as ours would have.
const TAKE_AWAY: &str = "redis.call('SET', 'lease', 'x', 'PX', redis.call('PTTL', KEYS[1]))
    redis.call('DEL', KEYS[1])
    return redis.call('SET', KEYS[1], 'foreign')";

#[test]
fn a_frozen_guardian_does_not_let_the_command_outlive_its_lease() {
    let redis = Redis::start();
    for deaf in ["", "trap '' TERM INT HUP; "] {
        redis.cmd(&["DEL", "lock:k"]);
        let run = Run::key(&redis, "k").args(&["--ttl", "5s", "--node-timeout", "1s"]);
        let job = run.sh(&format!("{deaf}echo main $$; exec sleep 60")).spawn();
        let main = pid_in(&job.wait_for_line("main"));
        let guardian = guardian_of(job.pid());
        let frozen = Frozen::new(guardian);
        assert_eq!(redis.cmd(&["EVAL", TAKE_AWAY, "1", "lock:k"]), "OK");
        wait_until("the lease has ended", || redis.cmd(&["EXISTS", "lease"]) == "0");
        assert!(!alive(main), "alive after the lease");
        frozen.wait_until_killed();
        let done = job.wait();
        assert!(matches!(done.code, Some(79 | 125)), "{done:?}");
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        assert!(!alive(guardian));
        assert_eq!(redis.cmd(&["GET", "lock:k"]), "foreign", "a foreign lock is not touched");
    }
}

#[test]
fn a_stopped_guardian_is_continued_and_the_lock_is_released_when_the_command_exits() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").stdin_pipe().sh("echo main $$; read x; exit 5").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    let guardian = guardian_of(job.pid());
    // Stopped several times; nothing else continues it the last time.
    for _ in 0..20 {
        send(guardian, SIGSTOP);
    }
    assert!(alive(main) && redis.held("k"));
    let done = job.wait(); // closes its stdin
    assert_eq!((done.code, done.stderr.as_str()), (Some(5), ""));
    assert!(!redis.held("k"));
}

#[test]
fn a_guardian_stopped_while_the_run_waits_is_continued() {
    let redis = Redis::start();
    let mut holder = Run::key(&redis, "k").stdin_pipe().sh("echo ready; read x").spawn();
    holder.wait_for_line("ready");
    let waiter = Run::key(&redis, "k").sh("exit 6").spawn();
    wait_until("the waiter is queued", || redis.queue_len("k") == 1);
    send(guardian_of(waiter.pid()), SIGSTOP);
    drop(holder.take_stdin());
    assert_eq!(waiter.wait().code, Some(6));
    assert!(!redis.held("k"));
}

#[test]
fn a_frozen_guardian_does_not_let_the_command_outlive_max_hold() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "90s", "--max-hold", "4s", "--kill-after", "100ms"]);
    let job = run.sh("trap '' TERM; echo main $$; while :; do sleep 0.1; done").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    let frozen = Frozen::new(guardian_of(job.pid()));
    frozen.wait_until_killed();
    let done = job.wait();
    assert_eq!(done.code, Some(124), "{done:?}");
    assert!(!alive(main) && !redis.held("k"));
}

/// On a server only redlock can release the lock.
#[test]
fn a_stopped_redlock_is_continued_when_max_hold_is_over() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "none", "--max-hold", "4s", "--kill-after", "100ms"]);
    let job = run.sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    job.stop();
    wait_until("the lock is released", || !redis.held("k"));
    assert!(!alive(main));
    assert_eq!(job.wait().code, Some(124));
}

/// A process's arguments, as `ps` and `pkill -f` see them.
fn arguments(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    String::from_utf8(bytes).unwrap().trim_end_matches('\0').replace('\0', " ")
}

#[test]
fn a_signal_for_every_process_with_redlock_in_its_arguments_reaches_the_command() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    let guardian = guardian_of(job.pid());
    wait_until("the guardian has its own name", || !arguments(guardian).contains("--redis"));
    // Like `pkill -f redlock`, for the processes of this test only.
    for pid in [job.pid(), guardian, main] {
        if arguments(pid).contains("redlock") {
            send(pid, SIGTERM);
        }
    }
    wait_until("the command has exited", || !alive(main));
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
}

#[test]
fn the_process_list_names_the_guardian() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    let guardian = guardian_of(job.pid());
    let title = format!("lock-guardian of pid {}", job.pid());
    wait_until("the guardian has its own name", || arguments(guardian) == title);
    assert!(arguments(job.pid()).contains("run --redis"), "redlock shows its own command line");
    assert_eq!(status_field(guardian, "Name"), "lock-guardian");
}
