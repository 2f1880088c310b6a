//! `--hook`: each event also goes to a shell command.

use crate::child::HookRunner;
use crate::exit::{Failure, INTERNAL};
use crate::report::{self, EventSink};
use crate::settings::LockSettings;

/// Starts the process that runs the hooks. Call before anything is opened, with one thread.
pub(super) fn start(settings: &LockSettings) -> Result<Option<Box<dyn EventSink>>, Failure> {
    let Some(command) = &settings.hook else { return Ok(None) };
    let runner = HookRunner::start(command, |why| report::log(&report::hook_failed(why)));
    let runner =
        runner.map_err(|error| Failure::new(INTERNAL, format!("--hook: cannot start a process: {error}")))?;
    Ok(Some(Box::new(runner)))
}

impl EventSink for HookRunner {
    fn send(&self, line: &[u8]) {
        HookRunner::send(self, line);
    }

    fn failure(&self) -> Option<String> {
        HookRunner::failure(self)
    }
}
