//! What the records of a grant tell: a server replies them to a client that has only the token. They are enough to heal
//! another server.

use std::time::Duration;

use super::requests::Terms;
use crate::lock::{Fields, HolderInfo, Renewal};

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
        let records: Vec<Fields> =
            records.iter().map(|record| Fields::from_json(record)).collect::<Option<_>>()?;
        let first = records.first()?;
        let holder =
            Some(HolderInfo::from_fields(first)).filter(|holder| holder.renewal == Renewal::Nobody)?;
        let (mode_tag, min_hold) = (first.get("mode").to_vec(), first.millis("min_hold").unwrap_or_default());
        let history = first.parsed("history").unwrap_or_default();
        Some(Self {
            terms: Terms::of_record(mode_tag, &holder, min_hold, history, records.len()),
            fences: records.iter().map(|record| record.parsed("fence")).collect::<Option<_>>()?,
            held_for: first.millis("held_for")?,
            gate: first.get("gate").to_vec(),
            stamp: first.parsed("stamp"),
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
