//! A run inside a run: what would have to wait for its own ancestor fails at once, everything else works.

mod support;

use support::{Job, Site, hold, nested};

promises!(one_server, three_servers, this_host:
    a_run_that_would_wait_for_its_ancestor_fails_at_once,
    a_reader_inside_a_reader_works,
    a_reader_inside_a_reader_fails_at_once_when_a_writer_waits,
    a_reader_of_another_group_inside_a_reader_fails_at_once,
    a_preferring_reader_inside_a_reader_passes_the_writer_that_waits,
    a_writer_inside_a_reader_is_found_out_among_other_readers,
    one_common_key_of_several_is_enough,
);

fn a_run_that_would_wait_for_its_ancestor_fails_at_once(site: &Site) {
    assert_eq!(nested(site.run(), site.run()), "inner=64\n");
    assert_eq!(nested(site.run(), site.reader()), "inner=64\n");
    assert_eq!(nested(site.reader(), site.run()), "inner=64\n");
    assert_eq!(nested(site.reader(), site.run().args(&["-w", "50"])), "inner=64\n");
    // Two levels down it is still the ancestor's.
    let deep = site.run_on(&["j"]).sh(&site.run().cmd(&["true"]).shell_line());
    let done = site.reader().sh(&format!("{}; echo inner=$?", deep.shell_line())).done();
    assert_eq!(done.stdout, "inner=64\n", "{done:?}");
    site.all_free(&["k", "j"]);
}

fn a_reader_inside_a_reader_works(site: &Site) {
    assert_eq!(nested(site.reader(), site.reader()), "ran\ninner=0\n");
    let group = || site.reader().args(&["--reader-group", "a"]);
    assert_eq!(nested(group(), group()), "ran\ninner=0\n");
    site.all_free(&["k"]);
}

/// A reader whose command starts the inner run when its stdin is closed.
fn outer(site: &Site, inner: &support::Run) -> Job {
    let inner = inner.clone().cmd(&["echo", "ran"]).shell_line();
    let job = site.reader().stdin_pipe().sh(&format!("echo ready; read x; {inner}; echo inner=$?")).spawn();
    job.wait_for_line("ready");
    job
}

/// How the inner run ended.
#[track_caller]
fn ended(mut outer: Job) -> String {
    drop(outer.take_stdin());
    let line = outer.wait_for_line("inner=");
    outer.wait().expect_code(0);
    line
}

fn a_reader_inside_a_reader_fails_at_once_when_a_writer_waits(site: &Site) {
    let outer = outer(site, &site.reader());
    let writer = site.waiter(site.run().cmd(&["true"]), 1);
    // The writer waits for the outer one, the inner one would wait for the writer.
    assert_eq!(ended(outer), "inner=64");
    writer.wait().expect_code(0);
}

fn a_preferring_reader_inside_a_reader_passes_the_writer_that_waits(site: &Site) {
    let outer = outer(site, &site.reader().args(&["--prefer", "readers"]));
    let writer = site.waiter(site.run().cmd(&["true"]), 1);
    assert_eq!(ended(outer), "inner=0");
    writer.wait().expect_code(0);
}

fn a_reader_of_another_group_inside_a_reader_fails_at_once(site: &Site) {
    assert_eq!(nested(site.reader(), site.reader().args(&["--reader-group", "a"])), "inner=64\n");
    let group = |name: &str| site.reader().args(&["--reader-group", name]);
    assert_eq!(nested(group("a"), group("b")), "inner=64\n");
    assert_eq!(nested(group("a"), site.reader()), "inner=64\n");
}

fn a_writer_inside_a_reader_is_found_out_among_other_readers(site: &Site) {
    let before = hold(site.reader());
    let outer = outer(site, &site.run());
    let after: Vec<Job> = (0..2).map(|_| hold(site.reader())).collect();
    assert_eq!(ended(outer), "inner=64");
    after.into_iter().chain([before]).for_each(|job| drop(job.wait().expect_code(0)));
}

fn one_common_key_of_several_is_enough(site: &Site) {
    let several = || site.run_on(&["a", "b"]);
    assert_eq!(nested(several(), site.run_on(&["b"])), "inner=64\n");
    assert_eq!(nested(site.run_on(&["b"]), several()), "inner=64\n");
    assert_eq!(nested(several(), site.run_on(&["c", "a"])), "inner=64\n");
    assert_eq!(nested(several(), site.run_on(&["c", "d"])), "ran\ninner=0\n");
    let readers = |keys: &[&str]| site.run_on(keys).arg("--shared");
    assert_eq!(nested(readers(&["a", "b"]), readers(&["b", "c"])), "ran\ninner=0\n");
    site.all_free(&["a", "b", "c", "d"]);
}
