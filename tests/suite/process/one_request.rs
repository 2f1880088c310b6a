//! One request to stop is one signal: however a job is cancelled, and however many processes are
//! signalled, the command gets the signal once and the time to clean up. See the table in
//! docs/operations.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use nix::sys::signal::{kill, killpg};
use nix::unistd::{Pid, geteuid};

use crate::support::processes::{
    children, guardian_of, is_installed, pid_in, send, wait_until_a_signal_counts_again,
};
use crate::support::run::quoted;
use crate::support::{Job, Redis, Run, alive, descendants, wait_until};

/// Needs half a second to clean up, and counts the signals that it gets meanwhile.
const CLEANER: &str = r#"n=0; trap 'n=$((n+1)); echo "got $n" >> "$LOG"' TERM INT HUP USR1
    echo "main $$" >> "$LOG"; while [ $n = 0 ]; do sleep 0.02; done
    i=0; while [ $i -lt 25 ]; do sleep 0.02; i=$((i+1)); done
    echo "cleaned after $n" >> "$LOG"; exit 3"#;

/// A shell that forwards TERM to its child; a background child of a shell ignores INT.
const WRAPPER: &str = r#"trap 'kill -TERM $child' TERM
    "$@" & child=$!; wait $child; status=$?
    while [ $status -gt 128 ] && kill -0 $child 2>/dev/null; do wait $child; status=$?; done; exit $status"#;

struct Scene {
    redis: Redis,
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { redis: Redis::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn run(&self, key: &str) -> Run {
        Run::key(&self.redis, key).args(&["--ttl", "90s"]).env("LOG", self.log())
    }

    /// Starts the run and waits until the command runs.
    fn start(&self, run: Run) -> Job {
        let job = run.spawn();
        self.wait_for("main ");
        job
    }

    /// Waits for a line of the command's log.
    fn wait_for(&self, what: &str) -> String {
        let line = |log: &Path| {
            let text = fs::read_to_string(log).unwrap_or_default();
            text.lines().find(|line| line.starts_with(what)).map(str::to_owned)
        };
        wait_until(&format!("the command logs {what:?}"), || line(&self.log()).is_some());
        line(&self.log()).unwrap()
    }

    /// The command got one signal and had all its time; every lock is free.
    #[track_caller]
    fn assert_ended_well(&self, job: Job) {
        let done = job.wait();
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert!(log.ends_with("got 1\ncleaned after 1\n"), "{log}{done:?}");
        assert!(!self.redis.keys().iter().any(|key| key.starts_with("lock:")), "{:?}", self.redis.keys());
        fs::remove_file(self.log()).unwrap();
    }

    /// The same with a sender that returns whether it was quick enough. A busy machine may keep it
    /// from running: then the test is tried again.
    #[track_caller]
    fn assert_ends_well_if_quick(&self, run: &Run, send: impl Fn(&Job) -> bool) {
        for _ in 0..20 {
            let job = self.start(run.clone());
            if send(&job) {
                return self.assert_ended_well(job);
            }
            job.wait();
            fs::remove_file(self.log()).unwrap();
        }
        panic!("the sender was never quick enough");
    }

    /// `redlock run` inside `redlock run`, through this wrapper, `levels` deep.
    fn nested(&self, levels: usize, wrapper: Option<&str>) -> Run {
        let mut inner = self.run("level-0").sh(CLEANER);
        for level in 1..levels {
            let inner_line = inner.shell_line();
            let line = match wrapper {
                Some(wrapper) => format!("exec sh -c {} sh {inner_line}", quoted(wrapper.as_ref())),
                None => format!("exec {inner_line}"),
            };
            inner = self.run(&format!("level-{level}")).sh(&line);
        }
        inner
    }
}

/// Signals each process in the order of pids, redlock first, as a service manager does. Returns
/// whether it took less than the time for which redlock waits to see who else got the signal.
fn signal_each_process(job: &Job, signal: Signal) -> bool {
    let mut all = descendants(job.pid());
    all.sort_unstable();
    let began = Instant::now();
    send(job.pid(), signal);
    for pid in all {
        let _ = kill(Pid::from_raw(pid), signal); // it may have exited
    }
    began.elapsed() < Duration::from_millis(50)
}

const ROUNDS: usize = 3;

#[test]
fn nested_runs_forward_a_signal_once_each() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        for _ in 0..ROUNDS {
            let job = scene.start(scene.nested(3, None));
            job.signal(signal);
            scene.assert_ended_well(job);
        }
    }
}

#[test]
fn a_signal_forwarded_by_a_wrapper_between_two_runs_counts_once() {
    let scene = Scene::new();
    for _ in 0..ROUNDS {
        let job = scene.start(scene.nested(2, Some(WRAPPER)));
        job.signal(SIGTERM);
        scene.assert_ended_well(job);
    }
}

/// GitLab's shell executor signals the whole group; a script above redlock may forward it, too.
#[test]
fn a_signal_to_the_group_and_from_a_wrapper_above_counts_once() {
    let scene = Scene::new();
    for _ in 0..ROUNDS {
        let job = scene.start(scene.run("k").via(WRAPPER).sh(CLEANER));
        killpg(Pid::from_raw(job.pid()), SIGTERM).unwrap();
        scene.assert_ended_well(job);
    }
}

/// systemd's KillMode=control-group, Jenkins.
#[test]
fn a_signal_to_every_process_of_the_job_reaches_the_command_once() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1] {
        for levels in [1, 3] {
            for _ in 0..ROUNDS {
                scene.assert_ends_well_if_quick(&scene.nested(levels, None), |job| {
                    signal_each_process(job, signal)
                });
            }
        }
    }
}

/// The same with a sender that gets little processor time.
#[test]
fn copies_from_a_slow_sender_count_as_one_request() {
    let scene = Scene::new();
    scene.assert_ends_well_if_quick(&scene.run("k").sh(CLEANER), |job| {
        let guardian = guardian_of(job.pid());
        let began = Instant::now();
        job.signal(SIGTERM);
        scene.wait_for("got 1");
        let _ = kill(Pid::from_raw(guardian), SIGTERM); // it may have exited
        began.elapsed() < Duration::from_secs(1)
    });
}

/// systemd's KillMode=mixed, `docker stop`, GitHub's runner, an operator.
#[test]
fn a_signal_to_redlock_alone_reaches_the_command_once() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1] {
        let job = scene.start(scene.run("k").sh(CLEANER));
        job.signal(signal);
        scene.assert_ended_well(job);
    }
}

/// An operator picks the other line in `ps`.
#[test]
fn a_signal_to_the_guardian_alone_acts_like_one_to_redlock() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let job = scene.start(scene.run("k").sh(CLEANER));
        send(guardian_of(job.pid()), signal);
        scene.assert_ended_well(job);
    }
}

#[test]
fn a_signal_to_the_guardian_of_a_waiter_ends_the_wait() {
    let scene = Scene::new();
    let holder = scene.start(scene.run("k").sh(CLEANER));
    let waiter = scene.run("k").sh("echo ran").spawn();
    wait_until("the waiter is queued", || scene.redis.queue_len("k") == 1);
    send(guardian_of(waiter.pid()), SIGTERM);
    let done = waiter.wait();
    assert_eq!((done.signal, done.stdout.as_str()), (Some(SIGTERM as i32), ""), "{done:?}");
    holder.signal(SIGTERM);
    scene.assert_ended_well(holder);
}

/// timeout(1) signals its child, and then its own group, which includes the child.
#[test]
fn a_command_under_timeout_is_signalled_once_and_has_its_time() {
    let rounds = |signal: &str| {
        let scene = Scene::new();
        for _ in 0..ROUNDS {
            // enough time to start the command
            let run = scene.run("k").through(&["timeout", "-s", signal, "5"]);
            let job = scene.start(run.sh(CLEANER));
            scene.assert_ended_well(job);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rounds("INT"));
        rounds("TERM");
    });
}

#[test]
fn redlock_as_the_first_process_of_a_container_is_stopped_as_usual() {
    if !geteuid().is_root() || !is_installed("unshare") {
        skip!("only root can make PID namespaces");
    }
    let scene = Scene::new();
    let run = scene.run("k").through(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let job = scene.start(run.sh(CLEANER));
    let redlock = children(job.pid())[0];
    send(redlock, SIGTERM);
    scene.assert_ended_well(job);
}

/// A later request counts as a second one, even if the first came in several copies.
#[test]
fn a_second_request_still_kills() {
    let scene = Scene::new();
    let script = r#"trap '' TERM; echo "main $$" >> "$LOG"; while :; do sleep 0.1; done"#;
    let job = scene.start(scene.run("k").sh(script));
    let main = pid_in(&scene.wait_for("main "));
    signal_each_process(&job, SIGTERM);
    wait_until_a_signal_counts_again();
    // Copies that came late may belong to the first request.
    wait_until("the command is killed", || {
        if alive(job.pid()) {
            signal_each_process(&job, SIGTERM);
        }
        !alive(main)
    });
    job.wait();
    assert!(!scene.redis.held("k"));
}

/// Processes that the signal handler starts to clean up are not signalled.
#[test]
fn processes_started_by_the_signal_handler_are_not_signalled() {
    let scene = Scene::new();
    let script = r#"trap 'setsid sh -c "trap \"echo got 2 >> $LOG\" TERM; sleep 0.4"; echo "cleaned after 1" >> "$LOG"; exit 3' TERM
        echo "main $$" >> "$LOG"; echo "got 1" >> "$LOG"; while :; do sleep 0.02; done"#;
    for _ in 0..ROUNDS {
        let job = scene.start(scene.run("k").sh(script));
        scene.wait_for("got 1");
        job.signal(SIGTERM);
        scene.assert_ended_well(job);
    }
}
