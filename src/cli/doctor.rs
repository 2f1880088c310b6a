//! `redlock doctor`.

use clap::Args;

use super::shared::{LeaseArgs, LookArgs};
use super::text::Block::{Code, Exits, Terms, Text};
use super::text::{CommandText, ENVIRONMENT, FILES, Section, VALUES};

/// Check whether locks work here
///
/// Checks the settings, each server and this host, with your own login. It reports what is fine,
/// what may do harm one day (a warning), what keeps locks from working (a problem) and what a
/// server does not report (unknown), each with the reason and the remedy. The first line is the
/// verdict.
///
/// On every server a lock on a random key is taken, waited for, extended and released, as a run
/// would do it, and its keys are deleted; no other lock is touched. The marker that proves that a
/// server has kept its data (lock-node, on a cluster lock-shard) is read and never written, so an
/// unused server stays unused. In the same way a lock file is created and deleted on this host.
///
/// A server that does not reply is given up after --node-timeout; all servers are checked at the
/// same time.
#[derive(Debug, Args)]
#[command(mut_arg("quiet", |arg| arg
    .help("Print only problems, and nothing if there is none")
    .long_help("Print only problems, and nothing if there is none")))]
#[command(mut_arg("verbose", |arg| arg
    .help("Print one line for each check")
    .long_help("Print one line for each check")))]
#[command(mut_arg("ttl", |arg| arg
    .help_heading("Options")
    .help("Lease that runs use [default: 30s]")
    .long_help("Lease that runs use [default: 30s]\n\n\
        Servers are measured against it, and against --node-timeout and --quarantine.")))]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub lease: LeaseArgs,

    #[command(flatten)]
    pub look: LookArgs,
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
            "where they came from; unknown REDLOCK_ variables; files with secrets that all users can read",
        ),
        ("reachable", "the server accepts connections and the login"),
        ("latency", "a round trip, measured against --ttl and --node-timeout"),
        ("version", "Redis 6.0 or later, or Valkey"),
        ("role", "a master; not a replica, a Sentinel, or a cluster node named as a single server"),
        ("identity", "no server is listed twice"),
        ("quarantine", "the server may vote; for a while after a restart it may not"),
        ("eviction", "the server deletes no keys when its memory is full"),
        ("memory", "the server has memory left"),
        ("persistence", "the server does not forget locks in a restart"),
        ("clock", "its clock agrees with the other servers and this host"),
        (
            "replicas",
            "with Sentinel and Cluster: min-replicas-to-write and min-replicas-max-lag stop a master that is cut off \
             from granting locks",
        ),
        ("masters", "with Cluster: all masters are known"),
        ("certificate", "with TLS: it does not expire within two weeks"),
        ("permissions", "a lock can be taken, waited for, extended and released"),
        ("history", "finished runs are recorded for redlock history"),
        ("sentinel", "each Sentinel replies and names the same master"),
        ("quorum", "how many servers can vote, and how many more may fail"),
        ("lock_directory", "on this host: it can be used, and its file system supports kernel locks"),
        ("subreaper, proc, pidfd", "kernel features needed to stop a command with all its descendants"),
    ])],
};

const JSON: Section = Section {
    title: "JSON",
    blocks: &[
        Text("One object. Unknown values are absent."),
        Terms(&[
            ("version, protocol", "of this redlock"),
            ("ok", "false if there is a problem"),
            ("problems, warnings, unknown", "number of each"),
            ("summary", "the first line of the output without --json"),
            (
                "checks",
                "name, as above; server, unless it concerns all of them or this host; level (ok, warning, problem, unknown); text; why; fix",
            ),
            (
                "servers",
                "url; state (ok, down, refused, unfit, replica, quarantined); vote, whether it can vote now; cause, why \
                 it cannot; rtt_ms, clock_ms (ahead of this host), engine, version, role, run_id, uptime_s",
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
    blocks: &[Exits(&[
        (0, "no problem was found; there may be warnings"),
        (1, "a problem was found"),
        (64, ""),
        (78, "settings that cannot work, such as a broken config file: nothing was checked"),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Code("redlock doctor\nredlock doctor --redis redis://a,redis://b,redis://c"),
        Text("From cron, which then mails only problems:"),
        Code("*/10 * * * *  redlock doctor -q"),
        Text("What to fix:"),
        Code("redlock doctor --json | jq -r '.checks[].fix // empty'"),
    ],
};
