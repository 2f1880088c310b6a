//! A minority that cannot serve: the run continues, and the failure is reported on request; a
//! mistake in the configuration is always reported, in one line.

use std::fs;

use serde_json::Value;

use crate::support::{Done, Nodes, Redis, Refused, Run, refused, wait_until};

/// Two good servers and a bad one, which is the first, the second and the last of them by address.
fn in_each_place<T>(bad: impl Fn() -> T, url: impl Fn(&T) -> String, check: impl Fn(&T, &[String])) {
    for at in 0..3 {
        // Ports grow from one server to the next, unless their range wraps around.
        let mut good: Vec<Redis> = (0..at).map(|_| Redis::start()).collect();
        let bad = bad();
        good.extend((at..2).map(|_| Redis::start()));
        let mut urls: Vec<String> = good.iter().map(Redis::url).collect();
        urls.insert(at, url(&bad));
        println!("at {at}"); // shown if the test fails
        check(&bad, &urls);
        Nodes::of(good).all_free();
    }
}

/// It runs, and prints one line, with the server and one of these texts. A majority does not wait
/// long for the last server's reply: on a busy machine one of five runs must have received it, and
/// none prints more.
#[track_caller]
fn expect_warning(run: &Run, server: &str, of: &[&str]) -> Done {
    let mut attempts = (0..5).map(|_| {
        let done = run.clone().sh("echo ran").done().expect_code(0);
        assert_eq!(done.stdout, "ran\n", "{done:#?}");
        assert!(done.stderr.lines().count() <= 1, "one line: {done:#?}");
        done
    });
    let done = attempts.find(|done| !done.stderr.is_empty()).expect("never a warning");
    assert!(done.stderr.starts_with("redlock: ") && done.stderr.contains(server), "{done:#?}");
    done.expect_stderr(of)
}

#[test]
fn a_server_that_is_down_is_reported_only_with_v() {
    in_each_place(Refused::among_servers, Refused::url, |gone, urls| {
        let done = Nodes::run_at(urls, "k").cmd(&["true"]).done().expect_code(0);
        assert_eq!(done.stderr, "");
        let done = Nodes::run_at(urls, "k").arg("-v").cmd(&["true"]).done().expect_code(0);
        let is_reported_in = |line: &str| {
            line.contains("2 of 3") && line.contains(&gone.port().to_string()) && line.contains("refused")
        };
        let together = done.stderr.lines().any(is_reported_in);
        let apart = done.stderr.contains("2 of 3")
            && done.stderr.lines().any(|l| l.contains(&gone.port().to_string()) && l.contains("refused"));
        assert!(together || apart, "how many, which not, and why: {done:#?}");
    });
}

#[test]
fn a_run_on_healthy_servers_prints_nothing() {
    let nodes = Nodes::start(3);
    for _ in 0..3 {
        let done = nodes.run("k").cmd(&["true"]).done().expect_code(0);
        assert_eq!(done.stderr, "");
    }
}

/// The acquired event's `servers`.
fn servers_in_event(urls: &[String]) -> Value {
    servers_in_event_of(Nodes::run_at(urls, "k"))
}

fn servers_in_event_of(run: Run) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events");
    let run = run.arg("--events").arg(&file);
    run.cmd(&["true"]).done().expect_code(0);
    let text = fs::read_to_string(&file).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let acquired = events.into_iter().find(|event| event["event"] == "acquired").expect("an acquired event");
    acquired["servers"].clone()
}

fn has_number(value: &Value, number: u64) -> bool {
    match value {
        Value::Number(n) => n.as_u64() == Some(number),
        Value::Array(items) => items.iter().any(|item| has_number(item, number)),
        Value::Object(fields) => fields.values().any(|item| has_number(item, number)),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

#[test]
fn events_report_how_many_voted_and_which_did_not_and_why() {
    in_each_place(Refused::among_servers, Refused::url, |gone, urls| {
        let servers = servers_in_event(urls);
        assert!(has_number(&servers, 2), "how many voted: {servers}");
        let text = servers.to_string().to_lowercase();
        assert!(text.contains(&gone.port().to_string()) && text.contains("refused"), "{servers}");
    });
    let nodes = Nodes::start(3);
    let servers = servers_in_event(&nodes.urls());
    assert!(!servers.is_null(), "always present with several servers");
    assert!(!servers.to_string().to_lowercase().contains("refused"), "{servers}");
}

#[test]
fn a_wrong_password_is_reported_in_one_line_and_the_run_continues() {
    let closed = || Redis::start_with(&["--requirepass", "secret"]);
    for login in ["", ":wrong@"] {
        let url = |closed: &Redis| closed.url().replace("redis://", &format!("redis://{login}"));
        in_each_place(closed, url, |closed, urls| {
            let message = ["password", "auth", "refused", "permission"];
            let done = expect_warning(&Nodes::run_at(urls, "k"), &closed.port().to_string(), &message);
            assert!(!done.stderr.contains("wrong@"), "the password is printed: {done:#?}");
            let quiet = Nodes::run_at(urls, "k").arg("-q").cmd(&["true"]).done().expect_code(0);
            assert_eq!(quiet.stderr, "");
        });
    }
}

#[test]
fn a_name_that_does_not_resolve_is_reported_in_one_line_and_the_run_continues() {
    let names = || "redis://no-such-host.invalid:6379".to_owned();
    in_each_place(names, String::clone, |_, urls| {
        expect_warning(
            &Nodes::run_at(urls, "k"),
            "no-such-host.invalid",
            &["resolve", "lookup", "name", "address"],
        );
    });
}

/// Servers of which the ones at these indexes are replicas of another one.
fn with_replicas(at: &[usize], writable: bool) -> (Nodes, Redis) {
    let (nodes, primary) = (Nodes::start(3), Redis::start_with(&["--repl-diskless-sync-delay", "0"]));
    for at in at {
        nodes[*at].cmd(&["CONFIG", "SET", "replica-read-only", if writable { "no" } else { "yes" }]);
        nodes[*at].cmd(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        wait_until("the replica is in sync", || nodes[*at].info("master_link_status") == "up");
    }
    (nodes, primary)
}

#[test]
fn one_replica_of_three_is_reported_in_one_line_and_two_are_unfit() {
    for writable in [false, true] {
        for at in 0..3 {
            let (nodes, _primary) = with_replicas(&[at], writable);
            expect_warning(&nodes.run("k"), &nodes[at].port().to_string(), &["replica"]);
            expect_warning(&nodes.run("k").arg("-n"), &nodes[at].port().to_string(), &["replica"]);
            assert!(!nodes[at].held("k"));
            nodes.all_free();
        }
        let (nodes, _primary) = with_replicas(&[0, 2], writable);
        refused(nodes.run("k"), 78, &["replica"]);
        refused(nodes.run("k").arg("-n"), 78, &["replica"]);
        nodes.all_free();
    }
}

#[test]
fn an_unexpected_value_on_one_of_three_is_reported_in_one_line_and_on_two_is_unfit() {
    for key in ["lock:k", "lock-queue:k", "lock-fence:k"] {
        println!("{key}");
        let nodes = Nodes::start(3);
        let spoil = |at: usize| {
            nodes[at].cmd(&["DEL", key]);
            nodes[at].cmd(&["RPUSH", key, "not a lock"]);
        };
        let intact = |at: usize| nodes[at].cmd(&["LRANGE", key, "0", "-1"]) == "not a lock";
        for at in 0..3 {
            spoil(at);
            expect_warning(&nodes.run("k"), &nodes[at].port().to_string(), &[key, "not a lock", "type"]);
            assert!(intact(at), "the value is untouched");
            nodes[at].cmd(&["DEL", key]);
        }
        spoil(0);
        spoil(1);
        refused(nodes.run("k").arg("-n"), 78, &[key, "not a lock", "type"]);
        assert!(intact(0) && intact(1));
    }
}

/// While the lock is held, too, a server that becomes a replica counts as failed.
#[test]
fn a_server_that_becomes_a_replica_while_the_lock_is_held_stops_no_command() {
    let (nodes, primary) = (Nodes::start(3), Redis::start_with(&["--repl-diskless-sync-delay", "0"]));
    let mut job = nodes.hold(nodes.run("k").args(&["--ttl", "4s"]), "k");
    nodes[1].cmd(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("the replica is in sync", || nodes[1].info("master_link_status") == "up");
    crate::support::nodes::renewed(&nodes[0], "k", 4);
    assert!(job.is_running(), "{}", job.stderr_so_far());
    job.wait().expect_code(0);
    assert!(!nodes[0].held("k") && !nodes[2].held("k"));
}

/// A majority does not help here.
#[test]
fn a_server_listed_twice_and_another_number_of_servers_stay_errors() {
    let nodes = Nodes::start(3);
    let twice = [nodes[0].url(), nodes[1].url(), nodes[1].url().replace("127.0.0.1", "localhost")];
    let message =
        (0..10).map(|_| Nodes::run_at(&twice, "k").cmd(&["true"]).done()).find(|done| done.code != Some(0));
    message.expect("not once refused").expect_code(78).expect_stderr(&["twice", "same server"]);
    let holder = nodes.hold(nodes.run("k"), "k");
    refused(Run::at(&nodes[0].url(), "k").arg("-n"), 78, &["over 1 server", "over 3 server"]);
    holder.wait().expect_code(0);
    nodes.all_free();
}

#[test]
fn a_quarantined_server_is_reported_with_v_and_in_the_events() {
    for at in 0..3 {
        println!("at {at}"); // shown if the test fails
        let mut nodes = Nodes::start(3);
        nodes.settle();
        nodes[at].restart();
        let run = || nodes.run_quarantined("k").args(&["--ttl", "20s", "--quarantine", "20s"]);
        let port = nodes[at].port().to_string();
        // A majority does not wait long for the last server's reply: one of five runs must have
        // received it.
        let is_reported_in = |line: &str| {
            line.contains("2 of 3") && line.contains(&port) && line.contains("does not vote for another")
        };
        let is_reported = |done: &Done| done.stderr.lines().any(is_reported_in);
        let mut runs = (0..5).map(|_| run().arg("-v").cmd(&["true"]).done().expect_code(0));
        assert!(runs.any(|done| is_reported(&done)), "never reported with -v");
        let is_reported = |servers: &Value| {
            let text = servers.to_string();
            assert!(has_number(servers, 2), "how many voted: {servers}");
            text.contains(&port) && text.contains("does not vote")
        };
        let mut runs = (0..5).map(|_| servers_in_event_of(run()));
        assert!(runs.any(|servers| is_reported(&servers)), "never reported which did not vote, and why");
        let done = run().cmd(&["true"]).done().expect_code(0);
        assert_eq!(done.stderr, "", "reported without -v");
    }
}
