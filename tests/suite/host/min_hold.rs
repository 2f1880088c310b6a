//! --min-hold on this host: a note in the lock file, for the time after the holder has gone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};

use crate::support::host::is_locked;
use crate::support::{Host, Run, hold, processes, wait_until};

fn keeping(host: &Host, time: &str) -> Run {
    host.run().args(&["--min-hold", time])
}

/// The notes of the file: behind the header and 64 records of 1024 bytes, 32 bytes each.
const TABLE: u64 = 32 + 64 * 1024;

fn open(host: &Host) -> File {
    File::options().read(true).write(true).open(host.file()).unwrap()
}

fn refused(run: Run) {
    let done = run.arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(done.stdout, "");
}

#[test]
fn it_stays_taken_though_nothing_is_locked_and_says_why() {
    let host = Host::new();
    let started = Instant::now();
    keeping(&host, "50s").args(&["--label", "nightly"]).sh("exit 3").done().expect_code(3);
    assert!(started.elapsed() < Duration::from_secs(20), "it does not wait for it");
    assert!(!is_locked(&host.file()));
    let done = host.run().arg("-n").sh("echo ran").done().expect_code(75);
    done.expect_stderr(&["min-hold"]).expect_stderr(&["nightly"]);
    refused(host.run().arg("--shared"));
}

#[test]
fn a_killed_run_keeps_it_as_well() {
    let host = Host::new();
    let holder = hold(keeping(&host, "50s"));
    let mark = processes::mark();
    let waiter = host.waiter(host.run().env("TEST_MARK", &mark).sh("echo ran"), 1);
    holder.signal(SIGKILL);
    holder.wait();
    wait_until("nobody holds it", || host.run().arg("-n").cmd(&["true"]).done().stderr.contains("min-hold"));
    host.queued(1);
    // And its guardian's death changes nothing about that.
    refused(host.run());
    waiter.signal(SIGTERM);
    assert_eq!(waiter.wait().stdout, "");
    processes::wait_until_none_marked(&mark);
}

#[test]
fn a_stopped_waiter_keeps_its_place_over_the_end() {
    let host = Host::new();
    keeping(&host, "8s").cmd(&["true"]).done().expect_code(0);
    let sleeper = host.noting_waiter("sleeper", 1);
    let behind = host.noting_waiter("behind", 2);
    sleeper.stop();
    let kept = || host.run().arg("-n").cmd(&["true"]).done().expect_code(75).stderr.contains("min-hold");
    wait_until("it is over", || !kept());
    assert!(!host.is_free(), "free, but not for one who comes later");
    sleeper.signal(SIGCONT);
    sleeper.wait().expect_code(0);
    behind.wait().expect_code(0);
    assert_eq!(host.order(), ["sleeper", "behind"]);
}

#[test]
fn a_readers_place_and_a_slot_stay() {
    let host = Host::new();
    let group = |name: &str| host.run().args(&["--shared", "--reader-group", name]);
    group("a").args(&["--min-hold", "50s"]).cmd(&["true"]).done().expect_code(0);
    refused(host.run());
    refused(group("b"));
    let inside = hold(group("a"));
    let writer = host.waiter(host.run().sh("echo ran"), 1);
    inside.wait().expect_code(0);
    host.queued(1);
    refused(host.run().args(&["--prefer", "writers"]));
    group("a").args(&["--prefer", "readers", "-n"]).sh("exit 4").done().expect_code(4);
    drop(writer);
    // Three slots, of which two stay.
    let slots = |n: &str| host.run_on("s").args(&["--slots", n]);
    for expected in ["0\n", "1\n"] {
        let done = slots("3").args(&["--min-hold", "50s"]).sh("echo $REDLOCK_SLOT").done().expect_code(0);
        assert_eq!(done.stdout, expected);
    }
    assert_eq!(slots("3").sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout, "2\n");
    let last = hold(slots("3"));
    refused(slots("3"));
    slots("2").arg("-n").cmd(&["true"]).done().expect_code(78).expect_stderr(&["--slots 3"]);
    let waiter = slots("3").sh("echo $REDLOCK_SLOT").spawn();
    last.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "2\n");
}

#[test]
fn it_ends_with_a_reboot() {
    let host = Host::new();
    keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
    refused(host.run());
    let mut boot = [0; 8];
    open(&host).read_exact_at(&mut boot, TABLE + 8).unwrap();
    boot[0] ^= 1;
    open(&host).write_all_at(&boot, TABLE + 8).unwrap();
    assert!(host.is_free());
    // The note of another boot was in no way, and the next one is as good as the first.
    keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
    refused(host.run());
}

#[test]
fn nonsense_in_the_file_blocks_no_run() {
    let host = Host::new();
    for byte in [0x00, 0x01, 0x11, 0x21, 0x31, 0x7f, 0xff] {
        keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
        refused(host.run());
        open(&host).write_all_at(&vec![byte; 33_000], TABLE).unwrap();
        assert!(host.is_free(), "{byte}");
        // The head as well: now it tells of notes that are not there.
        open(&host).write_all_at(&[byte; 32], 0).unwrap();
        assert!(host.is_free(), "{byte}");
        open(&host).set_len(0).unwrap();
        assert!(host.is_free(), "{byte}");
    }
}
