//! What is left of somebody who has gone, or was deleted by hand, misleads nobody.

mod support;

use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use support::nodes::renewed;
use support::procs::guardian_of;
use support::{Nodes, Redis, Run, alive, hold, holder, pttl, queued, wait_until};

#[test]
fn what_an_ended_ancestor_left_taken_is_waited_for() {
    let redis = Redis::start();
    let inner = Run::key(&redis, "k").args(&["-w", "30"]).cmd(&["touch", "ran"]);
    let folder = tempfile::tempdir().unwrap();
    // Asks only when its ancestor has ended and nothing but --min-hold keeps the lock. In a session of its own: the
    // rig ends what a job leaves behind in its own.
    let script = format!("while kill -0 $1; do sleep 0.05; done; {}", inner.shell_line());
    std::fs::write(folder.path().join("later"), script).unwrap();
    let outer = Run::key(&redis, "k").args(&["--min-hold", "2s"]).dir(&folder);
    outer.sh("setsid sh later $PPID >/dev/null 2>&1 &").done().expect_code(0);
    wait_until("it had its turn", || folder.path().join("ran").exists());
}

#[test]
fn a_min_hold_that_was_deleted_is_not_told_of_the_next_holder() {
    let redis = Redis::start();
    Run::key(&redis, "k").args(&["--min-hold", "60s"]).cmd(&["true"]).done().expect_code(0);
    assert_eq!(redis.cmd(&["DEL", "lock:k"]), "1");
    let next = holder(&redis, "k", &[]);
    let done = Run::key(&redis, "k").arg("-n").cmd(&["true"]).done().expect_code(75);
    assert!(done.stderr.contains("held by") && !done.stderr.contains("min-hold"), "{done:?}");
    next.wait().expect_code(0);
}

#[test]
fn the_loss_of_what_is_told_about_holders_costs_nobody_the_lock() {
    let redis = Redis::start();
    for mode in [&["-x"][..], &["-s"], &["--slots", "2"]] {
        let job = holder(&redis, "k", &[mode, &["--ttl", "900ms"]].concat());
        assert_eq!(redis.cmd(&["DEL", "lock-info:k"]), "1");
        renewed(&redis, "k", 3);
        let done = job.wait().expect_code(0);
        assert_eq!(done.stderr, "", "{mode:?}");
        assert!(!redis.held("k"), "{mode:?}");
    }
}

#[test]
fn a_waiter_for_a_slot_is_not_later_than_the_first_that_is_free() {
    let redis = Redis::start();
    let slots = ["--slots", "2"];
    let long = holder(&redis, "k", &slots);
    let short = holder(&redis, "k", &[&slots[..], &["--min-hold", "2s"]].concat());
    let next = Run::key(&redis, "k").args(&slots).cmd(&["true"]).spawn();
    queued(&redis, "k", 1);
    short.wait().expect_code(0);
    let left = redis.cmd(&["ZRANGE", "lock-shared:k", "0", "0", "WITHSCORES"]);
    let until: i64 = left.lines().last().unwrap().parse().unwrap();
    next.wait().expect_code(0);
    let time = redis.cmd(&["TIME"]);
    let time: Vec<i64> = time.lines().map(|part| part.parse().unwrap()).collect();
    let late = time[0] * 1000 + time[1] / 1000 - until;
    // It asks every 2.1 s anyway; it must know better.
    assert!((0..1500).contains(&late), "{late} ms");
    long.wait().expect_code(0);
}

#[test]
fn those_who_are_kept_by_another_key_keep_nobody_from_this_one() {
    let redis = Redis::start();
    let other = holder(&redis, "b", &[]);
    let crowd: Vec<_> =
        (0..40).map(|_| Run::key(&redis, "a").args(&["--key", "b", "-s"]).cmd(&["true"]).spawn()).collect();
    queued(&redis, "a", 40);
    Run::key(&redis, "a").args(&["-s", "-n"]).cmd(&["true"]).done().expect_code(0);
    other.wait().expect_code(0);
    crowd.into_iter().for_each(|job| drop(job.wait().expect_code(0)));
}

#[test]
fn a_healed_server_counts_min_hold_from_the_grant() {
    let nodes = Nodes::start(3);
    let run = nodes.run("k").args(&["--ttl", "900ms", "--min-hold", "60s"]);
    let job = hold(run);
    let healthy = pttl(&nodes[0], "k");
    nodes[2].cmd(&["FLUSHALL"]);
    wait_until("it is healed", || nodes[2].held("k"));
    job.wait().expect_code(0);
    let left = [0, 2].map(|at| pttl(&nodes[at], "k"));
    assert!(left[0] < healthy && (left[0] - left[1]).abs() < 500, "{left:?}, at first {healthy}");
}

#[test]
fn servers_that_cut_idle_links_are_not_down_for_those_who_retry() {
    let redis = Redis::start_with(&["--timeout", "1"]);
    redis.cmd(&["SET", "lock:k", "foreign", "PX", "2500"]);
    let retries = ["--retries", "1", "--retry-interval", "6s"];
    Run::key(&redis, "k").args(&retries).cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_command_that_ended_in_time_was_not_stopped_however_late_its_guardian_looks() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let job = Run::key(&redis, "k").args(&["--max-hold", "2s"]).dir(&folder).sh(script).spawn();
    let guardian = guardian_of(job.pid());
    let pid = || std::fs::read_to_string(folder.path().join("pid")).ok()?.trim().parse::<i32>().ok();
    wait_until("it runs", || pid().is_some());
    kill(Pid::from_raw(guardian), SIGSTOP).unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    wait_until("it has ended", || !alive(pid().unwrap()));
    // The time of --max-hold itself is what must pass.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    kill(Pid::from_raw(guardian), SIGCONT).unwrap();
    job.wait().expect_code(7);
}
