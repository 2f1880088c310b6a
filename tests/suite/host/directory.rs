//! The lock directory: any key, foreign files in it, several users.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::host::lock_files;
use crate::support::run::os;
use crate::support::{Host, OtherUsers, Run, UNPRIVILEGED, hold, refused};

#[test]
fn keys_can_be_any_bytes_and_different_keys_never_collide() {
    let host = Host::new();
    let long = |last: &str| OsString::from(format!("{}{last}", "x".repeat(1023)));
    let mut keys: Vec<OsString> = [
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a_b",
        "..",
        ".",
        "../k",
        "/etc/passwd",
        " ",
        "a b",
        "a\nb",
        "k",
        "K",
        "lock:k",
    ]
    .map(OsString::from)
    .to_vec();
    keys.extend([os(b"\xff\xfe"), os(b"\xff"), os("\u{fffd}".as_bytes()), os(b"\x01")]);
    keys.extend([long("y"), long("z"), OsString::from("x".repeat(100)), OsString::from("/".repeat(1024))]);
    let holders: Vec<_> = keys.iter().map(|key| hold(host.run_on(key).arg("-n"))).collect();
    for key in &keys {
        host.run_on(key).arg("-n").cmd(&["true"]).done().expect_code(75);
    }
    assert_eq!(lock_files(host.path()).len(), keys.len(), "all of them in the directory");
    for holder in holders {
        holder.wait().expect_code(0);
    }
}

#[test]
fn a_key_that_is_empty_or_longer_than_1024_bytes_is_refused() {
    let host = Host::new();
    for key in ["x".repeat(1025), "x".repeat(5000), String::new()] {
        refused(host.run_on(key), 64, &["key"]);
    }
    assert_eq!(lock_files(host.path()).len(), 0);
}

#[test]
fn different_directories_are_different_locks_and_the_variable_selects_one() {
    let (one, other) = (Host::new(), Host::new());
    let first = hold(one.run());
    assert!(other.is_free());
    let by_variable =
        Run::bare().env("REDLOCK_LOCAL_DIR", one.path()).args(&["run", "--local", "-n", "-k", "k"]);
    by_variable.cmd(&["true"]).done().expect_code(75);
    first.wait().expect_code(0);
}

/// Something else takes the place of the lock file of "k". It must be refused, and stay untouched.
fn assert_refused_if_planted(plant: impl FnOnce(&Path)) {
    let host = Host::new();
    assert!(host.is_free());
    let name = host.file();
    fs::remove_file(&name).unwrap();
    plant(&name);
    let before = fs::symlink_metadata(&name).unwrap();
    refused(host.run(), 77, &["redlock-"]);
    refused(host.run().arg("-n"), 77, &["redlock-"]);
    let after = fs::symlink_metadata(&name).unwrap();
    assert_eq!((before.ino(), before.mode(), before.len()), (after.ino(), after.mode(), after.len()));
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let elsewhere = tempfile::tempdir().unwrap();
    let precious = elsewhere.path().join("precious");
    fs::write(&precious, "data").unwrap();
    assert_refused_if_planted(|name| symlink(&precious, name).unwrap());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "data");
    let nothing = elsewhere.path().join("nothing");
    assert_refused_if_planted(|name| symlink(&nothing, name).unwrap());
    assert!(!nothing.exists(), "nothing is created at the link's target");
    assert_refused_if_planted(|name| symlink(name, name).unwrap());
}

#[test]
fn a_hard_link_is_refused_and_its_other_name_untouched() {
    let elsewhere = tempfile::tempdir().unwrap();
    let precious = elsewhere.path().join("precious");
    fs::write(&precious, "data").unwrap();
    assert_refused_if_planted(|name| fs::hard_link(&precious, name).unwrap());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "data");
}

#[test]
fn a_fifo_is_refused_without_waiting_for_its_other_end() {
    assert_refused_if_planted(|name| mkfifo(name, Mode::from_bits_truncate(0o666)).unwrap());
}

#[test]
fn a_directory_in_place_of_the_lock_file_is_refused() {
    assert_refused_if_planted(|name| fs::create_dir(name).unwrap());
}

#[test]
fn a_socket_is_refused() {
    assert_refused_if_planted(|name| drop(UnixListener::bind(name).unwrap()));
}

#[test]
fn a_directory_where_every_user_may_delete_is_refused() {
    let host = Host::with_mode(0o777);
    refused(host.run(), 78, &["sticky"]);
    assert_eq!(lock_files(host.path()).len(), 0);
    assert!(Host::with_mode(0o1777).is_free());
}

#[test]
fn a_missing_directory_and_a_file_in_its_place_are_refused() {
    let host = Host::new();
    fs::write(host.beside("file"), "").unwrap();
    for name in ["missing", "missing/deeper", "file"] {
        let run = Run::bare().args(&["run", "--local", "--key", "k", "--local-dir"]).arg(host.beside(name));
        refused(run, 78, &["directory"]);
    }
    assert!(!host.beside("missing").exists());
}

/// 0666 whatever the umask, since all users of the directory must be able to use it.
fn every_user_may_use(file: &Path) -> bool {
    fs::metadata(file).unwrap().mode() & 0o7777 == 0o666
}

#[test]
fn a_lock_file_in_a_private_directory_is_private() {
    let host = Host::with_mode(0o700);
    host.run().via("umask 0; exec \"$@\"").cmd(&["true"]).done().expect_code(0);
    assert_eq!(fs::metadata(host.file()).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn two_users_take_turns_in_either_order() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    for stranger_first in [false, true] {
        let host = Host::with_mode(0o1777);
        let ours = || host.run().via("umask 077; exec \"$@\"");
        let theirs = users.run(UNPRIVILEGED, host.run(), "077");
        let (one, other) = if stranger_first { (theirs, ours()) } else { (ours(), theirs) };
        let holder = hold(one.clone());
        assert!(every_user_may_use(&host.file()));
        other.clone().arg("-n").sh("echo ran").done().expect_code(75);
        let waiter = host.waiter(other.clone().sh("exit 4"), 1);
        holder.wait().expect_code(0);
        waiter.wait().expect_code(4);
        let holder = hold(other);
        let waiter = host.waiter(one.sh("exit 5"), 1);
        holder.wait().expect_code(0);
        waiter.wait().expect_code(5);
    }
}

#[test]
fn two_users_who_create_a_key_at_once_are_both_served() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    for round in 0..40 {
        let run = || host.run_on(format!("new-{round}"));
        let theirs = users.run(UNPRIVILEGED, run(), "077");
        let both = [run().via("umask 077; exec \"$@\""), theirs];
        for job in both.map(|run| run.cmd(&["true"]).spawn()) {
            job.wait().expect_code(0);
        }
    }
}

#[test]
fn a_user_cannot_delete_or_replace_another_users_lock() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o1777);
    for owner in [0, 65533] {
        let first = hold(users.run(owner, host.run_on(format!("of {owner}")), "022"));
        let file =
            lock_files(host.path()).into_iter().find(|f| f.to_string_lossy().contains(&owner.to_string()));
        let file = file.expect("the lock file");
        let inode = fs::metadata(&file).unwrap().ino();
        let id = UNPRIVILEGED.to_string();
        for action in ["rm -f \"$1\"", "mv -f \"$1\" \"$1.away\"", "touch new && mv -f new \"$1\""] {
            let mut stranger = Command::new("setpriv");
            stranger.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", action, "sh"]);
            let output = stranger.arg(&file).current_dir(host.path()).output().unwrap();
            assert!(!output.status.success(), "{action}: {output:?}");
        }
        assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
        first.wait().expect_code(0);
    }
}

#[test]
fn a_missing_permission_on_a_lock_file_is_reported() {
    let Some(users) = OtherUsers::new() else { skip!("only root can act as another user") };
    let host = Host::with_mode(0o755);
    assert!(host.is_free());
    refused(users.run(UNPRIVILEGED, host.run(), "022"), 77, &["permission"]);
    refused(users.run(UNPRIVILEGED, host.run_on("new"), "022"), 77, &["permission"]);
}

#[test]
fn a_read_only_directory_is_reported_with_advice() {
    let host = Host::new();
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let unshared =
        Command::new("unshare").args(["-m", "sh", "-c", script]).arg(host.path()).arg("true").status();
    if !unshared.is_ok_and(|status| status.success()) {
        skip!("only root can mount a directory read-only");
    }
    let directory = host.path().to_str().unwrap();
    let run = host.run().through(&["unshare", "-m", "sh", "-c", script, directory]);
    let done = run.sh("echo ran").done().expect_code(77);
    assert_eq!(done.stdout, "");
    for part in [directory, "read-only", "--local-dir", "ReadWritePaths="] {
        assert!(done.stderr.contains(part), "{part:?} is missing in {:?}", done.stderr);
    }
}

/// As systemd does for a service with PrivateTmp.
#[test]
fn a_private_tmp_causes_a_warning() {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let private = outside.path().join("systemd-private-0-x.service-0/tmp");
    fs::create_dir_all(&private).unwrap();
    // The program itself may be below /tmp, so it is opened before /tmp is covered.
    let script = "chmod 1777 \"$0\" && exec 9<\"$1\" && shift && mount --bind \"$0\" /tmp && exec /proc/self/fd/9 \"$@\"";
    let unshared =
        Command::new("unshare").args(["-m", "sh", "-c", script]).arg(&private).arg("/bin/true").status();
    if !unshared.is_ok_and(|status| status.success()) {
        skip!("only root can have a mount namespace");
    }
    let run = Run::bare().args(&["run", "--key", "k", "--local-dir", "/tmp"]).through(&[
        "unshare",
        "-m",
        "sh",
        "-c",
        script,
        private.to_str().unwrap(),
    ]);
    let done = run.sh("exit 3").done().expect_code(3);
    assert!(done.stderr.contains("/tmp is private to this service"), "{done:?}");
}
