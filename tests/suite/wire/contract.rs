//! Clients with another protocol than ours, records with fields that we do not know, and the versions
//! that commands show.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{at, pretender, queued, run_at, share_a_lock, status};
use crate::documents::blocks::read;
use crate::support::{HOLD, Host, Nodes, Redis, Run, hold, nodes, wait_until};

/// That of this repository.
const OURS: u8 = 1;

#[track_caller]
fn neighbours_share_a_lock(servers: usize) {
    let servers = Nodes::start(servers);
    let ours = servers.urls().join(",");
    for theirs in [OURS - 1, OURS + 1] {
        let pretended = pretender::urls(&servers, theirs);
        let holder = hold(run_at(&pretended));
        assert_eq!(status(&ours)["holders"][0]["protocol"], theirs, "it is taken for another protocol");
        holder.wait().expect_code(0);
        share_a_lock(&servers, |command| at(&ours, command), |command| at(&pretended, command));
        share_a_lock(&servers, |command| at(&pretended, command), |command| at(&ours, command));
    }
}

#[test]
fn clients_of_neighbouring_protocols_share_a_lock_on_one_server() {
    neighbours_share_a_lock(1);
}

#[test]
fn clients_of_neighbouring_protocols_share_a_lock_on_three_servers() {
    neighbours_share_a_lock(3);
}

#[track_caller]
fn a_distant_protocol_is_refused(servers: usize) {
    let servers = Nodes::start(servers);
    let ours = servers.urls().join(",");
    let theirs = pretender::urls(&servers, OURS + 2);
    let refused = |run: Run| {
        let version = env!("CARGO_PKG_VERSION");
        let both = format!(
            "held by redlock {version} (protocol {}); this is redlock {version} (protocol 1)",
            OURS + 2
        );
        run.done().expect_code(78).expect_stderr(&[&both]);
    };
    let holder = hold(run_at(&theirs));
    refused(run_at(&ours).arg("-n").cmd(&["true"]));
    refused(run_at(&ours).cmd(&["true"]));
    refused(run_at(&ours).args(&["--shared"]).cmd(&["true"]));
    refused(at(&ours, &["break", "--key", "k", "--yes"]));
    refused(at(&ours, &["break", "--key", "k", "--yes", "--now"]));
    assert_eq!(status(&ours)["holders"][0]["protocol"], OURS + 2, "a look works");
    assert_eq!(status(&ours)["waiters"], json!([]), "no refused client stays in the queue");
    holder.wait().expect_code(0);

    let token = at(&theirs, &["acquire", "--key", "k", "--ttl", "30s"]).done().expect_code(0).stdout;
    let with_token = |command| at(&ours, &[command, "--key", "k", "--token", token.trim()]);
    refused(with_token("extend").args(&["--ttl", "20s"]));
    refused(with_token("release"));
    servers.iter().for_each(|redis| drop(redis.cmd(&["DEL", "lock:k", "lock-info:k"])));

    let sharer = hold(run_at(&theirs).arg("--shared"));
    refused(run_at(&ours).args(&["--shared"]).cmd(&["true"]));
    sharer.wait().expect_code(0);
    run_at(&ours).arg("-n").cmd(&["true"]).done().expect_code(0);
}

#[test]
fn a_client_two_protocols_away_is_refused_with_both_versions_on_one_server() {
    a_distant_protocol_is_refused(1);
}

#[test]
fn a_client_two_protocols_away_is_refused_with_both_versions_on_three_servers() {
    a_distant_protocol_is_refused(3);
}

/// A waiter is refused as soon as such a client holds the lock.
#[test]
fn a_waiter_is_refused_when_a_distant_protocol_gets_the_lock() {
    let servers = Nodes::start(1);
    let (ours, theirs) = (servers.urls().join(","), pretender::urls(&servers, OURS + 2));
    let first = hold(run_at(&ours));
    let mut distant = run_at(&theirs).stdin_pipe().sh(HOLD).spawn();
    wait_until("it waits", || status(&ours)["waiters"].as_array().map(Vec::len) == Some(1));
    let waiter = run_at(&ours).cmd(&["true"]).spawn();
    wait_until("both wait", || status(&ours)["waiters"].as_array().map(Vec::len) == Some(2));
    first.wait().expect_code(0);
    distant.wait_for_line("ready");
    waiter.wait().expect_code(78).expect_stderr(&["protocol 3"]);
    drop(distant.take_stdin());
    distant.wait().expect_code(0);
}

/// Adds a field that this version does not know to a JSON record, and changes nothing else.
fn add_unknown_field(redis: &Redis, hash: &str) {
    let field = redis.cmd(&["HKEYS", hash]);
    let record = redis.cmd(&["HGET", hash, &field]);
    let mut record: Value =
        serde_json::from_str(&record).unwrap_or_else(|error| panic!("{hash}: {error}: {record}"));
    record["newer"] = json!("x");
    redis.cmd(&["HSET", hash, &field, &record.to_string()]);
}

#[test]
fn unknown_fields_in_records_are_ignored_and_kept() {
    let servers = Nodes::start(3);
    let ours = servers.urls().join(",");
    let holder = servers.hold(run_at(&ours).args(&["--ttl", "1s"]), "k");
    let waiter = queued(&servers, run_at(&ours));
    for redis in servers.iter() {
        add_unknown_field(redis, "lock-info:k");
    }
    // Only the gate has waiters.
    add_unknown_field(&servers[0], "lock-who:k");
    let seen = status(&ours);
    assert_eq!(
        (seen["holders"].as_array().unwrap().len(), seen["waiters"].as_array().unwrap().len()),
        (1, 1)
    );
    nodes::renewed(&servers[0], "k", 2);
    assert!(servers[0].cmd(&["HVALS", "lock-info:k"]).contains("newer"), "a renewal keeps the field");
    at(&ours, &["break", "--key", "k", "--yes"]).done().expect_code(0);
    holder.wait().expect_code(79);
    assert_eq!(waiter.wait().expect_code(0).stdout, "got it\n");

    let token = at(&ours, &["acquire", "--key", "k", "--ttl", "30s"]).done().expect_code(0).stdout;
    servers.iter().for_each(|redis| add_unknown_field(redis, "lock-info:k"));
    at(&ours, &["extend", "--key", "k", "--ttl", "20s", "--token", token.trim()]).done().expect_code(0);
    at(&ours, &["release", "--key", "k", "--token", token.trim()]).done().expect_code(0);
    servers.all_free();
}

/// A record of a version that wrote neither field.
#[test]
fn an_unknown_protocol_is_not_a_conflict() {
    let servers = Nodes::start(1);
    let ours = servers.urls().join(",");
    let holder = hold(run_at(&ours));
    let waiter = servers[0].cmd(&["HKEYS", "lock-info:k"]);
    let mut record: Value = serde_json::from_str(&servers[0].cmd(&["HVALS", "lock-info:k"])).unwrap();
    record.as_object_mut().unwrap().retain(|name, _| name != "version" && name != "protocol");
    servers[0].cmd(&["HSET", "lock-info:k", &waiter, &record.to_string()]);
    assert_eq!(status(&ours)["holders"][0].get("protocol"), None);
    run_at(&ours).arg("-n").cmd(&["true"]).done().expect_code(75);
    holder.wait().expect_code(0);
}

#[test]
fn a_client_two_protocols_away_is_refused_on_this_host() {
    let host = Host::new();
    let holder = hold(host.run());
    let mut bytes = fs::read(host.file()).unwrap();
    let field = b"protocol\x001\0";
    let at = bytes.windows(field.len()).position(|window| window == field).expect("the holder's record");
    bytes[at + field.len() - 2] = b'0' + OURS + 2;
    // In place: the file has the locks.
    let file = fs::OpenOptions::new().write(true).open(host.file()).unwrap();
    file.write_all_at(&bytes[at..at + field.len()], at as u64).unwrap();
    for wait in ["-n", "-w10s"] {
        host.run()
            .arg(wait)
            .cmd(&["true"])
            .done()
            .expect_code(78)
            .expect_stderr(&["(protocol 3); this is redlock"]);
    }
    for how in [&["k", "--yes"][..], &["k", "--yes", "--now"]] {
        let done = host.subcommand("break").args(how).done().expect_code(78);
        done.expect_stderr(&["(protocol 3); this is redlock"]);
    }
    holder.wait().expect_code(0);
    assert!(host.is_free());
}

/// The memory file of a keeper, which only its own user can open.
fn control_file(keeper: &Value) -> fs::File {
    let descriptors = fs::read_dir(format!("/proc/{keeper}/fd")).expect("the keeper's descriptors");
    let is_control = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:redlock-keeper-"))
    };
    let path = descriptors.flatten().map(|entry| entry.path()).find(is_control).expect("a control file");
    fs::OpenOptions::new().write(true).open(path).expect("the control file")
}

#[test]
fn a_keeper_two_protocols_away_is_neither_extended_nor_released_on_this_host() {
    let host = Host::new();
    let acquired = host.subcommand("acquire").args(&["--key", "k", "--ttl", "60s", "--json"]);
    let acquired = acquired.done().expect_code(0).json();
    let token = acquired["token"].as_str().expect("a token");
    let with_token = |command| host.subcommand(command).args(&["k", "--token", token]);
    let control = control_file(&acquired["keeper"]);
    let pretend = |protocol: u8| control.write_all_at(&u64::from(protocol).to_le_bytes(), 24).unwrap();
    pretend(OURS + 2);
    for run in [with_token("extend").args(&["--ttl", "50s"]), with_token("release")] {
        run.done().expect_code(78).expect_stderr(&["(protocol 3); this is redlock"]);
    }
    host.run().arg("-n").cmd(&["true"]).done().expect_code(75);
    pretend(OURS + 1);
    with_token("extend").args(&["--ttl", "50s"]).done().expect_code(0);
    with_token("release").done().expect_code(0);
    assert!(host.is_free());
}

/// The names of the fields of every record at this key, if it has records.
fn field_names(redis: &Redis, key: &str) -> Vec<String> {
    let json: Vec<String> = match redis.cmd(&["TYPE", key]).as_str() {
        "hash" => redis.cmd(&["HVALS", key]).lines().map(str::to_owned).collect(),
        "string" => vec![redis.cmd(&["GET", key])],
        "stream" => {
            // The id, then names and values.
            let entry = redis.cmd(&["XRANGE", key, "-", "+", "COUNT", "1"]);
            return entry.lines().skip(1).step_by(2).map(str::to_owned).collect();
        }
        _ => Vec::new(),
    };
    let records = json.iter().filter_map(|text| serde_json::from_str::<serde_json::Map<_, Value>>(text).ok());
    records.flat_map(|record| record.into_iter().map(|(name, _)| name)).collect()
}

#[test]
fn the_contract_lists_every_key_and_field() {
    let servers = Nodes::start(1);
    let ours = servers.urls().join(",");
    let slots = hold(run_at(&ours).args(&["--slots", "2", "--min-hold", "1ms", "--label", "x"]));
    let other = |key: &str| at(&ours, &["run", "--key", key]);
    let held = hold(other("l"));
    let waiter = other("l").arg("--supersede").cmd(&["true"]).spawn();
    wait_until("it waits", || servers[0].keys().iter().any(|key| key == "lock-newest:l"));
    other("m").cmd(&["true"]).done().expect_code(0);
    at(&ours, &["acquire", "--key", "n", "--ttl", "30s"]).done().expect_code(0);
    let contract = read("docs/wire.md") + &read("docs/protocol.md");
    let mut fields = 0;
    for key in servers[0].keys() {
        let name = key.split(':').next().unwrap();
        assert!(contract.contains(&format!("`{name}:")) || contract.contains(&format!("`{name}`")), "{key}");
        for field in field_names(&servers[0], &key) {
            assert!(contract.contains(&format!("`{field}`")), "docs/wire.md does not list {field} at {key}");
            fields += 1;
        }
    }
    assert!(fields > 40, "only {fields} fields");
    held.wait().expect_code(0);
    waiter.wait().expect_code(0);
    slots.wait().expect_code(0);
}

#[test]
fn status_list_and_doctor_show_versions() {
    let servers = Nodes::start(1);
    let ours = servers.urls().join(",");
    let holder = hold(run_at(&ours));
    let waiter = queued(&servers, run_at(&ours));
    let list = || Run::bare().args(&["list", "--redis", &ours]);
    let expected = (json!(env!("CARGO_PKG_VERSION")), json!(OURS));
    let listed = list().arg("--json").done().expect_code(0).json();
    for shown in [&status(&ours), &listed] {
        for role in ["holders", "waiters"] {
            let client = &shown[role][0];
            assert_eq!((client["version"].clone(), client["protocol"].clone()), expected, "{shown}");
        }
    }
    let words = |run: Run| run.done().expect_code(0).stdout;
    let plain = || [words(list()), words(at(&ours, &["status", "k"]))];
    assert!(plain().iter().all(|text| !text.contains("redlock")), "our own version is not worth a word");
    for hash in ["lock-info:k", "lock-who:k"] {
        let client = servers[0].cmd(&["HKEYS", hash]);
        let mut record: Value = serde_json::from_str(&servers[0].cmd(&["HVALS", hash])).unwrap();
        record["version"] = json!("9.8.7");
        servers[0].cmd(&["HSET", hash, &client, &record.to_string()]);
    }
    let [listed, status] = plain();
    assert_eq!(
        (listed.matches("redlock 9.8.7").count(), status.matches("redlock 9.8.7").count()),
        (1, 2),
        "{listed}{status}"
    );
    let doctor = Run::bare().args(&["doctor", "--redis", &ours]);
    assert!(
        words(doctor.clone()).contains(&format!("redlock  {}, protocol {OURS}\n", env!("CARGO_PKG_VERSION")))
    );
    let checked = doctor.arg("--json").done().expect_code(0).json();
    assert_eq!((checked["version"].clone(), checked["protocol"].clone()), expected);
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
}
