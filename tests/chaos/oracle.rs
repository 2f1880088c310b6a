//! What must never happen: checked from the log that the commands write, line by line, and at the
//! end of each run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::plan::Fault;
use crate::section::{boot_time, log_file};
use crate::turn::{Mode, Patience, Prefer, Turn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// Two commands that exclude each other were inside at once.
    Overlap,
    /// A counter that was read and written under the lock has missed an update.
    LostUpdate,
    /// A token is not larger than that of an earlier grant.
    TokenOrder,
    /// A later waiter was served first, while no server failed.
    ServiceOrder,
    /// A process of the command has outlived its redlock.
    Orphan,
    /// A key that would stay forever.
    NoTtl,
    /// A run waits for a lock that is not held, or a key is not free at the end.
    Stuck,
    /// redlock's exit code does not match what happened.
    ExitCode,
}

/// After a failure of one of several servers: a client avoids a gate that was late for 10 s.
pub const ORDER_RECOVERS_IN_MS: u64 = 12_000;

pub const ORACLES: [Oracle; 8] = [
    Oracle::Overlap,
    Oracle::LostUpdate,
    Oracle::TokenOrder,
    Oracle::ServiceOrder,
    Oracle::Orphan,
    Oracle::NoTtl,
    Oracle::Stuck,
    Oracle::ExitCode,
];

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Oracle::Overlap => "overlap",
            Oracle::LostUpdate => "lost update",
            Oracle::TokenOrder => "token order",
            Oracle::ServiceOrder => "order of service",
            Oracle::Orphan => "orphans",
            Oracle::NoTtl => "keys without a TTL",
            Oracle::Stuck => "stuck",
            Oracle::ExitCode => "exit codes",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub oracle: Oracle,
    pub text: String,
    pub at: Duration,
}

/// How a run ended, as its worker saw it.
pub struct Ended<'a> {
    pub turn: &'a Turn,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// What the nemesis did to it.
    pub blows: &'a [Fault],
    /// Since when it was in the queue, by the wall clock, in ms.
    pub queued_ms: Option<u64>,
    pub stderr: &'a str,
}

#[derive(Default)]
struct Key {
    inside: BTreeMap<u64, Mode>,
    /// The largest token of each mode.
    largest: HashMap<String, u64>,
    tokens: HashSet<u64>,
    /// The same for later entries of a mode: line number, mode, largest token until then.
    history: Vec<(u64, Mode, u64)>,
    /// The counter's minimum, and how many may have incremented it without logging it.
    counter: u64,
    silent: u64,
}

/// A command that entered.
struct Entry {
    line: u64,
    run: u64,
    at: Duration,
    mode: Mode,
    keys: Vec<String>,
}

#[derive(Clone, Copy)]
struct Start {
    line: u64,
    at: Duration,
    wall_ms: u64,
    prefer: Prefer,
}

pub struct Checker {
    log: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
    lines: u64,
    recent: VecDeque<String>,
    keys: BTreeMap<String, Key>,
    starts: HashMap<u64, Start>,
    entries: VecDeque<Entry>,
    /// The line numbers of entries and exits.
    came_in: HashMap<u64, u64>,
    went_out: HashSet<u64>,
    /// Commands that were inside when another one entered: they must not leave later.
    passed: HashMap<u64, Vec<(u64, String)>>,
    /// When a server, or the line to it, failed; the last failure may not be over.
    failures: Vec<(Duration, Option<Duration>)>,
    failing: u32,
    /// How long after a failure the order may still suffer from it.
    order_recovers_in: Duration,
    /// On this host several keys are taken one after another.
    on_this_host: bool,
    pub violations: Vec<Violation>,
    pub checks: BTreeMap<Oracle, u64>,
    pub outcomes: BTreeMap<String, u64>,
    pub served: u64,
}

impl Checker {
    pub fn new(directory: &Path, nodes: usize) -> Checker {
        Checker {
            log: log_file(directory),
            file: None,
            rest: Vec::new(),
            lines: 0,
            recent: VecDeque::new(),
            keys: BTreeMap::new(),
            starts: HashMap::new(),
            entries: VecDeque::new(),
            came_in: HashMap::new(),
            went_out: HashSet::new(),
            passed: HashMap::new(),
            failures: Vec::new(),
            failing: 0,
            order_recovers_in: Duration::from_millis(if nodes > 1 { ORDER_RECOVERS_IN_MS } else { 500 }),
            on_this_host: nodes == 0,
            violations: Vec::new(),
            checks: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            served: 0,
        }
    }

    pub fn failure_begins(&mut self) {
        if self.failing == 0 {
            self.failures.push((boot_time(), None));
        }
        self.failing += 1;
    }

    pub fn failure_ends(&mut self) {
        self.failing = self.failing.saturating_sub(1);
        if let (0, Some(last)) = (self.failing, self.failures.last_mut()) {
            last.1.get_or_insert_with(boot_time);
        }
    }

    /// Ends all failures.
    pub fn failures_end(&mut self) {
        self.failing = 1;
        self.failure_ends();
    }

    pub fn violates(&mut self, oracle: Oracle, text: impl Into<String>) {
        self.violations.push(Violation { oracle, text: text.into(), at: boot_time() });
    }

    fn checked(&mut self, oracle: Oracle) {
        *self.checks.entry(oracle).or_default() += 1;
    }

    pub fn count(&mut self, oracle: Oracle, times: u64) {
        *self.checks.entry(oracle).or_default() += times;
    }

    /// The last lines of the log.
    pub fn recent(&self) -> impl Iterator<Item = &String> {
        self.recent.iter()
    }

    /// Reads the lines that the commands have written since the last call.
    pub fn catch_up(&mut self) {
        if self.file.is_none() {
            self.file = File::open(&self.log).ok();
        }
        let Some(file) = &mut self.file else { return };
        file.read_to_end(&mut self.rest).expect("the log");
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            self.lines += 1;
            if self.recent.len() == 60 {
                self.recent.pop_front();
            }
            self.recent.push_back(line.clone());
            if self.read(&line).is_none() {
                self.violates(Oracle::ExitCode, format!("not a line of the log: {line:?}"));
            }
        }
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let (what, run) = (*words.first()?, words.get(1)?.parse().ok()?);
        let at = Duration::from_nanos(words.get(2)?.parse().ok()?);
        match what {
            "start" => {
                let wall_ms = words.get(3)?.parse().ok()?;
                let prefer = match *words.get(4)? {
                    "Writers" => Prefer::Writers,
                    "Readers" => Prefer::Readers,
                    _ => Prefer::Fair,
                };
                self.starts.insert(run, Start { line: self.lines, at, wall_ms, prefer });
            }
            "in" => {
                let keys = words.get(5)?.split(',').map(LoggedKey::parse).collect::<Option<Vec<_>>>()?;
                self.enters(run, at, Mode::parse(words.get(3)?)?, &keys);
            }
            "out" => {
                let keys = words.get(3)?.split(',').map(LoggedKey::parse).collect::<Option<Vec<_>>>()?;
                self.leaves(run, &keys);
            }
            "clash" => {
                let why = words[4..].join(" ");
                let inside = self.keys.get(*words.get(3)?).map(|key| format!("{:?}", key.inside));
                self.violates(
                    Oracle::Overlap,
                    format!("run {run} has key {:?}, but {why} ({})", words[3], inside.unwrap_or_default()),
                );
            }
            _ => return None,
        }
        Some(())
    }

    fn enters(&mut self, run: u64, at: Duration, mode: Mode, keys: &[LoggedKey]) {
        self.served += 1;
        let start = self.starts.get(&run).copied();
        let line = self.lines;
        let mut found = Vec::new();
        for logged in keys {
            self.checked(Oracle::Overlap);
            self.checked(Oracle::TokenOrder);
            let key = self.keys.entry(logged.key.clone()).or_default();
            for (other, theirs) in &key.inside {
                if !mode.admits(*theirs) {
                    self.passed.entry(*other).or_default().push((run, logged.key.clone()));
                }
            }
            key.inside.insert(run, mode);
            // Entries of another mode: earlier ones, since they exclude each other. Of our mode:
            // those that had entered before we started.
            for (theirs, token) in &key.largest {
                if (*theirs != mode.to_string() || mode == Mode::Exclusive) && *token >= logged.fence {
                    found.push((Oracle::TokenOrder, format!("after token {token} ({theirs})"), logged));
                }
            }
            let before = key.history.iter().rev();
            let earlier = before
                .filter(|(of, theirs, _)| *theirs == mode && start.is_some_and(|start| *of < start.line));
            if let Some(token) = earlier.map(|(_, _, token)| *token).next()
                && token >= logged.fence
                && mode != Mode::Exclusive
            {
                found.push((Oracle::TokenOrder, format!("started after token {token} was in use"), logged));
            }
            if !key.tokens.insert(logged.fence) {
                found.push((Oracle::TokenOrder, "a second time".to_owned(), logged));
            }
            let largest = key.largest.entry(mode.to_string()).or_default();
            *largest = logged.fence.max(*largest);
            let entry = (line, mode, *largest);
            key.history.push(entry);
            if key.history.len() > 4000 {
                key.history.drain(..2000);
            }
            if mode == Mode::Exclusive {
                if logged.number < key.counter || logged.number > key.counter + key.silent {
                    let expected = format!("the counter was {} (+{})", key.counter, key.silent);
                    found.push((
                        Oracle::LostUpdate,
                        format!("read {}, but {expected}", logged.number),
                        logged,
                    ));
                }
                (key.counter, key.silent) = (logged.number, 1);
                self.checked(Oracle::LostUpdate);
            }
        }
        for (oracle, text, logged) in found {
            let text = format!("run {run}, key {:?}, token {}: {text}", logged.key, logged.fence);
            self.violates(oracle, text);
        }
        self.came_in.insert(run, line);
        let names = keys.iter().map(|logged| logged.key.clone()).collect();
        self.entries.push_back(Entry { line, run, at, mode, keys: names });
        if self.entries.len() > 3000 {
            self.entries.pop_front();
        }
    }

    fn leaves(&mut self, run: u64, keys: &[LoggedKey]) {
        for (other, key) in self.passed.remove(&run).unwrap_or_default() {
            let text = format!("run {other} came in to key {key:?} before run {run} went out");
            self.violates(Oracle::Overlap, text);
        }
        let mut lost = Vec::new();
        for logged in keys {
            let key = self.keys.entry(logged.key.clone()).or_default();
            if key.inside.remove(&run) == Some(Mode::Exclusive) {
                if logged.number <= key.counter {
                    let text = format!("wrote {} to {}, which had it already", logged.number, logged.key);
                    lost.push(format!("run {run} {text}"));
                }
                (key.counter, key.silent) = (logged.number.max(key.counter), 0);
            }
        }
        lost.into_iter().for_each(|text| self.violates(Oracle::LostUpdate, text));
        self.went_out.insert(run);
    }

    /// Must be called when redlock has been waited for.
    pub fn run_ended(&mut self, ended: &Ended) {
        self.catch_up();
        let run = ended.turn.id;
        let (came_in, went_out) = (self.came_in.remove(&run), self.went_out.remove(&run));
        self.passed.remove(&run);
        for key in self.keys.values_mut() {
            key.inside.remove(&run);
        }
        let start = self.starts.get(&run).map_or(Duration::ZERO, |start| start.at);
        let is_calm = ended.blows.is_empty() && !self.has_failed(start, boot_time());
        // Not a violation, as a busy machine may be late for a node timeout; but worth checking.
        let calm =
            if is_calm && matches!(ended.code, Some(69 | 79)) { " (though nothing failed)" } else { "" };
        *self.outcomes.entry(outcome(ended) + calm).or_default() += 1;
        self.checked(Oracle::ExitCode);
        if let Some(why) = wrong_exit(ended, self.on_this_host, came_in.is_some(), went_out) {
            let text = format!("{}: {why}: {}\n    {}", ended.turn, outcome(ended), ended.stderr.trim());
            self.violates(Oracle::ExitCode, text);
        }
        if let (Some(line), Some(since)) = (came_in, ended.queued_ms) {
            self.check_order(ended, line, since);
        }
        self.forget(run);
    }

    /// Checks for runs that started when this one was already in the queue, and entered before it.
    fn check_order(&mut self, ended: &Ended, line: u64, queued_ms: u64) {
        let turn = ended.turn;
        let queues = matches!(turn.patience, Patience::Forever | Patience::WaitMs(_));
        let Some(start) = self.starts.get(&turn.id).copied() else { return };
        if !queues || !ended.blows.is_empty() || (self.on_this_host && turn.keys.len() > 1) {
            return;
        }
        self.checked(Oracle::ServiceOrder);
        let overtakes = |entry: &&Entry| {
            let Some(other) = self.starts.get(&entry.run) else { return false };
            entry.line < line
                && entry.line > start.line
                && other.wall_ms > queued_ms + 1
                && other.prefer == Prefer::Fair
                && !turn.mode.admits(entry.mode)
                && entry.keys.iter().any(|key| turn.keys.contains(&key.as_str()))
                && !self.has_failed(start.at, entry.at)
        };
        let Some(entry) = self.entries.iter().find(overtakes) else { return };
        let how_long = self.starts[&entry.run].wall_ms - queued_ms;
        let text = format!(
            "{turn} was in the queue for {how_long} ms when run {} ({}, {}) was started, and that one was served first",
            entry.run,
            entry.mode,
            entry.keys.join(" ")
        );
        self.violates(Oracle::ServiceOrder, text);
    }

    fn has_failed(&self, from: Duration, to: Duration) -> bool {
        self.failures
            .iter()
            .any(|(begin, end)| *begin <= to && end.is_none_or(|end| end + self.order_recovers_in >= from))
    }

    fn forget(&mut self, _run: u64) {
        // Others may still be compared with it, as long as its entry exists.
        if self.starts.len() > 8000 {
            let known: BTreeSet<u64> = self.entries.iter().map(|entry| entry.run).collect();
            let old = self.lines.saturating_sub(20_000);
            self.starts.retain(|run, start| known.contains(run) || start.line > old);
        }
        if self.failures.len() > 2000 {
            self.failures.drain(..1000);
        }
    }
}

/// `key:fence:number`
struct LoggedKey {
    key: String,
    fence: u64,
    number: u64,
}

impl LoggedKey {
    fn parse(word: &str) -> Option<LoggedKey> {
        let mut parts = word.split(':');
        let key = parts.next()?.to_owned();
        let (fence, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(LoggedKey { key, fence, number })
    }
}

fn outcome(ended: &Ended) -> String {
    match (ended.code, ended.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no end".to_owned(),
    }
}

/// Why the run cannot have ended like this.
fn wrong_exit(ended: &Ended, on_this_host: bool, came_in: bool, went_out: bool) -> Option<&'static str> {
    let hit = |faults: &[Fault]| ended.blows.iter().any(|blow| faults.contains(blow));
    let turn = ended.turn;
    match (ended.code, ended.signal) {
        (Some(0), _) if !(came_in && went_out) => Some("success, but the command has not run to its end"),
        (Some(0), _) => None,
        (Some(75), _) if turn.patience == Patience::Forever => Some("\"held\" to one that waits forever"),
        (Some(69), _) if on_this_host => Some("nothing is unavailable on this host"),
        (Some(75 | 69), _) if came_in => Some("not served, but the command was started"),
        (Some(75 | 69), _) => None,
        (Some(79), _) => on_this_host.then_some("nothing is lost on this host"),
        (Some(124), _) => turn.max_hold_ms.is_none().then_some("there was no --max-hold"),
        (Some(125), _) => (!hit(&[Fault::KillGuardian])).then_some("nobody has touched its guardian"),
        (Some(143), _) => (!hit(&[Fault::TerminateRedlock])).then_some("nobody has sent that"),
        (Some(_), _) => Some("nothing that can happen here"),
        (None, Some(9)) => (!hit(&[Fault::KillRedlock, Fault::KillCommand, Fault::KillGuardian]))
            .then_some("nobody has killed it"),
        (None, Some(15)) => (!hit(&[Fault::TerminateRedlock])).then_some("nobody has sent that"),
        (None, _) => Some("nobody has sent that"),
    }
}
