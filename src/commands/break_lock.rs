//! `redlock break`: take a lock away from its holder.

use super::exit_code;
use crate::child::local_time;
use crate::exit::{self, Failure};
use crate::lock::{Keys, break_lock};
use crate::report::{backend_error, blocker, print, quoted, sanitize};
use crate::settings::BreakSettings;

/// Returns the sentence for stdout.
pub(super) fn run(settings: BreakSettings) -> Result<String, Failure> {
    for warning in &settings.warnings {
        print(warning);
    }
    let key = quoted(&[sanitize(&settings.key)]);
    let keys = Keys::new(&settings.prefix, &settings.key);
    let holder = break_lock(settings.servers, keys, settings.timing, settings.yes).map_err(|error| {
        let message = format!("cannot break {key}: {}", backend_error(&error));
        Failure::new(exit_code(error.fault()), message)
    })?;
    match holder {
        None => Ok(format!("{key} is free")),
        Some(blocked) if settings.yes => {
            Ok(format!("{key} was {}; it is free now", blocker(&blocked.by, local_time)))
        }
        Some(blocked) => {
            let message = format!("{key} is {}; pass --yes to break it", blocker(&blocked.by, local_time));
            Err(Failure::new(exit::USAGE, message))
        }
    }
}
