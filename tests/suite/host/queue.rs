//! Waiting on this host: what waiters cost, and what the death of a guardian means.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL};

use crate::support::proc_stat::cpu_ticks;
use crate::support::{Host, Job, expect_success, hold, process_state, processes, wait_until};

#[test]
fn a_waiter_whose_guardian_is_killed_does_not_run_unprotected() {
    let host = Host::new();
    let first = hold(host.run());
    let waiter = host.waiter(host.run().sh("echo ran"), 1);
    processes::send(processes::guardian_of(waiter.pid()), SIGKILL);
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
    sleeper.stop();
    first.wait().expect_code(0);
    assert!(!host.is_free(), "the stopped waiter is not overtaken");
    assert_eq!(host.order(), Vec::<String>::new());
    sleeper.signal(SIGCONT);
    expect_success(vec![sleeper, behind]);
    assert_eq!(host.order(), ["sleeper", "behind"]);
}

/// Processor ticks and voluntary context switches of these processes, including all threads.
fn activity(pids: &[i32]) -> (u64, u64) {
    let mut sum = (0, 0);
    for pid in pids {
        sum.0 += cpu_ticks(*pid).expect("a living process");
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
    // A waiter with a ticket may still be busy.
    wait_until("all sleep", || pids.iter().all(|pid| process_state(*pid) == Some('S')));
    let before = activity(&pids);
    // no fact to wait for: activity is measured over this time
    std::thread::sleep(Duration::from_secs(2));
    let after = activity(&pids);
    let (ticks, switches) = (after.0 - before.0, after.1 - before.1);
    // One wake-up each is allowed: after two seconds a waiter may check whether it must report its
    // wait.
    assert!(ticks <= 20, "{ticks} ticks in 2 s for {WAITERS} waiters");
    assert!(switches <= 3 * WAITERS as u64, "{switches} wake-ups in 2 s for {WAITERS} waiters");
    first.wait().expect_code(0);
    expect_success(waiters);
    let expected: Vec<String> = (0..WAITERS).map(|i| i.to_string()).collect();
    assert_eq!(host.order(), expected);
}
