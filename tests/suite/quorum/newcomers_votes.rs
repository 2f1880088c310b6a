//! Votes that a newcomer won before it had its gate's reply: they carry its gate and its stamp as
//! soon as another client may have to wait for them, and they make no token that is smaller than
//! the gate's.

use crate::support::nodes::marker_prefix;
use crate::support::{Job, Links, MS, Nodes, Redis, ServerClock, wait_until};

fn recorded(redis: &Redis, field: &str) -> String {
    redis.recorded("k", field)
}

#[test]
fn a_newcomer_that_has_to_wait_records_its_gate_and_stamp() {
    let links = Links::one_host(5);
    links.warm_up();
    links.each_way(20 * MS);
    (2..5).for_each(|at| drop(links[at].cmd(&["SET", "lock:k", "foreign", "PX", "60000"])));
    let job = links.run(0, "k").sh("echo mine").spawn();
    wait_until("the gate and the stamp are recorded", || {
        recorded(&links[1], "gate") == links[0].info("run_id")
    });
    assert_eq!(recorded(&links[1], "stamp"), recorded(&links[0], "stamp"));
    (2..5).for_each(|at| drop(links[at].cmd(&["DEL", "lock:k"])));
    job.wait_for_line("mine");
    job.wait().expect_code(0);
    links.nodes().all_free();
}

/// One of five servers is down. The first client reaches the other four, the second all of these
/// but the first client's gate. Each has two votes, and waits for the other's: the younger client
/// must learn that it is the younger one.
#[test]
fn the_younger_of_two_clients_with_two_votes_each_yields() {
    let links = Links::start(5, 2);
    links.warm_up();
    let lines = |host: usize, each_way: [u32; 4]| {
        (0..4).for_each(|at| links.line(host, at).each_way(each_way[at] * MS));
        links.line(host, 4).refuse();
    };
    // A latency that lets the second start while the first client's requests are in transit.
    lines(0, [20, 1500, 20, 1500]);
    lines(1, [0, 2, 1500, 2]);
    links.line(1, 0).refuse();
    let args = ["--ttl", "60s", "--node-timeout", "6s"];
    let run = |host| links.run(host, "k").args(&args).sh("echo mine").spawn();
    let older: Job = run(0);
    wait_until("the first has two votes", || [0, 2].iter().all(|&at| links[at].held("k")));
    let younger = run(1);
    wait_until("the second has two votes", || [1, 3].iter().all(|&at| links[at].held("k")));
    older.wait_for_line("mine");
    older.wait().expect_code(0);
    younger.wait_for_line("mine");
    younger.wait().expect_code(0);
    links.nodes().all_free();
}

/// The gate has lost all data, so its vote does not count with the quarantine that the others
/// report. They do not know the time: the client's guess is too far ahead of their clocks.
#[test]
fn a_token_is_not_smaller_than_the_gates_even_if_its_vote_does_not_count() {
    let mut all: Vec<(Redis, ServerClock)> = (0..3).map(|_| ServerClock::start()).collect();
    all.sort_by_key(|(redis, _)| redis.port());
    let (servers, clocks): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    clocks[1..].iter().for_each(|clock| clock.set_ahead(-3600));
    for redis in &servers[1..] {
        let marker = format!("{} 1000 30000 9000000000000", marker_prefix(redis));
        redis.cmd(&["SET", "lock-node", &marker]);
    }
    let links = Links::one_host_to(Nodes::of(servers));
    links.each_way(20 * MS);
    let token = links.run(0, "k").fence();
    assert_eq!(links[0].cmd(&["GET", "lock-fence:k"]), token.to_string());
    let known = |redis: &Redis| redis.cmd(&["GET", "lock-fence:k"]) == token.to_string();
    assert!(links.nodes().iter().filter(|redis| known(redis)).count() >= 2, "a majority has the token");
}
