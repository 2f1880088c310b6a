//! A run inside a run: if it would have to wait for its own ancestor, it fails at once; everything
//! else works.

use crate::support::{Backend, Host, Job, Redis, Run, hold, nested};

on_backends!(one_server, three_servers, this_host:
    a_run_that_would_wait_for_its_ancestor_fails_at_once,
    a_reader_inside_a_reader_works,
    a_reader_inside_a_reader_fails_at_once_when_a_writer_waits,
    a_reader_of_another_group_inside_a_reader_fails_at_once,
    a_preferring_reader_inside_a_reader_overtakes_a_waiting_writer,
    a_writer_inside_a_reader_is_detected_among_other_readers,
    a_single_common_key_of_several_is_enough,
    only_the_keys_that_the_outer_run_holds_are_named,
    a_run_that_would_wait_for_its_ancestor_does_not_wait_for_others_first,
);

fn a_run_that_would_wait_for_its_ancestor_fails_at_once(backend: &Backend) {
    assert_eq!(nested(backend.run(), backend.run()), "inner=64\n");
    assert_eq!(nested(backend.run(), backend.reader()), "inner=64\n");
    assert_eq!(nested(backend.reader(), backend.run()), "inner=64\n");
    assert_eq!(nested(backend.reader(), backend.run().args(&["-w", "50"])), "inner=64\n");
    assert_eq!(nested(backend.run(), backend.run().args(&["-w", "50"])), "inner=64\n");
    // Two levels down the lock is still the ancestor's.
    let deep = backend.run_on(&["j"]).sh(&backend.run().cmd(&["true"]).shell_line());
    let done = backend.reader().sh(&format!("{}; echo inner=$?", deep.shell_line())).done();
    assert_eq!(done.stdout, "inner=64\n", "{done:?}");
    // Another key is another lock, and so is the same key on another backend.
    assert_eq!(nested(backend.run(), backend.run_on(&["j"])), "ran\ninner=0\n");
    assert_eq!(nested(backend.run(), Host::new().run()), "ran\ninner=0\n");
    assert_eq!(nested(backend.run(), Run::key(&Redis::start(), "k")), "ran\ninner=0\n");
    backend.all_free(&["k", "j"]);
}

fn a_reader_inside_a_reader_works(backend: &Backend) {
    assert_eq!(nested(backend.reader(), backend.reader()), "ran\ninner=0\n");
    let group = || backend.reader().args(&["--reader-group", "a"]);
    assert_eq!(nested(group(), group()), "ran\ninner=0\n");
    backend.all_free(&["k"]);
}

/// A reader whose command starts the inner run when its stdin is closed.
fn outer(backend: &Backend, inner: &crate::support::Run) -> Job {
    let inner = inner.clone().cmd(&["echo", "ran"]).shell_line();
    let job =
        backend.reader().stdin_pipe().sh(&format!("echo ready; read x; {inner}; echo inner=$?")).spawn();
    job.wait_for_line("ready");
    job
}

/// The inner run's output.
#[track_caller]
fn ended(mut outer: Job) -> String {
    drop(outer.take_stdin());
    let line = outer.wait_for_line("inner=");
    outer.wait().expect_code(0);
    line
}

fn a_reader_inside_a_reader_fails_at_once_when_a_writer_waits(backend: &Backend) {
    let outer = outer(backend, &backend.reader());
    let writer = backend.waiter(backend.run().cmd(&["true"]), 1);
    // The writer waits for the outer run, and the inner run would wait for the writer.
    assert_eq!(ended(outer), "inner=64");
    writer.wait().expect_code(0);
}

fn a_preferring_reader_inside_a_reader_overtakes_a_waiting_writer(backend: &Backend) {
    let outer = outer(backend, &backend.reader().args(&["--prefer", "readers"]));
    let writer = backend.waiter(backend.run().cmd(&["true"]), 1);
    assert_eq!(ended(outer), "inner=0");
    writer.wait().expect_code(0);
}

fn a_reader_of_another_group_inside_a_reader_fails_at_once(backend: &Backend) {
    assert_eq!(nested(backend.reader(), backend.reader().args(&["--reader-group", "a"])), "inner=64\n");
    let group = |name: &str| backend.reader().args(&["--reader-group", name]);
    assert_eq!(nested(group("a"), group("b")), "inner=64\n");
    assert_eq!(nested(group("a"), backend.reader()), "inner=64\n");
}

fn a_writer_inside_a_reader_is_detected_among_other_readers(backend: &Backend) {
    let before = hold(backend.reader());
    let outer = outer(backend, &backend.run());
    let after: Vec<Job> = (0..2).map(|_| hold(backend.reader())).collect();
    assert_eq!(ended(outer), "inner=64");
    after.into_iter().chain([before]).for_each(|job| drop(job.wait().expect_code(0)));
}

fn a_single_common_key_of_several_is_enough(backend: &Backend) {
    let several = || backend.run_on(&["a", "b"]);
    assert_eq!(nested(several(), backend.run_on(&["b"])), "inner=64\n");
    assert_eq!(nested(backend.run_on(&["b"]), several()), "inner=64\n");
    assert_eq!(nested(several(), backend.run_on(&["c", "a"])), "inner=64\n");
    assert_eq!(nested(several(), backend.run_on(&["c", "d"])), "ran\ninner=0\n");
    let readers = |keys: &[&str]| backend.run_on(keys).arg("--shared");
    assert_eq!(nested(readers(&["a", "b"]), readers(&["b", "c"])), "ran\ninner=0\n");
    backend.all_free(&["a", "b", "c", "d"]);
}

fn only_the_keys_that_the_outer_run_holds_are_named(backend: &Backend) {
    for option in [&["--reentrant"][..], &[]] {
        let inner = backend.run_on(&["b", "c"]).args(option).cmd(&["true"]).shell_line();
        let done = backend.run_on(&["a", "b"]).sh(&format!("{inner}; true")).done().expect_code(0);
        assert!(done.stderr.contains("an outer run already holds \"b\", and "), "{done:?}");
    }
    let inner = backend.run_on(&["b", "c"]).cmd(&["true"]).shell_line();
    let keeper = backend.run_on(&["c"]).sh(&format!("{inner}; true")).shell_line();
    let done = backend.run_on(&["b"]).sh(&keeper).done().expect_code(0);
    assert!(done.stderr.contains("an outer run already holds \"b\", \"c\", and "), "{done:?}");
}

fn a_run_that_would_wait_for_its_ancestor_does_not_wait_for_others_first(backend: &Backend) {
    let other = hold(backend.run_on(&["b"]));
    assert_eq!(nested(backend.run_on(&["z"]), backend.run_on(&["z", "b"])), "inner=64\n");
    other.wait().expect_code(0);
}
