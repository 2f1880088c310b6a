//! What a process does, and what is known of it.

use super::*;

/// How a process reaches the servers, and with which settings.
#[derive(Clone, Debug)]
pub struct Access {
    pub urls: Vec<String>,
    pub timing: Timing,
    /// The protocol that it says it has.
    pub protocol: u32,
}

/// `redlock run`, or `redlock acquire`.
#[derive(Clone, Debug)]
pub struct Run {
    pub keys: Vec<String>,
    pub wait: WaitPolicy,
    pub mode: Mode,
    pub prefer: Prefer,
    pub supersedes: bool,
    pub once: Option<Duration>,
    /// `--cancel-in-progress`, which implies `supersedes`.
    pub cancels: bool,
    /// The command fails.
    pub fails: bool,
    pub min_hold: Duration,
    pub subject: Subject,
    pub inside: Option<Inside>,
}

/// A run inside the command of another one.
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    /// The actor that is the outer run.
    pub outer: u64,
    /// How long after the grant of the outer run it begins.
    pub after: Duration,
}

/// What the lock is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command that takes this long.
    Command(Duration),
    /// A watched process that lives this long; a keeper renews the lock.
    Watched(Duration),
    /// A command that ends with the run inside it: that actor's.
    Nested(u64),
    /// No process renews the lock.
    Token,
}

/// What one process does.
#[derive(Clone, Debug)]
pub enum Job {
    Run(Run),
    /// `redlock extend` with the token of another process: its host.
    Extend {
        of: u64,
        keys: Vec<String>,
    },
    /// `redlock release`.
    Release {
        of: u64,
        keys: Vec<String>,
    },
    Break {
        key: String,
        how: BreakMode,
    },
    /// `redlock status`, then `redlock run -n`: nothing else happens meanwhile.
    Audit {
        key: String,
    },
}

/// What is known of a process beside the oracle: by its actor's number.
#[derive(Default)]
pub struct Record {
    pub subject: Option<Subject>,
    /// When it began to ask for its lock.
    pub started: u64,
    pub claim: Option<Claim>,
    /// The locks of this run and of those that it is inside of.
    pub held: Vec<AncestorLock>,
    /// What its guardian would do.
    pub orphan: Option<ReleaseOrphan>,
    pub grant: Option<Vec<u8>>,
    /// When it began to release.
    pub leaves_at: Option<u64>,
    /// The actor whose token it has released, and when it began to.
    pub released: Option<(u64, u64)>,
    /// The process of a run has ended.
    pub is_over: bool,
    /// It ended without a lock.
    pub is_refused: bool,
    /// Its kernel goes on delivering what it had sent.
    pub is_killed: bool,
    pub keeps_min_hold: bool,
    /// When the last lease that it asked for is over, in true time.
    pub lease_ends: u64,
}
