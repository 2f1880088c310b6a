//! One server, three servers or this host, for promises that are the same everywhere.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{HOLD, Job, Place, Run, wait_until};

/// Where the locks of a test are, and a folder for what its commands note.
pub struct Site {
    pub locks: Place,
    notes: TempDir,
}

impl Site {
    pub fn one_server() -> Site {
        Site::of(Place::one())
    }

    pub fn three_servers() -> Site {
        Site::of(Place::three())
    }

    pub fn this_host() -> Site {
        Site::of(Place::here())
    }

    fn of(locks: Place) -> Site {
        Site { locks, notes: tempfile::tempdir().expect("a temporary folder") }
    }

    /// `redlock run --key k` here, with its command in the folder of the notes.
    pub fn run(&self) -> Run {
        self.run_on(&["k"])
    }

    /// The same with any keys.
    pub fn run_on(&self, keys: &[&str]) -> Run {
        let first = self.locks.run_on(keys[0]).dir(self.notes());
        keys[1..].iter().fold(first, |run, key| run.args(&["--key", key]))
    }

    /// The same on "k", for a reader.
    pub fn reader(&self) -> Run {
        self.run().arg("--shared")
    }

    /// Started, and in the queue of "k" at this place.
    #[track_caller]
    pub fn waiter(&self, run: Run, place: usize) -> Job {
        self.locks.waiter(run, place)
    }

    /// The same, with a command that holds the lock until its stdin is closed.
    #[track_caller]
    pub fn holding_waiter(&self, run: Run, place: usize) -> Job {
        self.waiter(run.stdin_pipe().sh(HOLD), place)
    }

    /// The same, with a command that writes this word into the notes.
    #[track_caller]
    pub fn noting_waiter(&self, run: Run, word: &str, place: usize) -> Job {
        self.waiter(run.sh(&format!("echo {word} >> order")), place)
    }

    /// For one that will be killed, so that it keeps the others for a moment only; this host knows no lease.
    pub fn short_ttl(&self) -> &'static [&'static str] {
        if matches!(self.locks, Place::Here(_)) { &[] } else { &["--ttl", "2s"] }
    }

    /// Waits until so many wait for "k".
    #[track_caller]
    pub fn queued(&self, n: usize) {
        self.locks.queued(n);
    }

    /// The folder in which the commands run.
    pub fn notes(&self) -> &Path {
        self.notes.path()
    }

    /// The lines that the commands have appended to this file of the notes.
    pub fn noted(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.notes().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The words of the noting waiters, in the order in which they ran.
    pub fn order(&self) -> Vec<String> {
        self.noted("order")
    }

    /// Within a moment nobody holds any of these keys.
    #[track_caller]
    pub fn all_free(&self, keys: &[&str]) {
        match &self.locks {
            Place::One(redis) => wait_until("all is free", || !keys.iter().any(|key| redis.held(key))),
            Place::Three(nodes) => nodes.all_free(),
            Place::Here(_) => drop(self.run_on(keys).arg("-n").cmd(&["true"]).done().expect_code(0)),
        }
    }

    /// Whether one attempt of this kind would get it now.
    #[track_caller]
    pub fn lets_in(&self, run: Run) -> bool {
        let done = run.arg("-n").cmd(&["true"]).done();
        assert!(matches!(done.code, Some(0 | 75)), "{done:#?}");
        done.code == Some(0)
    }
}

/// `promises!(one_server, this_host: a, b)` makes tests of the functions `a` and `b`, each on a new
/// `Site::one_server()` and on a new `Site::this_host()`.
#[macro_export]
macro_rules! promises {
    ($($site:ident),+: $($promise:ident),* $(,)?) => {
        $crate::promises!(@each [$($site)+] ($($promise)*));
    };
    (@each [$($site:ident)+] $promises:tt) => {
        $($crate::promises!(@at $site $promises);)+
    };
    (@at $site:ident ($($promise:ident)*)) => {
        mod $site {
            $(
                #[test]
                fn $promise() {
                    super::$promise(&$crate::support::Site::$site());
                }
            )*
        }
    };
}
