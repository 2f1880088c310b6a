//! A diagnosis as text. The first line is the verdict, for monitoring systems that show only one.
//! What is ok about a server fits on one line; everything else has lines of its own with the reason
//! and the remedy.

use std::time::Duration;

use super::{About, Check, Diagnosis, Finding, Level, Quorum};
use crate::duration::{format, format_seconds};
use crate::lock::{PROTOCOL, VERSION};
use crate::report::{Verbosity, config_files, grouped, labelled, sanitize};
use crate::settings::Backend;

impl Diagnosis<'_> {
    pub(crate) fn text(&self, verbosity: Verbosity) -> String {
        // What a single server can do is in its own lines and in the verdict.
        let is_shown = |about: About| about != About::Quorum || self.checkup.configured > 1;
        let shown: Vec<&(About, Finding)> =
            self.findings.iter().filter(|(about, _)| is_shown(*about)).collect();
        if verbosity == Verbosity::Quiet {
            // Without a majority the warnings about servers are the reason.
            let is_majority_missing = self.quorum.is_some_and(Quorum::is_missing);
            let least = if is_majority_missing { Level::Warning } else { Level::Problem };
            let problems = shown.iter().filter(|(_, finding)| finding.level >= least);
            return problems.map(|(about, finding)| lines(&self.subject(*about), finding)).collect();
        }
        let mut text = format!("{}\n{}", self.verdict(), self.origins());
        for group in shown.chunk_by(|one, other| one.0 == other.0) {
            let findings: Vec<&Finding> = group.iter().map(|(_, finding)| finding).collect();
            text += &section(&self.subject(group[0].0), &findings, verbosity);
        }
        text
    }

    /// "PROBLEM: redis://c: timed out; 2 of 3 servers can vote, tolerates no further loss"
    pub(super) fn verdict(&self) -> String {
        let worst = self.worst();
        let head = match worst {
            Level::Ok | Level::Unknown => "OK",
            Level::Warning => "WARNING",
            Level::Problem => "PROBLEM",
        };
        let mut parts = Vec::new();
        if worst >= Level::Warning {
            parts.extend(self.reasons(worst));
        }
        parts.push(self.quorum.map_or_else(|| self.host_verdict().into(), super::Quorum::text));
        let unknown = self.count(Level::Unknown);
        if unknown > 0 {
            parts.push(format!("{unknown} unknown"));
        }
        parts.retain(|part| !part.is_empty());
        format!("{head}: {}", parts.join("; "))
    }

    /// The findings of this level, each text once: "redis://b, redis://c: keeps no data over a
    /// restart". The number of voters is not among them, because it follows in any case.
    fn reasons(&self, level: Level) -> Vec<String> {
        let findings = self.findings.iter();
        let meant = findings.filter(|(about, finding)| finding.level == level && *about != About::Quorum);
        grouped(meant.map(|(about, finding)| {
            let subject = (*about != About::Settings).then(|| self.subject(*about));
            (subject, finding.text.clone())
        }))
    }

    fn host_verdict(&self) -> &'static str {
        let is_bad =
            |finding: &Finding| finding.level == Level::Problem && finding.check == Check::LOCK_DIRECTORY;
        if self.findings.iter().any(|(_, finding)| is_bad(finding)) {
            "locks on this host do not work"
        } else {
            "locks on this host work"
        }
    }

    fn subject(&self, about: About) -> String {
        match about {
            About::Settings => "settings".into(),
            About::Server(at) => sanitize(&self.checkup.servers[at].name),
            About::Sentinel(at) => sanitize(&self.checkup.sentinels[at].name),
            About::Quorum | About::AllServers => "all servers".into(),
            About::Host => "this host".into(),
        }
    }

    /// Where the settings came from, and where locks are.
    fn origins(&self) -> String {
        let origins = &self.settings.origins;
        let mut sources = vec![config_files(&self.settings.location.config_files)];
        sources.extend(origins.settings.iter().map(|(name, source)| format!("{name} from {source}")));
        let is_new = |variable: &&String| !origins.settings.iter().any(|(_, source)| source == *variable);
        let others: Vec<&str> = origins.variables.iter().filter(is_new).map(String::as_str).collect();
        if !others.is_empty() {
            sources.push(format!("variables {}", others.join(" ")));
        }
        let place = match &self.settings.location.backend {
            Backend::Servers { servers, timing } => {
                let names = match &servers[..] {
                    [one] => one.to_string(),
                    several => format!("{} servers", several.len()),
                };
                let ttl = timing.ttl.map_or_else(|| "none".into(), format);
                let quarantine =
                    if timing.quarantine.is_zero() { "off".into() } else { format(timing.quarantine) };
                let timeout = format(timing.node_timeout);
                format!("on {names}; ttl {ttl}, node-timeout {timeout}, quarantine {quarantine}")
            }
            Backend::Host { directory, .. } => format!("on this host, in {}", directory.display()),
        };
        let sources = sanitize(sources.join("; "));
        let place = sanitize(place);
        let version = format!("{VERSION}, protocol {PROTOCOL}");
        labelled("settings", [sources]) + &labelled("locks", [place]) + &labelled("redlock", [version])
    }
}

/// The findings about one subject.
fn section(subject: &str, findings: &[&Finding], verbosity: Verbosity) -> String {
    let of = |level: Level| findings.iter().copied().filter(move |finding| finding.level == level);
    let mut text = String::new();
    if verbosity == Verbosity::Verbose {
        text.extend(of(Level::Ok).map(|finding| lines(subject, finding)));
    } else if of(Level::Ok).next().is_some() {
        let facts: Vec<&str> = of(Level::Ok).map(|finding| finding.text.as_str()).collect();
        text += &labelled("ok", [format!("{subject}: {}", facts.join(", "))]);
    }
    let bad = of(Level::Problem).chain(of(Level::Warning));
    text.extend(bad.map(|finding| lines(subject, finding)));
    // What a server does not report usually has one reason.
    let unknown: Vec<&Finding> = of(Level::Unknown).collect();
    for group in unknown.chunk_by(|one, other| one.why == other.why) {
        let names: Vec<&str> = group.iter().map(|finding| finding.check.0).collect();
        let (names, why) = (names.join(", "), &group[0].why);
        let lines = [Some(format!("{subject}: {names} ({why})")), advice("fix", &group[0].fix)];
        text += &labelled("unknown", lines.into_iter().flatten());
    }
    text
}

fn lines(subject: &str, finding: &Finding) -> String {
    let level = if finding.level == Level::Problem { "PROBLEM" } else { finding.level.name() };
    let text = format!("{subject}: {}", finding.text);
    if finding.level == Level::Ok {
        return labelled(level, [text]);
    }
    let lines = [Some(text), advice("why", &finding.why), advice("fix", &finding.fix)];
    labelled(level, lines.into_iter().flatten())
}

fn advice(name: &str, text: &str) -> Option<String> {
    (!text.is_empty()).then(|| format!("{name}: {text}"))
}

/// "0.4ms", "12ms", "1.5s"
pub(super) fn short(time: Duration) -> String {
    if time < Duration::from_millis(10) { format!("{:.1}ms", time.as_secs_f64() * 1e3) } else { format(time) }
}

pub(super) fn milliseconds(count: u64) -> String {
    if count == 0 { "0ms".into() } else { format(Duration::from_millis(count)) }
}

pub(super) fn days(left: Duration) -> String {
    match left.as_secs() / (24 * 3600) {
        0 => format_seconds(left),
        1 => "1 day".into(),
        days => format!("{days} days"),
    }
}

pub(super) fn bytes(count: u64) -> String {
    const MIB: u64 = 1 << 20;
    if count >= MIB { format!("{} MiB", count / MIB) } else { format!("{} KiB", count / 1024) }
}
