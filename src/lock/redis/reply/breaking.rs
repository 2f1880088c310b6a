//! What a server replies to the client that breaks a lock, and to the holder that listens for it.

use std::time::Duration;

use redis::Value;

use super::fields::Fields;
use super::{DEED, RELEASED, Reply};
use crate::lock::redis::script::{BREAK, Call, WATCH};
use crate::lock::{HolderInfo, Problem, Renewal};

/// To a holder.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) enum WatchReply {
    Ours,
    /// Its claim is marked.
    Broken {
        run_id: Vec<u8>,
        by: HolderInfo,
        /// By a client that has the token.
        is_release: bool,
    },
    /// Its claim is not there.
    Gone {
        run_id: Vec<u8>,
    },
}

impl Reply for WatchReply {
    fn answers(call: &Call) -> bool {
        call.is(&WATCH)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
        let run_id = || fields.bytes(1).map(<[u8]>::to_vec);
        match fields.tag()? {
            b"ours" => Ok(Self::Ours),
            b"broken" => Ok(Self::Broken {
                run_id: run_id()?,
                by: fields.info_from(2),
                is_release: fields.has_pair(2, DEED, RELEASED),
            }),
            b"gone" => Ok(Self::Gone { run_id: run_id()? }),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

/// To the client that breaks.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct BreakReply {
    pub run_id: Vec<u8>,
    /// `None` if it is held without.
    pub slots: Option<u32>,
    pub holders: Vec<ServerHolder>,
}

/// A holder, as one server knows it.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct ServerHolder {
    /// Without its slot and its mark; or another program's value.
    pub claim: Vec<u8>,
    pub slot: Option<u32>,
    /// `None` if it never does.
    pub expires_in: Option<Duration>,
    pub held_for: Option<Duration>,
    /// `None` if it is another program, or its record was lost.
    pub info: Option<HolderInfo>,
    /// Its command has ended: only --min-hold keeps the lock.
    pub has_ended: bool,
    pub broken_by: Option<HolderInfo>,
    pub mark: Mark,
}

impl ServerHolder {
    /// No process holds it, so a client that breaks it waits for none.
    pub(in crate::lock::redis) fn is_freed_at_once(&self) -> bool {
        self.has_ended || self.info.as_ref().is_some_and(|info| info.renewal == Renewal::Nobody)
    }
}

/// Whether a claim is marked as broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lock::redis) enum Mark {
    None,
    /// By this client with this request; before it, at most others had marked it.
    New,
    /// By this client before.
    Old,
}

/// How many fields a holder has in the reply.
const FIELDS: usize = 6;

impl Reply for BreakReply {
    fn answers(call: &Call) -> bool {
        call.is(&BREAK)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
        match fields.tag()? {
            b"holders" => {}
            b"replica" => return Err(Problem::Replica),
            b"different_server_count" => return Err(Problem::OtherServerCount(fields.number(1)?)),
            _ => return Err(Problem::UnexpectedReply),
        }
        let holder = |at: usize| {
            let info = fields.bytes(at + 4)?;
            let record: serde_json::Value =
                serde_json::from_slice(info).map_err(|_| Problem::UnexpectedReply)?;
            let text = |name: &str| record.get(name).and_then(serde_json::Value::as_str);
            Ok(ServerHolder {
                claim: fields.bytes(at)?.to_vec(),
                slot: fields.non_negative(at + 1)?.and_then(|slot: u64| u32::try_from(slot).ok()),
                expires_in: fields.non_negative_millis(at + 2)?,
                held_for: fields.non_negative_millis(at + 3)?,
                info: record.get("claim").and_then(|_| HolderInfo::from_json(info)),
                has_ended: text("ended").is_some(),
                broken_by: text("broken").and_then(|who| HolderInfo::from_json(who.as_bytes())),
                mark: match fields.bytes(at + 5)? {
                    b"" => Mark::None,
                    b"new" => Mark::New,
                    b"old" => Mark::Old,
                    _ => return Err(Problem::UnexpectedReply),
                },
            })
        };
        let holders = (3..fields.len()).step_by(FIELDS).map(holder).collect::<Result<_, _>>()?;
        let slots: u32 = fields.number(2)?;
        Ok(Self { run_id: fields.bytes(1)?.to_vec(), slots: (slots > 0).then_some(slots), holders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::redis::reply::test_support::{call, value};

    #[test]
    fn each_holder_is_described() {
        let info = r#"{"claim":"c.1","host":"web1","broken":"{\"user\":\"alice\"}"}"#;
        let fields =
            ["holders", "ab", "4", "c.1", "3", "-1", "2000", info, "old", "x", "-1", "50", "-1", "{}", ""];
        let reply = BreakReply::parse(&call(1), &value(&fields)).unwrap();
        let [ours, foreign] = reply.holders.as_slice() else { panic!("{reply:?}") };
        assert_eq!(reply.slots, Some(4));
        assert_eq!((ours.slot, ours.expires_in, ours.mark), (Some(3), None, Mark::Old));
        assert_eq!(ours.info.as_ref().unwrap().host, "web1");
        assert_eq!(ours.broken_by.as_ref().unwrap().user, "alice");
        assert_eq!((foreign.info.as_ref(), foreign.expires_in), (None, Some(Duration::from_millis(50))));
    }

    #[test]
    fn a_reply_that_was_cut_short_is_an_error() {
        for wrong in
            [&["holders"][..], &["holders", "ab", "0", "c.1"], &["holders", "", "", "c", "", "", "", "", ""]]
        {
            assert!(BreakReply::parse(&call(1), &value(wrong)).is_err(), "{wrong:?}");
        }
    }
}
