//! --max-hold: when the time is over the whole tree is stopped, then the lock is released, exit 124.

mod support;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use support::nodes::renewed;
use support::procs::pid_in;
use support::{DEAF_TREE, LOOK, Place, Redis, Run, TREE, alive, hold, process_state, tree_of, wait_until};

fn gone(tree: &[i32]) -> bool {
    !tree.iter().any(|pid| alive(*pid))
}

#[test]
fn the_tree_is_stopped_the_lock_released_and_one_line_says_so() {
    for place in Place::all() {
        let start = Instant::now();
        let job = place.run_for_long().args(&["--max-hold", "1s"]).sh(TREE).spawn();
        let tree = tree_of(&job);
        let done = job.wait().expect_code(124);
        assert!(start.elapsed() >= Duration::from_secs(1), "{}: {:?}", place.name(), start.elapsed());
        assert!(gone(&tree), "{}: {tree:?}", place.name());
        assert!(done.stderr.starts_with("redlock: "), "{}: {done:?}", place.name());
        assert_eq!(done.stderr.lines().count(), 1, "{}: {done:?}", place.name());
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_tree_that_ignores_sigterm_is_killed_after_the_grace() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "500ms", "--kill-after", "300ms"]);
        let job = run.sh(DEAF_TREE).spawn();
        let tree = tree_of(&job);
        job.wait().expect_code(124);
        assert!(gone(&tree), "{}: {tree:?}", place.name());
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn the_next_one_begins_only_after_the_tree_is_gone() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "2s", "--kill-after", "300ms"]);
        let job = run.sh(DEAF_TREE).spawn();
        let tree: Vec<String> = tree_of(&job).iter().map(i32::to_string).collect();
        let next = place.waiter(place.run().env("TREE", tree.join(" ")).sh(LOOK), 1);
        assert_eq!(next.wait().expect_code(0).stdout, "looked\n", "{}", place.name());
        job.wait().expect_code(124);
    }
}

#[test]
fn the_signal_is_the_users_and_the_command_has_the_grace_to_tidy_up() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "300ms", "--signal", "USR1"]);
        let script = "trap 'echo asked; sleep 0.3; echo tidied; exit 5' USR1; while :; do sleep 0.02; done";
        let done = run.sh(script).done().expect_code(124);
        assert_eq!(done.stdout, "asked\ntidied\n", "{}", place.name());
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_command_that_ended_before_has_its_own_exit_code() {
    for place in Place::all() {
        for code in [0, 3, 124] {
            let done = place.run().args(&["--max-hold", "40s"]).sh(&format!("exit {code}")).done();
            assert_eq!(done.expect_code(code).stderr, "", "{}", place.name());
        }
        let done = place.run().args(&["--max-hold", "40s"]).sh("kill -KILL $$").done();
        assert_eq!((done.signal, done.stderr.as_str()), (Some(9), ""), "{}", place.name());
        place.run().args(&["--max-hold", "40s"]).cmd(&["/no/such/command"]).done().expect_code(127);
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn the_guardian_stops_the_tree_of_a_stopped_redlock() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "1s", "--kill-after", "300ms"]);
        let job = run.sh(DEAF_TREE).spawn();
        let tree = tree_of(&job);
        job.signal(SIGSTOP);
        wait_until("the tree is stopped by the guardian", || gone(&tree));
        assert_eq!(process_state(job.pid()), Some('T'), "it was not redlock");
        if let Place::Here(_) = place {
            // No lease would end it.
            wait_until("the lock is given back", || place.is_free());
        }
        job.signal(SIGCONT);
        let done = job.wait().expect_code(124);
        assert!(done.stderr.starts_with("redlock: "), "{}: {done:?}", place.name());
        assert!(place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_command_that_is_stopped_itself_is_ended_too() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "700ms", "--kill-after", "2s"]);
        let job = run.sh("trap 'echo asked; exit 1' TERM; echo main $$; kill -STOP $$; sleep 60").spawn();
        let main = pid_in(&job.wait_for_line("main"));
        wait_until("the command is stopped", || process_state(main) == Some('T'));
        let done = job.wait().expect_code(124);
        assert!(done.stdout.contains("asked"), "TERM and CONT come before KILL: {done:?}");
        assert!(!alive(main) && place.is_free(), "{}", place.name());
    }
}

#[test]
fn the_time_begins_with_the_grant_and_not_with_the_wait() {
    for place in Place::all() {
        let first = hold(place.run_for_long());
        let next = place.waiter(place.run().args(&["--max-hold", "2s"]).sh("exit 5"), 1);
        next.wait_for_stderr("waiting"); // which is said after two seconds
        first.wait().expect_code(0);
        next.wait().expect_code(5);
    }
}

#[test]
fn until_then_the_lock_is_kept_over_many_leases() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "600ms", "--max-hold", "3s"]);
    let job = run.sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    renewed(&redis, "k", 6); // two leases and more
    assert!(alive(main), "{}", job.stderr_so_far());
    let done = job.wait().expect_code(124);
    assert!(!done.stderr.contains("lost"), "{done:?}");
    assert!(!redis.held("k"));
}

#[test]
fn a_lock_that_is_lost_before_is_79() {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").args(&["--ttl", "1s", "--max-hold", "40s"]);
    let job = run.sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    redis.cmd(&["DEL", "lock:k"]);
    job.wait().expect_code(79);
}

#[test]
fn with_wait_tree_what_the_command_left_behind_is_stopped_too() {
    for place in Place::all() {
        let run = place.run_for_long().args(&["--max-hold", "1s", "--kill-after", "300ms", "--wait-tree"]);
        let job = run.sh("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo left $!; exit 3").spawn();
        let left = pid_in(&job.wait_for_line("left"));
        let done = job.wait();
        // The command had ended before, its tree had not: both can be told.
        assert!(matches!(done.code, Some(124 | 3)), "{}: {done:?}", place.name());
        assert!(!alive(left) && place.is_free(), "{}", place.name());
    }
}

#[test]
fn a_daemon_that_the_command_left_behind_is_not_chased_without_wait_tree() {
    let place = Place::here();
    let run = place.run().args(&["--max-hold", "40s"]);
    let done = run.sh("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo left $!; exit 3").done();
    let left = pid_in(&done.expect_code(3).stdout);
    assert!(alive(left) && place.is_free());
    kill(Pid::from_raw(left), SIGKILL).unwrap();
}

#[test]
fn one_reader_or_one_slot_ends_and_the_others_go_on() {
    for place in [Place::one(), Place::here()] {
        for mode in [&["-s"][..], &["--slots", "2"]] {
            let mut other = hold(place.run_for_long().args(mode));
            let run = place.run_for_long().args(mode).args(&["--max-hold", "500ms"]);
            run.sh("exec sleep 60").done().expect_code(124);
            assert!(other.is_running(), "{} {mode:?}", place.name());
            let again = place.run().args(mode).arg("-n").cmd(&["true"]).done();
            again.expect_code(0); // a reader's entry is gone, the slot is back
            other.wait().expect_code(0);
        }
    }
}
