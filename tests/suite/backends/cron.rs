//! The cron recipe: `redlock run --key tick -n -E 0 --min-hold 55s -- job` in the crontab of every
//! host.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Done, Host, Job, Nodes, Redis, Run, hold, pttl, wait_until};

/// The environment names the servers; the rest is what Debian's cron sets.
fn crontab(settings: &[(&str, &str)], min_hold: &str) -> Run {
    let mut env = vec!["env".to_owned(), "-i".to_owned()];
    let cron = [("HOME", "/"), ("LOGNAME", "nobody"), ("SHELL", "/bin/sh"), ("PATH", "/usr/bin:/bin")];
    env.extend(cron.iter().chain(settings).map(|(name, value)| format!("{name}={value}")));
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let recipe = ["run", "--key", "tick", "-n", "-E", "0", "--min-hold", min_hold];
    Run::bare().through(&env).dir("/").args(&recipe)
}

fn runs(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// Cron mails every line, and some monitors report every exit code.
#[track_caller]
fn assert_silent(done: &Done) {
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "", ""));
}

/// How the clocks of two hosts can differ, expressed as facts instead of times.
#[derive(Clone, Copy, Debug)]
enum Skew {
    None,
    /// The second host's minute begins while the first host's job runs.
    During,
    /// The second host's minute begins after the first host's job has finished.
    Behind,
}

const MIN_HOLD: Duration = Duration::from_secs(1);

/// One minute of two hosts. None if this machine was so slow that the second host began after
/// --min-hold.
fn minute(entry: &Run, skew: Skew, ran: &Path) -> Option<()> {
    let before = runs(ran);
    let job = format!("echo run >> '{}'; sleep 0.05", ran.display());
    let start = || entry.clone().sh(&job).spawn();
    let asked = Instant::now();
    let first = start();
    let second = match skew {
        Skew::None => start(),
        Skew::During => {
            wait_until("the first host's job runs", || runs(ran) > before);
            start()
        }
        Skew::Behind => {
            assert_silent(&first.wait());
            assert_silent(&start().wait());
            return judge(asked, runs(ran) - before);
        }
    };
    [first, second].map(Job::wait).iter().for_each(assert_silent);
    judge(asked, runs(ran) - before)
}

#[track_caller]
fn judge(asked: Instant, runs: usize) -> Option<()> {
    let in_time = asked.elapsed() < MIN_HOLD;
    assert!(runs == 1 || !in_time && runs == 2, "{runs} runs in one minute");
    in_time.then_some(())
}

/// Minutes of every kind; each begins when the lock of the one before has expired by itself.
fn assert_once_a_minute(entry: &Run, is_free: impl Fn() -> bool) {
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    for skew in [Skew::None, Skew::During, Skew::Behind] {
        wait_until("a minute that could be judged", || {
            let judged = minute(entry, skew, &ran);
            wait_until("the next minute", &is_free);
            judged.is_some()
        });
    }
}

#[test]
fn two_hosts_and_one_server_run_the_job_once_a_minute() {
    let redis = Redis::start();
    let entry = crontab(&[("REDLOCK_REDIS", &redis.url())], "1s");
    assert_once_a_minute(&entry, || !redis.held("tick"));
}

#[test]
fn two_hosts_and_three_servers_run_the_job_once_a_minute() {
    let nodes = Nodes::start(3);
    nodes.settle();
    let entry = crontab(&[("REDLOCK_REDIS", &nodes.urls().join(","))], "1s");
    assert_once_a_minute(&entry, || nodes.iter().all(|node| !node.held("tick")));
}

#[test]
fn two_crontabs_of_one_host_run_the_job_once_a_minute() {
    let host = Host::new();
    let directory = host.path().to_str().unwrap();
    let entry = crontab(&[("REDLOCK_LOCAL", "1"), ("REDLOCK_LOCAL_DIR", directory)], "1s");
    assert_once_a_minute(&entry, || host.run_on("tick").arg("-n").cmd(&["true"]).done().code == Some(0));
}

#[test]
fn the_recipe_as_written_leaves_the_lock_free_for_the_next_minute() {
    let redis = Redis::start();
    let entry = crontab(&[("REDLOCK_REDIS", &redis.url())], "55s");
    assert_silent(&entry.clone().cmd(&["true"]).done());
    assert_silent(&entry.cmd(&["false"]).done());
    let left = pttl(&redis, "tick");
    assert!((1..=55_000).contains(&left), "{left} ms");
}

#[test]
fn a_failed_job_keeps_its_exit_code_and_is_not_repeated_elsewhere() {
    let redis = Redis::start();
    let entry = crontab(&[("REDLOCK_REDIS", &redis.url())], "55s");
    entry.clone().sh("exit 3").done().expect_code(3);
    assert_silent(&entry.sh("echo ran").done());
}

#[test]
fn a_job_longer_than_its_minute_is_not_started_twice() {
    let redis = Redis::start();
    let entry = crontab(&[("REDLOCK_REDIS", &redis.url())], "200ms");
    let start = Instant::now();
    let long = hold(entry.clone());
    wait_until("the next minute", || start.elapsed() > Duration::from_millis(400));
    assert_silent(&entry.clone().sh("echo ran").done());
    long.wait().expect_code(0);
    assert!(!redis.held("tick"), "--min-hold ended long ago");
    assert_eq!(entry.sh("echo ran").done().expect_code(0).stdout, "ran\n");
}
