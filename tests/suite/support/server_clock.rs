//! A server whose wall clock can be set forward and back while it runs.

use std::fs;
use std::path::PathBuf;

use super::{Redis, preload};

/// Adds the milliseconds in the file CLOCK_OFFSET to the time. The file is mapped into memory,
/// since redis-server reads the clock often.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *offset;
__attribute__((constructor)) static void map(void) {
    const char *file = getenv("CLOCK_OFFSET");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    close(fd);
}
static void add(struct timespec *time) {
    int64_t ms = offset ? *offset : 0;
    time->tv_sec += ms / 1000;
    time->tv_nsec += ms % 1000 * 1000000;
    if (time->tv_nsec < 0) time->tv_nsec += 1000000000, time->tv_sec--;
    if (time->tv_nsec >= 1000000000) time->tv_nsec -= 1000000000, time->tv_sec++;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) add(time);
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"#;

/// The clock of one server.
pub struct ServerClock {
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl ServerClock {
    /// A server and its clock, which is right at first.
    pub fn start() -> (Redis, ServerClock) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = ServerClock { file: directory.path().join("offset"), _directory: directory };
        fs::write(&clock.file, 0_i64.to_ne_bytes()).expect("the offset");
        let library = preload::library("server-clock", SHIM);
        let redis = Redis::start_in(&[], &[("LD_PRELOAD", library), ("CLOCK_OFFSET", clock.file.clone())]);
        (redis, clock)
    }

    /// Sets the clock this many seconds ahead of the right time, or behind it.
    pub fn set_ahead(&self, ahead: i64) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&self.file).expect("the offset");
        file.write_all_at(&(ahead * 1000).to_ne_bytes(), 0).expect("the offset");
    }
}
