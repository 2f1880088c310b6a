//! What `redlock doctor` prints. The first line is the verdict, for monitoring systems that show no more; what is ok
//! of a server stands in one line, and everything else has lines of its own with the reason and the remedy.

mod json;
mod sentences;

use std::path::PathBuf;

use super::format::config_files;
use super::{Verbosity, sanitize};
use crate::duration::format;
use crate::lock::checkup::{About, Check, Finding, Judgement, Level, ServersCheckup, Terms, What};
use sentences::{quorum_text, reply, sentences, topic};

pub(crate) use json::diagnosis_json;

/// Where what is said begins.
const COLUMN: usize = 9;

/// All that was found out and judged, and the settings with which.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub config_files: Vec<PathBuf>,
    /// A setting, and where it came from.
    pub settings: Vec<(String, String)>,
    /// The variables that count.
    pub variables: Vec<String>,
    pub place: Place,
    /// Empty on this host.
    pub checkup: ServersCheckup,
    pub judgement: Judgement,
}

/// Where locks would be.
#[derive(Debug)]
pub(crate) enum Place {
    Servers { names: Vec<String>, terms: Terms },
    Host { directory: PathBuf },
}

impl Diagnosis {
    pub(crate) fn worst(&self) -> Level {
        self.judgement.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    fn count(&self, level: Level) -> usize {
        self.judgement.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// Of servers and Sentinels, their names.
    fn subject(&self, about: About) -> String {
        match about {
            About::Settings => "settings".into(),
            About::Server(at) => sanitize(self.checkup.servers[at].name.as_bytes()),
            About::Sentinel(at) => sanitize(self.checkup.sentinels[at].name.as_bytes()),
            About::AllServers => "all servers".into(),
            About::Host => "this host".into(),
        }
    }
}

pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Unknown => "unknown",
        Level::Warning => "warning",
        Level::Problem => "problem",
    }
}

pub(crate) fn diagnosis_text(diagnosis: &Diagnosis, verbosity: Verbosity) -> String {
    // What a single server can do is told with it, and in the verdict.
    let is_said = |finding: &&Finding| !matches!(finding.what, What::Quorum(quorum) if quorum.servers == 1);
    let findings: Vec<&Finding> = diagnosis.judgement.findings.iter().filter(is_said).collect();
    if verbosity == Verbosity::Quiet {
        let problems = findings.into_iter().filter(|finding| finding.level == Level::Problem);
        return all_lines(diagnosis, &problems.collect::<Vec<_>>());
    }
    let mut text = format!("{}\n", verdict(diagnosis)) + &about_settings(diagnosis);
    for group in findings.chunk_by(|one, other| one.about == other.about) {
        text += &about_one(diagnosis, group, verbosity);
    }
    text
}

/// "PROBLEM: redis://b:6379 eviction; 3 of 3 servers can vote, 1 more may fail"
fn verdict(diagnosis: &Diagnosis) -> String {
    let worst = diagnosis.worst();
    let head = match worst {
        Level::Ok | Level::Unknown => "OK",
        Level::Warning => "WARNING",
        Level::Problem => "PROBLEM",
    };
    let mut parts = Vec::new();
    if worst >= Level::Warning {
        let of_level = diagnosis.judgement.findings.iter().filter(|finding| finding.level == worst);
        // How many can vote is said anyway.
        let told = of_level.filter(|finding| !matches!(finding.what, What::Quorum(_)));
        let name = |finding: &Finding| {
            let topic = topic(finding.what.check());
            if finding.about == About::Settings {
                return topic.to_owned();
            }
            format!("{} {topic}", diagnosis.subject(finding.about))
        };
        let mut told: Vec<String> = told.map(name).collect();
        told.dedup();
        parts.push(told.join(", "));
    }
    parts.push(diagnosis.judgement.quorum.map_or_else(|| host_text(diagnosis).into(), quorum_text));
    let unknown = diagnosis.count(Level::Unknown);
    if unknown > 0 {
        parts.push(format!("{unknown} unknown"));
    }
    parts.retain(|part| !part.is_empty());
    format!("{head}: {}", parts.join("; "))
}

fn host_text(diagnosis: &Diagnosis) -> &'static str {
    let is_bad =
        |finding: &Finding| finding.level == Level::Problem && finding.what.check() == Check::LockDirectory;
    if diagnosis.judgement.findings.iter().any(is_bad) {
        "locks on this host do not work"
    } else {
        "locks on this host work"
    }
}

fn about_settings(diagnosis: &Diagnosis) -> String {
    let mut sources = vec![config_files(&diagnosis.config_files)];
    let from = |(name, source): &(String, String)| format!("{name} from {source}");
    sources.extend(diagnosis.settings.iter().map(from));
    let is_named = |variable: &&String| !diagnosis.settings.iter().any(|(_, source)| source == *variable);
    let others: Vec<&str> = diagnosis.variables.iter().filter(is_named).map(String::as_str).collect();
    if !others.is_empty() {
        sources.push(format!("variables {}", others.join(" ")));
    }
    let place = match &diagnosis.place {
        Place::Servers { names, terms } => {
            let quarantine = if terms.quarantine.is_zero() { "off".into() } else { format(terms.quarantine) };
            let ttl = terms.ttl.map_or_else(|| "none".into(), format);
            let names = if names.len() == 1 { names.concat() } else { format!("{} servers", names.len()) };
            format!(
                "on {names}; ttl {ttl}, node-timeout {}, quarantine {quarantine}",
                format(terms.node_timeout)
            )
        }
        Place::Host { directory } => format!("on this host, in {}", directory.display()),
    };
    let sources = sanitize(sources.join("; ").as_bytes());
    format!("{:<COLUMN$}{sources}\n{:<COLUMN$}{}\n", "settings", "locks", sanitize(place.as_bytes()))
}

/// The findings about one server, or about this host.
fn about_one(diagnosis: &Diagnosis, findings: &[&Finding], verbosity: Verbosity) -> String {
    let mut text = String::new();
    let (fine, mut others): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().copied().partition(|finding| finding.level == Level::Ok);
    if verbosity == Verbosity::Verbose {
        text += &all_lines(diagnosis, &fine);
    } else if let Some(first) = fine.first() {
        let facts: Vec<String> = fine.iter().map(|finding| sentences(&finding.what).text).collect();
        text += &format!("{:<COLUMN$}{}: {}\n", "ok", diagnosis.subject(first.about), facts.join(", "));
    }
    others.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    let (unknown, others): (Vec<&Finding>, Vec<&Finding>) =
        others.into_iter().partition(|finding| finding.level == Level::Unknown);
    text + &all_lines(diagnosis, &others) + &unknown_lines(diagnosis, &unknown)
}

/// What a server does not tell has most often one reason.
fn unknown_lines(diagnosis: &Diagnosis, unknown: &[&Finding]) -> String {
    let mut text = String::new();
    let reason = |finding: &Finding| {
        let What::Unknown { why: Some(why), .. } = &finding.what else { return None };
        Some(reply(why))
    };
    for group in unknown.chunk_by(|one, other| reason(one) == reason(other)) {
        let topics: Vec<&str> = group.iter().map(|finding| topic(finding.what.check())).collect();
        let Some(first) = group.first() else { continue };
        let why = reason(first).map(|why| format!(" ({why})")).unwrap_or_default();
        let (subject, said) = (diagnosis.subject(first.about), sentences(&first.what));
        text +=
            &format!("{:<COLUMN$}{subject}: {}{}\n", "unknown", topics.join(", "), sanitize(why.as_bytes()));
        text += &indented("fix", &said.fix);
    }
    text
}

fn all_lines(diagnosis: &Diagnosis, findings: &[&Finding]) -> String {
    findings.iter().map(|finding| lines(diagnosis, finding)).collect()
}

/// What was found; if it is not ok, why that matters and what to do.
fn lines(diagnosis: &Diagnosis, finding: &Finding) -> String {
    let said = sentences(&finding.what);
    let level = if finding.level == Level::Problem { "PROBLEM" } else { level_name(finding.level) };
    let mut text = format!("{level:<COLUMN$}{}: {}\n", diagnosis.subject(finding.about), said.text);
    if finding.level > Level::Ok {
        text += &indented("why", said.why);
        text += &indented("fix", &said.fix);
    }
    text
}

fn indented(name: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{:<COLUMN$}{name}: {text}\n", "") }
}
