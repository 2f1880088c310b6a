//! Several servers: which of them vote, what a majority is, and what is reported without one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{Links, MS, Nodes, Redis, Refused, Run, wait_until, wait_until_within};

const FOREIGN: &str = "a value of another program";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Free,
    Occupied,
    Dead,
}

/// Every combination of free, occupied and dead servers.
fn every_set(n: u32) -> impl Iterator<Item = Vec<Member>> {
    let state = |digit| [Member::Free, Member::Occupied, Member::Dead][digit as usize];
    (0..3_u32.pow(n)).map(move |set| (0..n).map(|at| state(set / 3_u32.pow(at) % 3)).collect())
}

fn expected(set: &[Member]) -> i32 {
    let count = |state| set.iter().filter(|node| **node == state).count();
    let majority = set.len() / 2 + 1;
    if count(Member::Free) >= majority {
        0
    } else if set.len() - count(Member::Dead) < majority {
        69
    } else {
        75
    }
}

/// Each set has a key of its own, so that leftovers of one cannot hide in the next.
fn check_every_set(n: u32) {
    let (nodes, refused) = (Nodes::start(n as usize), Refused::new());
    let mut clients = nodes.connect();
    let mut foreign: Vec<BTreeMap<String, String>> = vec![BTreeMap::new(); n as usize];
    let mut wrong = Vec::new();
    for (number, set) in every_set(n).enumerate() {
        let key = format!("k{number}");
        let mut urls = nodes.urls();
        for (at, state) in set.iter().enumerate() {
            match state {
                Member::Free => {}
                Member::Occupied => {
                    let value = format!("{FOREIGN} {number} {at}");
                    let set = ["SET", &format!("lock:{key}"), &value, "NX", "PX", "300000"];
                    assert_eq!(clients[at].cmd(&set), "OK");
                    foreign[at].insert(format!("lock:{key}"), value);
                }
                Member::Dead => urls[at] = refused.url(),
            }
        }
        let expected = expected(&set);
        let run = Nodes::run_at(&urls, &key).args(&["-n", "--ttl", "5m"]);
        let done = run.sh("echo ran").done();
        if done.code != Some(expected) {
            wrong.push((set, expected, done.code, done.stderr));
            continue;
        }
        assert_eq!(done.stdout, if expected == 0 { "ran\n" } else { "" }, "{set:?}: {done:#?}");
        match expected {
            0 => assert_eq!(done.stderr, "", "{set:?}"),
            75 => assert!(done.stderr.contains("held"), "{set:?}: {done:#?}"),
            _ => {
                let dead = set.iter().filter(|state| **state == Member::Dead).count();
                let message = done.stderr.to_lowercase();
                // A reason that several servers share is printed once.
                assert!(message.contains("refused"), "the reason: {set:?}: {done:#?}");
                let port = refused.port().to_string();
                assert!(message.matches(&port).count() >= dead, "each server: {set:?}: {done:#?}");
            }
        }
    }
    assert!(wrong.is_empty(), "{} sets, such as {:#?}", wrong.len(), &wrong[..wrong.len().min(3)]);
    // The leases are long: leftovers of any set are still there.
    for (client, foreign) in clients.iter_mut().zip(&foreign) {
        let mut left = Vec::new();
        wait_until_within(Duration::from_secs(4), "every late vote is released", || {
            left = client.keys();
            left.retain(|key| {
                let ours =
                    ["lock-fence:", "lock-tombstone:", "lock-node"].iter().all(|p| !key.starts_with(p));
                ours && !foreign.contains_key(key)
            });
            left.is_empty()
        });
        for (key, value) in foreign {
            assert_eq!(client.cmd(&["GET", key]), *value, "foreign values are untouched");
        }
    }
}

#[test]
fn every_set_of_three_free_occupied_or_dead_servers_has_the_right_result() {
    check_every_set(3);
}

#[test]
fn every_set_of_five_free_occupied_or_dead_servers_has_the_right_result() {
    check_every_set(5);
}

#[test]
fn a_killed_server_counts_like_an_address_without_one() {
    let mut nodes = Nodes::start(3);
    for at in 0..3 {
        nodes[at].kill();
        nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
        nodes[at].restart();
    }
    nodes[0].kill();
    nodes[2].kill();
    let ports = [nodes[0].port(), nodes[2].port()].map(|port| port.to_string());
    for args in [&["-n"][..], &[], &["-w", "20s"]] {
        let start = Instant::now();
        let done = nodes.run("k").args(args).sh("echo ran").done().expect_code(69);
        assert!(start.elapsed() < Duration::from_secs(12), "at once: {:?}", start.elapsed());
        assert_eq!(done.stdout, "");
        assert!(ports.iter().all(|port| done.stderr.contains(port)), "{done:#?}");
    }
    nodes.all_free();
}

#[test]
fn one_to_nine_servers_work_and_an_even_number_causes_one_warning() {
    let nodes = Nodes::start(9);
    for n in 1..=9 {
        let urls = &nodes.urls()[..n];
        let job = Nodes::run_at(urls, &format!("k{n}")).stdin_pipe().sh("echo ready; read x; exit 0").spawn();
        job.wait_for_line("ready");
        let held = || nodes.iter().filter(|redis| redis.held(&format!("k{n}"))).count();
        wait_until("every server has the lock", || held() == n);
        let done = job.wait().expect_code(0);
        let warnings = done.stderr.lines().count();
        assert_eq!(warnings, (n + 1) % 2, "{n} servers: {done:#?}");
        assert!(done.stderr.is_empty() || done.stderr.starts_with("redlock: "), "{done:#?}");
    }
    nodes.all_free();
}

#[test]
fn more_than_nine_servers_are_a_usage_error() {
    let nine = (0..9).map(|_| Refused::new()).collect::<Vec<_>>();
    let mut urls: Vec<String> = nine.iter().map(Refused::url).collect();
    Nodes::run_at(&urls, "k").cmd(&["true"]).done().expect_code(69);
    urls.push("redis://127.0.0.1:1".into());
    Nodes::run_at(&urls, "k").cmd(&["true"]).done().expect_code(64).expect_stderr(&["9", "nine"]);
}

#[test]
fn an_even_number_needs_more_than_half() {
    let mut nodes = Nodes::start(4);
    nodes[1].kill();
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(0);
    nodes[0].kill();
    nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(69);
    let two = Nodes::start(2);
    two[1].cmd(&["SET", "lock:k", FOREIGN, "PX", "60000"]);
    two.run("k").arg("-n").cmd(&["true"]).done().expect_code(75);
    wait_until("the other vote is released", || two.claims("k") == ["", FOREIGN]);
}

#[test]
fn a_list_several_options_and_the_environment_are_equivalent() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls();
    let run = || Run::bare().args(&["run", "--key", "k", "--quarantine", "off"]);
    let mixed = [format!("{},{}", urls[0], urls[1]), urls[2].clone()];
    for run in [
        run().args(&["--redis", &urls.join(",")]),
        run().args(&["--redis", &urls[0], "--redis", &urls[1], "--redis", &urls[2]]),
        run().args(&["-r", &mixed[0], "-r", &mixed[1]]),
        run().env("REDLOCK_REDIS", urls.join(",")),
        run().args(&["--redis", &urls.join(",")]).env("REDLOCK_REDIS", "redis://127.0.0.1:1"),
    ] {
        let job = nodes.hold(run, "k");
        assert_eq!(nodes.claims("k").len(), 3);
        nodes.run("k").arg("-n").cmd(&["true"]).done().expect_code(75);
        job.wait().expect_code(0);
        nodes.all_free();
    }
}

#[test]
fn a_waiter_runs_as_soon_as_foreign_holders_are_gone() {
    let nodes = Nodes::start(3);
    // The gate is free: its vote is kept while the others are retried, and nothing of it stays.
    for at in [1, 2] {
        nodes[at].cmd(&["SET", "lock:k", FOREIGN, "PX", "60000"]);
    }
    nodes.run("k").args(&["-w", "1500ms"]).cmd(&["true"]).done().expect_code(75);
    wait_until("the gate's vote is released", || nodes.claims("k") == ["", FOREIGN, FOREIGN]);
    let waiter = nodes.run("k").args(&["--ttl", "60s"]).sh("echo mine").spawn();
    wait_until("the waiter has the gate's vote", || !nodes.claims("k")[0].is_empty());
    nodes[1].cmd(&["DEL", "lock:k"]);
    waiter.wait_for_line("mine");
    waiter.wait().expect_code(0);
    assert_eq!(nodes.claims("k")[2], FOREIGN);
    nodes[2].cmd(&["DEL", "lock:k"]);
    nodes.all_free();
}

#[test]
fn servers_that_refuse_us_are_reported_as_such() {
    let (open, closed) = (Redis::start(), || Redis::start_with(&["--requirepass", "secret"]));
    let (one, two) = (closed(), closed());
    let urls = [open.url(), one.url(), two.url()];
    let done = Nodes::run_at(&urls, "k").arg("-n").cmd(&["true"]).done().expect_code(77);
    assert!([&one, &two].iter().all(|redis| done.stderr.contains(&redis.port().to_string())), "{done:#?}");
    assert!(!open.held("k"));
    // One of three counts like a dead server.
    let other = Redis::start();
    let urls = [open.url(), one.url(), other.url()];
    Nodes::run_at(&urls, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
}

/// A vote that its client could not release, at the server that was that client's gate. The third
/// server's vote arrives later.
#[test]
fn an_older_claim_on_one_server_does_not_refuse_a_run_that_a_majority_grants() {
    let links = Links::one_host(3);
    links.warm_up();
    let waiter = "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31";
    let record =
        format!(r#"{{"claim":"{waiter}.1","gate":"{}","stamp":"1","nodes":"3"}}"#, links[1].info("run_id"));
    links[1].cmd(&["HSET", "lock-info:k", waiter, &record]);
    links[1].cmd(&["SET", "lock:k", &format!("{waiter}.1"), "PX", "60000"]);
    links.line(0, 2).each_way(30 * MS);
    links.run(0, "k").arg("-n").cmd(&["true"]).done().expect_code(0);
}
