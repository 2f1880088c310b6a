//! Waiting on this host: first come, first served, and who leaves disturbs nobody.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::host::is_locked;
use crate::support::{Host, Job, Pty, hold, process_state, processes, wait_until};

fn all_end_well(jobs: Vec<Job>) {
    for job in jobs {
        job.wait().expect_code(0);
    }
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let host = Host::new();
    for _ in 0..3 {
        let first = hold(host.run());
        let waiters: Vec<Job> = (0..8).map(|i| host.noting_waiter(&i.to_string(), i + 1)).collect();
        first.wait().expect_code(0);
        all_end_well(waiters);
    }
    let once = ["0", "1", "2", "3", "4", "5", "6", "7"];
    assert_eq!(host.order(), once.repeat(3));
    assert!(!is_locked(&host.file()), "nothing is left in the kernel");
}

#[test]
fn no_update_is_lost_by_25_processes_at_once() {
    let host = Host::new();
    fs::write(host.beside("count"), "0").unwrap();
    let script = "n=$(cat count); sleep 0.01; echo $((n + 1)) > count";
    let jobs: Vec<Job> = (0..25).map(|_| host.run().dir(host.path()).sh(script).spawn()).collect();
    all_end_well(jobs);
    assert_eq!(fs::read_to_string(host.beside("count")).unwrap().trim(), "25");
}

#[test]
fn nonblock_gives_up_at_once_with_75_and_names_the_holder() {
    let host = Host::new();
    let first = hold(host.run().args(&["--label", "nightly"]));
    for args in [&["-n"][..], &["--nonblock"], &["-w", "0"], &["--wait", "0s"]] {
        let tried = host.run().args(args).sh("echo ran").done().expect_code(75);
        assert_eq!(tried.stdout, "");
        assert!(tried.stderr.starts_with("redlock: \"k\" is held"), "{tried:?}");
        let pid = format!("pid {}", first.pid());
        assert!(tried.stderr.contains("nightly") && tried.stderr.contains(&pid), "{tried:?}");
    }
    first.wait().expect_code(0);
    host.run().arg("-n").sh("exit 3").done().expect_code(3);
}

#[test]
fn wait_takes_fractions_and_the_conflict_code_is_the_users() {
    let host = Host::new();
    let first = hold(host.run());
    let tried = |args: &[&str]| {
        let start = Instant::now();
        (host.run().args(args).sh("echo ran").done(), start.elapsed())
    };
    for wait in ["0.2", "200ms"] {
        let (done, took) = tried(&["-w", wait]);
        assert_eq!(done.expect_code(75).stdout, "");
        assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(10), "{took:?}");
    }
    tried(&["-w", "0.2", "-E", "9"]).0.expect_code(9);
    tried(&["-n", "--conflict-exit-code", "200"]).0.expect_code(200);
    let skipped = tried(&["-n", "-E", "0"]).0.expect_code(0);
    assert_eq!((skipped.stdout.as_str(), skipped.stderr.as_str()), ("", ""));
    first.wait().expect_code(0);
    host.run().args(&["-n", "-E", "9"]).sh("exit 75").done().expect_code(75);
}

#[test]
fn a_waiter_that_gives_up_disturbs_nobody() {
    let host = Host::new();
    let first = hold(host.run());
    let ahead = host.noting_waiter("ahead", 1);
    let quitter = host.waiter(host.run().args(&["-w", "0.5"]).sh("echo ran"), 2);
    let behind = host.noting_waiter("behind", 3);
    assert_eq!(quitter.wait().expect_code(75).stdout, "");
    host.queued(2);
    first.wait().expect_code(0);
    all_end_well(vec![ahead, behind]);
    assert_eq!(host.order(), ["ahead", "behind"]);
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_dies_by_its_signal() {
    let host = Host::new();
    let first = hold(host.run());
    let ahead = host.noting_waiter("ahead", 1);
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let mark = processes::mark();
        let cancelled = host.waiter(host.run().env("TEST_MARK", &mark).sh("echo ran"), 2);
        cancelled.signal(signal);
        let done = cancelled.wait();
        assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{done:?}");
        host.queued(1);
        wait_until("no process is left", || processes::marked(&mark).is_empty());
    }
    let behind = host.noting_waiter("behind", 2);
    first.wait().expect_code(0);
    all_end_well(vec![ahead, behind]);
    assert_eq!(host.order(), ["ahead", "behind"]);
}

#[test]
fn a_killed_waiter_disturbs_nobody_and_leaves_no_process() {
    let host = Host::new();
    let first = hold(host.run());
    let ahead = host.noting_waiter("ahead", 1);
    let mark = processes::mark();
    let victim = host.waiter(host.run().env("TEST_MARK", &mark).sh("echo ran >> order"), 2);
    let behind = host.noting_waiter("behind", 3);
    victim.signal(SIGKILL);
    victim.wait();
    host.queued(2);
    wait_until("no process is left", || processes::marked(&mark).is_empty());
    assert!(!host.is_free(), "nobody got in by a waiter's death");
    first.wait().expect_code(0);
    all_end_well(vec![ahead, behind]);
    assert_eq!(host.order(), ["ahead", "behind"]);
}

#[test]
fn a_waiter_whose_guardian_was_killed_does_not_run_unprotected() {
    let host = Host::new();
    let first = hold(host.run());
    let waiter = host.waiter(host.run().sh("echo ran"), 1);
    kill(Pid::from_raw(processes::guardian_of(waiter.pid())), SIGKILL).unwrap();
    let behind = host.noting_waiter("behind", 2);
    first.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(125).stdout, "");
    behind.wait().expect_code(0);
}

#[test]
fn a_stopped_waiter_just_waits_and_keeps_its_place() {
    let host = Host::new();
    let first = hold(host.run());
    let sleeper = host.noting_waiter("sleeper", 1);
    let behind = host.noting_waiter("behind", 2);
    sleeper.signal(SIGSTOP);
    wait_until("it is stopped", || process_state(sleeper.pid()) == Some('T'));
    first.wait().expect_code(0);
    assert!(!host.is_free(), "nobody overtakes the stopped one");
    assert_eq!(host.order(), Vec::<String>::new());
    sleeper.signal(SIGCONT);
    all_end_well(vec![sleeper, behind]);
    assert_eq!(host.order(), ["sleeper", "behind"]);
}

/// Processor ticks and voluntary context switches of these processes, all threads included.
fn activity(pids: &[i32]) -> (u64, u64) {
    let mut sum = (0, 0);
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        sum.0 += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        for task in fs::read_dir(format!("/proc/{pid}/task")).expect("a living process") {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum.1 += line.unwrap().trim().parse::<u64>().unwrap();
        }
    }
    sum
}

#[test]
fn many_waiters_cost_no_processor_time_and_are_served_in_order() {
    const WAITERS: usize = 120;
    let host = Host::new();
    let first = hold(host.run());
    let mark = processes::mark();
    let waiter = |i: usize| {
        let run = host.run().arg("-q").dir(host.path()).env("TEST_MARK", &mark);
        host.waiter(run.sh(&format!("echo {i} >> order")), i + 1)
    };
    let waiters: Vec<Job> = (0..WAITERS).map(waiter).collect();
    let pids = processes::marked(&mark);
    assert!(pids.len() >= WAITERS, "{} processes", pids.len());
    let before = activity(&pids);
    std::thread::sleep(Duration::from_secs(2)); // not for a fact: this is the time that is measured
    let after = activity(&pids);
    let (ticks, switches) = (after.0 - before.0, after.1 - before.1);
    // One wake-up each is allowed: after two seconds a waiter may look whether it has something to say.
    assert!(ticks <= 20, "{ticks} ticks in 2 s for {WAITERS} waiters");
    assert!(switches <= 3 * WAITERS as u64, "{switches} wake-ups in 2 s for {WAITERS} waiters");
    first.wait().expect_code(0);
    all_end_well(waiters);
    let expected: Vec<String> = (0..WAITERS).map(|i| i.to_string()).collect();
    assert_eq!(host.order(), expected);
}

#[test]
fn a_longer_wait_is_told_with_holder_place_and_times() {
    let host = Host::new();
    let holder = host.run().args(&["--label", "nightly build"]);
    let holder = holder.stdin_pipe().cmd(&["sh", "-c", "echo ready; read x; exit 0", "hidden-word"]).spawn();
    holder.wait_for_line("ready");
    let first = host.waiter(host.run().sh("echo in"), 1);
    let second = host.waiter(host.run().sh("echo in"), 2);
    let said = first.wait_for_stderr("waiting");
    assert!(said.starts_with("redlock: waiting for \"k\""), "{said}");
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let pid = format!("pid {}", holder.pid());
    for part in ["place 1", "held by", name.trim(), &pid, "nightly build", "sh", " for ", "waited "] {
        assert!(said.contains(part), "{part:?} is missing in {said:?}");
    }
    let behind = second.wait_for_stderr("waiting");
    assert!(behind.contains("place 2") && behind.contains(&pid), "{behind}");
    assert!(
        !fs::read(host.file()).unwrap().windows(11).any(|w| w == b"hidden-word"),
        "no arguments in the file"
    );
    holder.wait().expect_code(0);
    for job in [first, second] {
        let done = job.wait().expect_code(0);
        assert_eq!(done.stdout, "in\n");
        assert!(!done.stderr.contains("hidden-word") && !done.stderr.contains(['\r', '\x1b']), "{done:?}");
    }
}

#[test]
fn events_tell_the_story() {
    let host = Host::new();
    let file = host.beside("events.jsonl");
    let first = hold(host.run());
    let run = host.run().arg("--events").arg(&file).sh("echo $REDLOCK_FENCE; exit 3");
    let job = host.waiter(run, 1);
    wait_until("waiting is told", || fs::read_to_string(&file).is_ok_and(|text| text.contains('\n')));
    first.wait().expect_code(0);
    let done = job.wait().expect_code(3);
    let text = fs::read_to_string(&file).unwrap();
    let told: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = told.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], &names[names.len() - 2..]), ("waiting", &["acquired", "released"][..]));
    assert!(told.iter().all(|event| event["key"] == "k"));
    let (acquired, released) = (&told[told.len() - 2], &told[told.len() - 1]);
    assert_eq!(acquired["fence"].as_u64(), done.stdout.trim().parse().ok());
    assert!(acquired["waited_ms"].is_u64() && released["held_ms"].is_u64(), "{text}");
    assert_eq!(released["exit"], 3);
}

#[test]
fn ctrl_c_while_waiting_leaves_the_queue() {
    let host = Host::new();
    let first = hold(host.run().args(&["--label", "nightly"]));
    let mark = processes::mark();
    let pty = Pty::run(host.run().env("TEST_MARK", &mark).sh("echo ran"));
    pty.wait_for("nightly"); // the live line
    host.queued(1);
    pty.type_in("\x03");
    let done = pty.wait();
    assert_eq!((done.code, done.signal), (None, Some(SIGINT as i32)), "{}", done.stdout);
    assert!(!done.stdout.contains("ran"));
    host.queued(0);
    wait_until("no process is left", || processes::marked(&mark).is_empty());
    first.wait().expect_code(0);
    assert!(host.is_free());
}
