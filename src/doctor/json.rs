//! A diagnosis as one JSON object. Unknown values are left out.

use super::{About, Check, Diagnosis, Finding, Level};
use crate::duration::{fractional_millis, millis};
use crate::lock::checkup::{Found, ServerFacts};
use crate::lock::{Fault, PROTOCOL, VERSION};
use crate::report::Object;
use crate::settings::Backend;

impl Diagnosis<'_> {
    pub(crate) fn json(&self) -> String {
        let quorum = self.quorum.map(|quorum| {
            Object::default()
                .with("servers", quorum.servers)
                .with("needed", quorum.needed)
                .with("can_vote", quorum.can_vote)
                .with("may_fail", quorum.can_vote.saturating_sub(quorum.needed))
        });
        let checks: Vec<Object> =
            self.findings.iter().map(|(about, finding)| self.check(*about, finding)).collect();
        let servers = self.checkup.servers.iter().enumerate().map(|(at, facts)| self.server(at, facts));
        Object::default()
            .with("version", VERSION)
            .with("protocol", PROTOCOL)
            .with("ok", !self.has_problem())
            .with("problems", self.count(Level::Problem))
            .with("warnings", self.count(Level::Warning))
            .with("unknown", self.count(Level::Unknown))
            .with("summary", self.verdict())
            .with("checks", checks)
            .with_known("servers", quorum.is_some().then(|| servers.collect::<Vec<_>>()))
            .with_known("quorum", quorum)
            .with("settings", self.origins_json())
            .text()
    }

    fn origins_json(&self) -> Object {
        let origins = &self.settings.origins;
        let files = self.settings.location.config_files.iter().map(|path| path.display().to_string());
        let sources = origins
            .settings
            .iter()
            .fold(Object::default(), |sources, (name, source)| sources.with(name, source.as_str()));
        let (backend, directory, timing) = match &self.settings.location.backend {
            Backend::Host { directory, .. } => ("host", Some(directory.display().to_string()), None),
            Backend::Servers { timing, .. } => ("servers", None, Some(timing)),
        };
        Object::default()
            .with("config_files", files.collect::<Vec<_>>())
            .with("sources", sources)
            .with("variables", origins.variables.as_slice())
            .with("backend", backend)
            .with_known("directory", directory)
            .with_known("ttl_ms", timing.and_then(|timing| timing.ttl).map(millis))
            .with_known("node_timeout_ms", timing.map(|timing| millis(timing.node_timeout)))
            .with_known("quarantine_ms", timing.map(|timing| millis(timing.quarantine)))
    }

    fn check(&self, about: About, finding: &Finding) -> Object {
        let server = match about {
            About::Server(at) => Some(&*self.checkup.servers[at].name),
            About::Sentinel(at) => Some(&*self.checkup.sentinels[at].name),
            About::Settings | About::Quorum | About::AllServers | About::Host => None,
        };
        let object = Object::default()
            .with("name", finding.check.0)
            .with_known("server", server)
            .with("level", finding.level.name())
            .with("text", finding.text.as_str());
        if finding.level == Level::Ok {
            return object;
        }
        object.with_text("why", &finding.why).with_text("fix", &finding.fix)
    }

    fn server(&self, at: usize, facts: &ServerFacts) -> Object {
        let findings = self.findings.iter().filter(|(about, _)| *about == About::Server(at));
        let findings: Vec<&Finding> = findings.map(|(_, finding)| finding).collect();
        let obstacle = findings.iter().max_by_key(|finding| finding.level).filter(|_| !self.votes[at]);
        let found = facts.found.as_ref().ok();
        let clock = found.and_then(|found| found.clock.as_ref().ok());
        let info = found.and_then(|found| found.info.as_ref().ok());
        let role = info.and_then(|info| info.is_replica);
        Object::default()
            .with("url", facts.name.as_str())
            .with("state", state(facts, &findings))
            .with("vote", self.votes[at])
            .with_known("cause", obstacle.map(|finding| finding.text.as_str()))
            .with_known("rtt_ms", found.map(|found| fractional_millis(found.rtt)))
            .with_known("clock_ms", clock.map(|clock| clock.ahead_ms))
            .with_known("engine", info.map(|info| info.engine.as_str()))
            .with_known("version", info.and_then(|info| info.version.as_deref()))
            .with_known("role", role.map(|is_replica| if is_replica { "replica" } else { "master" }))
            .with_known("run_id", info.and_then(|info| info.run_id.as_deref()))
            .with_known("uptime_s", info.and_then(|info| info.uptime).map(|uptime| uptime.as_secs()))
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
        (Level::Problem, Check::REACHABLE | Check::PERMISSIONS) => failure.map(|error| match error.fault() {
            Fault::Unavailable => "down",
            Fault::Refused => "refused",
            Fault::Unfit => "unfit",
        }),
        (Level::Problem, Check::ROLE) if is_replica => Some("replica"),
        (Level::Problem, _) => Some("unfit"),
        (Level::Warning, Check::QUARANTINE) => Some("quarantined"),
        (Level::Ok | Level::Unknown | Level::Warning, _) => None,
    };
    findings.iter().find_map(of).unwrap_or("ok")
}
