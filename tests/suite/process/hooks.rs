//! `--hook`: each event reaches a shell command, and nothing waits for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};
use serde_json::Value;

use crate::support::processes::{guardian_of, mark, marked, send, status_field};
use crate::support::{
    Job, Redis, Run, alive, assert_takes_less_than, config_file, wait_until, wait_until_within,
};

/// Longer than a hook may take.
const AFTER_A_STUCK_HOOK: Duration = Duration::from_secs(30);

struct Hooked {
    redis: Redis,
    directory: tempfile::TempDir,
}

impl Hooked {
    fn new() -> Hooked {
        Hooked { redis: Redis::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A run whose hook runs in the directory of this test.
    fn run(&self, hook: &str) -> Run {
        let line = format!("cd '{}' && {{ {hook}\n}}", self.directory.path().display());
        Run::key(&self.redis, "k").args(&["--hook", &line])
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn events(&self) -> Vec<Value> {
        self.lines("events").iter().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    #[track_caller]
    fn wait_for_end(&self) -> Vec<Value> {
        wait_until_within(AFTER_A_STUCK_HOOK, "the last event reaches the hook", || {
            self.events().last().is_some_and(|event| event["event"] == "ended")
        });
        self.events()
    }

    fn wait_for_lines(&self, name: &str, count: usize) {
        wait_until_within(AFTER_A_STUCK_HOOK, name, || self.lines(name).len() >= count);
    }
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

fn exists(path: &Path) -> String {
    format!("while [ ! -e '{}' ]; do sleep 0.02; done", path.display())
}

#[test]
fn every_event_reaches_the_hook_in_order() {
    let hooked = Hooked::new();
    let first = Run::key(&hooked.redis, "k").sh("echo ready; read x; true").stdin_pipe().spawn();
    first.wait_for_line("ready");
    let events = hooked.path("to-compare");
    // Later hooks are faster, and still do not overtake.
    let hook = "[ $REDLOCK_EVENT = waiting ] && sleep 0.3; cat >> events; echo $REDLOCK_EVENT-$REDLOCK_OUTCOME-$REDLOCK_EXIT-$REDLOCK_KEY >> short";
    let second = hooked.run(hook).args(&["--events", events.to_str().unwrap()]).sh("exit 4").spawn();
    wait_until("it waits", || hooked.redis.queue_len("k") == 1);
    drop(first);
    second.wait().expect_code(4);
    let seen = hooked.wait_for_end();
    assert_eq!(names(&seen), ["waiting", "acquired", "ended"]);
    assert_eq!(fs::read_to_string(hooked.path("events")).unwrap(), fs::read_to_string(events).unwrap());
    hooked.wait_for_lines("short", 3);
    assert_eq!(hooked.lines("short"), ["waiting---k", "acquired---k", "ended-ran-4-k"]);
}

#[test]
fn a_slow_hook_delays_neither_the_release_nor_the_exit() {
    let hooked = Hooked::new();
    assert_takes_less_than(Duration::from_secs(2), || {
        let start = std::time::Instant::now();
        // The hook keeps neither stdout nor stderr open, or this would not end.
        let done = hooked.run("cat >> events; sleep 5").args(&["--wait-tree"]).cmd(&["echo", "out"]).done();
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "out\n", ""));
        assert!(!hooked.redis.held("k"));
        start.elapsed()
    });
    assert_eq!(names(&hooked.wait_for_end()), ["acquired", "ended"]);
}

#[test]
fn a_slow_hook_delays_no_signal() {
    let hooked = Hooked::new();
    assert_takes_less_than(Duration::from_secs(2), || {
        let job = hooked.run("cat >> events; sleep 5").sh("echo ready; exec sleep 60").spawn();
        job.wait_for_line("ready");
        hooked.wait_for_lines("events", 1);
        let start = std::time::Instant::now();
        job.signal(SIGTERM);
        assert_eq!(job.wait().signal, Some(SIGTERM as i32));
        start.elapsed()
    });
    assert!(!hooked.redis.held("k"));
    assert_eq!(hooked.wait_for_end().last().unwrap()["signal"], 15);
}

#[test]
fn a_hook_that_fails_changes_no_exit_code_and_is_reported_once() {
    for (hook, why) in
        [("cat >> events; exit 3", "exited with 3"), ("cat >> events; /nonexistent/hook", "127")]
    {
        let hooked = Hooked::new();
        // The command ends when a hook has started, and so after the first one has failed.
        let until = format!(
            "while [ $(wc -l < '{}') -lt 2 ]; do sleep 0.02; done 2>/dev/null; exit 6",
            hooked.path("events").display()
        );
        let script = format!("{}; {until}", exists(&hooked.path("events")));
        let done = hooked.run(hook).args(&["--ttl", "900ms"]).sh(&script).done().expect_code(6);
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].contains("--hook failed: it ") && lines[0].contains(why),
            "{done:?}"
        );
        hooked.wait_for_end();
    }
}

#[test]
fn a_killed_redlock_leaves_its_hooks_alone_and_they_get_the_end() {
    let hooked = Hooked::new();
    let job =
        hooked.run("cat >> events; sleep 1; echo done >> finished").sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    hooked.wait_for_lines("events", 1);
    assert!(hooked.lines("finished").is_empty(), "the first hook runs");
    job.signal(SIGKILL);
    let end = hooked.wait_for_end().pop().unwrap();
    assert_eq!((&end["outcome"], &end["keys"][0], &end["v"]), (&"killed".into(), &"k".into(), &1.into()));
    assert!(end["run"]["pid"].is_u64() && end["time"].is_string(), "{end}");
    hooked.wait_for_lines("finished", 2);
}

#[test]
fn a_hook_inherits_no_password_no_descriptor_and_no_blocked_signal() {
    let hooked = Hooked::new();
    let hook = "env > env; ls /proc/self/fd > fds; \
                streams=$(readlink /proc/$$/fd/1 /proc/$$/fd/2); echo \"$streams\" > streams; \
                grep -E '^Sig(Blk|Ign)' /proc/self/status > signals; cat > /dev/null; echo >> finished";
    let run = hooked.run(hook).env("REDLOCK_PASSWORD", "").env("REDLOCK_LABEL", "s3cret").env("OTHER", "x");
    run.via("exec 9< /dev/null; exec \"$@\"").cmd(&["true"]).done().expect_code(0);
    // One hook for each of the two events.
    hooked.wait_for_lines("finished", 2);
    let text = |name: &str| fs::read_to_string(hooked.path(name)).unwrap();
    let ours: Vec<String> =
        hooked.lines("env").into_iter().filter(|line| line.starts_with("REDLOCK_")).collect();
    let names: Vec<&str> = ours.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["REDLOCK_EVENT", "REDLOCK_EXIT", "REDLOCK_KEY", "REDLOCK_OUTCOME"]);
    assert!(text("env").contains("OTHER=x") && !text("env").contains("s3cret"));
    // ls has one for the directory that it lists.
    assert_eq!(hooked.lines("fds"), ["0", "1", "2", "3"]);
    assert_eq!(hooked.lines("streams"), ["/dev/null", "/dev/null"]);
    // posix_spawn() of glibc ignores 32 and 33, which are its own.
    const OF_GLIBC: u64 = 3 << 31;
    for line in hooked.lines("signals") {
        let signals = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
        assert_eq!(signals & !OF_GLIBC, 0, "{line}");
    }
}

#[test]
fn a_stuck_hook_is_killed_with_all_that_it_started_and_the_next_one_runs() {
    let hooked = Hooked::new();
    let hook = "cat >> events; [ $REDLOCK_EVENT = acquired ] || exit 0; setsid sleep 98 & echo $! > pid; exec sleep 99";
    hooked.run(hook).cmd(&["true"]).done().expect_code(0);
    hooked.wait_for_lines("pid", 1);
    let pid: i32 = hooked.lines("pid")[0].parse().unwrap();
    assert!(alive(pid));
    assert_eq!(names(&hooked.wait_for_end()), ["acquired", "ended"]);
    assert!(!alive(pid), "its descendant was killed");
}

#[test]
fn a_hook_is_not_part_of_the_command() {
    let hooked = Hooked::new();
    let job: Job =
        hooked.run("cat >> events; sleep 4; echo >> finished").sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    hooked.wait_for_lines("events", 1);
    let guardian = guardian_of(job.pid());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guardian), SIGKILL).unwrap();
    job.wait();
    hooked.wait_for_lines("finished", 2);
}

#[test]
fn signals_for_the_whole_job_prevent_no_hook() {
    let hooked = Hooked::new();
    let mark = mark();
    let job = hooked.run("cat >> events").env("TEST_MARK", &mark).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    hooked.wait_for_lines("events", 1);
    let runner = marked(&mark).into_iter().find(|pid| status_field(*pid, "Name") == "redlock-hook");
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        send(runner.expect("a hook runner"), signal);
    }
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    assert_eq!(hooked.wait_for_end().last().unwrap()["signal"], 15);
}

#[test]
fn an_outer_run_that_stops_its_command_prevents_no_hook_of_an_inner_run() {
    let hooked = Hooked::new();
    let inner = hooked.run("cat >> events").sh("exec sleep 60").shell_line();
    for stops_tree in [false, true] {
        let options = if stops_tree { &["--max-hold", "5s"][..] } else { &[] };
        let outer = Run::key(&hooked.redis, "outer").args(options).sh(&inner).spawn();
        hooked.wait_for_lines("events", 1);
        if !stops_tree {
            outer.signal(SIGTERM);
        }
        let done = outer.wait();
        assert_eq!(done.code, stops_tree.then_some(124), "{done:?}");
        assert_eq!(names(&hooked.wait_for_end()), ["acquired", "ended"]);
        fs::remove_file(hooked.path("events")).unwrap();
    }
}

#[test]
fn the_hook_comes_from_the_environment_and_the_file_and_serves_acquire() {
    let hooked = Hooked::new();
    let hook = format!("cat >> '{}'", hooked.path("events").display());
    Run::key(&hooked.redis, "k").env("REDLOCK_HOOK", &hook).cmd(&["true"]).done().expect_code(0);
    assert_eq!(names(&hooked.wait_for_end()), ["acquired", "ended"]);
    let (_directory, file) = config_file(&format!("hook = {hook:?}\n"));
    let acquire = ["acquire", "-r", &hooked.redis.url(), "--key", "k", "--ttl", "1s"];
    Run::bare().args(&acquire).env("REDLOCK_CONFIG", file).done().expect_code(0);
    hooked.wait_for_lines("events", 4);
    assert_eq!(hooked.events()[3]["outcome"], "acquired");
}
