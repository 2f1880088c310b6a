//! `redlock break`: take a lock from whoever holds it.

use crate::exit::{self, Failure};
use crate::lock::{Names, Quorum};
use crate::report;
use crate::settings::BreakSettings;

/// Returns what there is to say about it.
pub fn break_open(settings: BreakSettings) -> Result<String, Failure> {
    let key = report::plain(&settings.key);
    let names = Names::new(&settings.prefix, &settings.key);
    let mut lock = Quorum::new(settings.servers, vec![names], settings.timing);
    let holder = lock.break_open(settings.yes).map_err(|error| {
        Failure::new(exit::code_of(error.fault), format!("cannot break \"{key}\": {error}"))
    })?;
    match holder {
        None => Ok(format!("\"{key}\" is free")),
        Some(busy) if settings.yes => Ok(format!("\"{key}\" was {}; it is free now", report::holder(&busy))),
        Some(busy) => {
            let message = format!("\"{key}\" is {}; to take it away, say --yes", report::holder(&busy));
            Err(Failure::new(exit::USAGE, message))
        }
    }
}
