//! The lock is lost while a keeper keeps it: it says so, and with `--on-lost stop` it tells the watched process.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal::SIGCONT;
use nix::unistd::geteuid;
use serde_json::Value;

use super::{Watched, acquire_briefly, acquire_for, keeper, no_keeper, release, token};
use crate::support::processes::{send, stop};
use crate::support::{Backend, Job, Locks, Redis, Run, alive, hold, wait_until};

on_backends!(one_server, three_servers:
    a_watched_process_is_told_by_the_signal_that_was_chosen,
    a_watched_process_is_told_before_the_lease_is_over,
    a_watched_process_is_left_alone_with_warn,
    the_events_say_that_it_was_lost;
one_server, three_servers, this_host:
    a_broken_lock_is_lost,
);

/// Counts what it is sent until its stdin is closed; holds the lock by a keeper with these options.
#[track_caller]
fn script(backend: &Backend, options: &[&str]) -> Job {
    let text = r#"trap 'echo got TERM' TERM; trap 'echo got USR1' USR1
        "$@" --watch-pid $$ >token && echo locked; until read x; do :; done; echo over"#;
    let text = text.replace("until read x; do :; done", "while [ ! -e over ]; do sleep 0.05; done");
    let run: Run = acquire_briefly(backend).args(options);
    let job = run.through(&["bash", "-c", &text, "bash"]).spawn();
    job.wait_for_line("locked");
    job
}

#[track_caller]
fn over(backend: &Backend, job: Job) -> String {
    std::fs::write(backend.notes().join("over"), "").unwrap();
    job.wait().expect_code(0).stdout
}

/// As if every server had been flushed.
#[track_caller]
fn lose(backend: &Backend) {
    if let Locks::ThreeServers(nodes) = &backend.locks {
        // A majority is enough for a grant.
        wait_until("every server has the claim", || {
            let claims = nodes.claims("k");
            claims.iter().all(|claim| !claim.is_empty() && *claim == claims[0])
        });
    }
    let flush = |redis: &Redis| assert_eq!(redis.cmd(&["DEL", "lock:k"]), "1");
    match &backend.locks {
        Locks::OneServer(redis) => flush(redis),
        Locks::ThreeServers(nodes) => nodes.iter().for_each(flush),
        Locks::ThisHost(_) => panic!("a lock of this host is not lost by itself"),
    }
}

fn a_watched_process_is_told_by_the_signal_that_was_chosen(backend: &Backend) {
    for (options, got) in
        [(&["--on-lost", "stop"][..], "got TERM"), (&["--on-lost", "stop", "--signal", "USR1"], "got USR1")]
    {
        let job = script(backend, options);
        keeper(backend);
        lose(backend);
        job.wait_for_line(got);
        no_keeper(backend);
        let said = over(backend, job);
        assert_eq!(said.matches("got ").count(), 1, "{said}");
        std::fs::remove_file(backend.notes().join("over")).unwrap();
    }
}

/// If it ends then, the lock was never lost.
fn a_watched_process_is_told_before_the_lease_is_over(backend: &Backend) {
    let servers: Vec<&Redis> = match &backend.locks {
        Locks::OneServer(redis) => vec![redis],
        Locks::ThreeServers(nodes) => nodes.iter().take(2).collect(),
        Locks::ThisHost(_) => panic!("a lock of this host is not lost by itself"),
    };
    let watched = Watched::start();
    let events = backend.notes().join("events");
    let run = acquire_for(backend, "6s").args(&["--node-timeout", "300ms", "--on-lost", "stop"]);
    token(run.args(&["--watch-pid", &watched.pid().to_string(), "--events"]).arg(&events));
    keeper(backend);
    servers.iter().for_each(|server| server.stop());
    wait_until("it has got the signal, and ended", || !alive(watched.pid()));
    no_keeper(backend);
    servers.iter().for_each(|server| server.cont());
    let events = backend.noted("events").join("\n");
    assert!(events.contains(r#""event":"ended""#) && !events.contains(r#""event":"lost""#), "{events}");
}

fn a_watched_process_is_left_alone_with_warn(backend: &Backend) {
    let job = script(backend, &["--on-lost", "warn"]);
    keeper(backend);
    lose(backend);
    no_keeper(backend);
    assert!(!over(backend, job).contains("got "));
}

fn the_events_say_that_it_was_lost(backend: &Backend) {
    let job = script(backend, &["--on-lost", "warn", "--events", "events"]);
    keeper(backend);
    lose(backend);
    no_keeper(backend);
    over(backend, job);
    let events: Vec<Value> =
        backend.noted("events").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., lost, ended] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&lost["event"], &lost["action"]), (&"lost".into(), &"warn".into()), "{lost}");
    assert_eq!((&ended["event"], &ended["outcome"]), (&"ended".into(), &"lost".into()), "{ended}");
    assert_eq!(ended["released"], false, "{ended}");
}

fn a_broken_lock_is_lost(backend: &Backend) {
    let job = script(backend, &["--on-lost", "stop"]);
    keeper(backend);
    // No command of a run was stopped: what the watched process makes of it is its own business.
    let done = backend.command(&["break", "k", "--yes"]).done().expect_code(0);
    let warning = format!("warning: pid {} may go on beside the next one", job.pid());
    assert!(done.stdout.contains(&warning) && !done.stdout.contains("stopped"), "{done:?}");
    job.wait_for_line("got TERM");
    no_keeper(backend);
    assert!(backend.is_free());
    over(backend, job);
}

/// In a mount namespace whose /dev/log is ours.
#[test]
fn the_system_log_says_that_it_was_lost() {
    if !geteuid().is_root() {
        skip!("only root can have a /dev of its own");
    }
    let script = r#"set -e; dev=$1/dev; mkdir "$dev"; mount -t tmpfs none "$dev"
        for file in null zero full random urandom; do touch "$dev/$file"; mount --bind /dev/$file "$dev/$file"; done
        touch "$dev/log"; mount --bind "$1/log" "$dev/log"; mount --rbind "$dev" /dev; shift; exec "$@""#;
    let (backend, watched) = (Backend::one_server(), Watched::start());
    let directory = tempfile::tempdir().unwrap();
    let log = UnixDatagram::bind(directory.path().join("log")).unwrap();
    log.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let own_dev = ["unshare", "-m", "sh", "-c", script, "sh", directory.path().to_str().unwrap()];
    let pid = watched.pid().to_string();
    token(acquire_briefly(&backend).args(&["--watch-pid", &pid]).through(&own_dev));
    let keeper = keeper(&backend);
    lose(&backend);
    let mut line = [0; 1000];
    let length = log.recv(&mut line).expect("a line in the log");
    let line = String::from_utf8_lossy(&line[..length]);
    assert!(line.starts_with(&format!("<28>redlock[{keeper}]: lost the lock \"k\": ")), "{line}");
    assert!(line.ends_with(&format!("process {pid} runs on without it")), "{line}");
    no_keeper(&backend);
}

/// The keeper slept through its lease; what it finds on waking is told.
#[test]
fn a_keeper_that_was_stopped_tells_the_watched_process_when_it_goes_on() {
    let backend = Backend::one_server();
    let job = script(&backend, &["--on-lost", "stop"]);
    let kept = keeper(&backend);
    stop(kept);
    let next = hold(backend.run_for_long());
    send(kept, SIGCONT);
    job.wait_for_line("got TERM");
    assert!(!backend.is_free());
    next.wait().expect_code(0);
    over(&backend, job);
}

/// On a server nobody keeps a lock without a keeper; `break` needs no answer for it.
#[test]
fn a_lock_without_a_keeper_is_broken_and_its_token_is_worth_nothing() {
    for backend in [Backend::one_server(), Backend::three_servers(), Backend::this_host()] {
        for how in [&["--yes"][..], &["--yes", "--now"]] {
            let token = token(acquire_for(&backend, "60s"));
            let broken = backend.command(&["break", "k"]).args(how).done().expect_code(0);
            let warning = "warning: what it was acquired for may go on beside the next one";
            assert!(broken.stdout.contains(warning) && !broken.stdout.contains("command"), "{broken:?}");
            assert!(backend.is_free());
            release(&backend, &token).done().expect_code(79);
        }
    }
}
