//! Words for people.

use std::time::Duration;

use crate::lock::{Busy, Who};

/// Of several keys, in one line.
const MOST_SHOWN: usize = 4;

/// Text that no terminal takes for an order: control characters and broken bytes become escapes.
pub fn plain(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_bidi_control(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Invisible, and able to turn a line around.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// "1m 30s"; milliseconds only where seconds would say nothing.
pub fn human(duration: Duration) -> String {
    let shown = if duration < Duration::from_secs(10) {
        Duration::from_millis(duration.as_millis().try_into().unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(shown).to_string()
}

/// Whole seconds: nobody waits for milliseconds.
fn seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

pub fn waiting(keys: &[String], busy: &Busy, waited: Duration) -> String {
    let mut line = format!("waiting for {}: ", quoted(keys));
    if !busy.sitting_out.is_empty() {
        line.push_str(&format!("{}, waited {}", sitting_out(busy), seconds(waited)));
        return line;
    }
    if let Some(before_us) = busy.place {
        line.push_str(&format!("place {} in the queue, ", before_us + 1));
    }
    line.push_str(&format!("{}{}, waited {}", which(keys, busy), holder(busy), seconds(waited)));
    line
}

fn sitting_out(busy: &Busy) -> String {
    let who =
        busy.sitting_out.iter().map(|(name, left)| format!("{name} sits out another {}", seconds(*left)));
    let who: Vec<String> = who.collect();
    format!("{}, as it may have lost its locks (--quarantine off would not wait)", who.join(", "))
}

/// For one line of a terminal: what changes comes first, what may be cut off last.
pub fn waiting_in_short(keys: &[String], busy: &Busy, waited: Duration) -> String {
    let place = busy.place.map_or_else(String::new, |before_us| format!(", place {}", before_us + 1));
    let (which, holder) = (which(keys, busy), holder(busy));
    format!("redlock: {}: waited {}{place}, {which}{holder}", quoted(keys), seconds(waited))
}

/// `"a", "b"`; of many, the first few.
pub fn quoted(keys: &[String]) -> String {
    let shown = if keys.len() > MOST_SHOWN { MOST_SHOWN - 1 } else { keys.len() };
    let quoted: Vec<String> = keys[..shown].iter().map(|key| format!("\"{key}\"")).collect();
    quoted.join(", ") + &others(keys.len() - shown)
}

/// Of several, the one that is in the way.
fn which(keys: &[String], busy: &Busy) -> String {
    match keys.get(busy.key) {
        Some(key) if keys.len() > 1 => format!("\"{key}\" is "),
        _ => String::new(),
    }
}

/// "held by root@web1 pid 42 (nightly, rsync) for 2m 3s"
pub fn holder(busy: &Busy) -> String {
    if !busy.sitting_out.is_empty() {
        return sitting_out(busy);
    }
    let mut line = match (&busy.who, &busy.holder) {
        (Some(who), _) if busy.ended => format!("kept by --min-hold of {}", describe(who)),
        (Some(who), _) => format!("held by {}{}", describe(who), others(busy.others)),
        (None, Some(_)) => "held by another program".into(),
        (None, None) => "free, but others are before us".into(),
    };
    if let Some(held_for) = busy.held_for {
        line.push_str(&format!(" for {}", seconds(held_for)));
    }
    if let Some(who) = &busy.who
        && !who.link.is_empty()
    {
        line.push_str(&format!(", {}", who.link));
    }
    line
}

fn others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and another".into(),
        count => format!(" and {count} others"),
    }
}

fn describe(who: &Who) -> String {
    if who.pid.is_empty() {
        return "somebody".into();
    }
    let mut words = format!("{}@{} pid {}", who.user, who.host, who.pid);
    let about: Vec<&str> =
        [&who.label, &who.command].into_iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
    if !about.is_empty() {
        words.push_str(&format!(" ({})", about.join(", ")));
    }
    words
}

/// As much of the line as fits, so that erasing one line erases all of it.
pub fn fit(line: &str, width: usize) -> String {
    match line.char_indices().nth(width.saturating_sub(1)) {
        Some((end, _)) => line[..end].to_owned(),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn busy() -> Busy {
        Busy {
            key: 0,
            place: Some(0),
            holder: Some(b"x.1".to_vec()),
            who: Some(Who {
                host: "web1".into(),
                pid: "42".into(),
                user: "root".into(),
                label: "nightly".into(),
                command: "rsync".into(),
                link: String::new(),
            }),
            others: 0,
            ended: false,
            held_for: Some(Duration::from_millis(123_456)),
            expires_in: None,
            sitting_out: Vec::new(),
        }
    }

    #[test]
    fn a_wait_line_says_who_since_when_and_which_place() {
        assert_eq!(
            waiting(&["deploy".into()], &busy(), Duration::from_millis(2100)),
            "waiting for \"deploy\": place 1 in the queue, held by root@web1 pid 42 (nightly, rsync) for 2m 3s, waited 2s"
        );
    }

    #[test]
    fn of_several_keys_the_one_in_the_way_is_named() {
        let busy = Busy { key: 1, others: 2, ..busy() };
        assert_eq!(
            waiting(&["a".into(), "b".into()], &busy, Duration::ZERO),
            "waiting for \"a\", \"b\": place 1 in the queue, \"b\" is held by root@web1 pid 42 (nightly, rsync) and 2 others for 2m 3s, waited 0s"
        );
    }

    #[test]
    fn of_many_keys_the_first_are_named() {
        let keys: Vec<String> = (1..=9).map(|n| n.to_string()).collect();
        assert_eq!(quoted(&keys[..4]), r#""1", "2", "3", "4""#);
        assert_eq!(quoted(&keys), r#""1", "2", "3" and 6 others"#);
    }

    #[test]
    fn a_foreign_holder_is_named_as_such() {
        let foreign = Busy { who: None, held_for: None, ..busy() };
        assert_eq!(holder(&foreign), "held by another program");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain(b"a\x1b[31m\nb\xff\xc3\xa9"), "a\\u{1b}[31m\\nb\\xff\u{e9}");
    }

    #[test]
    fn short_times_keep_their_milliseconds() {
        assert_eq!(human(Duration::from_micros(1_500_900)), "1s 500ms");
        assert_eq!(human(Duration::from_millis(90_400)), "1m 30s");
    }

    proptest! {
        #[test]
        fn nothing_harmful_gets_through(bytes: Vec<u8>) {
            prop_assert!(!plain(&bytes).chars().any(char::is_control));
        }

        #[test]
        fn a_fitted_line_fits(line in ".{0,200}", width in 1usize..100) {
            prop_assert!(fit(&line, width).chars().count() < width.max(1));
        }
    }
}
