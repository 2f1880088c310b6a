//! A gate that is late, stopped or briefly away changes neither a client's gate nor the order.

use std::time::{Duration, Instant};

use crate::support::{
    Job, Links, MS, OverlapCheck, Run, expect_success, process_state, queued, wait_for_sleeping_clients,
    wait_until,
};

/// The time limit for a server, in every run.
const TIMEOUT: &[&str] = &["--node-timeout", "1s"];
/// Longer than that.
const LATE: Duration = Duration::from_millis(1500);

/// A holder, and waiters in the queue behind it, each on a host of its own: the holder on host 0.
struct Scene {
    links: Links,
    check: OverlapCheck,
    holder: Job,
    waiters: Vec<Job>,
}

impl Scene {
    fn with(waiters: usize) -> Scene {
        Scene::apart(Duration::ZERO, waiters)
    }

    /// The same, so that waiters renew at different times.
    fn apart(pause: Duration, waiters: usize) -> Scene {
        let links = Links::start(3, waiters + 2);
        links.warm_up();
        let holder = links.nodes().hold(links.run(0, "k").args(&["--ttl", "60s"]), "k");
        let mut scene = Scene { links, check: OverlapCheck::new(), holder, waiters: Vec::new() };
        for number in 1..=waiters {
            scene.add_waiter();
            queued(&scene.links[0], "k", number);
            std::thread::sleep(pause);
        }
        // The waiters have their stamps, and the holder listens for breaks.
        wait_for_sleeping_clients(&scene.links[0], waiters + 1);
        scene
    }

    /// Adds a waiter, on the next host.
    fn add_waiter(&mut self) {
        let name = self.waiters.len();
        let run: Run = self.links.run(name + 1, "k").args(TIMEOUT).dir(self.check.dir());
        self.waiters.push(run.sh(&OverlapCheck::script(&name.to_string())).spawn());
    }

    /// Ends the holder, waits for all waiters and returns the order in which they were served.
    #[track_caller]
    fn served(self) -> Vec<String> {
        self.holder.wait().expect_code(0);
        let n = self.waiters.len() as u64;
        expect_success(self.waiters);
        self.check.assert_clean(n);
        self.links.nodes().all_free();
        self.check.order()
    }
}

#[test]
fn a_newcomer_with_a_late_reply_is_served_last() {
    let mut scene = Scene::with(4);
    scene.links.line(5, 0).to_client(LATE);
    scene.add_waiter();
    queued(&scene.links[0], "k", 5);
    let line = scene.links.line(5, 0);
    let before = line.replies();
    line.to_client(Duration::ZERO);
    wait_until("the late reply has arrived", || line.replies() > before);
    assert_eq!(scene.served(), ["0", "1", "2", "3", "4"]);
}

#[test]
fn a_waiter_with_a_late_reply_keeps_its_place() {
    let scene = Scene::with(4);
    for host in [1, 3] {
        let line = scene.links.line(host, 0);
        line.to_client(LATE);
        let before = line.replies();
        wait_until("the late reply has arrived", || line.replies() > before);
        line.to_client(Duration::ZERO);
    }
    // The waiters behind the first return to the gate after a pause, and one that is not there when
    // its turn comes is skipped.
    queued(&scene.links[0], "k", 4);
    wait_for_sleeping_clients(&scene.links[0], 5);
    assert_eq!(scene.served(), ["0", "1", "2", "3"]);
}

#[test]
fn a_lost_connection_to_the_gate_costs_no_place() {
    let scene = Scene::with(4);
    for host in [1, 3] {
        let line = scene.links.line(host, 0);
        let before = line.connections();
        line.cut();
        wait_until("the waiter is back", || line.connections() > before);
    }
    queued(&scene.links[0], "k", 4);
    assert_eq!(scene.served(), ["0", "1", "2", "3"]);
}

/// Stops the gate for a second and a half, and if the first waiter (on host 1) has not turned to
/// another server by then, for at most three seconds.
fn stop_the_gate(links: &Links) {
    let elsewhere = || links.line(1, 1).connections();
    let (start, before) = (Instant::now(), elsewhere());
    links[0].stop();
    while start.elapsed() < 1500 * MS || (elsewhere() == before && start.elapsed() < 3000 * MS) {
        std::thread::sleep(5 * MS);
    }
    links[0].cont();
}

#[test]
fn a_gate_that_was_stopped_serves_the_first_waiter_first() {
    let scene = Scene::apart(500 * MS, 5);
    stop_the_gate(&scene.links);
    assert_eq!(scene.served()[0], "0");
}

#[test]
fn a_holder_that_ends_while_the_gate_is_stopped_is_followed_by_the_first_waiter() {
    let scene = Scene::apart(500 * MS, 5);
    let Scene { links, check, holder, waiters } = scene;
    let leaving = std::thread::scope(|scope| {
        let gate = scope.spawn(|| stop_the_gate(&links));
        wait_until("the gate is stopped", || process_state(links[0].pid()) == Some('T'));
        let leaving = std::thread::spawn(move || holder.wait().expect_code(0));
        gate.join().expect("the gate continues");
        leaving
    });
    leaving.join().expect("it succeeded");
    expect_success(waiters);
    check.assert_clean(5);
    assert_eq!(check.order()[0], "0", "{:?}", check.order());
    links.nodes().all_free();
}

/// The gate returns empty and is quarantined: it neither grants nor queues, and no place is lost.
#[test]
fn waiters_of_a_restarted_gate_are_served_in_order_of_arrival() {
    assert_order_survives_a_restart_of_the_gate(|_| {});
}

/// The first waiter has the vote of the next gate, and is refused by a claim that has another gate and is older. That
/// claim is about to be released: it is no reason to step back.
#[test]
fn a_release_that_is_late_after_a_restart_of_the_gate_does_not_change_the_order() {
    for delay in [2, 5] {
        assert_order_survives_a_restart_of_the_gate(|links| links.line(0, 2).to_server(delay * MS));
    }
}

/// `before_release` runs when all waiters have turned to the next server.
#[track_caller]
fn assert_order_survives_a_restart_of_the_gate(before_release: impl Fn(&Links)) {
    let mut links = Links::start(3, 6);
    links.warm_up();
    links.nodes().settle();
    let run = |links: &Links, host: usize| {
        links.run_quarantined(host, "k").args(&["--quarantine", "20s", "--node-timeout", "2s"])
    };
    let holder = links.nodes().hold(run(&links, 0).args(&["--ttl", "6s"]), "k");
    let check = OverlapCheck::new();
    let mut waiters = Vec::new();
    for name in 0..5 {
        let script = OverlapCheck::script(&name.to_string());
        waiters.push(run(&links, name + 1).args(&["--ttl", "9s"]).dir(check.dir()).sh(&script).spawn());
        queued(&links[0], "k", name + 1);
    }
    // the waiters have their stamps, and the holder listens for breaks
    wait_for_sleeping_clients(&links[0], 6);
    links.restart(0);
    queued(&links[1], "k", 5);
    // a waiter that is not there when its turn comes is skipped
    wait_for_sleeping_clients(&links[1], 6);
    wait_until("the claim is healed", || links[0].held("k"));
    assert_eq!(links[0].queue_len("k"), 0, "a quarantined server queues no waiter");
    before_release(&links);
    holder.wait().expect_code(0);
    expect_success(waiters);
    check.assert_clean(5);
    assert_eq!(check.order(), ["0", "1", "2", "3", "4"]);
}

#[test]
fn waiters_of_a_killed_gate_are_served_in_order_of_arrival() {
    let mut scene = Scene::with(4);
    scene.links.kill(0);
    queued(&scene.links[1], "k", 4);
    // a waiter that is not there when its turn comes is skipped
    wait_for_sleeping_clients(&scene.links[1], 5);
    assert_eq!(scene.served(), ["0", "1", "2", "3"]);
}
