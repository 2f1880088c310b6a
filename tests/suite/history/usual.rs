//! "usually 4m (p95 9m)": wait lines and status show how long the lock is usually held.

use crate::support::{Backend, Run, hold};

on_backends!(one_server, three_servers, this_host:
    status_shows_it_after_five_runs,
    a_wait_line_shows_it,
    failed_runs_do_not_count
);

fn usual_of(backend: &Backend) -> serde_json::Value {
    backend.subcommand("status").args(&["k", "--json"]).done().json()["usual"].clone()
}

fn runs(count: usize, run: impl Fn() -> Run) {
    for _ in 0..count {
        run().done();
    }
}

fn status_shows_it_after_five_runs(backend: &Backend) {
    runs(4, || backend.run().cmd(&["true"]));
    assert!(usual_of(backend).is_null());
    backend.run().cmd(&["sleep", "1.2"]).done();
    let usual = usual_of(backend);
    assert!(usual["p50_ms"].as_u64().is_some_and(|half| half < 1000), "{usual}");
    assert!(usual["p95_ms"].as_u64().is_some_and(|most| (1200..60_000).contains(&most)), "{usual}");
    let text = backend.subcommand("status").args(&["k"]).done().stdout;
    assert!(text.lines().any(|line| line.starts_with("usually  ") && line.contains(" (p95 1")), "{text}");
}

fn a_wait_line_shows_it(backend: &Backend) {
    runs(5, || backend.run().cmd(&["true"]));
    let holder = hold(backend.run_for_long());
    let waiter = backend.waiter(backend.run().cmd(&["true"]), 1);
    let line = waiter.wait_for_stderr("waiting for");
    assert!(line.contains(", usually ") && line.contains(" (p95 "), "{line}");
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
}

fn failed_runs_do_not_count(backend: &Backend) {
    runs(4, || backend.run().cmd(&["true"]));
    for _ in 0..3 {
        backend.run().cmd(&["false"]).done().expect_code(1);
    }
    assert!(usual_of(backend).is_null());
}
