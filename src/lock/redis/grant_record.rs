//! What the records of a grant tell: a server replies them to a client that has only the token. They are enough to heal
//! another server.

use std::time::Duration;

use serde_json::Value;

use super::requests::Terms;
use crate::lock::{HolderInfo, Renewal};

#[derive(Clone, Debug)]
pub(super) struct GrantRecord {
    pub terms: Terms,
    pub fences: Vec<u64>,
    pub held_for: Duration,
    pub gate: Vec<u8>,
    pub stamp: Option<u64>,
}

impl GrantRecord {
    /// From a JSON object for each lock. `None` if something is missing; or if a process renews the lock, which heals the
    /// servers itself.
    pub(super) fn parse(records: &[Vec<u8>]) -> Option<Self> {
        let holder = HolderInfo::from_json(records.first()?)?;
        let objects: Vec<Value> =
            records.iter().map(|record| serde_json::from_slice(record)).collect::<Result<_, _>>().ok()?;
        let text = |object: &Value, name: &str| object.get(name)?.as_str().map(str::to_owned);
        let number = |object: &Value, name: &str| text(object, name)?.parse::<u64>().ok();
        let first = objects.first().filter(|_| holder.renewal == Renewal::Nobody)?;
        let mode_tag = text(first, "mode").unwrap_or_default().into_bytes();
        let min_hold = Duration::from_millis(number(first, "min_hold").unwrap_or_default());
        let history = number(first, "history").and_then(|most| u32::try_from(most).ok()).unwrap_or_default();
        Some(Self {
            terms: Terms::of_record(mode_tag, &holder, min_hold, history, objects.len()),
            fences: objects.iter().map(|object| number(object, "fence")).collect::<Option<_>>()?,
            held_for: Duration::from_millis(number(first, "held_for")?),
            gate: text(first, "gate").unwrap_or_default().into_bytes(),
            stamp: number(first, "stamp"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_record_that_nobody_renews_is_used() {
        let parse = |text: &str| GrantRecord::parse(&[text.into(), text.into()]);
        let whole =
            r#"{"fence":"7","held_for":"1500","gate":"g","stamp":"9","keeper":"none","mode":"shared:a"}"#;
        let record = parse(whole).unwrap();
        assert_eq!((record.fences, record.held_for), (vec![7, 7], Duration::from_millis(1500)));
        assert_eq!((record.gate, record.stamp), (b"g".to_vec(), Some(9)));
        assert_eq!(record.terms.mode_tag, b"shared:a");
        for other in [
            "",
            "{}",
            "[]",
            &whole.replace("none", "42"),
            &whole.replace("\"keeper\"", "\"x\""),
            &whole.replace("\"7\"", "\"\""),
            &whole.replace("held_for", "x"),
        ] {
            assert!(parse(other).is_none(), "{other}");
        }
        assert!(GrantRecord::parse(&[]).is_none());
    }
}
