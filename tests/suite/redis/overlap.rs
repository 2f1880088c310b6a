//! Whatever happens to the server, connections and runs: two commands never run under one key at
//! the same time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Proxy, Redis, Run};

/// Writes its fence and the boot-time clock (in hundredths of a second) repeatedly for half a
/// second.
const HEARTBEAT: &str = "n=0; while [ $n -lt 50 ]; do read up rest < /proc/uptime; \
     echo $REDLOCK_FENCE $up >> beats; sleep 0.01; n=$((n + 1)); done; echo $REDLOCK_FENCE done >> ends";

/// The first and last beat of each fence, in hundredths of a second.
fn intervals(dir: &Path) -> BTreeMap<u64, (u64, u64)> {
    let mut found = BTreeMap::new();
    for line in fs::read_to_string(dir.join("beats")).unwrap_or_default().lines() {
        let (fence, up) = line.split_once(' ').expect("fence and time");
        let up: u64 = up.replace('.', "").parse().expect("a time");
        let interval = found.entry(fence.parse().expect("a fence")).or_insert((up, up));
        interval.1 = interval.1.max(up);
    }
    found
}

/// Six workers take turns under `ttl` for a while, half of them through a proxy, while `harm`
/// interferes. Afterwards the beats are compared.
fn assert_no_overlap_under(ttl: &str, mut harm: impl FnMut(&Redis, &Proxy, i32, u32)) {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let proxy = Proxy::to(&redis);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let url = if worker % 2 == 0 { redis.url() } else { proxy.url() };
            let (over, dir) = (&over, dir.path());
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    // Any exit code is fine; only the times matter.
                    Run::at(&url, "k").args(&["-q", "--ttl", ttl]).dir(dir).sh(HEARTBEAT).done();
                }
            });
        }
        let (start, mut round) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(24) {
            // The current holder, from its record on the server.
            let holder = redis.recorded("k", "pid").parse().unwrap_or(0);
            harm(&redis, &proxy, holder, round);
            round += 1;
        }
        over.store(true, Ordering::SeqCst);
    });
    let intervals = intervals(dir.path());
    let by_fence: Vec<_> = intervals.iter().collect();
    for pair in by_fence.windows(2) {
        let ((one, (_, end)), (next, (start, _))) = (pair[0], pair[1]);
        assert!(end <= start, "fence {one} ran until {end}, fence {next} from {start}");
    }
    let ends = fs::read_to_string(dir.path().join("ends")).unwrap_or_default();
    assert!(!ends.is_empty(), "no command finished");
}

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

fn signal(pid: i32, signal: Signal) {
    if pid > 0 {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
    }
}

#[test]
fn holders_killed_and_stopped_past_their_lease_never_overlap() {
    assert_no_overlap_under("2s", |_, _, holder, round| {
        if round % 2 == 0 {
            signal(holder, Signal::SIGKILL);
            pause(700);
        } else {
            signal(holder, Signal::SIGSTOP);
            pause(2600);
            signal(holder, Signal::SIGCONT);
            pause(400);
        }
    });
}

#[test]
fn a_server_that_stops_and_a_network_that_breaks_never_make_an_overlap() {
    assert_no_overlap_under("2s", |redis, proxy, _, round| match round % 4 {
        0 => {
            redis.stop();
            pause(2600);
            redis.cont();
            pause(1500);
        }
        1 => {
            proxy.pause();
            pause(2600);
            proxy.resume();
            pause(700);
        }
        2 => {
            proxy.cut();
            redis.connect().cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            pause(500);
        }
        _ => {
            proxy.delay(Duration::from_millis(2100));
            pause(2600);
            proxy.delay(Duration::ZERO);
            pause(700);
        }
    });
}
