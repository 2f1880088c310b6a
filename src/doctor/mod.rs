//! `redlock doctor`: do locks work here?
//!
//! A check is a function from facts to findings, each with its level, its words and its advice. The
//! facts about servers come from lock/redis/checkup/, those about this host from host.rs.
//!
//! A problem keeps locks from being taken, or from being locks. A warning may become one, or costs
//! time. A fact that a server does not report is unknown, never ok.

mod data;
mod host;
mod json;
mod quarantine;
mod quorum;
mod server;
#[cfg(test)]
mod tests;
mod text;

use std::time::SystemTime;

use crate::lock::checkup::ServersCheckup;
use crate::lock::{BackendError, Problem, Timing, check_servers};
use crate::report::{problem, sanitize};
use crate::settings::{Backend, DoctorSettings};
use host::HostFacts;
use quorum::Quorum;
use server::CanVote;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ok,
    /// Denied, or not offered.
    Unknown,
    Warning,
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Settings,
    /// Index into the check-up.
    Server(usize),
    Sentinel(usize),
    /// Whether a majority can vote.
    Quorum,
    AllServers,
    Host,
}

#[derive(Clone, Debug)]
struct Finding {
    check: Check,
    level: Level,
    text: String,
    /// Why it matters, and what to do about it; empty for a finding that is ok.
    why: String,
    fix: String,
}

/// What is checked: its name in `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check(&'static str);

impl Check {
    const SETTINGS: Self = Self("settings");
    const REACHABLE: Self = Self("reachable");
    const LATENCY: Self = Self("latency");
    const VERSION: Self = Self("version");
    const ROLE: Self = Self("role");
    const IDENTITY: Self = Self("identity");
    const QUARANTINE: Self = Self("quarantine");
    const EVICTION: Self = Self("eviction");
    const MEMORY: Self = Self("memory");
    const PERSISTENCE: Self = Self("persistence");
    const CLOCK: Self = Self("clock");
    const REPLICAS: Self = Self("replicas");
    const CERTIFICATE: Self = Self("certificate");
    const PERMISSIONS: Self = Self("permissions");
    const MASTERS: Self = Self("masters");
    const HISTORY: Self = Self("history");
    const SENTINEL: Self = Self("sentinel");
    const QUORUM: Self = Self("quorum");
    const LOCK_DIRECTORY: Self = Self("lock_directory");
    const SUBREAPER: Self = Self("subreaper");
    const PROC: Self = Self("proc");
    const PIDFD: Self = Self("pidfd");

    fn ok(self, text: impl Into<String>) -> Finding {
        self.found(Level::Ok, text, "", "")
    }

    fn warning(self, text: impl Into<String>, why: &str, fix: &str) -> Finding {
        self.found(Level::Warning, text, why, fix)
    }

    fn problem(self, text: impl Into<String>, why: &str, fix: &str) -> Finding {
        self.found(Level::Problem, text, why, fix)
    }

    /// `error`: the reply of a server that denies it.
    fn unknown(self, error: Option<&BackendError>) -> Finding {
        let why = error.map_or_else(|| "the server does not report it".into(), refusal);
        let fix = "allow INFO, CONFIG GET and CLUSTER NODES for this check (+info +config|get +cluster|nodes in \
                   the ACL), or ask the server's operator";
        self.found(Level::Unknown, format!("{} is unknown", self.0), &why, fix)
    }

    fn found(self, level: Level, text: impl Into<String>, why: &str, fix: &str) -> Finding {
        let harmless = |text: &str| sanitize(text);
        Finding { check: self, level, text: harmless(&text.into()), why: harmless(why), fix: harmless(fix) }
    }
}

/// The server's own words: the advice for runs does not fit a check that is denied.
fn refusal(error: &BackendError) -> String {
    if let Problem::Server(error) = &error.problem { error.reply.clone() } else { problem(&error.problem) }
}

/// The findings, and what they were made from.
#[derive(Debug)]
pub(crate) struct Diagnosis<'a> {
    settings: &'a DoctorSettings,
    /// Empty on this host.
    checkup: ServersCheckup,
    /// In the order in which they are shown.
    findings: Vec<(About, Finding)>,
    /// Whether each server of the check-up can vote now.
    votes: Vec<bool>,
    /// `None` on this host.
    quorum: Option<Quorum>,
}

impl<'a> Diagnosis<'a> {
    pub(crate) fn make(settings: &'a DoctorSettings) -> Self {
        let checkup = match &settings.location.backend {
            Backend::Host { .. } => ServersCheckup::default(),
            Backend::Servers { servers, timing } => {
                check_servers(servers, &settings.location.prefix, timing.node_timeout)
            }
        };
        Self::from_facts(settings, checkup, &HostFacts::gather(settings), SystemTime::now())
    }

    fn from_facts(
        settings: &'a DoctorSettings,
        checkup: ServersCheckup,
        host: &HostFacts,
        now: SystemTime,
    ) -> Self {
        let mut diagnosis = Self { settings, checkup, findings: Vec::new(), votes: Vec::new(), quorum: None };
        diagnosis.add(About::Settings, host::check_settings(settings));
        let is_backend = match &settings.location.backend {
            Backend::Host { .. } => true,
            Backend::Servers { timing, .. } => {
                diagnosis.check_servers(timing, now);
                false
            }
        };
        diagnosis.add(About::Host, host::check_host(host, is_backend));
        diagnosis
    }

    fn check_servers(&mut self, timing: &Timing, now: SystemTime) {
        let mut votes = Vec::new();
        for at in 0..self.checkup.servers.len() {
            let (findings, vote) = server::check(&self.checkup, at, timing, now);
            votes.push(vote);
            self.add(About::Server(at), findings);
        }
        for at in 0..self.checkup.sentinels.len() {
            self.add(About::Sentinel(at), [server::sentinel(&self.checkup, at)]);
        }
        let quorum = Quorum::count(&self.checkup, &votes, timing);
        self.add(About::Quorum, [quorum.check()]);
        self.add(About::AllServers, quorum::even_number(&self.checkup));
        self.add(About::AllServers, quorum::clocks(&self.checkup));
        self.votes = votes.iter().map(|vote| *vote == CanVote::Now).collect();
        self.quorum = Some(quorum);
    }

    fn add(&mut self, about: About, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings.into_iter().map(|finding| (about, finding)));
    }

    pub(crate) fn has_problem(&self) -> bool {
        self.worst() == Level::Problem
    }

    fn worst(&self) -> Level {
        self.findings.iter().map(|(_, finding)| finding.level).max().unwrap_or(Level::Ok)
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|(_, finding)| finding.level == level).count()
    }
}
