//! One wish is one signal: whoever cancels a job, and however many processes it tells, the command gets the signal
//! once and the time to clean up. See the table in docs/operations.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use nix::sys::signal::{kill, killpg};
use nix::unistd::{Pid, geteuid};

use crate::support::processes::{
    children, guardian_of, is_installed, pid_in, send, wait_until_a_signal_counts_again,
};
use crate::support::{Job, Redis, Run, alive, descendants, wait_until};

/// Needs half a second to clean up, and counts what it is sent meanwhile.
const CLEANER: &str = r#"n=0; trap 'n=$((n+1)); echo "got $n" >> "$LOG"' TERM INT HUP USR1
    echo "main $$" >> "$LOG"; while [ $n = 0 ]; do sleep 0.02; done
    i=0; while [ $i -lt 25 ]; do sleep 0.02; i=$((i+1)); done
    echo "cleaned after $n" >> "$LOG"; exit 3"#;

/// A shell that passes TERM on to what it runs; what a shell starts in the background ignores INT.
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

    /// Started, and the command runs.
    fn start(&self, run: Run) -> Job {
        let job = run.spawn();
        self.said("main ");
        job
    }

    /// Waits for a line of the command.
    fn said(&self, what: &str) -> String {
        let line = |log: &Path| {
            let text = fs::read_to_string(log).unwrap_or_default();
            text.lines().find(|line| line.starts_with(what)).map(str::to_owned)
        };
        wait_until(&format!("the command says {what:?}"), || line(&self.log()).is_some());
        line(&self.log()).unwrap()
    }

    /// The command has had one signal and all its time; every lock is free.
    #[track_caller]
    fn ended_well(&self, job: Job) {
        let done = job.wait();
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert!(log.ends_with("got 1\ncleaned after 1\n"), "{log}{done:?}");
        assert!(!self.redis.keys().iter().any(|key| key.starts_with("lock:")), "{:?}", self.redis.keys());
        fs::remove_file(self.log()).unwrap();
    }

    /// The same with a sender that says whether it was as quick as it had to be. A busy machine may keep it from running:
    /// then the scene is set once more.
    #[track_caller]
    fn ends_well_if_quick(&self, run: &Run, send: impl Fn(&Job) -> bool) {
        for _ in 0..20 {
            let job = self.start(run.clone());
            if send(&job) {
                return self.ended_well(job);
            }
            job.wait();
            fs::remove_file(self.log()).unwrap();
        }
        panic!("the sender was never quick enough");
    }

    /// `redlock run` inside `redlock run`, through this wrapper, so many levels deep.
    fn nested(&self, levels: usize, wrapper: Option<&str>) -> Run {
        let mut inner = self.run("level-0").sh(CLEANER);
        for level in 1..levels {
            let inner_line = inner.shell_line();
            let line = match wrapper {
                Some(wrapper) => format!("exec sh -c {} sh {inner_line}", quoted(wrapper)),
                None => format!("exec {inner_line}"),
            };
            inner = self.run(&format!("level-{level}")).sh(&line);
        }
        inner
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// As a service manager does: each process, in the order of their numbers, redlock's first. Whether it took less than the
/// time for which redlock waits to see who has got it.
fn signal_each_process(job: &Job, signal: Signal) -> bool {
    let mut all = descendants(job.pid());
    all.sort_unstable();
    let began = Instant::now();
    send(job.pid(), signal);
    for pid in all {
        let _ = kill(Pid::from_raw(pid), signal); // it may have ended
    }
    began.elapsed() < Duration::from_millis(50)
}

const ROUNDS: usize = 3;

#[test]
fn nested_runs_each_pass_it_on_once() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        for _ in 0..ROUNDS {
            let job = scene.start(scene.nested(3, None));
            job.signal(signal);
            scene.ended_well(job);
        }
    }
}

#[test]
fn a_wrapper_between_two_runs_that_passes_it_on_as_well_makes_it_no_second_wish() {
    let scene = Scene::new();
    for _ in 0..ROUNDS {
        let job = scene.start(scene.nested(2, Some(WRAPPER)));
        job.signal(SIGTERM);
        scene.ended_well(job);
    }
}

/// GitLab's shell executor signals the whole group; a script above redlock may pass it on, too.
#[test]
fn a_signal_to_the_group_and_again_by_a_wrapper_above_counts_once() {
    let scene = Scene::new();
    for _ in 0..ROUNDS {
        let job = scene.start(scene.run("k").via(WRAPPER).sh(CLEANER));
        killpg(Pid::from_raw(job.pid()), SIGTERM).unwrap();
        scene.ended_well(job);
    }
}

/// systemd's KillMode=control-group, Jenkins.
#[test]
fn a_signal_to_every_process_of_the_job_reaches_the_command_once() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1] {
        for levels in [1, 3] {
            for _ in 0..ROUNDS {
                scene.ends_well_if_quick(&scene.nested(levels, None), |job| signal_each_process(job, signal));
            }
        }
    }
}

/// The same by a sender that has little of the processor.
#[test]
fn a_slow_sender_does_not_make_it_a_second_wish() {
    let scene = Scene::new();
    scene.ends_well_if_quick(&scene.run("k").sh(CLEANER), |job| {
        let guardian = guardian_of(job.pid());
        let began = Instant::now();
        job.signal(SIGTERM);
        scene.said("got 1");
        let _ = kill(Pid::from_raw(guardian), SIGTERM); // it may have ended
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
        scene.ended_well(job);
    }
}

/// `kill` of the other line in `ps`.
#[test]
fn a_signal_to_the_guardian_alone_is_as_one_to_redlock() {
    let scene = Scene::new();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let job = scene.start(scene.run("k").sh(CLEANER));
        send(guardian_of(job.pid()), signal);
        scene.ended_well(job);
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
    scene.ended_well(holder);
}

/// timeout(1) signals its child, and then its own group, of which the child is one.
#[test]
fn a_command_under_timeout_gets_it_once_and_has_its_time() {
    let rounds = |signal: &str| {
        let scene = Scene::new();
        for _ in 0..ROUNDS {
            let run = scene.run("k").through(&["timeout", "-s", signal, "5"]); // time to start the command
            let job = scene.start(run.sh(CLEANER));
            scene.ended_well(job);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rounds("INT"));
        rounds("TERM");
    });
}

#[test]
fn as_the_first_process_of_a_container_it_is_stopped_like_anywhere() {
    if !geteuid().is_root() || !is_installed("unshare") {
        skip!("only root can make PID namespaces");
    }
    let scene = Scene::new();
    let run = scene.run("k").through(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let job = scene.start(run.sh(CLEANER));
    let redlock = children(job.pid())[0];
    send(redlock, SIGTERM);
    scene.ended_well(job);
}

/// A second request is a second wish if it comes later, though the first came in several copies.
#[test]
fn a_second_wish_still_kills() {
    let scene = Scene::new();
    let script = r#"trap '' TERM; echo "main $$" >> "$LOG"; while :; do sleep 0.1; done"#;
    let job = scene.start(scene.run("k").sh(script));
    let main = pid_in(&scene.said("main "));
    signal_each_process(&job, SIGTERM);
    wait_until_a_signal_counts_again();
    // Those that came late may belong to the first.
    wait_until("it is killed", || {
        if alive(job.pid()) {
            signal_each_process(&job, SIGTERM);
        }
        !alive(main)
    });
    job.wait();
    assert!(!scene.redis.held("k"));
}

/// What a handler starts to clean up is not signalled.
#[test]
fn what_the_handler_starts_is_left_alone() {
    let scene = Scene::new();
    let script = r#"trap 'setsid sh -c "trap \"echo got 2 >> $LOG\" TERM; sleep 0.4"; echo "cleaned after 1" >> "$LOG"; exit 3' TERM
        echo "main $$" >> "$LOG"; echo "got 1" >> "$LOG"; while :; do sleep 0.02; done"#;
    for _ in 0..ROUNDS {
        let job = scene.start(scene.run("k").sh(script));
        scene.said("got 1");
        job.signal(SIGTERM);
        scene.ended_well(job);
    }
}
