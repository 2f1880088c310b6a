//! The options of `redlock doctor`.

use clap::Args;

use super::run::BackendArgs;
use super::shared::{HelpArgs, JsonArgs, ServerArgs};
use super::text::Block::{Code, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Check whether locks work here
///
/// Looks at the settings, at each server and at this host, with your own login, and says what is fine, what may do harm
/// one day (a warning), what keeps locks from working (a problem) and what a server does not tell (unknown), each with the
/// reason and with what to set. The first line is the verdict.
///
/// On every server a lock is taken, waited for, extended and released under a random key, as a run would do it, and its
/// keys are deleted; no other lock is touched. The mark by which a server proves that it has kept its data (lock-node, on
/// a cluster lock-shard) is read and never written, so a server that was not used before stays unused. In the same way a
/// lock file is made and deleted on this host.
///
/// A server that does not answer is given up after --node-timeout, all servers at the same time.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub json: JsonArgs,

    /// Print problems only, nothing if there is none
    #[arg(short, long)]
    pub quiet: bool,

    /// Print each check in a line of its own
    #[arg(short, long)]
    pub verbose: bool,

    /// The lease that runs use [default: 30s]
    ///
    /// What the servers are measured against, with --node-timeout and --quarantine.
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub ttl: Option<String>,

    #[command(flatten)]
    pub help: HelpArgs,

    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

pub(super) static TEXT: CommandText = CommandText {
    usage: &["redlock doctor [OPTIONS]"],
    summary_end: "More options, what is checked and exit codes: redlock doctor --help",
    sections: &[VALUES, CHECKS, JSON, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
};

const CHECKS: Section = Section {
    title: "Checks",
    blocks: &[Terms(&[
        (
            "settings",
            "where they came from; variables that are no setting; files with secrets that all users can read",
        ),
        ("reachable", "the server can be connected to and lets us in"),
        ("latency", "a round trip, measured against --ttl and --node-timeout"),
        ("version", "Redis 6.0 or later, or Valkey"),
        (
            "role",
            "a master; not a replica, a Sentinel or a node of a cluster that was named as a single server",
        ),
        ("identity", "no server is listed twice"),
        ("quarantine", "the server is not kept from voting, as it is for a while after a restart"),
        ("eviction", "the server deletes no keys when its memory is full"),
        ("memory", "the server is not about to be full"),
        ("persistence", "a restart does not make it forget locks"),
        ("clock", "its clock is that of the other servers and of this host"),
        (
            "replicas",
            "with Sentinel and Cluster: min-replicas-to-write, and min-replicas-max-lag, keep a master that was cut off \
             from granting",
        ),
        ("masters", "with Cluster: all of them are known"),
        ("certificate", "with TLS: it does not expire within two weeks"),
        ("permissions", "a lock can be taken, waited for, extended and released"),
        ("history", "finished runs are written down for redlock history"),
        ("sentinel", "each Sentinel answers and names the same master"),
        ("quorum", "how many servers can vote, and how many more may fail"),
        ("lock_directory", "of this host: it can be used, and its file system has the kernel's locks"),
        (
            "subreaper, proc, pidfd",
            "what the kernel must offer for stopping a command with all its descendants",
        ),
    ])],
};

const JSON: Section = Section {
    title: "JSON",
    blocks: &[
        Text("One object. What is not known is absent."),
        Terms(&[
            ("ok", "false if there is a problem"),
            ("problems, warnings, unknown", "how many"),
            ("summary", "the first line that is printed without --json"),
            (
                "checks",
                "name, as above; server, unless it is about all or this host; level (ok, warning, problem, unknown); text; why; fix",
            ),
            (
                "servers",
                "url; state (ok, down, refused, unfit, replica, quarantined); vote, whether it can vote now; cause, what \
                 is in its way; rtt_ms, clock_ms (ahead of this host), engine, version, role, run_id, uptime_s",
            ),
            ("quorum", "servers, needed, can_vote, may_fail"),
            (
                "settings",
                "config_files, a list; sources, where each setting came from; variables, a list; backend (servers, host); \
                 directory, or ttl_ms, node_timeout_ms and quarantine_ms (0 is off)",
            ),
        ]),
    ],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "no problem was found; there may be warnings"),
        ("1", "a problem was found"),
        ("64", "usage error"),
        ("78", "settings that cannot work, such as a broken config file: nothing was checked"),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock doctor\nredlock doctor --redis redis://a,redis://b,redis://c"),
        Text("From cron, which mails only what is wrong:"),
        Code("*/10 * * * *  redlock doctor -q"),
        Text("What is to be done:"),
        Code("redlock doctor --json | jq -r '.checks[].fix // empty'"),
    ],
};
