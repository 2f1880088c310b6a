//! `--reentrant`: a run inside a run uses the lock that the outer one holds.

use nix::sys::signal::Signal::SIGKILL;

use crate::support::{
    Backend, Done, Job, Locks, REPORT_SURVIVORS, Run, TREE, alive, hold, nested, process_state, tree_of,
    wait_until,
};

on_backends!(one_server, three_servers, this_host:
    an_inner_run_has_the_outer_token_and_fence_and_leaves_the_lock_alone,
    every_level_can_use_the_outermost_lock,
    an_exclusive_lock_suffices_for_readers,
    a_readers_lock_suffices_for_readers_of_its_group_only,
    several_keys_must_all_be_held_outside,
    keys_of_several_outer_runs_are_used_together,
    a_key_that_no_outer_run_holds_is_acquired_as_usual,
    the_lock_stays_until_an_inner_run_in_the_background_has_exited,
    a_run_that_outlives_its_outer_run_waits_as_usual,
    a_process_outside_the_tree_cannot_use_the_lock,
    a_killed_outer_run_takes_the_inner_run_along,
    an_inner_run_has_its_own_limits;
one_server, three_servers, this_host: a_slot_suffices_for_the_same_number_of_slots
);

fn reentrant(backend: &Backend) -> Run {
    backend.run().arg("--reentrant")
}

/// The environment of the outer run's command, and of the inner one's.
#[track_caller]
fn both(outer: Run, inner: Run) -> (String, String, Done) {
    let show = "echo $REDLOCK_TOKEN/$REDLOCK_FENCE/$REDLOCK_SLOT";
    let script = format!("{show}; {}", inner.sh(show).shell_line());
    let done = outer.sh(&script).done().expect_code(0);
    let mut lines = done.stdout.lines().map(str::to_owned);
    let (outer, inner) = (lines.next().unwrap(), lines.next().unwrap());
    (outer, inner, done)
}

fn an_inner_run_has_the_outer_token_and_fence_and_leaves_the_lock_alone(backend: &Backend) {
    let inner =
        reentrant(backend).sh("echo $REDLOCK_TOKEN $REDLOCK_FENCE $REDLOCK_KEY $REDLOCK_ATTEMPTS; exit 5");
    let script =
        format!("echo $REDLOCK_TOKEN $REDLOCK_FENCE k 0; {}; echo inner=$?; read x", inner.shell_line());
    let job = backend.run_for_long().stdin_pipe().sh(&script).spawn();
    job.wait_for_line("inner=5");
    let output = job.stdout_so_far();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], lines[1], "{output}");
    assert!(!backend.is_free(), "the inner run must not release the lock");
    assert_eq!(job.wait().stderr, "");
    backend.all_free(&["k"]);
}

fn every_level_can_use_the_outermost_lock(backend: &Backend) {
    let third = reentrant(backend).cmd(&["echo", "ran"]);
    let second = reentrant(backend).sh(&third.shell_line());
    let done = backend.run().sh(&second.shell_line()).done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n", ""));
    backend.all_free(&["k"]);
}

fn an_exclusive_lock_suffices_for_readers(backend: &Backend) {
    let (outer, inner, _) = both(backend.run(), reentrant(backend).arg("--shared"));
    assert_eq!(outer, inner);
    let group = reentrant(backend).args(&["--shared", "--reader-group", "a"]);
    assert_eq!(nested(backend.run(), group), "ran\ninner=0\n");
}

fn a_readers_lock_suffices_for_readers_of_its_group_only(backend: &Backend) {
    let reader = || reentrant(backend).arg("--shared");
    let (outer, inner, _) = both(backend.reader(), reader());
    assert_eq!(outer, inner, "the outer lock, not a second one");
    assert_eq!(nested(backend.reader(), reentrant(backend)), "inner=64\n");
    assert_eq!(nested(backend.reader(), reader().args(&["--reader-group", "a"])), "inner=64\n");
    let script = format!("echo ready; read x; {}; echo inner=$?", reader().cmd(&["true"]).shell_line());
    let mut outer = backend.reader().stdin_pipe().sh(&script).spawn();
    outer.wait_for_line("ready");
    let writer = backend.waiter(backend.run().cmd(&["true"]), 1);
    drop(outer.take_stdin());
    outer.wait_for_line("inner=0"); // although a writer waits
    outer.wait().expect_code(0);
    writer.wait().expect_code(0);
    backend.all_free(&["k"]);
}

fn a_slot_suffices_for_the_same_number_of_slots(backend: &Backend) {
    let slots = |n: &'static str| backend.run().args(&["--slots", n]);
    let first = hold(slots("2"));
    let (outer, inner, _) = both(slots("2"), reentrant(backend).args(&["--slots", "2"]));
    assert_eq!(outer, inner);
    assert!(inner.ends_with("/1"), "the outer slot: {inner}");
    assert_eq!(nested(slots("2"), reentrant(backend).args(&["--slots", "3"])), "inner=78\n");
    first.wait().expect_code(0);
    // An exclusive lock covers all slots.
    let (_, inner, _) = both(backend.run(), reentrant(backend).args(&["--slots", "2"]));
    assert!(inner.ends_with("/0"), "{inner}");
    backend.all_free(&["k"]);
}

fn several_keys_must_all_be_held_outside(backend: &Backend) {
    let several = |keys: &[&str]| backend.run_on(keys).arg("--reentrant");
    let inner = several(&["b", "a"]).sh("echo $REDLOCK_FENCE");
    let script = format!("echo $REDLOCK_FENCE | awk '{{print $2, $1}}'; {}", inner.shell_line());
    let done = backend.run_on(&["a", "b"]).sh(&script).done().expect_code(0);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[0], lines[1], "in the inner run's order: {done:?}");
    assert_eq!(nested(backend.run_on(&["a", "b"]), several(&["b"])), "ran\ninner=0\n");
    assert_eq!(nested(backend.run_on(&["a"]), several(&["a", "b"])), "inner=64\n");
    // What works without the option also works with it.
    let readers = |keys: &[&str]| several(keys).arg("--shared");
    assert_eq!(nested(backend.run_on(&["a"]).arg("--shared"), readers(&["a", "b"])), "ran\ninner=0\n");
    backend.all_free(&["a", "b"]);
}

fn keys_of_several_outer_runs_are_used_together(backend: &Backend) {
    let inner = backend.run_on(&["a", "b"]).arg("--reentrant").sh("echo $REDLOCK_TOKEN; echo $REDLOCK_FENCE");
    let show = "printf '%s %s\\n' $REDLOCK_TOKEN $REDLOCK_FENCE";
    let middle = backend.run_on(&["b"]).sh(&format!("{show}; {}", inner.shell_line()));
    let done = backend.run_on(&["a"]).sh(&format!("{show}; {}", middle.shell_line())).done().expect_code(0);
    let words: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(words[2], [words[0][0], words[1][0]], "{done:?}");
    assert_eq!(words[3], [words[0][1], words[1][1]], "{done:?}");
    backend.all_free(&["a", "b"]);
}

fn a_key_that_no_outer_run_holds_is_acquired_as_usual(backend: &Backend) {
    assert_eq!(reentrant(backend).cmd(&["echo", "ran"]).done().expect_code(0).stdout, "ran\n");
    let (outer, inner, _) = both(backend.run_on(&["j"]), reentrant(backend));
    assert_ne!(outer, inner);
    let first = hold(backend.run_for_long());
    assert_eq!(nested(backend.run_on(&["j"]), reentrant(backend).arg("-n")), "inner=75\n");
    first.wait().expect_code(0);
    backend.all_free(&["k", "j"]);
}

fn the_lock_stays_until_an_inner_run_in_the_background_has_exited(backend: &Backend) {
    let inner =
        reentrant(backend).sh("echo inner $$; while ! test -e go; do sleep 0.01; done; echo done >> order");
    let script =
        format!("{} > started & while ! test -s started; do sleep 0.01; done; exit 3", inner.shell_line());
    let mut outer = backend.run_for_long().sh(&script).spawn();
    wait_until("the inner command runs", || !backend.noted("started").is_empty());
    let next = backend.noting_waiter(backend.run(), "next", 1);
    let shell = crate::support::descendants(outer.pid());
    wait_until("the outer command has exited", || !shell.iter().any(|&pid| is_shell_of(pid, &script)));
    assert!(outer.is_running() && !backend.is_free(), "the lock is kept for the inner run");
    std::fs::write(backend.notes().join("go"), "").unwrap();
    outer.wait().expect_code(3);
    next.wait().expect_code(0);
    assert_eq!(backend.order(), ["done", "next"]);
}

/// Whether the process is the shell that runs this script, and alive.
fn is_shell_of(pid: i32, script: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    words.next() == Some(b"sh") && words.any(|word| word == script.as_bytes()) && alive(pid)
}

fn a_run_that_outlives_its_outer_run_waits_as_usual(backend: &Backend) {
    let inner = reentrant(backend).args(&["-n", "-E", "9"]).sh("echo ran").shell_line();
    let daemon =
        format!("echo > started; while ! test -e go; do sleep 0.01; done; {inner}; echo inner=$? >> order");
    // In a session of its own, like a daemon.
    let script = "setsid sh -c \"$DAEMON\" > inner 2>&1 & while ! test -e started; do sleep 0.01; done";
    backend.run().env("DAEMON", &daemon).sh(script).done().expect_code(0);
    let other = hold(backend.run_for_long());
    std::fs::write(backend.notes().join("go"), "").unwrap();
    wait_until("the daemon's run has exited", || !backend.order().is_empty());
    assert_eq!((backend.order(), backend.noted("inner").len()), (vec!["inner=9".into()], 1));
    other.wait().expect_code(0);
}

fn a_process_outside_the_tree_cannot_use_the_lock(backend: &Backend) {
    let outer = backend.run_for_long().stdin_pipe().sh("echo held=$REDLOCK_HELD; read x; exit 0").spawn();
    let held = outer.wait_for_line("held=").replace("held=", "");
    let copied = reentrant(backend).env("REDLOCK_HELD", &held).sh("echo ran").done();
    assert_eq!(
        (copied.code, copied.stdout.as_str()),
        (Some(64), ""),
        "a process outside would not be stopped with the tree"
    );
    let forged = held.split('+').next().unwrap().to_owned();
    let forged = reentrant(backend).env("REDLOCK_HELD", &forged).sh("echo ran").done();
    assert_eq!((forged.code, forged.stdout.as_str()), (Some(64), ""), "{forged:?}");
    outer.wait().expect_code(0);
    backend.all_free(&["k"]);
}

/// An outer run with an inner one, whose command has a tree; and the pids of that tree.
#[track_caller]
fn with_inner_tree(outer: Run, backend: &Backend) -> (Job, Vec<i32>) {
    let job = outer.sh(&reentrant(backend).sh(TREE).shell_line()).spawn();
    let tree = tree_of(&job);
    (job, tree)
}

fn a_killed_outer_run_takes_the_inner_run_along(backend: &Backend) {
    let (outer, tree) = with_inner_tree(backend.run().args(backend.short_ttl()), backend);
    let words = tree.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    let next = backend.run().sh(&format!("TREE='{words}'; {REPORT_SURVIVORS}")).spawn();
    outer.signal(SIGKILL);
    wait_until("the whole tree is gone", || !tree.iter().any(|pid| alive(*pid)));
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
}

fn an_inner_run_has_its_own_limits(backend: &Backend) {
    let inner = reentrant(backend).args(&["--max-hold", "200ms"]).sh("exec sleep 60");
    let script = format!("{}; echo inner=$?", inner.shell_line());
    assert_eq!(backend.run().sh(&script).done().expect_code(0).stdout, "inner=124\n");
    backend.all_free(&["k"]);
}

mod servers {
    use super::*;

    on_backends!(one_server, three_servers:
        a_lost_lock_stops_the_inner_run_as_well,
        a_lost_lock_is_not_used,
    );

    fn forget(backend: &Backend, key: &str) {
        let delete = |redis: &crate::support::Redis| drop(redis.cmd(&["DEL", &format!("lock:{key}")]));
        match &backend.locks {
            Locks::OneServer(redis) => delete(redis),
            Locks::ThreeServers(nodes) => nodes.iter().for_each(delete),
            Locks::ThisHost(_) => unreachable!("there is no server"),
        }
    }

    fn a_lost_lock_stops_the_inner_run_as_well(backend: &Backend) {
        let (outer, tree) = with_inner_tree(backend.run().args(&["--ttl", "3s"]), backend);
        forget(backend, "k");
        outer.wait().expect_code(79);
        assert!(!tree.iter().any(|pid| process_state(*pid).is_some_and(|state| state != 'Z')), "{tree:?}");
    }

    fn a_lost_lock_is_not_used(backend: &Backend) {
        let inner = reentrant(backend).arg("-n").sh("echo fence $REDLOCK_FENCE").shell_line();
        let script = format!("echo fence $REDLOCK_FENCE; read x; {inner}");
        let run = backend.run_for_long().args(&["--on-lost", "warn"]).stdin_pipe();
        let mut outer = run.sh(&script).spawn();
        outer.wait_for_line("fence");
        forget(backend, "k");
        drop(outer.take_stdin());
        let done = outer.wait().expect_code(0);
        let fences: Vec<&str> = done.stdout.lines().collect();
        assert!(fences.len() == 2 && fences[0] != fences[1], "a lock of its own: {done:?}");
    }
}
