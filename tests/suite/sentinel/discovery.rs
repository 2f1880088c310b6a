//! Which server is the master: what Sentinels report, and what redlock makes of it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::support::nodes::renewed;
use crate::support::redis::free_port;
use crate::support::sentinel::{SERVICE, Sentinels, SilentSentinel, sentinel_naming};
use crate::support::{Client, Redis, Run, descendants, hold, refused, wait_until};

#[test]
fn the_lock_is_on_the_master_that_a_sentinel_names() {
    let all = Sentinels::start();
    let holder = hold(all.run("k"));
    assert!(all.master.held("k"));
    // One lock, however its server was found.
    refused(Run::key(&all.master, "k").arg("-n"), 75, &["held by"]);
    refused(all.run("k").arg("-n"), 75, &["held by"]);
    holder.wait().expect_code(0);
    assert!(!all.master.held("k"));
    // A replica is skipped even if a Sentinel names it; so is a Sentinel that is dead, silent, or
    // not a Sentinel.
    let (mute, redis) = (SilentSentinel::start(), Redis::start());
    let useless = [
        mute.port(),
        sentinel_naming(all.replica.port()),
        sentinel_naming(free_port()),
        free_port(),
        redis.port(),
    ];
    let run = Run::at(&all.url_behind(&useless), "k").args(&["--node-timeout", "5s", "-v"]);
    let done = run.cmd(&["true"]).done().expect_code(0);
    assert!(done.stderr.contains("redis+sentinel://"), "{done:#?}");
    // A Sentinel names a server that never replies.
    let run = Run::at(&all.url_behind(&[sentinel_naming(mute.port())]), "k").args(&["--node-timeout", "5s"]);
    run.cmd(&["true"]).done().expect_code(0);
}

#[test]
fn faults_of_sentinels_are_reported() {
    let all = Sentinels::start();
    let at = |url: &str| Run::at(url, "k").args(&["--node-timeout", "3s"]);
    let sentinel = format!("127.0.0.1:{}", all.port());
    refused(at(&format!("redis+sentinel://{sentinel}/other")), 78, &["has no service \"other\""]);
    refused(at(&format!("redis+sentinel://{sentinel}")), 64, &["name of the service is missing"]);
    refused(at(&format!("redis://{sentinel}")), 77, &["if it is a Sentinel, use redis+sentinel://"]);
    let redis = format!("127.0.0.1:{}", all.master.port());
    refused(at(&format!("redis+sentinel://{redis}/{SERVICE}")), 78, &["not a Sentinel"]);
    let dead = free_port();
    let done =
        refused(at(&format!("redis+sentinel://127.0.0.1:{dead}/{SERVICE}")), 69, &["connection refused"]);
    assert!(done.stderr.contains(&dead.to_string()), "{done:#?}");
    let lying = sentinel_naming(all.replica.port());
    refused(at(&format!("redis+sentinel://127.0.0.1:{lying}/{SERVICE}")), 78, &["replica"]);
    let mute = SilentSentinel::start();
    refused(at(&format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", mute.port())), 69, &["timed out"]);
}

#[test]
fn sentinels_and_the_master_have_passwords_of_their_own() {
    let master = ["--requirepass", "of-the-master", "--masterauth", "of-the-master"];
    let lines = format!("sentinel auth-pass {SERVICE} of-the-master\nrequirepass of-the-sentinel");
    let all = Sentinels::start_with(&master, &lines);
    let url = all.url().replace("://", "://:of-the-master@");
    let run = || Run::at(&url, "k");
    let done = refused(run(), 77, &["REDLOCK_SENTINEL_PASSWORD"]);
    assert!(!done.stderr.contains("of-the-"), "{done:#?}");
    refused(run().env("REDLOCK_SENTINEL_PASSWORD", "wrong"), 77, &["REDLOCK_SENTINEL_PASSWORD"]);
    let with_password = || run().env("REDLOCK_SENTINEL_PASSWORD", "of-the-sentinel");
    with_password().cmd(&["true"]).done().expect_code(0);
    let file = all.master.dir().join("sentinel-password");
    std::fs::write(&file, "of-the-sentinel\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let with_file = || run().arg("--sentinel-password-file").arg(&file);
    let done = with_file().cmd(&["true"]).done().expect_code(0);
    assert!(done.stderr.contains("is readable by all users of this host"), "{done:#?}");
    // No password is passed on: not to the command, not to ps, not to a server, not to an event.
    let holder = hold(with_password().args(&["--events", "-", "-v"]));
    let info = all.master.cmd(&["HGETALL", "lock-info:k"]);
    let processes: Vec<i32> = descendants(holder.pid()).into_iter().chain([holder.pid()]).collect();
    let read = |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<u8> = processes.iter().flat_map(read).collect();
    let done = holder.wait().expect_code(0);
    let seen = [info, String::from_utf8_lossy(&arguments).into_owned(), done.stderr];
    assert!(processes.len() >= 3 && seen.iter().all(|text| !text.contains("of-the-")), "{seen:#?}");
    let inherited = with_file().cmd(&["env"]).done().expect_code(0);
    assert!(!inherited.stdout.contains("of-the-"), "{inherited:#?}");
    // The master's own may come from other sources, too.
    let elsewhere = Run::at(&all.url(), "k").env("REDLOCK_SENTINEL_PASSWORD", "of-the-sentinel");
    refused(elsewhere.clone(), 77, &["REDLOCK_PASSWORD"]);
    elsewhere.env("REDLOCK_PASSWORD", "of-the-master").cmd(&["true"]).done().expect_code(0);
}

/// The master's connections are closed, so that the Sentinel must be asked again.
#[test]
fn a_run_survives_changed_passwords_of_the_sentinel_and_the_master() {
    let master = ["--requirepass", "old-master", "--masterauth", "old-master"];
    let lines = format!("sentinel auth-pass {SERVICE} old-master\nrequirepass old-sentinel");
    let mut all = Sentinels::start_with(&master, &lines);
    let [of_master, of_sentinel] = ["master", "sentinel"].map(|name| {
        let file = all.master.dir().join(name);
        std::fs::write(&file, format!("old-{name}")).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        file
    });
    let run = all.run("k").args(&["--ttl", "9s"]).arg("--password-file").arg(&of_master);
    let job = hold(run.arg("--sentinel-password-file").arg(&of_sentinel));
    let mut sentinel = Client::to_port(all.port()).unwrap();
    assert_eq!(sentinel.cmd(&["AUTH", "old-sentinel"]), "OK");
    let user = ["ACL", "SETUSER", "default", "resetpass", ">new-sentinel"];
    assert_eq!(sentinel.cmd(&user), "OK");
    all.master.change_password("new-master");
    sentinel.cmd(&["SENTINEL", "SET", SERVICE, "auth-pass", "new-master"]);
    wait_until("the Sentinel has refused a login", || sentinel.cmd(&["ACL", "LOG"]).contains("auth"));
    std::fs::write(&of_sentinel, "new-sentinel").unwrap();
    std::fs::write(&of_master, "new-master").unwrap();
    renewed(&all.master, "k", 2);
    job.wait().expect_code(0);
    assert!(!all.master.held("k"));
}

#[test]
fn a_list_of_servers_may_include_sentinels() {
    let (all, redis) = (Sentinels::start(), [Redis::start(), Redis::start()]);
    let url = format!("{},{},{}", redis[0].url(), all.url_behind(&[free_port()]), redis[1].url());
    let holder = hold(Run::at(&url, "k").args(&["--quarantine", "off"]));
    assert!(all.master.held("k") && redis.iter().all(|redis| redis.held("k")));
    refused(Run::at(&url, "k").args(&["--quarantine", "off", "-n"]), 75, &["held by"]);
    holder.wait().expect_code(0);
}
