//! Which of several holders is broken: all, the one with this token, the one in this slot; never a
//! later one.

use super::{break_in, break_on};
use crate::support::{Backend, Job, Redis, Run, hold, holder, wait_until};

on_backends!(
    one_server, three_servers, this_host:
        a_token_breaks_its_own_grant_and_no_later_one,
        all_readers_are_stopped_or_the_one_with_the_token;
    one_server, this_host:
        a_free_slot_and_an_impossible_one_are_reported,
);

/// Holds the lock until its stdin is closed; returns its token, too.
pub(super) fn holder_with_token(run: Run) -> (Job, String) {
    let job = run.stdin_pipe().sh("echo token $REDLOCK_TOKEN.; read x; exit 0").spawn();
    let line = job.wait_for_line("token ");
    (job, line.trim_start_matches("token ").trim_end_matches('.').to_owned())
}

fn a_token_breaks_its_own_grant_and_no_later_one(backend: &Backend) {
    let (first, token) = holder_with_token(backend.run().args(&["--ttl", "30s"]));
    let by_token = || break_in(backend).args(&["--yes", "--token", &token]);
    by_token().done().expect_code(0);
    first.wait().expect_code(79);
    let done = by_token().done().expect_code(79);
    assert!(done.stderr.contains("this token does not hold \"k\""), "{done:?}");
    let (second, _) = holder_with_token(backend.run().args(&["--ttl", "30s"]));
    for args in [&[][..], &["--now"]] {
        let done = by_token().args(args).done().expect_code(79);
        assert!(done.stderr.contains("held by "), "{done:?}");
    }
    second.wait().expect_code(0);
    break_in(backend).args(&["--token", "deploy"]).done().expect_code(64);
}

fn all_readers_are_stopped_or_the_one_with_the_token(backend: &Backend) {
    let reader = || backend.reader().args(&["--ttl", "30s"]);
    let (one, token) = holder_with_token(reader());
    let others = [hold(reader()), hold(reader())];
    let shown = break_in(backend).done().expect_code(75);
    assert_eq!(shown.stdout.lines().count(), 3, "{shown:?}");
    break_in(backend).args(&["--yes", "--token", &token]).done().expect_code(0);
    one.wait().expect_code(79);
    assert!(reader().try_acquire() && !backend.run().try_acquire(), "the other readers continue");
    let done = break_in(backend).arg("--yes").done().expect_code(0);
    assert_eq!(done.stdout.matches("its command was stopped").count(), 2, "{done:?}");
    others.into_iter().for_each(|job| drop(job.wait().expect_code(79)));
    assert!(backend.is_free());
}

#[test]
fn one_slot_is_broken_and_the_others_stay() {
    let redis = Redis::start();
    let slots = ["--slots", "3", "--ttl", "30s"];
    let mut jobs: Vec<Job> = (0..3).map(|_| holder(&redis, "k", &slots)).collect();
    let done = break_on(&redis).args(&["--yes", "--slot", "1"]).done().expect_code(0);
    assert!(done.stdout.contains("broke slot 1 of \"k\""), "{done:?}");
    jobs.remove(1).wait().expect_code(79);
    let slot =
        Run::key(&redis, "k").args(&["-n", "--slots", "3"]).sh("echo $REDLOCK_SLOT").done().expect_code(0);
    assert_eq!(slot.stdout, "1\n", "the slot is free, and only that");
    let done = break_on(&redis).args(&["--yes", "--slot", "1"]).done().expect_code(0);
    assert!(done.stdout.contains("slot 1 of \"k\" is free"), "{done:?}");
    break_on(&redis).args(&["--yes", "--slot", "2", "--now"]).done().expect_code(0);
    jobs.remove(1).wait().expect_code(79);
    assert!(jobs[0].is_running());
    jobs.remove(0).wait().expect_code(0);
    wait_until("all are free", || !redis.held("k"));
    let _exclusive = holder(&redis, "k", &[]);
    break_on(&redis).args(&["--yes", "--slot", "0"]).done().expect_code(78);
    break_on(&redis).args(&["--yes", "--slot", "-1"]).done().expect_code(64);
}

fn a_free_slot_and_an_impossible_one_are_reported(backend: &Backend) {
    let break_slot = |number| break_in(backend).args(&["--yes", "--slot", number]).done();
    assert_eq!(break_slot("9").expect_code(0).stdout, "\"k\" is free\n", "so nobody knows how many it has");
    let _jobs = [0, 1].map(|_| hold(backend.run().args(&["--slots", "3", "--ttl", "30s"])));
    let free = break_slot("2").expect_code(0);
    assert_eq!(free.stdout, "slot 2 of \"k\" is free: 2 of its 3 slots are held\n");
    for number in ["3", "9"] {
        let wrong = break_slot(number).expect_code(78);
        assert!(wrong.stderr.contains("\"k\" has 3 slots (0 to 2)"), "{wrong:?}");
        assert_eq!(wrong.stdout, "");
    }
    let shown = break_in(backend).done().expect_code(75);
    assert_eq!(shown.stdout.lines().count(), 2, "nothing was broken: {shown:?}");
}
