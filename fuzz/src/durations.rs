use std::time::Duration;

use super::{assert_printable, memory};
use crate::duration;

/// A duration as a user types it.
pub fn durations(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match memory::at_most(64 * 1024 + 16 * text.len(), || duration::parse(text)) {
        Ok(parsed) => {
            let exact = humantime::format_duration(parsed).to_string();
            assert_eq!(duration::parse(&exact), Ok(parsed), "{text:?}");
            let shown = duration::parse(&duration::format(parsed)).expect("what is shown can be typed");
            let unit = match parsed.as_secs() {
                0 => Duration::from_millis(1),
                1..10 => Duration::from_millis(100),
                _ => Duration::from_secs(1),
            };
            assert!(shown.abs_diff(parsed) < unit, "{text:?} is shown as {shown:?}");
            let seconds = duration::parse(&duration::format_seconds(parsed));
            assert_eq!(seconds, Ok(Duration::from_secs(parsed.as_secs())));
            assert_eq!(duration::parse(&parsed.as_secs().to_string()), seconds, "bare seconds");
        }
        Err(message) => assert_printable(&message, false),
    }
}
