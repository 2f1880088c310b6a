//! No client starves: of six clients in a loop, the one with the fewest turns has at least a third
//! of the median.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{Job, Links, MS, Run, lines_of, wait_until, wait_until_within};

const CLIENTS: usize = 6;
/// How long they run; longer if the machine is so busy that the result would be meaningless.
const FOR: Duration = Duration::from_secs(8);
const AT_MOST: Duration = Duration::from_secs(30);
/// The median's turns from which on a third of it is meaningful.
const ENOUGH: usize = 9;

/// Clients that take the lock in a loop, each on a host of its own.
struct Loops {
    directory: tempfile::TempDir,
    clients: Vec<Job>,
    started: Instant,
}

impl Loops {
    /// A loop of this run for each client, with a short command.
    fn start(call: impl Fn(usize) -> Run) -> Loops {
        Loops::holding("0.01", call)
    }

    /// The same with a command that takes this many seconds.
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
        let turns = lines_of(&self.directory.path().join("turns"));
        (0..CLIENTS).map(|number| turns.iter().filter(|turn| **turn == number.to_string()).count()).collect()
    }

    fn median(&self) -> usize {
        let mut turns = self.turns();
        turns.sort();
        turns[CLIENTS / 2]
    }

    /// Waits until every client has had a turn, and the median this many.
    #[track_caller]
    fn wait_for_turns(&self, median: usize) {
        wait_until("the clients run", || self.median() >= median);
    }

    /// At the end no client has starved, and none has failed.
    #[track_caller]
    fn assert_fair(self) {
        let over = || self.started.elapsed() >= FOR && self.median() >= ENOUGH;
        while !over() && self.started.elapsed() < AT_MOST {
            std::thread::sleep(50 * MS);
        }
        let turns = self.turns();
        fs::write(self.directory.path().join("stop"), "").expect("stop them");
        let failures = lines_of(&self.directory.path().join("failures"));
        println!("turns: {turns:?}"); // shown if the test fails
        for (number, client) in self.clients.into_iter().enumerate() {
            let done = client.wait();
            assert_eq!(done.code, Some(0), "client {number}: {done:?}, turns {turns:?}");
        }
        assert_eq!(failures, Vec::<String>::new(), "turns {turns:?}");
        let mut sorted = turns.clone();
        sorted.sort();
        assert!(sorted[CLIENTS / 2] >= ENOUGH, "hardly any turns: {turns:?}");
        assert!(sorted[0] * 3 >= sorted[CLIENTS / 2], "one client starved: {turns:?}");
        // If most clients starve, the median does, too. Where clients have different gates their queues
        // take turns, so one that is alone in its queue has five times as many turns as the five others.
        assert!(sorted[CLIENTS - 1] <= sorted[CLIENTS / 2] * 8, "most clients starved: {turns:?}");
    }
}

fn network() -> Links {
    let links = Links::start(3, CLIENTS);
    links.warm_up();
    links
}

#[test]
fn a_close_client_starves_no_distant_one() {
    let links = network();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(5 * MS));
    }
    Loops::start(|number| links.run(number, "k")).assert_fair();
}

#[test]
fn a_distant_client_among_close_ones_does_not_starve() {
    let links = network();
    links.lines_of(0).iter().for_each(|line| line.each_way(15 * MS));
    Loops::start(|number| links.run(number, "k")).assert_fair();
}

#[test]
fn clients_close_to_different_servers_do_not_starve() {
    let links = network();
    for host in 0..CLIENTS {
        let far = links.lines_of(host).iter().enumerate().filter(|(server, _)| *server != host % 3);
        far.for_each(|(_, line)| line.each_way(15 * MS));
    }
    Loops::start(|number| links.run(number, "k")).assert_fair();
}

#[test]
fn a_close_writer_among_distant_readers_does_not_starve() {
    let links = network();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(30 * MS));
    }
    let mode = |number| if number == 0 { "--exclusive" } else { "--shared" };
    Loops::holding("0.05", |number| links.run(number, "k").arg(mode(number))).assert_fair();
}

#[test]
fn clients_that_cannot_reach_the_gate_do_not_starve() {
    let links = network();
    (0..2).for_each(|host| links.line(host, 0).refuse());
    Loops::holding("0.03", |number| links.run(number, "k")).assert_fair();
}

#[test]
fn the_only_client_that_reaches_the_gate_does_not_starve() {
    let links = network();
    (1..CLIENTS).for_each(|host| links.line(host, 0).refuse());
    Loops::holding("0.03", |number| links.run(number, "k")).assert_fair();
}

#[test]
fn clients_with_a_silent_gate_do_not_starve() {
    let links = network();
    (0..2).for_each(|host| links.line(host, 0).blackhole());
    // The turns are long enough that a newcomer's timeouts matter less.
    Loops::holding("0.15", |number| links.run(number, "k").args(&["--node-timeout", "200ms"])).assert_fair();
}

#[test]
fn clients_that_list_servers_in_different_orders_do_not_starve() {
    let links = network();
    let orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1], [0, 1, 2], [1, 0, 2]];
    let urls = |number: usize| orders[number].map(|server| links.urls(number)[server].clone());
    links.each_way(15 * MS);
    Loops::start(|number| links.run_at(number, &urls(number), "k")).assert_fair();
}

#[test]
fn clients_with_different_server_names_do_not_starve() {
    let links = Links::own_names(3, CLIENTS);
    links.warm_up();
    for host in 1..CLIENTS {
        links.lines_of(host)[1..].iter().for_each(|line| line.each_way(5 * MS));
    }
    Loops::start(|number| links.run(number, "k")).assert_fair();
}

#[test]
fn a_client_that_gets_one_late_reply_does_not_starve() {
    let links = network();
    let timeout = ["--node-timeout", "500ms"];
    let loops = Loops::start(|number| links.run(number, "k").args(&timeout));
    loops.wait_for_turns(2);
    let line = links.line(5, 0);
    let before = line.replies();
    line.to_client(700 * MS);
    wait_until("one reply is late", || line.replies() > before);
    line.to_client(Duration::ZERO);
    loops.assert_fair();
}

#[test]
fn a_briefly_stopped_gate_starves_no_client() {
    let links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--node-timeout", "500ms"]));
    loops.wait_for_turns(2);
    links[0].stop();
    std::thread::sleep(1500 * MS);
    links[0].cont();
    loops.assert_fair();
}

#[test]
fn a_quarantined_gate_starves_no_client() {
    let mut links = network();
    links.nodes().settle();
    let settings = ["--quarantine", "3s", "--ttl", "3s", "--node-timeout", "1s"];
    let loops = Loops::start(|number| links.run_quarantined(number, "k").args(&settings));
    loops.wait_for_turns(2);
    links.restart(0);
    loops.assert_fair();
}

#[test]
fn a_killed_gate_starves_no_client() {
    let mut links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--ttl", "3s", "--node-timeout", "1s"]));
    loops.wait_for_turns(2);
    links.kill(0);
    loops.assert_fair();
}

/// One client after another has a line that closes its connections: no place is lost for good.
#[test]
fn lost_connections_starve_no_client() {
    let links = network();
    let loops = Loops::start(|number| links.run(number, "k").args(&["--ttl", "3s", "--node-timeout", "1s"]));
    for round in 0..12 {
        let next = loops.median() + 1;
        wait_until_within(AT_MOST, "the clients continue", || loops.median() >= next);
        links.line(round % CLIENTS, round % 3).cut();
    }
    loops.assert_fair();
}
