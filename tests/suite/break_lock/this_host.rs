//! On this host a signal asks the holder to stop; only its user and root can send it, and it means
//! nothing by itself.

use nix::libc;

use crate::support::{
    Host, OtherUsers, REPORT_SURVIVORS, Run, STUBBORN_TREE, TREE, UNPRIVILEGED, alive, hold, tree_of,
    wait_until,
};

fn break_on(host: &Host) -> Run {
    Run::bare().args(&["break", "--local-dir"]).arg(host.path()).arg("k")
}

/// The number of the signal, as in src/child/lock_holder.rs.
const ASK: i32 = 50;

#[test]
fn now_kills_the_command_before_the_lock_is_free() {
    let host = Host::new();
    let job = host.run().args(&["--kill-after", "10m", "--on-lost", "warn"]).sh(STUBBORN_TREE).spawn();
    let tree: Vec<String> = tree_of(&job).iter().map(i32::to_string).collect();
    let next = host.run().env("TREE", tree.join(" ")).sh(REPORT_SURVIVORS).spawn();
    host.queued(1);
    let done = break_on(&host).args(&["--yes", "--now"]).done().expect_code(0);
    assert!(done.stdout.contains("its command was stopped"), "{done:?}");
    let broken = job.wait().expect_code(79);
    assert!(
        broken.stderr.contains("broken by ") && broken.stderr.contains("stopping the command"),
        "{broken:?}"
    );
    assert_eq!(next.wait().expect_code(0).stdout, "looked\n");
}

#[test]
fn a_command_with_on_lost_warn_keeps_the_lock_until_it_exits() {
    let host = Host::new();
    let job = hold(host.run().args(&["--on-lost", "warn"]));
    let done = break_on(&host).args(&["--yes", "-w", "300ms"]).done().expect_code(75);
    assert!(done.stderr.contains("--now kills its command"), "{done:?}");
    job.wait_for_stderr("broken by ");
    assert!(!host.run().try_acquire());
    job.wait().expect_code(0);
    assert!(host.run().try_acquire());
}

#[test]
fn a_stopped_holder_is_continued_and_stops_its_command() {
    let host = Host::new();
    let job = host.run().sh(TREE).spawn();
    let tree = tree_of(&job);
    job.stop();
    break_on(&host).arg("--yes").done().expect_code(0);
    job.wait().expect_code(79);
    assert!(!tree.iter().any(|pid| alive(*pid)), "{tree:?}");
}

#[test]
fn a_stray_signal_has_no_effect() {
    let host = Host::new();
    let mut job = hold(host.run());
    // SAFETY: sends a signal to a process of ours.
    assert_eq!(unsafe { libc::kill(job.pid(), ASK) }, 0);
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(1) };
    // SAFETY: the same.
    assert_eq!(unsafe { libc::sigqueue(job.pid(), ASK, value) }, 0);
    wait_until("both signals were read", || pending(job.pid()) & (1 << (ASK - 1)) == 0);
    assert!(job.is_running());
    job.wait().expect_code(0);
}

/// The pending signals of a process.
fn pending(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).expect("a mask")
}

/// On a hardened host (/proc with hidepid=2) other users' processes are not visible.
fn names_another_user(message: &str) -> bool {
    ["only that user or root", "not visible from here: does it belong to another user"]
        .iter()
        .any(|part| message.contains(part))
}

#[test]
fn another_users_lock_is_not_broken() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let job = hold(host.run());
    let done = users.run(UNPRIVILEGED, break_on(&host).arg("--yes"), "022").done().expect_code(77);
    assert!(names_another_user(&done.stderr), "{done:?}");
    assert!(!host.run().try_acquire());
    job.wait().expect_code(0);
}

/// Holders that we may signal are stopped, and the message names the one that was not.
#[test]
fn only_our_own_one_of_several_users_locks_is_broken() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    let reader = || host.run().arg("--shared");
    let roots = hold(reader());
    let theirs = hold(users.run(UNPRIVILEGED, reader(), "022"));
    let done = users.run(UNPRIVILEGED, break_on(&host).arg("--yes"), "022").done().expect_code(77);
    assert!(done.stdout.contains("its command was stopped"), "{done:?}");
    assert!(done.stderr.contains("\"k\" stays held by ") && names_another_user(&done.stderr), "{done:?}");
    theirs.wait().expect_code(79);
    roots.wait().expect_code(0);
}

#[test]
fn a_lock_kept_by_a_minimum_hold_alone_is_freed() {
    let host = Host::new();
    host.run().args(&["--min-hold", "10m"]).cmd(&["true"]).done().expect_code(0);
    assert!(!host.run().try_acquire());
    let done = break_on(&host).arg("--yes").done().expect_code(0);
    assert!(done.stdout.contains("no longer kept by --min-hold"), "{done:?}");
    assert!(host.run().try_acquire());
}

#[test]
fn one_slot_is_broken_and_the_others_stay() {
    let host = Host::new();
    let mut jobs: Vec<_> = (0..2).map(|_| hold(host.run().args(&["--slots", "2"]))).collect();
    break_on(&host).args(&["--yes", "--slot", "0"]).done().expect_code(0);
    jobs.remove(0).wait().expect_code(79);
    assert!(jobs[0].is_running());
    jobs.remove(0).wait().expect_code(0);
}

#[test]
fn an_unused_lock_is_free_and_no_file_is_created() {
    let host = Host::new();
    assert_eq!(break_on(&host).arg("--yes").done().expect_code(0).stdout, "\"k\" is free\n");
    assert_eq!(std::fs::read_dir(host.path()).expect("the directory").count(), 0);
}

/// With --wait-tree the command has the file open, too: it is not the process to signal.
#[test]
fn a_command_that_inherited_the_lock_is_stopped_by_its_redlock() {
    let host = Host::new();
    let job = host.run().arg("--wait-tree").sh(TREE).spawn();
    let tree = tree_of(&job);
    break_on(&host).args(&["--yes", "-w", "20s"]).done().expect_code(0);
    job.wait().expect_code(79);
    assert!(!tree.iter().any(|pid| alive(*pid)), "{tree:?}");
}
