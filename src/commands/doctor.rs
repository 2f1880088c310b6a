//! `redlock doctor`: do locks work here?

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::print;
use crate::child::signals::{Signals, exit_by_signal, suspend_self};
use crate::child::{ProcView, has_pidfd, has_subreaper};
use crate::clock::BootTime;
use crate::exit::{Exit, PROBLEM_FOUND};
use crate::lock::checkup::{About, Finding, HostFacts, Level, Terms, What, judge};
use crate::lock::{between_trials, check_directory_for_locks, check_servers};
use crate::report::{Diagnosis, Place, diagnosis_json, diagnosis_text};
use crate::settings::{Backend, DoctorSettings, LocalReason};

/// As good as forever.
const FAR: Duration = Duration::from_hours(24);

pub(super) fn run(settings: &DoctorSettings) -> anyhow::Result<Exit> {
    let ended_by = end_between_trials(Signals::block()?);
    let diagnosis = diagnose(settings);
    if let Some(signal) = ended_by.get() {
        return Ok(Exit::Signal(*signal));
    }
    let text = if settings.json {
        format!("{}\n", diagnosis_json(&diagnosis))
    } else {
        diagnosis_text(&diagnosis, settings.verbosity)
    };
    print(&text)?;
    Ok(Exit::Code(if diagnosis.worst() == Level::Problem { PROBLEM_FOUND } else { 0 }))
}

/// A signal ends the program at once, but for a test lock whose keys are still to be deleted. Returns the signal, when one
/// has come: the check-up may end before its thread does.
fn end_between_trials(mut signals: Signals) -> Arc<OnceLock<i32>> {
    let ended_by = Arc::new(OnceLock::new());
    let told = Arc::clone(&ended_by);
    thread::spawn(move || {
        loop {
            let received = signals.next_until(BootTime::now() + FAR).map(|received| received.signal);
            match received {
                Some(signal @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)) => {
                    let _ = told.set(signal as i32);
                    let _none_is_under_way = between_trials();
                    exit_by_signal(signal as i32);
                }
                Some(Signal::SIGTSTP) => suspend_self(),
                _ => {}
            }
        }
    });
    ended_by
}

fn diagnose(settings: &DoctorSettings) -> Diagnosis {
    let mut findings = about_settings(settings);
    let checked = match &settings.backend {
        Backend::Host { .. } => None,
        Backend::Servers { servers, timing } => {
            let checkup = check_servers(servers, &settings.prefix, timing.node_timeout);
            let terms =
                Terms { ttl: timing.ttl, node_timeout: timing.node_timeout, quarantine: timing.quarantine };
            Some((checkup, terms))
        }
    };
    let servers = checked.as_ref().map(|(checkup, terms)| (checkup, terms));
    let mut judgement = judge(servers, &look_at_host(settings), SystemTime::now());
    findings.append(&mut judgement.findings);
    judgement.findings = findings;
    let origins = &settings.origins;
    let place = match (&settings.backend, &checked) {
        (Backend::Servers { servers, .. }, Some((_, terms))) => {
            Place::Servers { names: servers.iter().map(ToString::to_string).collect(), terms: *terms }
        }
        _ => Place::Host { directory: settings.directory.clone().unwrap_or_default() },
    };
    Diagnosis {
        config_files: origins.config_files.clone(),
        settings: origins.settings.clone(),
        variables: origins.variables.clone(),
        place,
        checkup: checked.map(|(checkup, _)| checkup).unwrap_or_default(),
        judgement,
    }
}

fn about_settings(settings: &DoctorSettings) -> Vec<Finding> {
    let warning = |what| Finding { level: Level::Warning, about: About::Settings, what };
    let mut findings: Vec<Finding> =
        settings.warnings.iter().map(|text| warning(What::Setting(text.clone()))).collect();
    let unknown = settings.origins.unknown_variables.iter();
    findings.extend(unknown.map(|name| warning(What::UnknownVariable(name.clone()))));
    if let Backend::Host { reason: LocalReason::NothingElseConfigured, .. } = settings.backend {
        findings.push(warning(What::NoServer));
    }
    findings
}

fn look_at_host(settings: &DoctorSettings) -> HostFacts {
    HostFacts {
        trial: settings.directory.as_deref().map(check_directory_for_locks),
        directory: settings.directory.clone(),
        has_subreaper: has_subreaper(),
        has_proc: ProcView::check() == ProcView::Ours,
        has_pidfd: has_pidfd(),
    }
}
