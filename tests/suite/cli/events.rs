//! `--events FILE`: the events of a run as JSON lines.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal::{SIGINT, SIGKILL, SIGTERM};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::processes::{guardian_of, send};
use crate::support::{Backend, Done, Pty, Redis, Refused, Run, hold, holder, wait_until};

on_backends!(one_server, three_servers, this_host: events_describe_a_run, the_waiting_event_names_the_holder);

/// The events file of one test.
struct Log {
    directory: TempDir,
}

impl Log {
    fn new() -> Log {
        Log { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("events")
    }

    fn of(&self, run: Run) -> Run {
        run.arg("--events").arg(self.path())
    }

    fn events(&self) -> Vec<Value> {
        events(&self.path())
    }

    fn names(&self) -> Vec<String> {
        names(&self.events())
    }

    /// The last event, which is the only one with its name.
    #[track_caller]
    fn ended(&self) -> Value {
        let events = self.events();
        let ended: Vec<&Value> = events.iter().filter(|event| event["event"] == "ended").collect();
        assert_eq!(ended.len(), 1, "{events:#?}");
        assert_eq!(ended[0], events.last().expect("an event"), "the last line");
        ended[0].clone()
    }
}

fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

fn names(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["event"].as_str().expect("a name").to_owned()).collect()
}

/// The outcome, and the exit code or the signal.
fn outcome(ended: &Value) -> (String, Option<i64>, Option<i64>) {
    let outcome = ended["outcome"].as_str().unwrap_or_else(|| panic!("{ended}")).to_owned();
    (outcome, ended["exit"].as_i64(), ended["signal"].as_i64())
}

#[track_caller]
fn expect_outcome(log: &Log, name: &str, exit: i64) -> Value {
    let ended = log.ended();
    assert_eq!(outcome(&ended), (name.to_owned(), Some(exit), None), "{ended}");
    ended
}

/// No field is null or "", except `released`.
fn assert_nothing_is_empty(value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(!value.is_null() || name == "released", "{name}");
                assert_ne!(value, "", "{name}");
                assert_nothing_is_empty(value);
            }
        }
        Value::Array(items) => items.iter().for_each(assert_nothing_is_empty),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn events_describe_a_run(backend: &Backend) {
    let log = Log::new();
    let run = log.of(backend.run().args(&["--label", "nightly"]));
    let done = run.sh("echo $REDLOCK_FENCE $REDLOCK_ATTEMPTS; exit 3").done().expect_code(3);
    assert_eq!(done.stderr, "");
    let written = log.events();
    assert_eq!(log.names(), ["acquired", "ended"]);
    let words: Vec<u64> = done.stdout.split_whitespace().map(|w| w.parse().unwrap()).collect();
    let text = fs::read_to_string(log.path()).unwrap();
    for (event, line) in written.iter().zip(text.lines()) {
        assert!(line.starts_with("{\"v\":1,\"time\":\"20"), "{line}");
        let at =
            |name: &str| line.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {line}"));
        assert!(at("time") < at("event") && at("event") < at("keys") && at("keys") < at("run"), "{line}");
        assert_eq!(event["keys"], serde_json::json!(["k"]), "{event}");
        assert_eq!(event["fences"], serde_json::json!([words[0]]), "{event}");
        assert_eq!(event["attempts"].as_u64(), Some(words[1]), "{event}");
        assert!(event["waited_ms"].is_u64(), "{event}");
        let run = &event["run"];
        assert!(run["pid"].is_u64() && run["host"].is_string() && run["user"].is_string(), "{event}");
        assert_eq!((&run["label"], &run["command"]), (&"nightly".into(), &"sh".into()), "{event}");
        assert_nothing_is_empty(event);
    }
    let ended = expect_outcome(&log, "ran", 3);
    assert!(ended["held_ms"].is_u64() && ended["released"] == true, "{ended}");
}

fn the_waiting_event_names_the_holder(backend: &Backend) {
    let first = hold(backend.run_for_long().args(&["--label", "first"]));
    let log = Log::new();
    let job = log.of(backend.run()).cmd(&["true"]).spawn();
    wait_until("the wait is reported", || log.names() == ["waiting"]);
    let waiting = log.events()[0].clone();
    assert_eq!((&waiting["state"], &waiting["position"]), (&"held".into(), &1.into()), "{waiting}");
    assert_eq!(waiting["queue_length"], 1, "{waiting}");
    let holder = &waiting["holders"][0];
    assert_eq!((&holder["pid"], &holder["label"]), (&first.pid().into(), &"first".into()), "{waiting}");
    assert!(holder["held_ms"].is_u64() && holder["since"].is_string(), "{waiting}");
    assert_nothing_is_empty(&waiting);
    first.wait().expect_code(0);
    job.wait().expect_code(0);
    assert_eq!(log.names(), ["waiting", "acquired", "ended"]);
}

#[test]
fn events_report_waiting_refreshing_and_loss() {
    let (redis, log) = (Redis::start(), Log::new());
    let holder = holder(&redis, "deploy", &[]);
    let run = log.of(Run::key(&redis, "deploy").args(&["--ttl", "6s", "--node-timeout", "2s"]));
    let job = run.sh("echo ready; exec sleep 60").spawn();
    wait_until("waiting is reported", || log.names().contains(&"waiting".to_owned()));
    assert!(!log.names().contains(&"acquired".to_owned()));
    holder.signal(SIGTERM);
    job.wait_for_line("ready");
    wait_until("refreshing is reported", || log.names().contains(&"refreshed".to_owned()));
    redis.cmd(&["DEL", "lock:deploy"]);
    job.wait().expect_code(79);
    let mut seen = log.names();
    seen.dedup();
    assert_eq!(seen, ["waiting", "acquired", "refreshed", "lost", "ended"]);
    let ended = expect_outcome(&log, "lost", 79);
    assert_eq!(ended["released"], false, "{ended}");
    let lost = log.events().into_iter().find(|event| event["event"] == "lost").unwrap();
    assert_eq!((&lost["cause"], &lost["action"]), (&"expired".into(), &"stop".into()), "{lost}");
}

#[test]
fn a_loss_that_does_not_stop_the_command_is_not_the_outcome() {
    let (redis, log) = (Redis::start(), Log::new());
    let run = log.of(Run::key(&redis, "k").args(&["--ttl", "1s", "--on-lost", "warn"]));
    let mut job = run.stdin_pipe().sh("echo ready; read x; exit 3").spawn();
    job.wait_for_line("ready");
    redis.cmd(&["DEL", "lock:k"]);
    job.wait_for_stderr("lost the lock");
    drop(job.take_stdin());
    job.wait().expect_code(3);
    assert_eq!(expect_outcome(&log, "ran", 3)["released"], false);
}

#[test]
fn a_run_that_gives_up_reports_the_holder() {
    let redis = Redis::start();
    let holder = holder(&redis, "k", &[]);
    let retries: &[&str] = &["--retries", "1", "--retry-interval", "10ms"];
    for (how, code) in [(&["-n"][..], 75), (&["-n", "-E", "0"], 0), (&["-w", "0.2"], 75), (retries, 75)] {
        let log = Log::new();
        log.of(Run::key(&redis, "k").args(how)).sh("echo ran").done().expect_code(code);
        let ended = expect_outcome(&log, "held", i64::from(code));
        assert_eq!(ended["holders"][0]["pid"], holder.pid(), "{ended}");
        assert!(ended["waited_ms"].is_u64() && ended["attempts"].as_u64() >= Some(1), "{ended}");
        assert!(
            ended["released"].is_null() && ended["held_ms"].is_null() && ended["fences"].is_null(),
            "{ended}"
        );
    }
}

#[test]
fn servers_that_are_down_or_refuse_us_are_distinguished() {
    let refused = Refused::new();
    let log = Log::new();
    log.of(Run::at(&refused.url(), "k")).sh("echo ran").done().expect_code(69);
    let ended = expect_outcome(&log, "unavailable", 69);
    assert!(ended["cause"].as_str().unwrap().contains("connection refused"), "{ended}");

    let log = Log::new();
    let run = Run::at(&refused.url(), "k").args(&["--on-unavailable", "skip"]);
    log.of(run).sh("echo ran").done().expect_code(0);
    expect_outcome(&log, "unavailable", 0);

    let log = Log::new();
    let run = Run::at(&refused.url(), "k").args(&["--on-unavailable", "run"]);
    log.of(run).sh("exit 3").done().expect_code(3);
    let ended = expect_outcome(&log, "ran", 3);
    assert!(
        ended["cause"].is_string() && ended["fences"].is_null() && ended["released"].is_null(),
        "{ended}"
    );

    let closed = Redis::start_with(&["--requirepass", "secret"]);
    let log = Log::new();
    log.of(Run::at(&closed.url(), "k")).sh("echo ran").done().expect_code(77);
    expect_outcome(&log, "refused", 77);

    let redis = Redis::start();
    redis.cmd(&["LPUSH", "lock:k", "x"]);
    let log = Log::new();
    log.of(Run::key(&redis, "k")).sh("echo ran").done().expect_code(78);
    expect_outcome(&log, "refused", 78);
}

#[test]
fn a_wait_for_servers_is_reported() {
    let mut redis = Redis::start();
    redis.kill();
    let log = Log::new();
    let job =
        log.of(Run::key(&redis, "k").args(&["--on-unavailable", "wait", "-w", "1h"])).sh("exit 3").spawn();
    wait_until("the wait is reported", || log.names() == ["waiting"]);
    let waiting = log.events()[0].clone();
    assert!(waiting["state"] == "unavailable" && waiting["cause"].is_string(), "{waiting}");
    assert!(waiting["gives_up_ms"].as_u64() > Some(3_000_000), "{waiting}");
    redis.restart();
    job.wait().expect_code(3);
    assert_eq!(log.names(), ["waiting", "acquired", "ended"]);
}

#[test]
fn a_lock_file_that_cannot_be_opened_is_reported_as_the_end() {
    let log = Log::new();
    let run = Run::bare().args(&["run", "--local", "--local-dir", "/no/such/directory", "--key", "k"]);
    let done = log.of(run).sh("echo ran").done().expect_code(78);
    assert!(done.stderr.contains("/no/such/directory: no such directory"), "{done:?}");
    expect_outcome(&log, "refused", 78);
}

#[test]
fn a_command_that_is_not_started_is_distinguished_from_one_that_exits_127() {
    let redis = Redis::start();
    for (command, code) in [("/no/such/command", 127), ("/", 126)] {
        let log = Log::new();
        log.of(Run::key(&redis, "k")).cmd(&[command]).done().expect_code(code);
        let ended = expect_outcome(&log, "not_started", i64::from(code));
        assert!(ended["released"] == true && ended["cause"].is_string(), "{ended}");
    }
    let log = Log::new();
    log.of(Run::key(&redis, "k")).sh("exit 127").done().expect_code(127);
    expect_outcome(&log, "ran", 127);
}

#[test]
fn the_end_of_max_hold_is_reported() {
    let (redis, log) = (Redis::start(), Log::new());
    let run = log.of(Run::key(&redis, "k").args(&["--max-hold", "300ms"]));
    run.sh("exec sleep 60").done().expect_code(124);
    assert_eq!(expect_outcome(&log, "max_hold", 124)["released"], true);
}

#[test]
fn a_signal_while_waiting_and_one_that_kills_the_command_are_distinguished() {
    let redis = Redis::start();
    let log = Log::new();
    let job = log.of(Run::key(&redis, "k")).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    let (waiting, jittering) = (Log::new(), Log::new());
    let waiter = waiting.of(Run::key(&redis, "k")).sh("echo in").spawn();
    wait_until("the run waits", || waiting.names() == ["waiting"]);
    waiter.signal(SIGINT);
    assert_eq!(waiter.wait().signal, Some(SIGINT as i32));
    assert_eq!(outcome(&waiting.ended()), ("cancelled".into(), None, Some(2)));
    job.signal(SIGTERM);
    assert_eq!(job.wait().signal, Some(SIGTERM as i32));
    let ended = log.ended();
    assert_eq!(outcome(&ended), ("ran".into(), None, Some(15)));
    assert_eq!(ended["released"], true);

    let late = jittering.of(Run::key(&redis, "k").args(&["-v", "--jitter", "1h"])).sh("echo in").spawn();
    late.wait_for_stderr("--jitter");
    late.signal(SIGTERM);
    late.wait();
    assert_eq!(outcome(&jittering.ended()), ("cancelled".into(), None, Some(15)));
}

#[test]
fn ctrl_c_on_a_terminal_is_reported() {
    let (redis, log) = (Redis::start(), Log::new());
    let _holder = holder(&redis, "k", &[]);
    let pty = Pty::run(log.of(Run::key(&redis, "k")).sh("echo in"));
    wait_until("the run waits", || log.names() == ["waiting"]);
    pty.type_in("\x03");
    assert_eq!(pty.wait().signal, Some(SIGINT as i32));
    assert_eq!(outcome(&log.ended()), ("cancelled".into(), None, Some(2)));
}

#[test]
fn a_failure_of_redlock_itself_is_reported() {
    let (redis, log) = (Redis::start(), Log::new());
    let run = log.of(Run::key(&redis, "k").args(&["--ttl", "6s"])).env("REDLOCK_TEST_PANIC", "keeper");
    run.sh("exec sleep 60").done().expect_code(125);
    let ended = expect_outcome(&log, "cancelled", 125);
    assert!(ended["cause"].as_str().unwrap().contains("internal error"), "{ended}");

    let log = Log::new();
    let job = log.of(Run::key(&redis, "k")).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    send(guardian_of(job.pid()), SIGKILL);
    job.wait().expect_code(125);
    expect_outcome(&log, "cancelled", 125);
}

#[test]
fn a_release_without_a_reply_is_unknown() {
    let (mut redis, log) = (Redis::start(), Log::new());
    let mut job = hold(log.of(Run::key(&redis, "k").args(&["--node-timeout", "1s"])));
    redis.kill();
    drop(job.take_stdin());
    job.wait().expect_code(0);
    let ended = expect_outcome(&log, "ran", 0);
    assert!(ended.as_object().unwrap().contains_key("released") && ended["released"].is_null(), "{ended}");
}

#[test]
fn a_dash_means_stderr() {
    let redis = Redis::start();
    let event_names = |done: &Done| {
        let lines = done.stderr.lines().filter(|line| line.starts_with('{'));
        names(&lines.map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>())
    };
    let done = Run::key(&redis, "k").args(&["--events", "-"]).sh("exit 3").done().expect_code(3);
    assert_eq!(event_names(&done), ["acquired", "ended"]);
    let done = Run::key(&redis, "k").args(&["--events", "-"]).cmd(&["/no/such"]).done().expect_code(127);
    assert!(done.stderr.lines().last().unwrap().contains("\"ended\""), "the last line: {done:?}");
    assert!(!Path::new("-").exists());
}

#[test]
fn lines_of_several_runs_are_appended_and_distinguishable() {
    let (redis, log) = (Redis::start(), Log::new());
    for code in [3, 4] {
        log.of(Run::key(&redis, "k")).sh(&format!("exit {code}")).done().expect_code(code);
    }
    assert_eq!(log.names(), ["acquired", "ended", "acquired", "ended"]);
    let pids: Vec<Value> = log.events().iter().map(|event| event["run"]["pid"].clone()).collect();
    assert!(pids[0] == pids[1] && pids[1] != pids[2] && pids[2] == pids[3], "{pids:?}");
}

#[test]
fn an_events_file_that_cannot_be_opened_is_reported_before_the_command_runs() {
    let redis = Redis::start();
    let run = Run::key(&redis, "deploy").args(&["--events", "/no/such/directory/events"]);
    let done = run.sh("echo ran").done().expect_code(78);
    assert_eq!(done.stdout, "");
    assert!(done.stderr.ends_with("/no/such/directory/events: No such file or directory\n"), "{done:?}");
    assert_eq!(redis.keys(), Vec::<String>::new());
}
