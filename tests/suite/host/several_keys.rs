//! Several keys on this host: crossed orders, and what happens to one key during the wait for the
//! other.

use std::path::PathBuf;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::support::host::{lock_files, tickets_waiting};
use crate::support::{Host, Run, alive, hold, processes, wait_until};

fn keys(host: &Host, keys: &[&str]) -> Run {
    keys[1..].iter().fold(host.run_on(keys[0]), |run, key| run.args(&["--key", key]))
}

fn file_of(host: &Host, key: &str) -> PathBuf {
    let name = format!("%3A{key}");
    lock_files(host.path())
        .into_iter()
        .find(|file| file.to_string_lossy().ends_with(&name))
        .expect("its file")
}

fn queued_at(host: &Host, key: &str, count: usize) {
    wait_until("the waiters are queued", || {
        lock_files(host.path()).iter().any(|file| file.to_string_lossy().ends_with(&format!("%3A{key}")))
            && tickets_waiting(&file_of(host, key)) == count
    });
}

#[test]
fn a_waiter_that_leaves_one_key_frees_the_others() {
    let host = Host::new();
    let holder = hold(host.run_on("b"));
    for signal in [SIGKILL, SIGTERM] {
        let waiter = keys(&host, &["b", "a"]).sh("echo ran").spawn();
        queued_at(&host, "b", 1);
        waiter.signal(signal);
        assert_eq!(waiter.wait().stdout, "");
        queued_at(&host, "b", 0);
        wait_until("the other key is free", || host.run_on("a").try_acquire());
    }
    let impatient = keys(&host, &["b", "a"]).args(&["-w", "0.2"]).sh("echo ran").done().expect_code(75);
    assert_eq!(impatient.stdout, "");
    assert!(host.run_on("a").try_acquire());
    holder.wait().expect_code(0);
}

#[test]
fn a_stopped_waiter_for_two_keys_keeps_its_place_at_both() {
    let host = Host::new();
    let holder = hold(host.run_on("b"));
    let both = keys(&host, &["b", "a"]).dir(host.path()).sh("echo both >> order").spawn();
    queued_at(&host, "b", 1);
    both.stop();
    let late = |key| {
        let job = host.run_on(key).dir(host.path()).sh("echo late >> order").spawn();
        queued_at(&host, key, if key == "b" { 2 } else { 1 });
        job
    };
    let late = [late("a"), late("b")];
    holder.wait().expect_code(0);
    assert!(!host.run_on("a").try_acquire() && !host.run_on("b").try_acquire());
    both.signal(SIGCONT);
    both.wait().expect_code(0);
    for job in late {
        job.wait().expect_code(0);
    }
    assert_eq!(host.order(), ["both", "late", "late"]);
}

#[test]
fn the_command_keeps_all_keys_open_with_wait_tree() {
    let host = Host::new();
    let script = "for fd in /proc/$$/fd/*; do readlink $fd; done | grep -c redlock-; exit 0";
    assert_eq!(keys(&host, &["b", "a"]).sh(script).done().expect_code(0).stdout, "0\n");
    let kept = keys(&host, &["b", "a"]).arg("--wait-tree").sh(script).done().expect_code(0);
    assert_eq!(kept.stdout, "2\n");
    // So a daemon keeps them all when redlock and its guardian are killed.
    let script = "setsid sh -c 'echo daemon $$; exec sleep 300' & wait";
    let job = keys(&host, &["b", "a"]).arg("--wait-tree").sh(script).spawn();
    let daemon = Pid::from_raw(processes::pid_in(&job.wait_for_line("daemon")));
    let guardian = processes::guardian_of(job.pid());
    // In this order; otherwise one would stop the tree when the other is gone.
    job.stop();
    processes::send(guardian, SIGKILL);
    wait_until("the process is gone", || !alive(guardian));
    job.signal(SIGKILL);
    job.wait();
    assert!(alive(daemon.as_raw()) && !host.run_on("a").try_acquire() && !host.run_on("b").try_acquire());
    kill(daemon, SIGKILL).unwrap();
    wait_until("the keys are free when the tree is gone", || {
        host.run_on("a").try_acquire() && host.run_on("b").try_acquire()
    });
}
