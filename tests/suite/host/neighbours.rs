//! Other users of this host: they can reach no process of ours, and what they do to a lock file
//! misleads none.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::support::{Host, OtherUsers, Run, UNPRIVILEGED, descendants, hold, wait_until};

/// The token of `redlock acquire`, and its keeper, which ends with this test's process at the
/// latest.
fn acquire(host: &Host, args: &[&str]) -> (String, i32) {
    let us = std::process::id().to_string();
    let run = host.subcommand("acquire").args(&["--local", "--key", "k", "--json"]).args(args);
    let run = if args.is_empty() { run.args(&["--watch-pid", &us]) } else { run };
    let granted = run.done().expect_code(0).json();
    let keeper = granted["keeper"].as_i64().unwrap_or_else(|| panic!("no keeper in {granted}"));
    (granted["token"].as_str().expect("a token").to_owned(), keeper as i32)
}

fn with_token(host: &Host, command: &str, token: &str) -> Run {
    host.subcommand(command).args(&["k", "--token", token])
}

/// The sockets of a process to which others can connect: those with a name.
fn named_sockets(pid: i32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors").flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inodes: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let all = fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    let named = all.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, _, inode, name, ..] = words[..] else { return None };
        inodes.iter().any(|ours| ours == inode).then(|| name.to_owned())
    });
    named.collect()
}

#[test]
fn no_user_can_connect_to_a_run_or_a_keeper() {
    let host = Host::new();
    let job = hold(host.run_on("j"));
    let (token, keeper) = acquire(&host, &[]);
    let mut processes = descendants(job.pid());
    processes.extend([job.pid(), keeper]);
    for pid in processes {
        assert_eq!(named_sockets(pid), Vec::<String>::new(), "of process {pid}");
    }
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(0);
}

#[test]
fn another_user_cannot_open_the_files_of_a_guardian_or_a_keeper() {
    let Some(_) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let job = hold(host.run_on("j"));
    let (token, keeper) = acquire(&host, &[]);
    let id = UNPRIVILEGED.to_string();
    for pid in [descendants(job.pid())[0], keeper] {
        let mut stranger = Command::new("setpriv");
        stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "ls"]);
        let output = stranger.arg(format!("/proc/{pid}/fd")).output().expect("setpriv");
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(0);
}

/// Any user of the directory can write into the file.
fn forge(host: &Host, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let file = OpenOptions::new().read(true).write(true).open(host.file()).expect("the lock file");
    let mut bytes = vec![0; 128 * 1024];
    let read = file.read_at(&mut bytes, 0).expect("the lock file");
    let text = bytes[..read].windows(from.len()).position(|window| window == from.as_bytes());
    let at = text.unwrap_or_else(|| panic!("no {from:?} in the file"));
    file.write_all_at(to.as_bytes(), at as u64).expect("the lock file");
}

#[test]
fn a_forged_record_does_not_separate_a_token_from_its_keeper() {
    let host = Host::new();
    let (token, _) = acquire(&host, &["--ttl", "60s"]);
    let token = token.as_str();
    let other = format!("{}{}", if token.starts_with('0') { '1' } else { '0' }, &token[1..]);
    forge(&host, token, &other);
    forge(&host, "protocol\x001\0", "protocol\x003\0");
    with_token(&host, "extend", token).args(&["--ttl", "60s"]).done().expect_code(0);
    with_token(&host, "release", token).done().expect_code(0);
    wait_until("the lock is free", || host.is_free());
}

#[test]
fn a_forged_record_does_not_separate_a_token_from_its_run() {
    let host = Host::new();
    let job = host.run().sh("echo \"token $REDLOCK_TOKEN\"; exec sleep 60").spawn();
    let token = job.wait_for_line("token ").replace("token ", "");
    let other = format!("{}{}", if token.starts_with('0') { '1' } else { '0' }, &token[1..]);
    forge(&host, &token, &other);
    forge(&host, "protocol\x001\0", "protocol\x003\0");
    let is_owned = |token: &str| host.subcommand("status").args(&["k", "--check", "owned", "--token", token]);
    is_owned(&token).done().expect_code(0);
    is_owned(&other).done().expect_code(1);
    with_token(&host, "extend", &token).args(&["--ttl", "60s"]).done().expect_code(0);
    with_token(&host, "release", &other).done().expect_code(79);
    with_token(&host, "release", &token).done().expect_code(0);
    job.wait().expect_code(79);
    is_owned(&token).done().expect_code(1);
}

/// A user who may write to a file may also link it.
#[test]
fn a_link_that_another_user_makes_locks_no_run_out() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let job = hold(host.run());
    let id = UNPRIVILEGED.to_string();
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "ln"]).arg(host.file());
    assert!(stranger.arg(host.beside("link")).status().expect("setpriv").success());
    for run in [host.run(), users.run(UNPRIVILEGED, host.run(), "022")] {
        run.arg("-n").sh("echo ran").done().expect_code(75);
    }
    job.wait().expect_code(0);
    for run in [host.run(), users.run(UNPRIVILEGED, host.run(), "022")] {
        assert_eq!(run.arg("-n").sh("echo ran").done().expect_code(0).stdout, "ran\n");
    }
}

#[test]
fn two_names_of_one_lock_file_are_not_two_locks() {
    let host = Host::with_mode(0o1777);
    assert!(host.is_free());
    fs::hard_link(host.file(), host.beside("redlock-lock%3Aj")).unwrap();
    let done = host.run().args(&["--key", "j"]).sh("echo ran").done().expect_code(77);
    assert!(done.stderr.contains("another name of a file"), "{done:?}");
}

/// The run takes longer to stop than the client waits.
#[test]
fn advice_names_the_process_that_holds_the_lock_whatever_its_record_says() {
    let host = Host::new();
    let script = "trap '' TERM; echo \"token $REDLOCK_TOKEN\"; while :; do sleep 0.05; done";
    let job = host.run().args(&["--kill-after", "60s"]).sh(script).spawn();
    let token = job.wait_for_line("token ").replace("token ", "");
    let pid = format!("pid\0{}\0", job.pid());
    forge(&host, &pid, &format!("pid\0{:0>1$}\0", 1, pid.len() - 5));
    let status = host.subcommand("status").args(&["k", "--json"]).done().expect_code(0);
    assert_eq!(status.json()["holders"][0]["pid"], 1, "the record is forged: {status:?}");
    let done = with_token(&host, "release", &token).done().expect_code(69);
    assert!(done.stderr.contains(&format!("kill -9 {} ends it", job.pid())), "{done:?}");
}
