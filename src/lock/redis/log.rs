//! The history on servers: what release.lua logs about a finished run, and how it is parsed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::reply::parse_number;
use super::requests::{joined, millis};
use crate::clock::BootTime;
use crate::lock::orphan::OrphanGrant;
use crate::lock::{Claim, Ended, Error, Fields, FinishedRun, Grant, HolderInfo, Mode, Outcome};

/// A finished run, as release.lua expects it.
#[derive(Clone, Debug)]
pub(super) struct LogEntry {
    ended: Ended,
    fences: Vec<u64>,
    slots: Vec<u64>,
    waited: Option<Duration>,
    held: Option<Duration>,
}

impl LogEntry {
    pub(super) fn of_grant(grant: &Grant, ended: &Ended) -> Self {
        Self {
            ended: ended.clone(),
            fences: grant.fences.clone(),
            slots: grant.slots.iter().map(|&slot| slot.into()).collect(),
            waited: Some(grant.waited),
            held: Some(grant.taken_at.elapsed()),
        }
    }

    /// A run that did not get the lock; `None` if the history does not record it.
    pub(super) fn of_waiter(error: &Error, exit_if_held: u8, started: BootTime) -> Option<Self> {
        let ended = Ended::not_acquired(error, exit_if_held)?;
        let waited = Some(started.elapsed());
        Some(Self { ended, fences: Vec::new(), slots: Vec::new(), waited, held: None })
    }

    /// A run whose redlock has died.
    pub(super) fn of_orphan(grant: &OrphanGrant) -> Self {
        Self {
            ended: Ended::new(Outcome::Killed),
            fences: grant.fences.clone(),
            slots: grant.slots.iter().map(|&slot| slot.into()).collect(),
            waited: Some(grant.waited),
            held: Some(grant.taken_at.elapsed()),
        }
    }

    pub(super) fn args(&self) -> [Vec<u8>; 8] {
        let time = |time: Option<Duration>| time.map_or_else(Vec::new, millis);
        let how = &self.ended.how;
        [
            joined(&self.fences),
            joined(&self.slots),
            how.name().into(),
            text(self.ended.code()),
            text(self.ended.signal()),
            time(self.waited),
            time(self.held),
            how.by().map_or_else(Vec::new, |by| by.fields().without_empty().to_json()),
        ]
    }
}

fn text(number: Option<impl ToString>) -> Vec<u8> {
    number.map_or_else(Vec::new, |number| number.to_string().into())
}

/// Parses an entry of the log, whose `id` has the time at which it was written. `None` if it is
/// malformed, or from a newer version.
pub(super) fn finished_run(id: &[u8], fields: &Fields) -> Option<FinishedRun> {
    let written = parse_number(id.split(|&b| b == b'-').next()?)?;
    let by = HolderInfo::from_json(fields.get("by")).unwrap_or_default();
    Some(FinishedRun {
        ended_at: moment(fields.parsed("ended").unwrap_or(written))?,
        waited: fields.millis("waited"),
        held: fields.millis("held"),
        info: HolderInfo::from_fields(fields),
        mode: Mode::from_tag(fields.get("mode")).unwrap_or_default(),
        slot: fields.parsed("slot"),
        token: fields.parsed::<Claim>("claim")?.to_string(),
        fence: fields.parsed("fence"),
        ended: Ended::parse(fields.get("how"), fields.parsed("exit"), fields.parsed("signal"), by)?,
    })
}

/// The run of a holder whose lease ended at this moment, in ms, and that no client has logged yet,
/// from its claim or entry, and its record. `None` if it has logged its end itself, or keeps no
/// history.
pub(super) fn expired_run(claim: &[u8], ended: u64, record: &Fields) -> Option<FinishedRun> {
    if !record.get("ended").is_empty() || record.parsed::<u32>("history").unwrap_or(0) == 0 {
        return None;
    }
    let since: Option<u64> = record.parsed("since");
    // In microseconds. Only a single server assigns it by the clock that `since` is from.
    let arrived =
        record.parsed::<u64>("stamp").filter(|_| record.get("nodes") == b"1").map(|stamp| stamp / 1000);
    let between = |from: Option<u64>, to: Option<u64>| {
        from.zip(to).map(|(from, to)| Duration::from_millis(to.saturating_sub(from)))
    };
    let info = HolderInfo::from_fields(record);
    Some(FinishedRun {
        ended_at: moment(ended)?,
        waited: between(arrived, since),
        held: between(since, Some(ended)),
        mode: Mode::from_tag(record.get("mode")).unwrap_or_default(),
        slot: record.parsed("slot"),
        token: parse_number::<Claim>(claim.split(|&b| b == b'/' || b == b'!').next()?)?.to_string(),
        fence: record.parsed("fence"),
        ended: Ended::new(Outcome::expired(info.renewal)),
        info,
    })
}

fn moment(millis: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use proptest::prelude::*;

    const CLAIM: &str = "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.2";

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().fold(Fields::default(), |fields, (name, value)| fields.with(name, *value))
    }

    #[test]
    fn an_entry_reads_back() {
        let pairs = [
            ("claim", CLAIM),
            ("how", "broken"),
            ("exit", "79"),
            ("signal", ""),
            ("waited", "5"),
            ("held", "7000"),
            ("fence", "1794824022857"),
            ("mode", "slots:4"),
            ("slot", "3"),
            ("by", r#"{"user":"alice","host":"bastion"}"#),
            ("host", "web1"),
            ("pid", "42"),
        ];
        let run = finished_run(b"1794824022857-3", &fields(&pairs)).unwrap();
        assert_eq!(
            (run.ended.exit, run.slot, run.mode),
            (Some(Exit::Code(79)), Some(3), Mode::Slot { of: 4 })
        );
        assert_eq!((run.waited, run.held), (Some(Duration::from_millis(5)), Some(Duration::from_secs(7))));
        assert_eq!((run.token.as_str(), run.fence), (CLAIM, Some(1_794_824_022_857)));
        assert_eq!(run.ended_at, moment(1_794_824_022_857).unwrap());
        assert_eq!((run.ended.how.by().unwrap().user.as_str(), run.info.host.as_str()), ("alice", "web1"));
        let late = [&pairs[..], &[("ended", "1000")]].concat();
        assert_eq!(finished_run(b"1794824022857-3", &fields(&late)).unwrap().ended_at, moment(1000).unwrap());
    }

    #[test]
    fn an_entry_of_a_newer_version_is_skipped() {
        assert_eq!(finished_run(b"1-0", &fields(&[("claim", CLAIM), ("how", "evaporated")])), None);
        assert_eq!(finished_run(b"1-0", &fields(&[("claim", "?"), ("how", "released")])), None);
    }

    #[test]
    fn a_leftover_record_describes_an_expired_run() {
        let pairs = [
            ("since", "5000"),
            ("stamp", "3000000"),
            ("nodes", "1"),
            ("history", "200"),
            ("mode", "shared:g"),
        ];
        let run = expired_run(format!("{CLAIM}/").as_bytes(), 9000, &fields(&pairs)).unwrap();
        assert_eq!((run.waited, run.held), (Some(Duration::from_secs(2)), Some(Duration::from_secs(4))));
        assert_eq!((run.token.as_str(), run.mode), (CLAIM, Mode::Shared { group: b"g".to_vec() }));
        for (name, value) in [("ended", "1"), ("history", "0")] {
            let pairs = [&[(name, value)][..], &pairs].concat();
            assert_eq!(expired_run(CLAIM.as_bytes(), 9000, &fields(&pairs)), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_entry_makes_the_parser_panic(id: Vec<u8>, names in prop::collection::vec("[a-z]{2,6}", 0..6), value: Vec<u8>) {
            let fields = names.iter().fold(Fields::default(), |fields, name| fields.with(name, value.clone()));
            let _ = finished_run(&id, &fields);
            let _ = expired_run(&value, u64::MAX, &fields);
        }
    }
}
