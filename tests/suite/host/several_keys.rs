//! Several keys on this host: crossed orders, and what happens to one key while the other is waited for.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::support::host::{is_locked, lock_files, tickets_waiting};
use crate::support::{Host, Job, Run, alive, hold, process_state, processes, wait_until};

fn keys(host: &Host, keys: &[&str]) -> Run {
    keys[1..].iter().fold(host.run_on(keys[0]), |run, key| run.args(&["--key", key]))
}

fn is_free(host: &Host, key: &str) -> bool {
    let done = host.run_on(key).arg("-n").cmd(&["true"]).done();
    assert!(matches!(done.code, Some(0 | 75)), "{done:#?}");
    done.code == Some(0)
}

fn file_of(host: &Host, key: &str) -> PathBuf {
    let name = format!("%3A{key}");
    lock_files(host.path())
        .into_iter()
        .find(|file| file.to_string_lossy().ends_with(&name))
        .expect("its file")
}

fn queued_at(host: &Host, key: &str, count: usize) {
    wait_until("the waiters are there", || {
        lock_files(host.path()).iter().any(|file| file.to_string_lossy().ends_with(&format!("%3A{key}")))
            && tickets_waiting(&file_of(host, key)) == count
    });
}

fn nothing_is_locked(host: &Host) {
    assert!(lock_files(host.path()).iter().all(|file| !is_locked(file)));
}

#[test]
fn crossed_orders_never_block_each_other() {
    let host = Host::new();
    for name in ["a", "b", "c"] {
        fs::write(host.beside(name), "0").unwrap();
    }
    let orders = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "b"], ["c", "a"], ["a", "c"]];
    let count = "for f in $REDLOCK_KEY; do n=$(cat $f); sleep 0.002; echo $((n + 1)) > $f; done";
    let jobs: Vec<Job> =
        (0..36).map(|i| keys(&host, &orders[i % 6]).dir(host.path()).sh(count).spawn()).collect();
    for job in jobs {
        job.wait().expect_code(0);
    }
    for name in ["a", "b", "c"] {
        assert_eq!(
            fs::read_to_string(host.beside(name)).unwrap().trim(),
            "24",
            "no update of {name} is lost"
        );
    }
    nothing_is_locked(&host);
}

#[test]
fn one_attempt_takes_all_or_leaves_nothing() {
    let host = Host::new();
    let holder = hold(host.run_on("b"));
    for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]] {
        let done = keys(&host, &order).arg("-n").sh("echo ran").done().expect_code(75);
        assert!(done.stderr.starts_with("redlock: \"b\" is held"), "{done:?}");
        assert!(is_free(&host, "a") && is_free(&host, "c"));
    }
    let retried = keys(&host, &["a", "b"]).args(&["--retries", "3", "--retry-interval", "10ms"]);
    retried.sh("echo ran").done().expect_code(75);
    assert!(is_free(&host, "a"));
    holder.wait().expect_code(0);
    let all = hold(keys(&host, &["c", "a", "b"]));
    assert!(["a", "b", "c"].iter().all(|key| !is_free(&host, key)));
    all.wait().expect_code(0);
    nothing_is_locked(&host);
}

#[test]
fn who_leaves_the_wait_for_one_key_frees_the_others() {
    let host = Host::new();
    let holder = hold(host.run_on("b"));
    for signal in [SIGKILL, SIGTERM] {
        let waiter = keys(&host, &["b", "a"]).sh("echo ran").spawn();
        queued_at(&host, "b", 1);
        waiter.signal(signal);
        assert_eq!(waiter.wait().stdout, "");
        queued_at(&host, "b", 0);
        wait_until("the other key is free", || is_free(&host, "a"));
    }
    let impatient = keys(&host, &["b", "a"]).args(&["-w", "0.2"]).sh("echo ran").done().expect_code(75);
    assert_eq!(impatient.stdout, "");
    assert!(is_free(&host, "a"));
    holder.wait().expect_code(0);
}

#[test]
fn a_stopped_waiter_for_two_keys_keeps_its_place_at_both() {
    let host = Host::new();
    let holder = hold(host.run_on("b"));
    let both = keys(&host, &["b", "a"]).dir(host.path()).sh("echo both >> order").spawn();
    queued_at(&host, "b", 1);
    both.signal(SIGSTOP);
    wait_until("it is stopped", || process_state(both.pid()) == Some('T'));
    let late = |key| {
        let job = host.run_on(key).dir(host.path()).sh("echo late >> order").spawn();
        queued_at(&host, key, if key == "b" { 2 } else { 1 });
        job
    };
    let late = [late("a"), late("b")];
    holder.wait().expect_code(0);
    assert!(!is_free(&host, "a") && !is_free(&host, "b"));
    both.signal(SIGCONT);
    both.wait().expect_code(0);
    for job in late {
        job.wait().expect_code(0);
    }
    assert_eq!(host.order(), ["both", "late", "late"]);
}

#[test]
fn what_the_command_learns_is_in_the_order_given() {
    let host = Host::new();
    // The fences of "a" are ahead of those of "b".
    let fence = |key: &str| {
        let done = host.run_on(key).sh("echo $REDLOCK_FENCE").done().expect_code(0);
        done.stdout.trim().parse::<u64>().unwrap()
    };
    let first = ["a", "b"].map(fence);
    let slot = hold(host.run_on("c").args(&["--slots", "2"]));
    for order in [["c", "d"], ["d", "c"]] {
        let run = keys(&host, &order).args(&["--slots", "2"]).sh("echo $REDLOCK_SLOT");
        let expected = if order[0] == "c" { "1 0\n" } else { "0 1\n" };
        assert_eq!(run.done().expect_code(0).stdout, expected);
    }
    slot.wait().expect_code(0);
    for order in [["a", "b"], ["b", "a"]] {
        let script = "printf '%s|' \"$REDLOCK_KEY\" \"$REDLOCK_FENCE\"";
        let done = keys(&host, &order).sh(script).done().expect_code(0);
        let words: Vec<&str> = done.stdout.split('|').collect();
        assert_eq!(words[0], order.join("\n"));
        let fences: Vec<u64> = words[1].split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(
            fences.len() == 2 && fences.iter().all(|fence| *fence > first[0].min(first[1])),
            "{fences:?}"
        );
    }
}

#[test]
fn with_wait_tree_the_command_keeps_all_of_them_open() {
    let host = Host::new();
    let script = "for fd in /proc/$$/fd/*; do readlink $fd; done | grep -c redlock-; exit 0";
    assert_eq!(keys(&host, &["b", "a"]).sh(script).done().expect_code(0).stdout, "0\n");
    let kept = keys(&host, &["b", "a"]).arg("--wait-tree").sh(script).done().expect_code(0);
    assert_eq!(kept.stdout, "2\n");
    // So a daemon keeps them all when redlock and its guardian are gone without a word.
    let script = "setsid sh -c 'echo daemon $$; exec sleep 300' & wait";
    let job = keys(&host, &["b", "a"]).arg("--wait-tree").sh(script).spawn();
    let daemon = Pid::from_raw(processes::pid_in(&job.wait_for_line("daemon")));
    let guardian = processes::guardian_of(job.pid());
    // In this order, or the one would stop the tree when the other is gone.
    job.signal(SIGSTOP);
    wait_until("it is stopped", || process_state(job.pid()) == Some('T'));
    kill(Pid::from_raw(guardian), SIGKILL).unwrap();
    wait_until("it is gone", || !alive(guardian));
    job.signal(SIGKILL);
    job.wait();
    assert!(alive(daemon.as_raw()) && !is_free(&host, "a") && !is_free(&host, "b"));
    kill(daemon, SIGKILL).unwrap();
    wait_until("free when the tree is gone", || is_free(&host, "a") && is_free(&host, "b"));
}

#[test]
fn a_killed_holder_frees_all_of_them() {
    let host = Host::new();
    let holder = hold(keys(&host, &["b", "a", "c"]));
    let waiters: Vec<Job> = ["a", "b", "c"].map(|key| host.run_on(key).cmd(&["true"]).spawn()).into();
    ["a", "b", "c"].iter().for_each(|key| queued_at(&host, key, 1));
    holder.signal(SIGKILL);
    for waiter in waiters {
        waiter.wait().expect_code(0);
    }
    nothing_is_locked(&host);
}

#[test]
fn a_run_inside_is_found_out_at_any_of_the_keys() {
    let host = Host::new();
    for inner in [["a", "x"], ["x", "b"], ["b", "a"]] {
        let inner = keys(&host, &inner).cmd(&["echo", "ran"]).shell_line();
        let outer = keys(&host, &["b", "a"]).sh(&format!("{inner}; echo inner=$?")).done();
        assert_eq!(outer.expect_code(0).stdout, "inner=64\n");
        assert!(is_free(&host, "x"));
    }
    let inner = keys(&host, &["x", "y"]).cmd(&["echo", "ran"]).shell_line();
    assert_eq!(keys(&host, &["b", "a"]).sh(&inner).done().expect_code(0).stdout, "ran\n");
}
