//! A diagnosis as one JSON object. Unknown values are left out.

use serde_json::{Map, Value, json};

use super::{About, Check, Diagnosis, Finding, Level};
use crate::lock::checkup::{Found, ServerFacts};
use crate::lock::{Fault, PROTOCOL, VERSION};
use crate::report::json_text;
use crate::settings::Backend;

impl Diagnosis<'_> {
    pub(crate) fn json(&self) -> String {
        let quorum = self.quorum.map(|quorum| {
            json!({
                "servers": quorum.servers,
                "needed": quorum.needed,
                "can_vote": quorum.can_vote,
                "may_fail": quorum.can_vote.saturating_sub(quorum.needed),
            })
        });
        let servers = self.checkup.servers.iter().enumerate().map(|(at, facts)| self.server(at, facts));
        json_text(&known(json!({
            "version": VERSION,
            "protocol": PROTOCOL,
            "ok": !self.has_problem(),
            "problems": self.count(Level::Problem),
            "warnings": self.count(Level::Warning),
            "unknown": self.count(Level::Unknown),
            "summary": self.verdict(),
            "checks": self.findings.iter().map(|(about, finding)| self.check(*about, finding)).collect::<Vec<_>>(),
            "servers": quorum.is_some().then(|| servers.collect::<Vec<_>>()),
            "quorum": quorum,
            "settings": self.origins_json(),
        })))
    }

    fn origins_json(&self) -> Value {
        let origins = &self.settings.origins;
        let files = self.settings.location.config_files.iter().map(|path| path.display().to_string());
        let sources = origins.settings.iter().map(|(name, source)| (name.clone(), json!(source)));
        let (backend, directory, timing) = match &self.settings.location.backend {
            Backend::Host { directory, .. } => ("host", Some(directory.display().to_string()), None),
            Backend::Servers { timing, .. } => ("servers", None, Some(timing)),
        };
        json!({
            "config_files": files.collect::<Vec<_>>(),
            "sources": sources.collect::<Map<_, _>>(),
            "variables": origins.variables,
            "backend": backend,
            "directory": directory,
            "ttl_ms": timing.and_then(|timing| timing.ttl).map(|ttl| ttl.as_millis()),
            "node_timeout_ms": timing.map(|timing| timing.node_timeout.as_millis()),
            "quarantine_ms": timing.map(|timing| timing.quarantine.as_millis()),
        })
    }

    fn check(&self, about: About, finding: &Finding) -> Value {
        let server = match about {
            About::Server(at) => Some(&self.checkup.servers[at].name),
            About::Sentinel(at) => Some(&self.checkup.sentinels[at].name),
            About::Settings | About::Quorum | About::AllServers | About::Host => None,
        };
        let advice = |text: &str| (finding.level != Level::Ok && !text.is_empty()).then(|| text.to_owned());
        json!({
            "name": finding.check.name(),
            "server": server,
            "level": finding.level.name(),
            "text": finding.text,
            "why": advice(&finding.why),
            "fix": advice(&finding.fix),
        })
    }

    fn server(&self, at: usize, facts: &ServerFacts) -> Value {
        let findings = self.findings.iter().filter(|(about, _)| *about == About::Server(at));
        let findings: Vec<&Finding> = findings.map(|(_, finding)| finding).collect();
        let obstacle = findings.iter().max_by_key(|finding| finding.level).filter(|_| !self.votes[at]);
        let found = facts.found.as_ref().ok();
        let info = found.and_then(|found| found.info.as_ref().ok());
        let role = info.and_then(|info| info.is_replica);
        json!({
            "url": facts.name,
            "state": state(facts, &findings),
            "vote": self.votes[at],
            "cause": obstacle.map(|finding| &finding.text),
            "rtt_ms": found.map(|found| (found.rtt.as_secs_f64() * 1e6).round() / 1e3),
            "clock_ms": found.and_then(|found| found.clock.as_ref().ok()).map(|clock| clock.ahead_ms),
            "engine": info.map(|info| &info.engine),
            "version": info.map(|info| &info.version),
            "role": role.map(|is_replica| if is_replica { "replica" } else { "master" }),
            "run_id": info.map(|info| &info.run_id),
            "uptime_s": info.and_then(|info| info.uptime).map(|uptime| uptime.as_secs()),
        })
    }
}

/// The first finding that makes it an unusual server decides.
fn state(facts: &ServerFacts, findings: &[&Finding]) -> &'static str {
    let (failure, is_replica) = match &facts.found {
        Err(error) => (Some(error), false),
        Ok(Found { trial, info, .. }) => (
            trial.as_ref().and_then(|trial| trial.as_ref().err()).map(|failure| &failure.why),
            info.as_ref().is_ok_and(|info| info.is_replica == Some(true)),
        ),
    };
    let of = |finding: &&Finding| match (finding.level, finding.check) {
        (Level::Problem, Check::Reachable | Check::Permissions) => failure.map(|error| match error.fault() {
            Fault::Unavailable => "down",
            Fault::Refused => "refused",
            Fault::Unfit => "unfit",
        }),
        (Level::Problem, Check::Role) if is_replica => Some("replica"),
        (Level::Problem, _) => Some("unfit"),
        (Level::Warning, Check::Quarantine) => Some("quarantined"),
        (Level::Ok | Level::Unknown | Level::Warning, _) => None,
    };
    findings.iter().find_map(of).unwrap_or("ok")
}

/// Without the fields that are null, at any depth.
fn known(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, known(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(known).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
