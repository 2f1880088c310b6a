//! The reply to a request for the lock.

use std::time::Duration;

use redis::Value;

use super::Reply;
use super::fields::ReplyFields;
use crate::lock::redis::script::{ACQUIRE, Call};
use crate::lock::{Blocked, Done, HolderInfo, Problem, Superseded};

#[derive(Clone, Debug)]
pub(in crate::lock::redis) enum AcquireReply {
    Granted(Granted),
    /// Held, or other waiters are ahead of us.
    Refused(Box<Refusal>),
    /// A run that we run under holds the lock.
    Nested,
    /// A run has succeeded a short time ago.
    Done(Box<Done>),
    /// A newer request has taken our place.
    Superseded(Box<Superseded>),
    /// The server may have lost its data.
    Quarantined(Quarantined),
}

/// A server's proof that it has kept its data.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::lock::redis) struct Memory {
    /// How long the server is known to have kept its data; zero = not checked.
    pub known_for: Duration,
    pub bound: Bound,
}

/// No lease of any client is longer, as far as a server knows: lua/include/marker.lua.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::lock::redis) struct Bound {
    pub longest: Duration,
    /// How long ago the oldest lease longer than usual that is still in force can have been granted.
    pub raised_ago: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::lock::redis) struct Quarantined {
    /// The server does not vote for this long.
    pub left: Duration,
    pub bound: Bound,
}

/// Why a server did not grant the lock.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct Refusal {
    pub blocked: Blocked,
    /// Identifies the server; empty where there is only one.
    pub run_id: Vec<u8>,
    /// Our arrival stamp, if we have queued there.
    pub stamp: Option<u64>,
    /// The run_id of the holder's gate; empty if unknown.
    pub holder_gate: Vec<u8>,
    /// When the holder arrived, if known.
    pub holder_arrival: Option<Arrival>,
    pub bound: Bound,
}

impl Refusal {
    /// A refusal of which nothing else is known.
    pub(in crate::lock::redis) fn unexplained(blocked: Blocked) -> Self {
        Self {
            blocked,
            run_id: Vec::new(),
            stamp: None,
            holder_gate: Vec::new(),
            holder_arrival: None,
            bound: Bound::default(),
        }
    }
}

/// A place in the order of arrival. Among clients that came to different servers in the same
/// microsecond the name decides, as it does in a server's queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::lock::redis) struct Arrival {
    pub stamp: u64,
    pub waiter: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct Granted {
    /// One for each key.
    pub fences: Vec<u64>,
    /// One for each key, or none.
    pub slots: Vec<u32>,
    /// Identifies the server; empty where there is only one.
    pub run_id: Vec<u8>,
    /// The arrival stamp of the request.
    pub stamp: u64,
    pub memory: Memory,
}

impl Reply for AcquireReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&ACQUIRE)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        Ok(match fields.tag()? {
            b"granted" => Self::Granted(Granted {
                run_id: fields.bytes(1)?.to_vec(),
                fences: fields.one_for_each_lock(2, call)?,
                slots: if fields.bytes(3)?.is_empty() {
                    Vec::new()
                } else {
                    fields.one_for_each_lock(3, call)?
                },
                stamp: fields.number(4)?,
                memory: Memory {
                    known_for: fields.non_negative_millis(5)?.unwrap_or_default(),
                    bound: fields.bound(6)?,
                },
            }),
            b"blocked" => {
                let record = fields.blocking_record();
                let waiter = fields.bytes(3)?.split(|&b| b == b'.').next().unwrap_or_default().to_vec();
                let stamp = record.parsed("stamp");
                Self::Refused(Box::new(Refusal {
                    blocked: fields.blocked(call)?,
                    run_id: fields.bytes(7)?.to_vec(),
                    stamp: fields.non_negative(8)?,
                    holder_gate: record.get("gate").to_vec(),
                    holder_arrival: stamp.map(|stamp| Arrival { stamp, waiter }),
                    bound: fields.bound(10)?,
                }))
            }
            b"nested" => Self::Nested,
            b"done" => {
                let ago = fields.non_negative_millis(1)?.ok_or(Problem::UnexpectedReply)?;
                let by = HolderInfo::from_json(fields.bytes(2)?).unwrap_or_default();
                Self::Done(Box::new(Done { by, ago }))
            }
            b"superseded" => {
                let key = Some(fields.number(1)?).filter(|key| *key < call.lock_count());
                let key = key.ok_or(Problem::UnexpectedReply)?;
                Self::Superseded(Box::new(Superseded { key, by: fields.info_from(2) }))
            }
            b"quarantined" => Self::Quarantined(Quarantined {
                left: fields.non_negative_millis(1)?.ok_or(Problem::UnexpectedReply)?,
                bound: fields.bound(2)?,
            }),
            b"stale" => return Err(Problem::StaleReply),
            b"replica" => return Err(Problem::Replica),
            b"different_server_count" => return Err(Problem::OtherServerCount(fields.number(1)?)),
            b"other_protocol" => return Err(fields.other_protocol()?),
            b"slots_mismatch" => return Err(Problem::OtherSlots(fields.number(1)?)),
            _ => return Err(Problem::UnexpectedReply),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Blocker;
    use crate::lock::redis::reply::test_support::{call, value};

    fn acquire_of(locks: usize, fields: &[&str]) -> Result<AcquireReply, Problem> {
        AcquireReply::parse(&call(locks), &value(fields))
    }

    #[test]
    fn a_grant_has_tokens_and_slots() {
        let Ok(AcquireReply::Granted(granted)) =
            acquire_of(2, &["granted", "ab", "42 43", "0 7", "1700", "5000", "30000 20"])
        else {
            panic!("granted");
        };
        assert_eq!((granted.fences, granted.slots, granted.stamp), (vec![42, 43], vec![0, 7], 1700));
        assert_eq!(granted.memory.bound.longest, Duration::from_secs(30));
        assert_eq!(granted.memory.bound.raised_ago, Duration::from_millis(20));
    }

    #[test]
    fn a_holder_is_described() {
        let fields = [
            "blocked", "1", "2", "c.1", "-1", "2000", "3", "ab", "17", "4", "30000 0", "host", "web1",
            "gate", "cd", "stamp", "9",
        ];
        let Ok(AcquireReply::Refused(refusal)) = acquire_of(2, &fields) else { panic!("blocked") };
        assert_eq!(refusal.stamp, Some(17));
        assert_eq!(refusal.holder_arrival, Some(Arrival { stamp: 9, waiter: b"c".to_vec() }));
        assert_eq!((refusal.run_id.as_slice(), refusal.holder_gate.as_slice()), (&b"ab"[..], &b"cd"[..]));
        let blocked = refusal.blocked;
        assert_eq!((blocked.key, blocked.position, blocked.queue_length), (1, Some(2), 4));
        let Blocker::Holder(holding) = blocked.by else { panic!("{:?}", blocked.by) };
        assert_eq!((holding.expires_in, holding.others), (None, 3));
        assert_eq!(holding.held_for, Some(Duration::from_secs(2)));
        assert_eq!(holding.info.host, "web1");
    }

    #[test]
    fn each_kind_of_blocker_is_recognized() {
        let by = |holder: &str, more: &[&str]| {
            let fields =
                [&["blocked", "0", "-1", holder, "500", "-1", "0", "", "-1", "0", "0 0"], more].concat();
            match acquire_of(1, &fields) {
                Ok(AcquireReply::Refused(refusal)) => refusal.blocked.by,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(by("", &[]), Blocker::Queue));
        assert!(matches!(by("x", &[]), Blocker::Foreign { expires_in: Some(_) }));
        assert!(matches!(by("x", &["host", "h", "ended", "1"]), Blocker::Reservation(_)));
    }

    #[test]
    fn the_name_decides_between_equal_stamps() {
        let arrival = |stamp, waiter: &str| Arrival { stamp, waiter: waiter.into() };
        assert!(arrival(1, "b") < arrival(2, "a"));
        assert!(arrival(2, "a") < arrival(2, "b"));
    }
}
