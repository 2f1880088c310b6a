//! Which process is watched, and that no other process is mistaken for it.

use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use nix::unistd::geteuid;

use super::{Watched, acquire, keeper, token, wait_until_free, wait_until_no_keeper};
use crate::support::processes::{is_installed, send};
use crate::support::{Backend, OtherUsers, Run, UNPRIVILEGED, hold, process_state, wait_until};

on_backends!(one_server, three_servers, this_host:
    a_missing_process_exits_64_and_takes_nothing,
    a_zombie_counts_as_a_missing_process,
    a_killed_process_frees_the_lock,
    a_process_that_exits_during_the_wait_ends_the_wait,
    the_calling_shell_is_watched_until_the_script_exits,
    the_script_is_watched_even_in_a_command_substitution,
    a_killed_script_frees_the_lock,
    a_forwarded_signal_leaves_the_lock_to_a_script_that_cleans_up,
);

fn watching(backend: &Backend, pid: i32) -> Run {
    acquire(backend).args(&["--watch-pid", &pid.to_string()])
}

#[track_caller]
fn assert_refused(backend: &Backend, pid: i32) {
    let done = watching(backend, pid).done().expect_code(64);
    assert!(done.stdout.is_empty() && done.stderr.contains(&pid.to_string()), "{done:?}");
    backend.all_free(&["k"]);
    wait_until_no_keeper(backend);
}

fn a_missing_process_exits_64_and_takes_nothing(backend: &Backend) {
    let watched = Watched::start();
    let pid = watched.pid();
    watched.end();
    assert_refused(backend, pid);
    assert_refused(backend, i32::MAX);
}

/// Reported while there is time to choose otherwise, and not in a log when the lock is lost.
#[test]
fn a_process_that_we_cannot_signal_is_refused_with_on_lost_stop() {
    let Some(users) = OtherUsers::new() else { skip!("only root can be another user") };
    let (backend, watched) = (Backend::one_server(), Watched::start());
    let as_stranger = |action: &str| {
        users.run(UNPRIVILEGED, watching(&backend, watched.pid()).args(&["--on-lost", action]), "077").done()
    };
    let done = as_stranger("stop").expect_code(77).expect_stderr(&["--on-lost", &watched.pid().to_string()]);
    assert!(done.stdout.is_empty(), "{done:?}");
    backend.all_free(&["k"]);
    as_stranger("warn").expect_code(0);
    watched.end();
    wait_until_free(&backend);
}

fn a_zombie_counts_as_a_missing_process(backend: &Backend) {
    let watched = Watched::start();
    send(watched.pid(), SIGKILL);
    wait_until("the process is a zombie", || process_state(watched.pid()) == Some('Z'));
    assert_refused(backend, watched.pid());
}

fn a_killed_process_frees_the_lock(backend: &Backend) {
    let watched = Watched::start();
    token(watching(backend, watched.pid()));
    keeper(backend);
    send(watched.pid(), SIGKILL); // not reaped: its exit is what counts
    wait_until_free(backend);
    wait_until_no_keeper(backend);
}

fn a_process_that_exits_during_the_wait_ends_the_wait(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let watched = Watched::start();
    let waiter = backend.waiter(watching(backend, watched.pid()), 1);
    watched.end();
    let done = waiter.wait();
    assert!(done.code != Some(0) && done.stdout.is_empty(), "{done:?}");
    backend.queued(0);
    holder.wait().expect_code(0);
    backend.all_free(&["k"]);
    wait_until_no_keeper(backend);
}

/// A script with redlock in "$@".
#[track_caller]
fn script(backend: &Backend, shell: &str, text: &str) {
    let job = acquire(backend).arg("--for-shell").through(&[shell, "-c", text, shell]).stdin_pipe().spawn();
    job.wait_for_line("locked");
    keeper(backend);
    assert!(!backend.is_free(), "{shell}: {text}");
    job.wait().expect_code(0);
    wait_until_free(backend);
    wait_until_no_keeper(backend);
}

fn the_calling_shell_is_watched_until_the_script_exits(backend: &Backend) {
    for shell in ["sh", "bash"] {
        script(backend, shell, r#""$@" >token && test -s token && echo locked; read x; true"#);
        // The token goes to the script's own output: a pipe that the caller of the script reads.
        script(backend, shell, r#""$@" && echo locked; read x; true"#);
    }
}

fn the_script_is_watched_even_in_a_command_substitution(backend: &Backend) {
    let simple = r#"token=$("$@"); sleep 0.3; echo "locked $token"; read x; true"#;
    let trapped = format!("trap 'true' EXIT; {simple}");
    let eval = r#"lock=$("$@" --shell) || exit; eval "$lock"; sleep 0.3; echo locked; read x; true"#;
    let piped = r#"token=$("$@" | cat); sleep 0.3; echo "locked $token"; read x; true"#;
    let function =
        r#"lock() { "$@"; true; }; token=$(lock "$@"); sleep 0.3; echo "locked $token"; read x; true"#;
    for shell in ["sh", "bash"] {
        for text in [simple, &trapped, eval, piped, function] {
            script(backend, shell, text);
        }
    }
}

fn a_killed_script_frees_the_lock(backend: &Backend) {
    let text = r#"token=$("$@" --watch-pid $$); echo locked; read x; true"#;
    let job = acquire(backend).via(text).stdin_pipe().spawn();
    job.wait_for_line("locked");
    keeper(backend);
    job.signal(SIGKILL);
    job.wait();
    wait_until_free(backend);
    wait_until_no_keeper(backend);
}

fn a_forwarded_signal_leaves_the_lock_to_a_script_that_cleans_up(backend: &Backend) {
    let acquire = acquire(backend).arg("--for-shell").shell_line();
    let script = format!(
        "trap 'echo cleaning; sleep 1; echo cleaned >> order; exit 0' TERM
        {acquire} >/dev/null; echo ready; sleep 60 & wait"
    );
    let outer = backend.run_on(&["outer"]).sh(&script);
    let outer = backend.variables().into_iter().fold(outer, |run, (name, value)| run.env(name, value));
    let job = outer.spawn();
    job.wait_for_line("ready");
    let next = backend.noting_waiter(backend.run(), "next", 1);
    job.signal(SIGTERM);
    job.wait_for_line("cleaning");
    next.wait().expect_code(0);
    assert_eq!(backend.order(), ["cleaned", "next"]);
    job.wait().expect_code(0);
    wait_until_no_keeper(backend);
}

/// While acquire waits, the process exits and another one gets its pid.
#[test]
fn another_process_with_the_same_pid_is_not_mistaken_for_the_watched_one() {
    if !geteuid().is_root() || !is_installed("unshare") {
        skip!("only root can make PID namespaces");
    }
    let backend = Backend::one_server();
    let holder = hold(backend.run_for_long());
    let script = r#"sleep 300 & first=$!
        "$@" --watch-pid $first >token 2>message & acquiring=$!
        until [ -e queued ]; do sleep 0.02; done
        kill -9 $first; wait $first 2>/dev/null
        for attempt in 1 2 3 4 5 6 7 8 9; do
            echo $((first - 1)) >/proc/sys/kernel/ns_last_pid; sleep 300 & second=$!
            [ $second -ne $first ] || break; kill -9 $second
        done
        [ $second -eq $first ] || { echo "no reuse: $first $second"; exit 9; }
        echo reused; wait $acquiring; echo "status $?"; read x"#;
    let namespace =
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script, "bash"];
    let job = acquire(&backend).through(&namespace).dir(backend.notes()).stdin_pipe().spawn();
    backend.queued(1);
    std::fs::write(backend.notes().join("queued"), "").unwrap();
    job.wait_for_line("reused");
    holder.wait().expect_code(0);
    let status = job.wait_for_line("status ");
    assert_ne!(
        status,
        "status 0",
        "{}",
        std::fs::read_to_string(backend.notes().join("message")).unwrap_or_default()
    );
    wait_until_free(&backend);
    job.wait();
}
