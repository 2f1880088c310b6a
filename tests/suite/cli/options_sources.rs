//! Modes, slots, retries, holds and pauses from the command line, the environment or the config
//! file, and which one wins.

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Backend, Job, Redis, Refused, Run, config_file, expect_success, hold, processes, pttl};

on_backends!(
    one_server, three_servers, this_host:
        shared_and_reader_group_work_from_every_source,
        prefer_works_from_every_source,
        retries_and_their_interval_work_from_every_source,
        minimum_and_maximum_hold_work_from_every_source,
        jitter_works_from_every_source,
        an_inherited_reader_group_does_not_affect_a_writer,
        a_typed_mode_overrides_an_inherited_one,
        a_typed_value_overrides_an_inherited_one;
    one_server, this_host:
        slots_work_from_every_source,
        the_typed_one_of_slots_and_shared_wins,
);

/// The sources of a setting.
const SOURCES: [&str; 3] = ["typed", "environment", "file"];

/// `run` with this option from this source; the file lives as long as the second value.
fn set(source: &str, run: Run, option: &str, value: &str) -> (Run, Option<tempfile::TempDir>) {
    match source {
        "typed" if value == "true" => (run.arg(format!("--{option}")), None),
        "typed" => (run.arg(format!("--{option}={value}")), None),
        "environment" => {
            (run.env(&format!("REDLOCK_{}", option.to_uppercase().replace('-', "_")), value), None)
        }
        _ => {
            let bare = matches!(value, "true" | "2"); // a boolean and a number as in TOML
            let value = if bare { value.to_owned() } else { format!("{value:?}") };
            let (directory, path) = config_file(&format!("{option} = {value}\n"));
            (run.env("REDLOCK_CONFIG", path), Some(directory))
        }
    }
}

/// The same test for a setting from each source.
fn from_every_source(option: &str, value: &str, test: impl Fn(&dyn Fn(Run) -> Run)) {
    for source in SOURCES {
        let directories = std::cell::RefCell::new(Vec::new());
        let setting = |run: Run| {
            let (run, directory) = set(source, run, option, value);
            directories.borrow_mut().extend(directory);
            run
        };
        println!("{option} = {value}, {source}"); // shown if the test fails
        test(&setting);
    }
}

fn shared_and_reader_group_work_from_every_source(backend: &Backend) {
    from_every_source("shared", "true", |shared| {
        let first = hold(shared(backend.run()));
        shared(backend.run().arg("-n")).cmd(&["true"]).done().expect_code(0);
        assert!(!backend.is_free());
        first.wait().expect_code(0);
    });
    from_every_source("reader-group", "a", |group| {
        let first = hold(group(backend.run().arg("-s")));
        let tried = |run: Run| run.args(&["-n", "-s"]).cmd(&["true"]).done();
        tried(group(backend.run())).expect_code(0);
        tried(backend.run()).expect_code(75);
        tried(backend.run().args(&["--reader-group", "b"])).expect_code(75);
        first.wait().expect_code(0);
    });
}

fn an_inherited_reader_group_does_not_affect_a_writer(backend: &Backend) {
    let run = backend.run().env("REDLOCK_READER_GROUP", "a").env("REDLOCK_PREFER", "readers");
    run.sh("exit 3").done().expect_code(3);
}

fn prefer_works_from_every_source(backend: &Backend) {
    from_every_source("prefer", "readers", |prefer| {
        let first = hold(backend.run().arg("-s"));
        let writer = backend.waiter(backend.run().cmd(&["true"]), 1);
        backend.run().args(&["-n", "-s"]).cmd(&["true"]).done().expect_code(75);
        prefer(backend.run().args(&["-n", "-s"])).cmd(&["true"]).done().expect_code(0);
        first.wait().expect_code(0);
        writer.wait().expect_code(0);
    });
}

fn slots_work_from_every_source(backend: &Backend) {
    from_every_source("slots", "2", |slots| {
        let take = |n: &str| -> Job {
            let run = slots(backend.run().args(&["-n"])).stdin_pipe();
            let job = run.sh("echo slot $REDLOCK_SLOT; read x; exit 0").spawn();
            assert_eq!(job.wait_for_line("slot"), format!("slot {n}"));
            job
        };
        let both = [take("0"), take("1")];
        slots(backend.run().arg("-n")).cmd(&["true"]).done().expect_code(75);
        expect_success(both);
    });
}

fn retries_and_their_interval_work_from_every_source(backend: &Backend) {
    from_every_source("retries", "2", |retries| {
        let first = hold(backend.run());
        let run = retries(backend.run().env("REDLOCK_RETRY_INTERVAL", "20ms"));
        run.cmd(&["true"]).done().expect_code(75); // and not an endless wait
        first.wait().expect_code(0);
    });
    from_every_source("retry-interval", "1s", |interval| {
        let first = hold(backend.run());
        let start = std::time::Instant::now();
        interval(backend.run().args(&["--retries", "1"])).cmd(&["true"]).done().expect_code(75);
        assert!(start.elapsed().as_millis() >= 500, "{:?}", start.elapsed());
        first.wait().expect_code(0);
    });
}

fn minimum_and_maximum_hold_work_from_every_source(backend: &Backend) {
    from_every_source("max-hold", "300ms", |max_hold| {
        max_hold(backend.run()).sh("exec sleep 60").done().expect_code(124);
    });
    from_every_source("min-hold", "1m", |min_hold| {
        let key = processes::mark(); // a new one, as the lock stays
        min_hold(backend.run_on(&[&key])).cmd(&["true"]).done().expect_code(0);
        backend.run_on(&[&key]).arg("-n").cmd(&["true"]).done().expect_code(75);
    });
}

fn jitter_works_from_every_source(backend: &Backend) {
    from_every_source("jitter", "300days", |jitter| {
        let job = jitter(backend.run()).sh("echo ran").spawn();
        processes::wait_until_asleep(job.pid());
        job.signal(SIGTERM);
        assert_eq!(job.wait().stdout, "");
    });
}

#[test]
fn on_unavailable_works_from_every_source() {
    let refused = Refused::new();
    for source in SOURCES {
        let run = Run::at(&refused.url(), "k").arg("-q");
        let (run, _directory) = set(source, run, "on-unavailable", "skip");
        assert_eq!(run.sh("echo ran").done().expect_code(0).stdout, "", "{source}");
    }
}

#[test]
fn a_ttl_of_none_works_from_every_source() {
    let redis = Redis::start();
    from_every_source("ttl", "none", |ttl| {
        let job = hold(ttl(Run::key(&redis, "k")));
        assert_eq!(pttl(&redis, "k"), -1);
        job.wait().expect_code(0);
    });
}

fn a_typed_mode_overrides_an_inherited_one(backend: &Backend) {
    let alone = hold(backend.run().arg("-x").env("REDLOCK_SHARED", "1"));
    backend.run().args(&["-n", "-s"]).cmd(&["true"]).done().expect_code(75);
    alone.wait().expect_code(0);
    let reader = hold(backend.run().args(&["-s", "--reader-group", "b"]).env("REDLOCK_READER_GROUP", "a"));
    let tried = |group: &str| backend.run().args(&["-n", "-s", "--reader-group", group]);
    tried("a").cmd(&["true"]).done().expect_code(75);
    tried("b").cmd(&["true"]).done().expect_code(0);
    let writer = backend.waiter(backend.run().cmd(&["true"]), 1);
    tried("b").arg("--prefer=fair").env("REDLOCK_PREFER", "readers").cmd(&["true"]).done().expect_code(75);
    reader.wait().expect_code(0);
    writer.wait().expect_code(0);
}

fn the_typed_one_of_slots_and_shared_wins(backend: &Backend) {
    let slot = |run: Run| run.sh("echo ${REDLOCK_SLOT-none}").done().expect_code(0).stdout;
    assert_eq!(slot(backend.run().args(&["--slots", "2"]).env("REDLOCK_SHARED", "1")), "0\n");
    let sharer = hold(backend.run().arg("-s").env("REDLOCK_SLOTS", "2"));
    assert_eq!(slot(backend.run().args(&["-n", "-s"]).env("REDLOCK_SLOTS", "2")), "none\n");
    sharer.wait().expect_code(0);
    let three = || backend.run().args(&["-n", "--slots", "3"]).env("REDLOCK_SLOTS", "2");
    let jobs = [hold(three()), hold(three()), hold(three())];
    expect_success(jobs);
}

fn a_typed_value_overrides_an_inherited_one(backend: &Backend) {
    let run = |option: &str, value: &str, name: &str, inherited: &str| {
        backend.run().args(&[option, value]).env(name, inherited)
    };
    run("--max-hold", "40s", "REDLOCK_MAX_HOLD", "200ms").sh("sleep 0.5; exit 3").done().expect_code(3);
    run("--min-hold", "1ms", "REDLOCK_MIN_HOLD", "1h").sh("sleep 0.1").done().expect_code(0);
    run("--jitter", "1ms", "REDLOCK_JITTER", "300days").sh("exit 3").done().expect_code(3);
    let first = hold(backend.run());
    run("--retries", "0", "REDLOCK_RETRIES", "99999999").cmd(&["true"]).done().expect_code(75);
    let both = run("--retry-interval", "9ms", "REDLOCK_RETRY_INTERVAL", "1h").env("REDLOCK_RETRIES", "2");
    both.cmd(&["true"]).done().expect_code(75);
    first.wait().expect_code(0);
    assert!(backend.is_free());
}

#[test]
fn a_typed_on_unavailable_overrides_an_inherited_one() {
    let refused = Refused::new();
    let run = Run::at(&refused.url(), "k").args(&["--on-unavailable", "fail"]);
    run.env("REDLOCK_ON_UNAVAILABLE", "run").sh("echo ran").done().expect_code(69);
}

#[test]
fn the_environment_overrides_the_file() {
    let redis = Redis::start();
    let (_directory, path) = config_file("min-hold = \"1h\"\nslots = 2\n");
    let run = Run::key(&redis, "k").env("REDLOCK_CONFIG", path);
    let run = run.env("REDLOCK_MIN_HOLD", "40s").env("REDLOCK_SLOTS", "1");
    assert_eq!(run.sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout, "0\n");
    let left = pttl(&redis, "k"); // one slot is the plain lock
    assert!((1..=40_000).contains(&left), "{left} ms");
}
