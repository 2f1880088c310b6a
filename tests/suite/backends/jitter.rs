//! --jitter: a random pause before the first request, so that a fleet does not send its requests at
//! once.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::support::host::{is_locked, lock_files};
use crate::support::processes::{self, wait_until_asleep};
use crate::support::{Backend, Host, Job, Nodes, Proxy, Redis, Run, assert_takes_less_than, hold};

on_backends!(one_server, three_servers, this_host:
    a_signal_ends_the_pause_at_once_and_redlock_dies_by_it,
    the_pause_ends_within_the_given_time,
);

/// Long enough that no test sees its end: shorter than a minute in two of a million cases.
const AGES: [&str; 2] = ["--jitter", "300days"];

#[test]
fn no_request_is_sent_before_the_pause_ends() {
    let nodes = Nodes::start(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    for run in [Run::at(&urls[0], "k"), Nodes::run_at(&urls, "k")] {
        let job = run.args(&AGES).sh("echo ran").spawn();
        wait_until_asleep(job.pid());
        job.signal(SIGTERM);
        assert_eq!(job.wait().signal, Some(SIGTERM as i32));
        assert!(proxies.iter().all(|proxy| proxy.connections() == 0), "a server got a request");
    }
    let host = Host::new();
    let job = host.run().args(&AGES).sh("echo ran").spawn();
    wait_until_asleep(job.pid());
    assert!(
        !lock_files(host.path()).iter().any(|file| is_locked(file)),
        "the run has a position in the queue"
    );
}

fn a_signal_ends_the_pause_at_once_and_redlock_dies_by_it(backend: &Backend) {
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        let mark = processes::mark();
        let run = backend.run().args(&AGES).via("ulimit -c 0; exec \"$@\"").env("TEST_MARK", &mark);
        let job = run.sh("echo ran").spawn();
        wait_until_asleep(job.pid());
        job.signal(signal);
        let done = job.wait();
        assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{done:?}");
        processes::wait_until_none_marked(&mark);
    }
    assert!(backend.is_free());
}

#[test]
fn a_shell_sees_128_plus_the_signal() {
    let host = Host::new();
    let run = host.run().args(&AGES).via("\"$@\" & wait_for=$!; echo pid $!; wait $wait_for; echo code=$?");
    let job = run.cmd(&["true"]).spawn();
    let pid = processes::pid_in(&job.wait_for_line("pid"));
    wait_until_asleep(pid);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), SIGTERM).unwrap();
    assert_eq!(job.wait_for_line("code="), "code=143");
}

#[test]
fn the_pauses_of_a_fleet_are_spread_out() {
    let host = Host::new();
    // Each has a key of its own: the requests are spread, not the waiting.
    let run = |n: usize| host.run_on(format!("k{n}")).args(&["--jitter", "3s"]).cmd(&["date", "+%s%N"]);
    let jobs: Vec<Job> = (0..16).map(|n| run(n).spawn()).collect();
    let begun: Vec<u128> =
        jobs.into_iter().map(|job| job.wait().expect_code(0).stdout.trim().parse().expect("ns")).collect();
    let spread = begun.iter().max().unwrap() - begun.iter().min().unwrap();
    // That sixteen fall into a third of the range by chance happens once in a million runs.
    assert!(spread > 1_000_000_000, "{spread} ns");
}

fn the_pause_ends_within_the_given_time(backend: &Backend) {
    // All at once. If the bound were exceeded by a factor of ten, none of eight would show it once
    // in 50,000 runs.
    const BOUND: Duration = Duration::from_secs(1);
    const SLOW_MACHINE: Duration = Duration::from_millis(1500);
    assert_takes_less_than(BOUND + SLOW_MACHINE, || {
        let start = Instant::now();
        let run = |n: usize| backend.run_on(&[&n.to_string()]).args(&["--jitter", "1s"]);
        let jobs: Vec<Job> = (0..8).map(|n| run(n).sh("exit 4").spawn()).collect();
        jobs.into_iter().for_each(|job| drop(job.wait().expect_code(4)));
        start.elapsed()
    });
}

#[test]
fn the_pause_does_not_count_as_waiting() {
    let redis = Redis::start();
    // Free keys: a run that counted the pause would have no time left for a request. That twelve
    // pauses are all shorter than the wait happens once in two million runs.
    let run = |n: usize| Run::key(&redis, &n.to_string()).args(&["--jitter", "5s", "-w", "1500ms"]);
    let jobs: Vec<Job> = (0..12).map(|n| run(n).sh("exit 4").spawn()).collect();
    for job in jobs {
        job.wait().expect_code(4);
    }
    let first = hold(Run::key(&redis, "k").args(&["--ttl", "90s"]));
    let start = Instant::now();
    let late = Run::key(&redis, "k").args(&["--jitter", "300ms", "-w", "1500ms"]);
    late.cmd(&["true"]).done().expect_code(75);
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
    first.wait().expect_code(0);
}

#[test]
fn the_pause_does_not_count_as_holding() {
    let redis = Redis::start();
    let run = |n: usize| Run::key(&redis, &n.to_string()).args(&["--jitter", "3s", "--max-hold", "2s"]);
    let jobs: Vec<Job> = (0..4).map(|n| run(n).sh("exit 4").spawn()).collect();
    for job in jobs {
        job.wait().expect_code(4);
    }
}

#[test]
fn the_pause_is_not_reported() {
    let host = Host::new();
    let done = host.run().args(&["--jitter", "50ms", "-n"]).sh("echo out").done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", ""));
}
