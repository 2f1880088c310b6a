//! Expectations that several test files share.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Client, Done, Job, Redis, Run, wait_until};

/// Waits until `n` waiters are in the queue.
#[track_caller]
pub fn queued(redis: &Redis, key: &str, n: usize) {
    wait_until(&format!("{n} waiters in the queue"), || redis.queue_len(key) == n);
}

/// Waits until one client sleeps on the server beside a holder. A holder listens for breaks (and so
/// sleeps in BLPOP, too) after its first half second.
#[track_caller]
pub fn wait_for_sleeping_waiter(redis: &Redis) {
    wait_for_sleeping_waiters(redis, 1);
}

/// The same with `n` clients. Each has had its first reply: a client that is cut off before that
/// has not reached any server, and exits.
#[track_caller]
pub fn wait_for_sleeping_waiters(redis: &Redis, n: usize) {
    wait_for_sleeping_clients(redis, n + 1);
}

/// Waits until `n` clients sleep on the server: waiters, which then know that they wait, and
/// holders, each of which listens for breaks after its first half second.
#[track_caller]
pub fn wait_for_sleeping_clients(redis: &Redis, n: usize) {
    wait_until(&format!("{n} clients sleep on the server"), || redis.blocked_clients() == n);
}

/// What a run costs a server if it ends before its holder listens for breaks, after half a second.
/// On a busy machine a run may take longer; the first of several attempts that was short enough
/// counts. An attempt returns the time of the whole run, and its cost.
#[track_caller]
pub fn measure_short_run<T>(mut attempt: impl FnMut() -> (Duration, T)) -> T {
    let mut spent = Vec::new();
    while spent.len() < 20 {
        let (time, cost) = attempt();
        if time < Duration::from_millis(500) {
            return cost;
        }
        spent.push(time);
    }
    panic!("no run was short: {spent:?}");
}

/// The key is free, and no late request takes it within a second and a half.
#[track_caller]
pub fn assert_stays_free(redis: &Redis) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        assert!(!redis.held("k"), "taken {:?} after it was free", start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A promise about time that a busy machine may break: one of five attempts must take less than
/// `limit`.
#[track_caller]
pub fn assert_takes_less_than(limit: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut spent = Vec::new();
    while spent.len() < 5 {
        let time = attempt();
        if time < limit {
            return;
        }
        spent.push(time);
    }
    panic!("not once less than {limit:?}: {spent:?}");
}

/// One attempt on the key "k"; the command must not have run.
#[track_caller]
pub fn refused(run: Run, code: i32, message: &[&str]) -> Done {
    let done = run.sh("echo ran").done().expect_code(code).expect_stderr(message);
    assert_eq!(done.stdout, "", "the command ran");
    assert!(done.stderr.starts_with("redlock: "), "{done:?}");
    done
}

/// Tries once without waiting, and once with.
#[track_caller]
pub fn expect_refused_both_ways(redis: &Redis, code: i32, message: &[&str]) {
    refused(Run::key(redis, "k"), code, message);
    refused(Run::key(redis, "k").arg("-n"), code, message);
}

/// The output of an inner run that the command of an outer run started, and its exit code.
#[track_caller]
pub fn nested(outer: Run, inner: Run) -> String {
    let script = format!("{}; echo inner=$?", inner.cmd(&["echo", "ran"]).shell_line());
    outer.sh(&script).done().expect_code(0).stdout
}

/// Every job exits with 0.
#[track_caller]
pub fn expect_success(jobs: impl IntoIterator<Item = Job>) {
    jobs.into_iter().for_each(|job| drop(job.wait().expect_code(0)));
}

pub fn assert_no_keys_left(redis: &Redis) {
    assert_eq!(redis.keys(), Vec::<String>::new());
}

/// A server on a free port that replies to each connection's first bytes with this text.
pub fn impostor(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while let Ok(1..) = socket.read(&mut [0; 65536]) {
                    if socket.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Polls a server on a connection of its own, until it is finished or dropped.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Watch {
    pub fn start(redis: &Redis, mut look: impl FnMut(&mut Client) -> String + Send + 'static) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (theirs, mut client) = (Arc::clone(&over), redis.connect());
        let thread = std::thread::spawn(move || {
            let mut seen: Vec<String> = Vec::new();
            while !theirs.load(Ordering::SeqCst) {
                let now = look(&mut client);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            seen
        });
        Watch { over, thread: Some(thread) }
    }

    /// Everything it saw, each change once.
    pub fn finish(mut self) -> Vec<String> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.take().expect("finished once").join().expect("the server replies")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}
