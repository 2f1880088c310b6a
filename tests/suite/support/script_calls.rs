//! Direct calls of our scripts: thousands of sharers and waiters without as many processes. The
//! benchmark uses this file as well.
//!
//! The order of KEYS and ARGV is that of the headers in lua/.

use built::{ACQUIRE, BREAK, EXTEND, JOINS, MULTI, PREFERRED, RELEASE, Script};

/// What build.rs generates from lua/.
#[allow(dead_code)]
mod built {
    use std::time::Duration;

    pub(crate) struct Script {
        pub text: &'static str,
        pub hash: &'static str,
    }

    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}

/// Longer than anything here takes.
const TTL_MS: &str = "600000";
/// The default of `redlock run`.
const HISTORY: &str = "200";

/// The commands that load all scripts that are called here.
pub fn load() -> [[&'static str; 3]; 4] {
    [&ACQUIRE, &BREAK, &EXTEND, &RELEASE].map(|script| ["SCRIPT", "LOAD", script.text])
}

/// A call of acquire.lua as MONITOR shows it, when the server has loaded the script.
pub fn acquire_call() -> String {
    format!("\"evalsha\" \"{}\"", ACQUIRE.hash)
}

/// A client of one server: its name in the queue, and its request.
#[derive(Clone, Debug)]
pub struct Requester {
    keys: Vec<String>,
    waiter: String,
    /// Grows with every request.
    attempt: u32,
    mode: String,
    flags: String,
}

impl Requester {
    /// An exclusive request. `number` determines the client's name.
    pub fn new(number: usize, keys: &[&str]) -> Requester {
        Requester {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            waiter: format!("{number:08x}-0000-4000-8000-000000000000"),
            attempt: 1,
            mode: String::new(),
            flags: String::new(),
        }
    }

    /// With this mode tag, such as `shared:` or `slots:9`.
    pub fn mode(mut self, tag: &str) -> Requester {
        tag.clone_into(&mut self.mode);
        self
    }

    /// `--prefer readers`.
    pub fn joins(mut self) -> Requester {
        self.flags.push(JOINS as char);
        self
    }

    /// `--prefer writers`.
    pub fn preferred(mut self) -> Requester {
        self.flags.push(PREFERRED as char);
        self
    }

    /// The same client with a later request.
    pub fn again(mut self, attempt: u32) -> Requester {
        self.attempt = attempt;
        self
    }

    /// The same client without a mode and a preference.
    pub fn exclusive(mut self) -> Requester {
        self.mode.clear();
        self.flags.clear();
        self
    }

    pub fn is_exclusive(&self) -> bool {
        self.mode.is_empty()
    }

    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    pub fn claim(&self) -> String {
        format!("{}.{}", self.waiter, self.attempt)
    }

    /// The client's name in lock-info:K.
    pub fn waiter(&self) -> &str {
        &self.waiter
    }

    pub fn acquire(&self) -> Vec<String> {
        let more = [
            TTL_MS, "gate", "1", "", "", "0", "", HISTORY, "", "", TTL_MS, "host", "h", "pid", "1",
            "command", "true",
        ];
        self.call(&ACQUIRE, &more)
    }

    pub fn extend(&self) -> Vec<String> {
        self.call(&EXTEND, &[TTL_MS, "0", "", HISTORY, TTL_MS])
    }

    pub fn release(&self) -> Vec<String> {
        self.call(&RELEASE, &["0", "0", "", HISTORY])
    }

    /// As a run that has succeeded does it.
    pub fn release_with_history(&self) -> Vec<String> {
        let ended = ["200", "1", "", "released", "0", "", "0", "5", ""];
        let who = ["host", "h", "pid", "1", "user", "u", "label", "", "command", "true", "job_url", ""];
        self.call(&RELEASE, &[&["0", "0", ""][..], &ended, &who].concat())
    }

    /// Breaks a claim as this client: 'mark' or 'unmark'.
    pub fn break_claim(&self, action: &str, claim: &str, servers: &str) -> Vec<String> {
        let mut words = self.call(&BREAK, &[action, claim, "host", "h", "pid", "1", "user", "u"]);
        // After the keys, the claim and the prefix of its list.
        let at = words.len() - 8 - 4;
        servers.clone_into(&mut words[at]);
        words
    }

    fn call(&self, script: &Script, more: &[&str]) -> Vec<String> {
        let of_key = |key: &String| {
            let beside =
                ["queue", "waiters", "info", "fence", "shared", "modes", "newest", "log", "who", "done"]
                    .map(|role| format!("lock-{role}:{key}"));
            [vec![format!("lock:{key}")], beside.to_vec()].concat()
        };
        let mut keys: Vec<String> = self.keys.iter().flat_map(of_key).collect();
        keys.extend([format!("lock-tombstone:{}", self.waiter), "lock-node".to_owned()]);
        let several = (self.keys.len() > 1).then_some(MULTI as char);
        let flags: String = self.flags.chars().chain(several).collect();
        let claim = self.claim();
        let args = [&claim, "lock-notify:", "1", &self.mode, &flags, ""];
        let mut words = vec!["EVALSHA".to_owned(), script.hash.to_owned(), keys.len().to_string()];
        words.extend(keys);
        words.extend(args.iter().chain(more).map(|word| (*word).to_owned()));
        words
    }
}
