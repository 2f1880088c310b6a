//! A diagnosis for machines: one object.

use super::sentences::{sentences, topic};
use super::{Diagnosis, Place, level_name, verdict};
use crate::lock::Fault;
use crate::lock::checkup::{About, Finding, Found, Level, ServerFacts, What};
use crate::report::events::millis;
use crate::report::json::Object;

pub(crate) fn diagnosis_json(diagnosis: &Diagnosis) -> String {
    let checks: Vec<Object> =
        diagnosis.judgement.findings.iter().map(|finding| check(finding, diagnosis)).collect();
    let servers = diagnosis.checkup.servers.iter().enumerate();
    let servers: Vec<Object> = servers.map(|(at, facts)| server(at, facts, diagnosis)).collect();
    let mut object = Object::default()
        .with("ok", diagnosis.worst() < Level::Problem)
        .with("problems", diagnosis.count(Level::Problem))
        .with("warnings", diagnosis.count(Level::Warning))
        .with("unknown", diagnosis.count(Level::Unknown))
        .with("summary", verdict(diagnosis))
        .with_objects("checks", &checks);
    if let Some(quorum) = diagnosis.judgement.quorum {
        let numbers = Object::default()
            .with("servers", quorum.servers)
            .with("needed", quorum.needed)
            .with("can_vote", quorum.can_vote)
            .with("may_fail", quorum.can_vote.saturating_sub(quorum.needed));
        object = object.with_objects("servers", &servers).with_object("quorum", &numbers);
    }
    object.with_object("settings", &settings(diagnosis)).text()
}

fn settings(diagnosis: &Diagnosis) -> Object {
    let files: Vec<String> = diagnosis.config_files.iter().map(|path| path.display().to_string()).collect();
    let add = |object: Object, (name, source): &(String, String)| object.with(name, source.as_str());
    let object = Object::default()
        .with("config_files", files)
        .with_object("sources", &diagnosis.settings.iter().fold(Object::default(), add))
        .with("variables", diagnosis.variables.clone());
    match &diagnosis.place {
        Place::Host { directory } => {
            object.with("backend", "host").with("directory", directory.display().to_string())
        }
        Place::Servers { terms, .. } => object
            .with("backend", "servers")
            .with_known("ttl_ms", terms.ttl.map(millis))
            .with("node_timeout_ms", millis(terms.node_timeout))
            .with("quarantine_ms", millis(terms.quarantine)),
    }
}

fn check(finding: &Finding, diagnosis: &Diagnosis) -> Object {
    let said = sentences(&finding.what);
    let object = Object::default().with("name", topic(finding.what.check()));
    let object = match finding.about {
        About::Server(at) => object.with("server", diagnosis.checkup.servers[at].name.as_str()),
        About::Sentinel(at) => object.with("server", diagnosis.checkup.sentinels[at].name.as_str()),
        About::Settings | About::AllServers | About::Host => object,
    };
    let object = object.with("level", level_name(finding.level)).with("text", said.text);
    match finding.level {
        Level::Ok => object,
        Level::Unknown | Level::Warning | Level::Problem => {
            object.with_text("why", said.why).with_text("fix", &said.fix)
        }
    }
}

fn server(at: usize, facts: &ServerFacts, diagnosis: &Diagnosis) -> Object {
    let findings = diagnosis.judgement.findings.iter().filter(|finding| finding.about == About::Server(at));
    let state = findings.clone().find_map(state).unwrap_or("ok");
    let can_vote = diagnosis.judgement.votes.get(at).copied().unwrap_or(false);
    let obstacle = findings.max_by_key(|finding| finding.level).filter(|_| !can_vote);
    let object = Object::default()
        .with("url", facts.name.as_str())
        .with("state", state)
        .with("vote", can_vote)
        .with_known("cause", obstacle.map(|finding| sentences(&finding.what).text));
    match &facts.found {
        Ok(found) => object.and(&figures(found)),
        Err(_) => object,
    }
}

/// If it is not an ordinary server.
fn state(finding: &Finding) -> Option<&'static str> {
    let of = |fault| match fault {
        Fault::Unavailable => "down",
        Fault::Refused => "refused",
        Fault::Unfit => "unfit",
    };
    if let What::Unreachable(error) = &finding.what {
        return Some(of(error.fault()));
    }
    if let What::TrialFailed(failure) = &finding.what {
        return Some(of(failure.why.fault()));
    }
    if matches!(finding.what, What::Replica { .. }) {
        return Some("replica");
    }
    if matches!(finding.what, What::Quarantined { .. } | What::NeverUsed { .. }) {
        return Some("quarantined");
    }
    (finding.level == Level::Problem).then_some("unfit")
}

fn figures(found: &Found) -> Object {
    let rtt = (found.rtt.as_secs_f64() * 1e6).round() / 1e3;
    let clock = found.clock.as_ref().ok().map(|clock| clock.ahead_ms);
    let object = Object::default().with("rtt_ms", rtt).with_known("clock_ms", clock);
    let Ok(info) = &found.info else { return object };
    let role = info.is_replica.map(|is_replica| if is_replica { "replica" } else { "master" });
    object
        .with("engine", info.engine.as_str())
        .with_known("version", info.version.as_deref())
        .with_known("role", role)
        .with_known("run_id", info.run_id.as_deref())
        .with_known("uptime_s", info.uptime.map(|uptime| uptime.as_secs()))
}
