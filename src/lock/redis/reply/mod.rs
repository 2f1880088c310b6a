//! The replies of the Lua scripts, one type for each. Any other reply is an error.

mod acquire;
mod breaking;
mod fields;
mod inspect;

use std::time::Duration;

use redis::Value;

use super::script::{Call, EXTEND, HEAL, OUTER, RAISE, RELEASE};
use crate::lock::{Loss, OuterLock, Problem};
use fields::ReplyFields;

#[cfg(test)]
pub(super) use acquire::Memory;
pub(super) use acquire::{AcquireReply, Arrival, Bound, Granted, Quarantined, Refusal};
pub(super) use breaking::{BreakReply, Mark, WatchReply};
pub(super) use fields::parse_number;
pub(super) use inspect::{HolderRecord, InspectReply, Queue, Record, Waiter};

/// The reply to one kind of request.
pub(super) trait Reply: Sized {
    /// Whether this is the type of the reply to `call`.
    fn is_reply_to(call: &Call) -> bool;

    /// `call`: the request that `value` is the reply to.
    fn parse(call: &Call, value: &Value) -> Result<Self, Problem>;
}

#[derive(Clone, Debug)]
pub(super) enum ExtendReply {
    Extended {
        run_id: Vec<u8>,
        /// The server may have lost grants, and is quarantined for this long; zero = it is not.
        quarantine: Duration,
        /// For a bearer: the record of each lock, as JSON.
        records: Vec<Vec<u8>>,
    },
    Lost(Loss),
}

impl Reply for ExtendReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&EXTEND)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        match fields.tag()? {
            b"extended" => Ok(Self::Extended {
                run_id: fields.bytes(1)?.to_vec(),
                quarantine: fields.non_negative_millis(2)?.ok_or(Problem::UnexpectedReply)?,
                records: fields.rest(3),
            }),
            b"broken" => Ok(Self::Lost(fields.reason_from(1).loss(fields.info_from(1)))),
            _ => loss(&fields).map(Self::Lost),
        }
    }
}

/// The replies while votes are collected: new votes, renewals of those that we have and, where we
/// were refused, BLPOP, which returns when it is time to retry.
#[derive(Clone, Debug)]
pub(super) enum CollectReply {
    Acquire(AcquireReply),
    Extend(ExtendReply),
    Woken,
}

impl Reply for CollectReply {
    fn is_reply_to(call: &Call) -> bool {
        AcquireReply::is_reply_to(call) || ExtendReply::is_reply_to(call) || Woken::is_reply_to(call)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        if Woken::is_reply_to(call) {
            Ok(Self::Woken)
        } else if ExtendReply::is_reply_to(call) {
            ExtendReply::parse(call, value).map(Self::Extend)
        } else {
            AcquireReply::parse(call, value).map(Self::Acquire)
        }
    }
}

/// The replies after a renewal: late ones, and those of servers that were healed.
#[derive(Clone, Debug)]
pub(super) enum FollowUpReply {
    Extend(ExtendReply),
    Heal,
}

impl Reply for FollowUpReply {
    fn is_reply_to(call: &Call) -> bool {
        ExtendReply::is_reply_to(call) || call.is(&HEAL)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        if ExtendReply::is_reply_to(call) {
            return ExtendReply::parse(call, value).map(Self::Extend);
        }
        match ReplyFields::of(value)?.tag()? {
            b"healed" | b"foreign" | b"stale" => Ok(Self::Heal),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum RaiseReply {
    Raised,
    /// The server's tokens, at least one of which is too high.
    Refused(Vec<u64>),
}

impl Reply for RaiseReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&RAISE)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        match fields.tag()? {
            b"raised" => Ok(Self::Raised),
            b"refused" => Ok(Self::Refused(fields.one_for_each_lock(1, call)?)),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum ReleaseReply {
    Released,
    /// For a bearer with whether each lock was still ours, and is released.
    NotOurs(Loss, Vec<u8>),
    /// For a bearer: a run holds the lock, and must be notified.
    HeldByRun,
}

impl Reply for ReleaseReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&RELEASE)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        match fields.tag()? {
            b"released" => Ok(Self::Released),
            b"run" => Ok(Self::HeldByRun),
            _ => {
                let released = fields.one_for_each_lock(fields.len() - 1, call);
                Ok(Self::NotOurs(loss(&fields)?, released.unwrap_or_default()))
            }
        }
    }
}

/// The locks that are held by runs that we run under.
#[derive(Clone, Debug)]
pub(super) struct OuterReply {
    pub run_id: Vec<u8>,
    /// One for each key; `None` if none of the runs holds it.
    pub holds: Vec<Option<OuterHold>>,
}

#[derive(Clone, Debug)]
pub(super) struct OuterHold {
    pub lock: OuterLock,
    /// For a lock of `redlock acquire`: how long it is held at least; `None` if it never ends.
    pub expires_in: Option<Duration>,
    /// Empty if the lock is held exclusively.
    pub mode_tag: Vec<u8>,
}

impl Reply for OuterReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&OUTER)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        match fields.tag()? {
            b"outer" => {}
            b"replica" => return Err(Problem::Replica),
            _ => return Err(Problem::UnexpectedReply),
        }
        let hold = |at: usize| {
            let claim = fields.bytes(at)?;
            if claim.is_empty() {
                return Ok(None);
            }
            let claim = parse_number(claim).ok_or(Problem::UnexpectedReply)?;
            let (fence, slot) = (fields.number(at + 1)?, fields.number(at + 2)?);
            let is_of_run = fields.bytes(at + 4)?.is_empty();
            let expires_in = if is_of_run { None } else { fields.non_negative_millis(at + 4)? };
            let lock = OuterLock { claim, fence, slot, lease: None };
            Ok(Some(OuterHold { lock, expires_in, mode_tag: fields.bytes(at + 3)?.to_vec() }))
        };
        let holds = (2..fields.len()).step_by(5).map(hold).collect::<Result<_, _>>()?;
        Ok(Self { run_id: fields.bytes(1)?.to_vec(), holds })
    }
}

/// BLPOP has returned, with an element or without. The next request finds out what has changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken;

impl Reply for Woken {
    fn is_reply_to(call: &Call) -> bool {
        matches!(call, Call::BlockingPop { .. })
    }

    fn parse(_call: &Call, _value: &Value) -> Result<Self, Problem> {
        Ok(Self)
    }
}

/// The server's reply to a plain command.
#[derive(Clone, Debug)]
pub(super) struct CommandReply(pub Value);

impl Reply for CommandReply {
    fn is_reply_to(call: &Call) -> bool {
        matches!(call, Call::Command { .. })
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        Ok(Self(value.clone()))
    }
}

/// A field of the client that has marked a claim: a [`Reason`](crate::lock::Reason).
pub(super) const REASON: &str = "reason";

/// Why the lock is not ours; an error for a bearer that uses the wrong number of servers, or names
/// the wrong number of locks.
fn loss(fields: &ReplyFields) -> Result<Loss, Problem> {
    let by = || Box::new(fields.info_from(2));
    match (fields.tag()?, fields.bytes(1)) {
        (b"expired", _) => Ok(Loss::Expired),
        (b"foreign", _) => Ok(Loss::Foreign),
        (b"ended", Ok(b"released")) => Ok(Loss::Released { by: by() }),
        (b"ended", Ok(b"broken")) => Ok(Loss::Broken { by: by() }),
        (b"different_server_count", _) => Err(Problem::OtherServerCount(fields.number(1)?)),
        (b"other_protocol", _) => Err(fields.other_protocol()?),
        (b"different_lock_count", _) => Err(Problem::OtherLockCount(fields.number(1)?)),
        _ => Err(Problem::UnexpectedReply),
    }
}

#[cfg(test)]
mod test_support {
    use super::{Call, Value};
    use crate::lock::redis::script::{ACQUIRE, KEYS_OF_LOCK};

    /// A request for this many locks.
    pub(super) fn call(locks: usize) -> Call {
        let keys = vec![Vec::new(); locks * KEYS_OF_LOCK + 2];
        Call::Script { script: &ACQUIRE, keys, args: Vec::new(), in_full: false }
    }

    pub(super) fn value(fields: &[&str]) -> Value {
        Value::Array(fields.iter().map(|field| Value::BulkString(field.as_bytes().to_vec())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{call, value};
    use super::*;
    use proptest::prelude::*;

    fn acquire(fields: &[&str]) -> Result<AcquireReply, Problem> {
        AcquireReply::parse(&call(1), &value(fields))
    }

    #[test]
    fn each_script_has_replies_of_its_own() {
        assert!(matches!(
            ExtendReply::parse(&call(1), &value(&["expired"])),
            Ok(ExtendReply::Lost(Loss::Expired))
        ));
        let single = Value::SimpleString("released".into());
        assert!(matches!(ReleaseReply::parse(&call(1), &single), Ok(ReleaseReply::Released)));
        assert!(matches!(RaiseReply::parse(&call(1), &value(&["refused", "9"])), Ok(RaiseReply::Refused(_))));
        assert!(matches!(acquire(&["quarantined", "1500", "30000 0"]), Ok(AcquireReply::Quarantined(_))));
        assert!(matches!(acquire(&["slots_mismatch", "4"]), Err(Problem::OtherSlots(4))));
    }

    #[test]
    fn an_unexpected_reply_is_an_error() {
        for wrong in [
            &["granted"][..],
            &["granted", "ab", "x", ""],
            &["granted", "ab", "", "", "1700", "5000", "30000 0"],
            &["granted", "ab", "42 43", "", "1700", "5000", "30000 0"],
            &["granted", "ab", "42", "0 7", "1700", "5000", "30000 0"],
            &["quarantined", "-1"],
            &["blocked", "1", "-1", "", "-1", "-1", "0", "", "-1"],
            &["blocked", "0"],
            &["blocked", "0", "-1", "c.1", "-1", "-1"],
            &["quarantined", "1", "-1"],
            &["quarantined", "1", "30000"],
            &["released"],
            &["?"],
            &[],
        ] {
            assert!(matches!(acquire(wrong), Err(Problem::UnexpectedReply)), "{wrong:?}");
        }
        assert!(matches!(ReleaseReply::parse(&call(1), &Value::Nil), Err(Problem::UnexpectedReply)));
        assert!(matches!(ReleaseReply::parse(&call(1), &value(&["granted"])), Err(Problem::UnexpectedReply)));
    }

    proptest! {
        #[test]
        fn no_reply_makes_the_parsers_panic(fields in proptest::collection::vec("[a-z0-9 -]{0,12}", 0..10)) {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            for tag in ["granted", "blocked", "extended", "refused", "quarantined"] {
                let value = value(&[&[tag], fields.as_slice()].concat());
                let call = call(1);
                let _ = (AcquireReply::parse(&call, &value), ExtendReply::parse(&call, &value), RaiseReply::parse(&call, &value));
            }
        }
    }
}
