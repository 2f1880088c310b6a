//! --min-hold on this host: a reservation in the lock file, for the time after the holder has
//! exited.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGTERM};

use crate::support::host::is_locked;
use crate::support::{Host, Run, hold, processes, wait_until};

fn keeping(host: &Host, time: &str) -> Run {
    host.run().args(&["--min-hold", time])
}

/// The reservations in the file: after the header and 64 records of 1024 bytes, 32 bytes each.
const TABLE: u64 = 32 + 64 * 1024;

fn open(host: &Host) -> File {
    File::options().read(true).write(true).open(host.file()).unwrap()
}

fn assert_refused(run: Run) {
    let done = run.arg("-n").sh("echo ran").done().expect_code(75);
    assert_eq!(done.stdout, "");
}

#[test]
fn the_lock_stays_taken_without_a_locked_byte_and_the_reason_is_reported() {
    let host = Host::new();
    let started = Instant::now();
    keeping(&host, "50s").args(&["--label", "nightly"]).sh("exit 3").done().expect_code(3);
    assert!(started.elapsed() < Duration::from_secs(20), "redlock does not wait for the reservation");
    assert!(!is_locked(&host.file()));
    let done = host.run().arg("-n").sh("echo ran").done().expect_code(75);
    done.expect_stderr(&["min-hold"]).expect_stderr(&["nightly"]);
    assert_refused(host.run().arg("--shared"));
}

#[test]
fn a_killed_run_keeps_the_lock() {
    let host = Host::new();
    let holder = hold(keeping(&host, "50s"));
    let mark = processes::mark();
    let waiter = host.waiter(host.run().env("TEST_MARK", &mark).sh("echo ran"), 1);
    holder.signal(SIGKILL);
    holder.wait();
    wait_until("no process holds the lock", || {
        host.run().arg("-n").cmd(&["true"]).done().stderr.contains("min-hold")
    });
    host.queued(1);
    // The guardian's death does not change that.
    assert_refused(host.run());
    waiter.signal(SIGTERM);
    assert_eq!(waiter.wait().stdout, "");
    processes::wait_until_none_marked(&mark);
}

#[test]
fn a_stopped_waiter_keeps_its_place_after_the_reservation_ends() {
    let host = Host::new();
    keeping(&host, "8s").cmd(&["true"]).done().expect_code(0);
    let sleeper = host.noting_waiter("sleeper", 1);
    let behind = host.noting_waiter("behind", 2);
    sleeper.stop();
    let kept = || host.run().arg("-n").cmd(&["true"]).done().expect_code(75).stderr.contains("min-hold");
    wait_until("the reservation has ended", || !kept());
    assert!(!host.is_free(), "the lock is free, but not for a newcomer");
    sleeper.signal(SIGCONT);
    sleeper.wait().expect_code(0);
    behind.wait().expect_code(0);
    assert_eq!(host.order(), ["sleeper", "behind"]);
}

#[test]
fn a_readers_place_and_a_slot_stay_reserved() {
    let host = Host::new();
    let group = |name: &str| host.run().args(&["--shared", "--reader-group", name]);
    group("a").args(&["--min-hold", "50s"]).cmd(&["true"]).done().expect_code(0);
    assert_refused(host.run());
    assert_refused(group("b"));
    let inside = hold(group("a"));
    let writer = host.waiter(host.run().sh("echo ran"), 1);
    inside.wait().expect_code(0);
    host.queued(1);
    assert_refused(host.run().args(&["--prefer", "writers"]));
    group("a").args(&["--prefer", "readers", "-n"]).sh("exit 4").done().expect_code(4);
    drop(writer);
    // Three slots, of which two stay reserved.
    let slots = |n: &str| host.run_on("s").args(&["--slots", n]);
    for expected in ["0\n", "1\n"] {
        let done = slots("3").args(&["--min-hold", "50s"]).sh("echo $REDLOCK_SLOT").done().expect_code(0);
        assert_eq!(done.stdout, expected);
    }
    assert_eq!(slots("3").sh("echo $REDLOCK_SLOT").done().expect_code(0).stdout, "2\n");
    let last = hold(slots("3"));
    assert_refused(slots("3"));
    slots("2").arg("-n").cmd(&["true"]).done().expect_code(78).expect_stderr(&["--slots 3"]);
    let waiter = slots("3").sh("echo $REDLOCK_SLOT").spawn();
    last.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "2\n");
}

#[test]
fn a_reservation_ends_with_a_reboot() {
    let host = Host::new();
    keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
    assert_refused(host.run());
    let mut boot = [0; 8];
    open(&host).read_exact_at(&mut boot, TABLE + 8).unwrap();
    boot[0] ^= 1;
    open(&host).write_all_at(&boot, TABLE + 8).unwrap();
    assert!(host.is_free());
    // The reservation of another boot blocked nothing, and the next one works.
    keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
    assert_refused(host.run());
}

#[test]
fn garbage_in_the_file_blocks_no_run() {
    let host = Host::new();
    for byte in [0x00, 0x01, 0x11, 0x21, 0x31, 0x7f, 0xff] {
        keeping(&host, "50s").cmd(&["true"]).done().expect_code(0);
        assert_refused(host.run());
        open(&host).write_all_at(&vec![byte; 33_000], TABLE).unwrap();
        assert!(host.is_free(), "{byte}");
        // The header as well: it now counts reservations that do not exist.
        open(&host).write_all_at(&[byte; 32], 0).unwrap();
        assert!(host.is_free(), "{byte}");
        open(&host).set_len(0).unwrap();
        assert!(host.is_free(), "{byte}");
    }
}
