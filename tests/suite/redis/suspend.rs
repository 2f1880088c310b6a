//! A machine that was suspended past the lease: CLOCK_BOOTTIME has jumped, CLOCK_MONOTONIC has not.
//! Simulated with a preloaded clock_gettime.

use crate::support::{Redis, Run, preload};

/// The boot-time clock jumps by an hour once the file named in SUSPENDED exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    const char *suspended = getenv("SUSPENDED");
    if (result == 0 && clock == CLOCK_BOOTTIME && suspended && access(suspended, F_OK) == 0)
        time->tv_sec += 3600;
    return result;
}
"#;

#[test]
fn a_suspend_stops_the_command_and_the_lease_is_not_renewed() {
    let redis = Redis::start();
    // The server has loaded the scripts: each call is one command.
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let directory = tempfile::tempdir().unwrap();
    let suspended = directory.path().join("suspended");
    let job = Run::key(&redis, "k")
        .args(&["--ttl", "6s"])
        .env("LD_PRELOAD", preload::library("suspend", SHIM))
        .env("SUSPENDED", &suspended)
        .sh("echo ready; exec sleep 60")
        .spawn();
    job.wait_for_line("ready");
    std::fs::write(&suspended, "").unwrap();
    let (scripts, done) = redis.script_commands(|| job.wait());
    assert_eq!(done.code, Some(79), "{done:?}");
    assert!(done.stderr.contains("lost"), "{done:?}");
    assert_eq!(redis.cmd(&["EXISTS", "lock:k"]), "0");
    let renewals =
        scripts.iter().filter(|commands| commands.contains("pexpire") && !commands.contains("del"));
    assert_eq!(renewals.count(), 0, "{scripts:?}");
    assert!(scripts.iter().any(|commands| commands.contains("del")), "the lock was released: {scripts:?}");
}
