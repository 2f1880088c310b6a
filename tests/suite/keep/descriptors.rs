//! Requirements of `token=$(redlock acquire ...)` in a shell: it returns at once, and nothing stays
//! open.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Watched, acquire, keeper, keepers, release, wait_until_free, wait_until_no_keeper};
use crate::support::{Backend, hold, session};

on_backends!(one_server, three_servers, this_host:
    a_command_substitution_returns_although_a_keeper_stays,
    a_closed_stdout_releases_the_lock,
    a_full_disk_under_stdout_releases_the_lock,
    a_reader_of_stdout_that_is_gone_releases_the_lock,
    the_keeper_has_a_session_and_no_descriptor_of_its_caller,
);

fn a_command_substitution_returns_although_a_keeper_stays(backend: &Backend) {
    let script = r#"token=$("$@" --watch-pid $$); echo "got $token"; read x"#;
    let job = acquire(backend).via(script).stdin_pipe().spawn();
    let began = Instant::now();
    let line = job.wait_for_line("got ");
    assert!(line.len() > "got ".len(), "{line}");
    assert!(began.elapsed() < Duration::from_secs(15));
    keeper(backend);
    job.wait();
    wait_until_free(backend);
    wait_until_no_keeper(backend);
}

#[track_caller]
fn assert_releases(backend: &Backend, redirection: &str) {
    for more in [&[][..], &["--watch-pid", "1"]] {
        let script = format!("\"$@\" {redirection}");
        let done = acquire(backend).args(more).via(&script).done();
        assert!(!matches!(done.code, Some(0) | None), "{done:?}");
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        backend.all_free(&["k"]);
        wait_until_no_keeper(backend);
    }
}

fn a_closed_stdout_releases_the_lock(backend: &Backend) {
    assert_releases(backend, ">&-");
}

fn a_full_disk_under_stdout_releases_the_lock(backend: &Backend) {
    assert_releases(backend, ">/dev/full");
}

fn a_reader_of_stdout_that_is_gone_releases_the_lock(backend: &Backend) {
    let holder = hold(backend.run_for_long());
    let mut command = acquire(backend).command();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    backend.queued(1);
    drop(child.stdout.take());
    holder.wait().expect_code(0);
    assert!(!child.wait().unwrap().success());
    backend.all_free(&["k"]);
    wait_until_no_keeper(backend);
}

fn the_keeper_has_a_session_and_no_descriptor_of_its_caller(backend: &Backend) {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let script =
        format!(r#"cd "{}"; exec 7>kept 8<&0; "$@"; echo status $?; read x"#, directory.path().display());
    let watched = Watched::start();
    let job = acquire(backend).args(&["--watch-pid", &watched.pid().to_string()]).via(&script);
    let job = job.stdin_pipe().spawn();
    job.wait_for_line("status 0");
    let keeper = keeper(backend);
    let callers = open_files(job.pid());
    assert!(callers.contains(&kept), "{callers:?}");
    let both: Vec<PathBuf> = open_files(keeper).into_iter().filter(|file| callers.contains(file)).collect();
    assert_eq!(both, Vec::<PathBuf>::new());
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).unwrap().to_str(), Some("/"));
    assert_ne!(session(keeper), session(job.pid()));
    let token = job.wait().stdout;
    assert_eq!(keepers(backend), [keeper], "its caller has exited, its watched process has not");
    let token = token.lines().next().unwrap();
    release(backend, token).done().expect_code(0);
    wait_until_no_keeper(backend);
}

/// The targets of a process's descriptors, except /dev/null.
fn open_files(pid: i32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("a living process");
    let files = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    files.filter(|file| file.to_str() != Some("/dev/null")).collect()
}
