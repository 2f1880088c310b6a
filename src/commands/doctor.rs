//! `redlock doctor`: signals, output and the exit code. src/doctor/ does the work.

use std::sync::{Arc, OnceLock};
use std::thread;

use nix::sys::signal::Signal;

use super::print;
use crate::child::signals::{Signals, ends, exit_by_signal, suspend_self};
use crate::doctor::Diagnosis;
use crate::exit::{Exit, PROBLEM_FOUND};
use crate::lock::between_trials;
use crate::settings::DoctorSettings;

pub(super) fn run(settings: &DoctorSettings) -> anyhow::Result<Exit> {
    let ended_by = end_between_trials(Signals::block()?);
    let diagnosis = Diagnosis::make(settings);
    if let Some(signal) = ended_by.get() {
        return Ok(Exit::Signal(*signal));
    }
    let text = if settings.json {
        format!("{}\n", diagnosis.json())
    } else {
        diagnosis.text(settings.location.verbosity)
    };
    print(&text)?;
    Ok(Exit::Code(if diagnosis.has_problem() { PROBLEM_FOUND } else { 0 }))
}

/// A signal ends the program as soon as no test lock has keys left to delete. Returns the signal
/// once one has arrived: the check-up may finish before this thread ends the program.
fn end_between_trials(mut signals: Signals) -> Arc<OnceLock<i32>> {
    let ended_by = Arc::new(OnceLock::new());
    let received_signal = Arc::clone(&ended_by);
    thread::spawn(move || {
        loop {
            match signals.next_until(None).map(|received| received.signal) {
                Some(signal) if ends(signal) => {
                    let _ = received_signal.set(signal as i32);
                    let _no_trial_is_running = between_trials();
                    exit_by_signal(signal as i32);
                }
                Some(Signal::SIGTSTP) => suspend_self(),
                _ => {}
            }
        }
    });
    ended_by
}
