//! The lock is lost while a keeper renews it: the keeper reports it, and with `--on-lost stop`
//! signals the watched process.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal::SIGCONT;
use nix::unistd::geteuid;
use serde_json::Value;

use super::{Watched, acquire_briefly, acquire_for, keeper, release, token, wait_until_no_keeper};
use crate::support::processes::{send, stop};
use crate::support::{Backend, Job, Locks, Redis, Run, alive, hold, wait_until};

on_backends!(one_server, three_servers:
    a_watched_process_gets_the_chosen_signal,
    a_watched_process_is_signalled_before_the_lease_ends,
    a_watched_process_is_left_alone_with_warn,
    the_events_report_the_loss;
one_server, three_servers, this_host:
    a_broken_lock_is_lost,
);

/// Counts the signals that it gets until its stdin is closed; a keeper with these options holds the
/// lock.
#[track_caller]
fn script(backend: &Backend, options: &[&str]) -> Job {
    let text = r#"trap 'echo got TERM' TERM; trap 'echo got USR1' USR1
        "$@" --watch-pid $$ >token && echo locked; while [ ! -e over ]; do sleep 0.05; done; echo over"#;
    let run: Run = acquire_briefly(backend).args(options);
    let job = run.through(&["bash", "-c", text, "bash"]).spawn();
    job.wait_for_line("locked");
    job
}

#[track_caller]
fn finish(backend: &Backend, job: Job) -> String {
    std::fs::write(backend.notes().join("over"), "").unwrap();
    job.wait().expect_code(0).stdout
}

/// Deletes the lock on every server.
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

fn a_watched_process_gets_the_chosen_signal(backend: &Backend) {
    for (options, got) in [(&[][..], "got TERM"), (&["--on-lost", "stop", "--signal", "USR1"], "got USR1")] {
        let job = script(backend, options);
        keeper(backend);
        lose(backend);
        job.wait_for_line(got);
        wait_until_no_keeper(backend);
        let output = finish(backend, job);
        assert_eq!(output.matches("got ").count(), 1, "{output}");
        std::fs::remove_file(backend.notes().join("over")).unwrap();
    }
}

/// As the command of a run: it was stopped because the lock could not be kept.
fn a_watched_process_is_signalled_before_the_lease_ends(backend: &Backend) {
    let servers: Vec<&Redis> = match &backend.locks {
        Locks::OneServer(redis) => vec![redis],
        Locks::ThreeServers(nodes) => nodes.iter().take(2).collect(),
        Locks::ThisHost(_) => panic!("a lock of this host is not lost by itself"),
    };
    let watched = Watched::start();
    let events = backend.notes().join("events");
    let run = acquire_for(backend, "6s").args(&["--node-timeout", "300ms"]);
    token(run.args(&["--watch-pid", &watched.pid().to_string(), "--events"]).arg(&events));
    keeper(backend);
    servers.iter().for_each(|server| server.stop());
    wait_until("the process has got the signal and exited", || !alive(watched.pid()));
    wait_until_no_keeper(backend);
    servers.iter().for_each(|server| server.cont());
    let events: Vec<Value> =
        backend.noted("events").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., lost, ended] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&lost["event"], &lost["cause"]), (&"lost".into(), &"overdue".into()), "{lost}");
    assert_eq!(lost["action"], "stop", "{lost}");
    assert_eq!((&ended["event"], &ended["outcome"]), (&"ended".into(), &"lost".into()), "{ended}");
    assert_eq!(ended["exit"], 79, "{ended}");
}

fn a_watched_process_is_left_alone_with_warn(backend: &Backend) {
    let job = script(backend, &["--on-lost", "warn"]);
    keeper(backend);
    lose(backend);
    wait_until_no_keeper(backend);
    assert!(!finish(backend, job).contains("got "));
}

fn the_events_report_the_loss(backend: &Backend) {
    let job = script(backend, &["--on-lost", "warn", "--events", "events"]);
    keeper(backend);
    lose(backend);
    wait_until_no_keeper(backend);
    finish(backend, job);
    let events: Vec<Value> =
        backend.noted("events").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., lost, ended] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&lost["event"], &lost["action"]), (&"lost".into(), &"warn".into()), "{lost}");
    assert_eq!((&ended["event"], &ended["outcome"]), (&"ended".into(), &"lost".into()), "{ended}");
    assert_eq!((&ended["released"], &ended["exit"]), (&false.into(), &79.into()), "{ended}");
}

fn a_broken_lock_is_lost(backend: &Backend) {
    let job = script(backend, &["--on-lost", "stop"]);
    keeper(backend);
    // No run's command was stopped: the watched process decides what to do.
    let done = backend.command(&["break", "k", "--yes"]).done().expect_code(0);
    let warning = format!("warning: pid {} may overlap with the next run", job.pid());
    assert!(done.stdout.contains(&warning) && !done.stdout.contains("stopped"), "{done:?}");
    job.wait_for_line("got TERM");
    wait_until_no_keeper(backend);
    assert!(backend.is_free());
    finish(backend, job);
}

/// In a mount namespace whose /dev/log is ours.
#[test]
fn the_system_log_reports_the_loss() {
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
    token(acquire_briefly(&backend).args(&["--watch-pid", &pid, "--on-lost", "warn"]).through(&own_dev));
    let keeper = keeper(&backend);
    lose(&backend);
    let mut line = [0; 1000];
    let length = log.recv(&mut line).expect("a line in the log");
    let line = String::from_utf8_lossy(&line[..length]);
    assert!(line.starts_with(&format!("<28>redlock[{keeper}]: lost the lock \"k\": ")), "{line}");
    assert!(line.ends_with(&format!("process {pid} runs on without it")), "{line}");
    wait_until_no_keeper(&backend);
}

/// The keeper slept past its lease; it reports the loss when it continues.
#[test]
fn a_stopped_keeper_signals_the_watched_process_when_it_continues() {
    let backend = Backend::one_server();
    let job = script(&backend, &["--on-lost", "stop"]);
    let kept = keeper(&backend);
    stop(kept);
    let next = hold(backend.run_for_long());
    send(kept, SIGCONT);
    job.wait_for_line("got TERM");
    assert!(!backend.is_free());
    next.wait().expect_code(0);
    finish(&backend, job);
}

/// Without a keeper no process holds a lock on a server; `break` waits for no reply.
#[test]
fn a_broken_lock_without_a_keeper_invalidates_its_token() {
    for backend in [Backend::one_server(), Backend::three_servers(), Backend::this_host()] {
        for how in [&["--yes"][..], &["--yes", "--now"]] {
            let token = token(acquire_for(&backend, "60s"));
            let broken = backend.command(&["break", "k"]).args(how).done().expect_code(0);
            let warning = "warning: the job that acquired it may overlap with the next run";
            assert!(broken.stdout.contains(warning) && !broken.stdout.contains("command"), "{broken:?}");
            assert!(backend.is_free());
            release(&backend, &token).done().expect_code(79);
        }
    }
}
