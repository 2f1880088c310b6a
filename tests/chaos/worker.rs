//! A worker, which takes a lock in a loop, and checks each end.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::dice::Dice;
use crate::oracle::{Checker, Ended, Oracle};
use crate::plan::Fault;
use crate::runs::{Runs, describe, lives, pids_of};
use crate::section::{DIRECTORY, RUN, SECTION, append, boot_time, log_file, pids_file};
use crate::support::run::default_signals;
use crate::turn::{KEYS, SLOTS_KEY, Terms, Turn};
use crate::world::Backend;

/// State that all threads share.
pub struct SharedState {
    pub directory: PathBuf,
    pub program: PathBuf,
    pub terms: Terms,
    pub seed: u64,
    pub backend: Backend,
    pub runs: Runs,
    pub checker: Mutex<Checker>,
    /// The nemesis is done: one more turn for every worker.
    pub is_storm_over: AtomicBool,
    /// No worker starts anything any more.
    pub is_over: AtomicBool,
    pub runs_started: AtomicU64,
    pub longest_run_ms: AtomicU64,
    /// How long a tree may take to be gone after its redlock was killed.
    pub slowest_tree_ms: AtomicU64,
}

/// After a killed redlock; the guardian needs a moment, and longer on a busy machine.
const TREE_IS_GONE_WITHIN: Duration = Duration::from_secs(3);

impl SharedState {
    pub fn keys(&self) -> Vec<&'static str> {
        let slots = (self.terms.nodes <= 1).then_some(SLOTS_KEY);
        KEYS.into_iter().chain(slots).collect()
    }

    /// Runs to the end. Returns the exit code, if there is one.
    pub fn play(&self, turn: &Turn) -> Option<i32> {
        let mark = turn.id.to_string();
        let (events, stderr) = (self.file("events", turn.id), self.file("stderr", turn.id));
        let mut command = Command::new(&self.program);
        command.arg("run").args(self.backend.args(turn.host, turn.ttl_ms)).args(turn.args());
        command.arg("--events").arg(&events).arg("--");
        command.arg(std::env::current_exe().expect("this program")).arg(SECTION).args(turn.section_args());
        command
            .env_clear()
            .envs(["PATH", "HOME"].map(|name| (name, std::env::var_os(name).unwrap_or_default())));
        command.env(DIRECTORY, &self.directory).env(RUN, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&stderr).expect("a file"));
        // SAFETY: setsid, prctl and signal are async-signal-safe; nothing else runs between fork
        // and exec.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                default_signals()
            });
        }
        let start = Instant::now();
        append(
            &log_file(&self.directory),
            &format!("start {mark} {} {} {:?}", boot_time().as_nanos(), wall_ms(), turn.prefer),
        );
        let mut child = command.spawn().expect("the binary can be started");
        self.runs.add(turn.clone(), child.id() as i32);
        self.runs_started.fetch_add(1, SeqCst);
        let pid = Pid::from_raw(child.id() as i32);
        // Not yet reaped, so that the nemesis hits no other process.
        while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(nix::Error::EINTR) {}
        let running = self.runs.remove(turn.id);
        let status = child.wait().expect("its end");
        self.longest_run_ms.fetch_max(start.elapsed().as_millis() as u64, SeqCst);
        self.look_for_orphans(turn, &running.blows);
        let output = fs::read_to_string(&stderr).unwrap_or_default();
        let ended = Ended {
            turn,
            code: status.code(),
            signal: status.signal(),
            blows: &running.blows,
            queued_ms: queued_since(&fs::read_to_string(&events).unwrap_or_default()),
            stderr: &output,
        };
        self.checker.lock().expect("the checker").run_ended(&ended);
        for file in [events, stderr, pids_file(&self.directory, turn.id)] {
            let _ = fs::remove_file(file);
        }
        status.code()
    }

    fn file(&self, kind: &str, run: u64) -> PathBuf {
        self.directory.join(format!("{kind}-{run}"))
    }

    fn look_for_orphans(&self, turn: &Turn, blows: &[Fault]) {
        let tree = || -> Vec<i32> {
            pids_of(&self.directory, turn.id).into_iter().filter(|pid| lives(*pid, turn.id)).collect()
        };
        let start = Instant::now();
        let mut left = tree();
        // A killed redlock cannot wait for its tree; its guardian does.
        while blows.contains(&Fault::KillRedlock) && !left.is_empty() && start.elapsed() < TREE_IS_GONE_WITHIN
        {
            sleep(Duration::from_millis(5));
            left = tree();
            self.slowest_tree_ms.fetch_max(start.elapsed().as_millis() as u64, SeqCst);
        }
        let mut checker = self.checker.lock().expect("the checker");
        checker.count(Oracle::Orphan, 1);
        if !left.is_empty() {
            let left: Vec<String> = left.into_iter().map(describe).collect();
            checker.violates(Oracle::Orphan, format!("{turn} has ended, but: {}", left.join("; ")));
        }
    }

    /// A worker: turns until the storm is over, then one plain turn that must be served.
    pub fn work(&self, worker: u64) {
        let mut dice = Dice::new(self.seed, worker + 1);
        for turn_number in 0.. {
            if self.is_storm_over.load(SeqCst) || self.is_over.load(SeqCst) {
                break;
            }
            let turn = Turn::draw(worker * 1_000_000 + turn_number, &mut dice, &self.terms);
            sleep(Duration::from_millis(turn.pause_ms));
            if let Some(69) = self.play(&turn) {
                sleep(Duration::from_millis(60)); // it returned at once: do not spin
            }
        }
        let keys = self.keys();
        let mut id = worker * 1_000_000 + 900_000;
        while !self.is_over.load(SeqCst) {
            let turn = Turn::plain(id, keys[worker as usize % keys.len()], &self.terms);
            if self.play(&turn) == Some(0) {
                return;
            }
            id += 1;
            sleep(Duration::from_millis(60));
        }
    }
}

pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// When it got a place in the queue: the first `waiting` event with a place.
fn queued_since(events: &str) -> Option<u64> {
    let queued = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        let has_place = event["place"].is_u64() || event["position"].is_u64();
        let time = event["time"].as_str().filter(|_| event["event"] == "waiting" && has_place)?;
        let time = humantime::parse_rfc3339(time).ok()?;
        Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis() as u64)
    };
    events.lines().find_map(queued)
}
