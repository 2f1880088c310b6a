//! Nobody starves: six clients in a loop, and the one with the fewest turns has at least a third of the median.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Job, Links, Run, wait_until, wait_until_within};

const MS: Duration = Duration::from_millis(1);
const CLIENTS: usize = 6;
/// How long they run; longer if the machine is so busy that it would tell nothing.
const FOR: Duration = Duration::from_secs(8);
const AT_MOST: Duration = Duration::from_secs(30);
/// The median's turns from which on a third of it tells something.
const ENOUGH: usize = 9;

/// Clients that take the lock again and again, each on a host of its own.
struct Loops {
    directory: tempfile::TempDir,
    clients: Vec<Job>,
    started: Instant,
}

impl Loops {
    /// This call for each client, with a short command.
    fn start(call: impl Fn(usize) -> Run) -> Loops {
        Loops::holding("0.01", call)
    }

    /// The same with a command that takes so many seconds.
    fn holding(seconds: &str, call: impl Fn(usize) -> Run) -> Loops {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let again = r#"until [ -e stop ]; do "$@" || echo "exit $?" >> failures; done"#;
        let client = |number: usize| {
            let run = call(number).dir(directory.path()).via(again);
            run.sh(&format!("echo {number} >> turns; sleep {seconds}")).spawn()
        };
        let clients = (0..CLIENTS).map(client).collect();
        Loops { directory, clients, started: Instant::now() }
    }

    fn turns(&self) -> Vec<usize> {
        let turns = lines(self.directory.path(), "turns");
        (0..CLIENTS).map(|number| turns.iter().filter(|turn| **turn == number.to_string()).count()).collect()
    }

    fn median(&self) -> usize {
        let mut turns = self.turns();
        turns.sort();
        turns[CLIENTS / 2]
    }

    /// Waits until every client has had a turn, and the median so many.
    #[track_caller]
    fn under_way(&self, median: usize) {
        wait_until("they run", || self.median() >= median);
    }

    /// When their time is over: nobody has starved, none has failed.
    #[track_caller]
    fn fair(self) {
        let over = || self.started.elapsed() >= FOR && self.median() >= ENOUGH;
        while !over() && self.started.elapsed() < AT_MOST {
            std::thread::sleep(50 * MS);
        }
        let turns = self.turns();
        fs::write(self.directory.path().join("stop"), "").expect("stop them");
        let failures = lines(self.directory.path(), "failures");
        println!("turns: {turns:?}"); // shown if the test fails
        for (number, client) in self.clients.into_iter().enumerate() {
            let done = client.wait();
            assert_eq!(done.code, Some(0), "client {number}: {done:?}, turns {turns:?}");
        }
        assert_eq!(failures, Vec::<String>::new(), "turns {turns:?}");
        let mut sorted = turns.clone();
        sorted.sort();
        assert!(sorted[CLIENTS / 2] >= ENOUGH, "hardly a turn for anybody: {turns:?}");
        assert!(sorted[0] * 3 >= sorted[CLIENTS / 2], "one of them starved: {turns:?}");
        // If most of them starve, the median does, too.
        assert!(sorted[CLIENTS - 1] <= sorted[CLIENTS / 2] * 4, "most of them starved: {turns:?}");
    }
}

fn lines(directory: &Path, file: &str) -> Vec<String> {
    let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn network() -> Links {
    let links = Links::start(3, CLIENTS);
    links.warm_up();
    links
}

#[test]
fn one_near_client_among_far_ones() {
    let links = network();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(5 * MS));
    }
    Loops::start(|number| links.run(number, "k")).fair();
}

#[test]
fn one_far_client_among_near_ones() {
    let links = network();
    links.lines_of(0).iter().for_each(|line| line.each_way(15 * MS));
    Loops::start(|number| links.run(number, "k")).fair();
}

#[test]
fn every_client_near_to_another_server() {
    let links = network();
    for host in 0..CLIENTS {
        let far = links.lines_of(host).iter().enumerate().filter(|(server, _)| *server != host % 3);
        far.for_each(|(_, line)| line.each_way(15 * MS));
    }
    Loops::start(|number| links.run(number, "k")).fair();
}

#[test]
fn a_near_writer_among_readers_on_long_lines() {
    let links = network();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(30 * MS));
    }
    let mode = |number| if number == 0 { "--exclusive" } else { "--shared" };
    Loops::holding("0.05", |number| links.run(number, "k").arg(mode(number))).fair();
}

#[test]
fn two_clients_that_cannot_reach_the_gate() {
    let links = network();
    (0..2).for_each(|host| links.line(host, 0).refuse());
    Loops::holding("0.03", |number| links.run(number, "k")).fair();
}

#[test]
fn one_client_alone_that_can_reach_the_gate() {
    let links = network();
    (1..CLIENTS).for_each(|host| links.line(host, 0).refuse());
    Loops::holding("0.03", |number| links.run(number, "k")).fair();
}

#[test]
fn two_clients_for_which_the_gate_is_silent() {
    let links = network();
    (0..2).for_each(|host| links.line(host, 0).blackhole());
    // Turns so long that the timeouts of a newcomer are the smaller part.
    Loops::holding("0.15", |number| links.run(number, "k").args(&["--node-timeout", "200ms"])).fair();
}

#[test]
fn servers_named_in_different_orders() {
    let links = network();
    let orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1], [0, 1, 2], [1, 0, 2]];
    let urls = |number: usize| orders[number].map(|server| links.urls(number)[server].clone());
    links.each_way(15 * MS);
    Loops::start(|number| links.run_at(number, &urls(number), "k")).fair();
}

#[test]
fn servers_that_every_host_calls_by_names_of_its_own() {
    let links = Links::own_names(3, CLIENTS);
    links.warm_up();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(5 * MS));
    }
    Loops::start(|number| links.run(number, "k")).fair();
}

#[test]
fn an_answer_of_the_gate_that_comes_late_to_one_client() {
    let links = network();
    let timeout = ["--node-timeout", "500ms"];
    let loops = Loops::start(|number| links.run(number, "k").args(&timeout));
    loops.under_way(2);
    let line = links.line(5, 0);
    let before = line.replies();
    line.to_client(700 * MS);
    wait_until("one answer is late", || line.replies() > before);
    line.to_client(Duration::ZERO);
    loops.fair();
}

#[test]
fn a_gate_that_is_stopped_for_a_moment() {
    let links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--node-timeout", "500ms"]));
    loops.under_way(2);
    links[0].stop();
    std::thread::sleep(1500 * MS);
    links[0].cont();
    loops.fair();
}

#[test]
fn a_gate_that_was_restarted_and_sits_out() {
    let mut links = network();
    links.nodes().settle();
    let settings = ["--quarantine", "3s", "--ttl", "3s", "--node-timeout", "1s"];
    let loops = Loops::start(|number| links.run_quarantined(number, "k").args(&settings));
    loops.under_way(2);
    links.restart(0);
    loops.fair();
}

#[test]
fn a_gate_that_was_killed() {
    let mut links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--ttl", "3s", "--node-timeout", "1s"]));
    loops.under_way(2);
    links.kill(0);
    loops.fair();
}

/// One after the other is behind a line that ends its connections: nobody's place is lost for good.
#[test]
fn connections_that_are_lost_now_and_then() {
    let links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--ttl", "3s", "--node-timeout", "1s"]));
    for round in 0..12 {
        let next = loops.median() + 1;
        wait_until_within(AT_MOST, "they run on", || loops.median() >= next);
        links.line(round % CLIENTS, round % 3).cut();
    }
    loops.fair();
}
