//! A server error is not a held lock: each fault has its exit code and its message, and leaves
//! nothing behind.

use std::time::{Duration, Instant};

use crate::support::redis::is_before_7;
use crate::support::{
    Client, Redis, Run, assert_no_keys_left, expect_refused_both_ways, holder, impostor, refused, wait_until,
};

#[test]
fn an_evicted_lock_is_lost() {
    let policy = ["--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"];
    let redis = Redis::start_with(&policy);
    let run = Run::key(&redis, "k").args(&["--ttl", "6s"]);
    let job = run.sh("echo ready; exec sleep 300").spawn();
    job.wait_for_line("ready");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "4mb"]);
    let (mut client, block, mut n) = (redis.connect(), "x".repeat(20_000), 0);
    wait_until("the lock is evicted", || {
        n += 1;
        client.cmd(&["SET", &format!("filling:{n}"), &block, "EX", "100000"]);
        client.cmd(&["EXISTS", "lock:k"]) == "0"
    });
    job.wait().expect_code(79);
    assert!(!redis.held("k"));
}

#[test]
fn a_server_out_of_memory_refuses_newcomers_but_holders_continue() {
    let redis = Redis::start();
    let job = holder(&redis, "held", &["--ttl", "3s"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100kb"]); // less than it already uses
    assert!(redis.cmd(&["SET", "filling", "x"]).starts_with("OOM"));
    expect_refused_both_ways(&redis, 69, &["memory"]);
    let left = redis.keys();
    assert!(left.iter().all(|key| !key.ends_with(":k")), "{left:?}");
    let claim = redis.cmd(&["GET", "lock:held"]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        assert_eq!(redis.cmd(&["GET", "lock:held"]), claim, "refreshed");
        std::thread::sleep(Duration::from_millis(20)); // only paces the loop
    }
    job.wait().expect_code(0);
    assert!(!redis.held("held"));
}

#[test]
fn a_busy_server_is_unavailable_to_newcomers_and_no_loss_to_holders() {
    let redis = Redis::start_with(&["--lua-time-limit", "100"]);
    let job = holder(&redis, "held", &["--ttl", "20s"]);
    let mut endless = redis.connect();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    wait_until("busy", || redis.cmd(&["PING"]).starts_with("BUSY"));
    expect_refused_both_ways(&redis, 69, &["busy"]);
    assert_eq!(redis.cmd(&["SCRIPT", "KILL"]), "OK");
    wait_until("not busy", || redis.cmd(&["PING"]) == "PONG");
    assert!(redis.held("held"));
    assert!(!redis.held("k"));
    job.wait().expect_code(0);
}

#[test]
fn a_refresh_on_a_busy_server_is_retried() {
    let redis = Redis::start_with(&["--lua-time-limit", "100"]);
    let job = holder(&redis, "k", &["--ttl", "6s"]);
    let mut endless = redis.connect();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    wait_until("busy", || redis.cmd(&["PING"]).starts_with("BUSY"));
    std::thread::sleep(Duration::from_millis(2500)); // longer than the refresh interval of 2 s
    assert_eq!(redis.cmd(&["SCRIPT", "KILL"]), "OK");
    let fresh = || redis.cmd(&["PTTL", "lock:k"]).parse::<i64>().unwrap_or(0) > 5_000;
    wait_until("a later refresh arrives", fresh);
    job.wait().expect_code(0);
}

#[test]
fn a_loading_server_is_unavailable() {
    if is_before_7() {
        skip!("Redis 6 does not reply while it loads so little");
    }
    let redis = Redis::start();
    for n in 0..300 {
        redis.cmd(&["SET", &format!("filling:{n}"), &"x".repeat(100)]);
    }
    redis.cmd(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    redis.cmd(&["CONFIG", "SET", "key-load-delay", "20000"]); // 300 keys, 20 ms each
    let mut reloading = redis.connect();
    reloading.send(&["DEBUG", "RELOAD"]).unwrap();
    wait_until("loading", || redis.cmd(&["GET", "x"]).starts_with("LOADING"));
    refused(Run::key(&redis, "k"), 69, &["loading"]);
    let loading = redis.cmd(&["GET", "x"]).starts_with("LOADING");
    wait_until("loaded", || redis.cmd(&["GET", "x"]).is_empty());
    assert!(loading, "the server was loading throughout");
    assert!(redis.keys().iter().all(|key| key.starts_with("filling:")));
}

#[test]
fn a_server_that_cannot_save_is_unavailable() {
    let redis = Redis::start();
    assert_eq!(redis.cmd(&["CONFIG", "SET", "save", "3600 100000"]), "OK");
    std::fs::create_dir_all(redis.dir().join("dump.rdb/in-the-way")).unwrap();
    redis.cmd(&["BGSAVE"]);
    wait_until("the save failed", || redis.info("rdb_last_bgsave_status") == "err");
    expect_refused_both_ways(&redis, 69, &["misconf", "snapshot", "save", "disk"]);
    assert_no_keys_left(&redis);
}

#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let redis = Redis::start_with(&["--maxclients", "5"]);
    let mut taken: Vec<Client> = Vec::new();
    wait_until("no connection is left", || {
        let mut client = redis.connect();
        let is_served = client.try_cmd(&["PING"]).is_ok_and(|reply| reply == "PONG");
        taken.extend(is_served.then_some(client));
        !is_served
    });
    expect_refused_both_ways(&redis, 69, &["clients", "connection"]);
    assert_eq!(taken[0].cmd(&["KEYS", "*"]), "");
}

#[test]
fn a_server_without_its_replicas_is_unavailable() {
    let redis = Redis::start_with(&["--min-replicas-to-write", "1"]);
    expect_refused_both_ways(&redis, 69, &["replica"]);
    assert_no_keys_left(&redis);
}

#[test]
fn a_read_only_replica_is_unfit() {
    let master = Redis::start();
    let port = master.port().to_string();
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica is in sync", || replica.info("master_link_status") == "up");
    expect_refused_both_ways(&replica, 78, &["replica"]);
    assert_no_keys_left(&replica);
    assert_no_keys_left(&master);
}

#[test]
fn another_type_at_the_key_is_unfit_and_untouched() {
    let redis = Redis::start();
    for make in [
        &["RPUSH", "lock:k", "a"][..],
        &["HSET", "lock:k", "a", "b"],
        &["XADD", "lock:k", "1-1", "a", "b"],
        &["SADD", "lock:k", "a"],
        &["ZADD", "lock:k", "1", "a"],
        &["RPUSH", "lock-queue:k", "a"],
        &["RPUSH", "lock-fence:k", "a"],
    ] {
        redis.cmd(&["FLUSHALL"]);
        redis.cmd(make);
        let before = redis.cmd(&["DUMP", make[1]]);
        expect_refused_both_ways(&redis, 78, &["type", "not a lock"]);
        assert_eq!(redis.cmd(&["DUMP", make[1]]), before, "{make:?}");
        assert_eq!(redis.keys(), [make[1]], "{make:?}");
    }
}

#[test]
fn a_refused_connection_is_unavailable() {
    let mut redis = Redis::start();
    let url = redis.url();
    let missing = format!("unix://{}", redis.dir().join("no.sock").display());
    redis.kill();
    for url in [url.as_str(), &missing, "redis://no-such-host.invalid:6379"] {
        let message = ["connect", "reach", "refused", "resolve", "no such"];
        refused(Run::at(url, "k"), 69, &message);
        refused(Run::at(url, "k").arg("-n"), 69, &message);
    }
}

#[test]
fn a_port_that_does_not_speak_redis_is_unavailable() {
    for answer in [
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1\r\n",
        "", // accepts everything, replies nothing
        "\x15\x03\x01\x00\x02\x02\x46",
        "$99999999999999999999\r\n",
    ] {
        assert_turned_away(answer, &[69]);
    }
}

#[test]
fn nonsensical_replies_are_neither_a_grant_nor_held() {
    for answer in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*-7\r\n",
        "*1\r\n$7\r\ngranted\r\n",
        "*2\r\n$7\r\ngranted\r\n$3\r\nten\r\n",
        "*1\r\n$4\r\nbusy\r\n",
        "*1\r\n*1\r\n*1\r\n$1\r\nx\r\n",
        "$8\r\nextended\r\n",
    ] {
        assert_turned_away(answer, &[69, 78]);
    }
}

/// A server that always replies this: one of these exit codes, soon, and no command runs.
#[track_caller]
fn assert_turned_away(answer: &'static str, codes: &[i32]) {
    let url = impostor(answer);
    for args in [&["-n"][..], &["-w", "30"]] {
        let done = Run::at(&url, "k").args(args).sh("echo ran").done();
        let code = done.code.unwrap_or(-1);
        assert!(codes.contains(&code), "{answer:?}: {done:?}");
        assert_eq!(done.stdout, "", "{answer:?}");
    }
}

#[test]
fn a_server_that_goes_away_during_a_wait_is_reported_and_awaited_until_the_wait_ends() {
    let mut redis = Redis::start();
    let first = holder(&redis, "k", &["--ttl", "60s"]);
    let waiter = Run::key(&redis, "k").args(&["-w", "5", "-v"]).sh("echo ran").spawn();
    let patient = Run::key(&redis, "k").arg("-v").sh("echo mine").spawn();
    // They know that they are queued; a waiter without a first reply exits at once.
    waiter.wait_for_stderr("place");
    patient.wait_for_stderr("place");
    redis.kill();
    let done = waiter.wait().expect_code(69);
    assert_eq!(done.stdout, "");
    assert!(done.stderr.contains("redlock: "), "{done:?}");
    redis.restart();
    patient.wait_for_line("mine");
    patient.wait().expect_code(0);
    drop(first);
}

#[test]
fn a_missing_database_is_refused_and_no_other_is_used() {
    let redis = Redis::start();
    let url = format!("{}/99", redis.url());
    refused(Run::at(&url, "k"), 78, &["database", "index", "range"]);
    refused(Run::at(&url, "k").arg("-n"), 78, &["database", "index", "range"]);
    assert_no_keys_left(&redis);
    let databases = redis.cmd(&["INFO", "keyspace"]);
    assert!(!databases.contains("db"), "{databases}");
}
