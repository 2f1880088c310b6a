//! A machine that slept past the lease: CLOCK_BOOTTIME has jumped, CLOCK_MONOTONIC has not. Staged with a
//! preloaded clock_gettime.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{Redis, Run};

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

fn shim(directory: &std::path::Path) -> PathBuf {
    let (source, library) = (directory.join("shim.c"), directory.join("shim.so"));
    std::fs::write(&source, SHIM).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("cc, which cargo needs too").success());
    library
}

#[test]
fn after_a_suspend_nothing_is_renewed_and_the_command_is_stopped() {
    let redis = Redis::start();
    // The server knows the scripts: each call is one command.
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let directory = tempfile::tempdir().unwrap();
    let suspended = directory.path().join("suspended");
    let job = Run::key(&redis, "k")
        .args(&["--ttl", "6s"])
        .env("LD_PRELOAD", shim(directory.path()))
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
    assert!(scripts.iter().any(|commands| commands.contains("del")), "it was released: {scripts:?}");
}
