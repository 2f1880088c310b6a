//! Slow lines need no setting, and a server that is down is reported at once.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Links, MS, Nodes, Redis, Refused, Run, assert_takes_less_than, queued, wait_until};

/// One host whose lines have this round trip time, connects included.
fn slow(nodes: Nodes, round_trip: Duration) -> Links {
    let links = Links::one_host_to(nodes);
    links.each_way(round_trip / 2);
    links.all().for_each(|line| line.handshake(true));
    links
}

/// Acquired, held over several renewals, released; then acquired after another holder.
fn assert_works(links: &Links, run: impl Fn() -> Run, held_for: &str) {
    run().arg("-n").cmd(&["true"]).done().expect_code(0);
    let done = run().sh(&format!("echo mine; sleep {held_for}")).done().expect_code(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("mine\n", ""));
    let first = run().stdin_pipe().sh("echo ready; read x; exit 0").spawn();
    first.wait_for_line("ready");
    let next = run().sh("echo mine").spawn();
    queued(&links[0], "k", 1);
    first.wait().expect_code(0);
    next.wait_for_line("mine");
    next.wait().expect_code(0);
}

#[test]
fn a_line_of_200_ms_works_with_a_lease_of_3_s() {
    let links = slow(Nodes::start(1), 200 * MS);
    assert_works(&links, || Run::at(&links.urls(0)[0], "k").args(&["--ttl", "3s"]), "7");
}

#[test]
fn a_line_of_300_ms_works_with_a_password_and_default_settings() {
    let links = slow(Nodes::of(vec![Redis::start_with(&["--requirepass", "secret"])]), 300 * MS);
    let url = links.urls(0)[0].replace("redis://", "redis://:secret@");
    assert_works(&links, || Run::at(&url, "k"), "1");
}

#[test]
fn lines_of_300_ms_to_three_servers_work_with_a_password_and_default_settings() {
    let closed = (0..3).map(|_| Redis::start_with(&["--requirepass", "secret"]));
    let links = slow(Nodes::of(closed.collect()), 300 * MS);
    let urls: Vec<String> =
        links.urls(0).iter().map(|url| url.replace("redis://", "redis://:secret@")).collect();
    assert_works(&links, || Nodes::run_at(&urls, "k"), "1");
}

#[test]
fn lines_of_50_ms_to_three_servers_work_with_a_lease_of_3_s() {
    let links = slow(Nodes::start(3), 50 * MS);
    links.warm_up();
    assert_works(&links, || links.run(0, "k").args(&["--ttl", "3s"]), "7");
}

#[test]
fn a_server_that_is_down_is_reported_at_once() {
    let refused = [Refused::new(), Refused::new(), Refused::new()];
    let up = Redis::start();
    let sets = [
        vec![refused[0].url()],
        vec![refused[0].url(), refused[1].url(), refused[2].url()],
        vec![refused[0].url(), up.url(), refused[1].url()],
    ];
    for urls in sets {
        for args in [&["-n"][..], &[]] {
            assert_takes_less_than(Duration::from_millis(1000), || {
                let start = Instant::now();
                let run = Nodes::run_at(&urls, "k").args(args);
                let done = run.sh("echo ran").done().expect_code(69).expect_stderr(&["refused"]);
                assert_eq!(done.stdout, "");
                start.elapsed()
            });
        }
    }
}

/// With several servers a silent one is waited for briefly; the only one longer, but not forever.
#[test]
fn redlock_gives_up_on_a_silent_server_in_time() {
    let links = Links::one_host(1);
    links.line(0, 0).blackhole();
    let start = Instant::now();
    let run = Run::at(&links.urls(0)[0], "k").args(&["--ttl", "6s"]);
    run.cmd(&["true"]).done().expect_code(69);
    let took = start.elapsed();
    assert!(
        took > Duration::from_millis(1500) && took < Duration::from_secs(12),
        "a third of the ttl: {took:?}"
    );
}

/// --wait is for a lock that is held: servers that have not replied yet are neither "held" nor
/// unavailable.
#[test]
fn a_short_wait_leaves_servers_the_time_to_reply() {
    let links = Links::one_host_to(Nodes::start(3));
    links.warm_up();
    links.lines_of(0)[1..].iter().for_each(|line| line.to_client(400 * MS));
    let run = links.run(0, "k").args(&["-w", "0.05", "--node-timeout", "5s"]);
    assert_eq!(run.sh("echo mine").done().expect_code(0).stdout, "mine\n");
}

#[test]
fn votes_that_arrive_at_the_end_of_the_wait_count() {
    let links = Links::one_host_to(Nodes::start(3));
    links.warm_up();
    let late = &links.lines_of(0)[1..];
    late.iter().for_each(|line| line.to_client(2500 * MS));
    let replies = || late.iter().map(|line| line.replies()).sum::<u64>();
    let before = replies();
    let job = links.run(0, "k").args(&["-w", "0.2", "--node-timeout", "2s"]).sh("echo mine").spawn();
    wait_until("the servers have the requests", || {
        links.nodes().claims("k").iter().all(|claim| !claim.is_empty())
    });
    job.stop();
    wait_until("the servers have replied", || replies() >= before + 2);
    job.signal(Signal::SIGCONT);
    assert_eq!(job.wait().expect_code(0).stdout, "mine\n");
}
