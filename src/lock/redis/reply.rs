//! The replies of the Lua scripts, one type for each. A reply that a script does not make is an error.

use std::str::FromStr;
use std::time::Duration;

use redis::Value;

use super::script::{ACQUIRE, BREAK, Call, EXTEND, HEAL, OUTER, RAISE, RELEASE};
use crate::lock::{Blocked, Blocker, HolderInfo, Holding, Loss, OuterLock, Problem};

/// The reply to one kind of request.
pub(super) trait Reply: Sized {
    /// Whether this is the type of the reply to `call`.
    fn answers(call: &Call) -> bool;

    /// `call` is the request that this is the reply to.
    fn parse(call: &Call, value: &Value) -> Result<Self, Problem>;
}

#[derive(Clone, Debug)]
pub(super) enum AcquireReply {
    Granted(Granted),
    /// Taken, or others are ahead of us.
    Refused(Box<Refusal>),
    /// A process that we run under is in the way.
    Nested,
    /// The server may have lost its data.
    Quarantined(Quarantined),
}

/// What a server knows about its own memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// For how long the server has been known without having lost its data; zero = not asked.
    pub known_for: Duration,
    /// The longest quarantine that any client came with.
    pub longest_quarantine: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Quarantined {
    /// The server does not vote for this long.
    pub left: Duration,
    pub longest_quarantine: Duration,
}

/// Why a server did not grant the lock.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub blocked: Blocked,
    /// Identifies the server; empty where there is only one.
    pub run_id: Vec<u8>,
    /// Our arrival stamp, if we have queued there.
    pub stamp: Option<u64>,
    /// The run_id of the holder's gate; empty if it is not known.
    pub holder_gate: Vec<u8>,
    /// The holder's arrival stamp, if it is known.
    pub holder_stamp: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Granted {
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
    fn answers(call: &Call) -> bool {
        call.is(&ACQUIRE)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
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
                    longest_quarantine: fields.non_negative_millis(6)?.unwrap_or_default(),
                },
            }),
            b"blocked" => {
                let [holder_gate, holder_stamp] = ["gate", "stamp"].map(|name| fields.info_field(name));
                Self::Refused(Box::new(Refusal {
                    blocked: fields.blocked(call)?,
                    run_id: fields.bytes(7)?.to_vec(),
                    stamp: fields.non_negative(8)?,
                    holder_gate: holder_gate.unwrap_or_default().to_vec(),
                    holder_stamp: holder_stamp.and_then(parse_number),
                }))
            }
            b"nested" => Self::Nested,
            b"quarantined" => Self::Quarantined(Quarantined {
                left: fields.non_negative_millis(1)?.ok_or(Problem::UnexpectedReply)?,
                longest_quarantine: fields.non_negative_millis(2)?.ok_or(Problem::UnexpectedReply)?,
            }),
            b"stale" => return Err(Problem::StaleReply),
            b"duplicate_server" => return Err(Problem::ListedTwice { other: None }),
            b"replica" => return Err(Problem::Replica),
            b"different_server_count" => return Err(Problem::OtherServerCount(fields.number(1)?)),
            b"slots_mismatch" => return Err(Problem::OtherSlots(fields.number(1)?)),
            _ => return Err(Problem::UnexpectedReply),
        })
    }
}

#[derive(Clone, Debug)]
pub(super) enum ExtendReply {
    Extended {
        run_id: Vec<u8>,
        /// The server may have lost what it granted to others.
        is_quarantined: bool,
    },
    Lost(Loss),
}

impl Reply for ExtendReply {
    fn answers(call: &Call) -> bool {
        call.is(&EXTEND)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
        match fields.tag()? {
            b"extended" => Ok(Self::Extended {
                run_id: fields.bytes(1)?.to_vec(),
                is_quarantined: fields.number::<u64>(2)? > 0,
            }),
            tag => loss(tag).map(Self::Lost),
        }
    }
}

/// While votes are collected: new ones arrive, and those that we have are renewed.
#[derive(Clone, Debug)]
pub(super) enum CollectReply {
    Acquire(AcquireReply),
    Extend(ExtendReply),
}

impl Reply for CollectReply {
    fn answers(call: &Call) -> bool {
        AcquireReply::answers(call) || ExtendReply::answers(call)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        if ExtendReply::answers(call) {
            ExtendReply::parse(call, value).map(Self::Extend)
        } else {
            AcquireReply::parse(call, value).map(Self::Acquire)
        }
    }
}

/// After a renewal: late replies to it, and replies of servers that were healed.
#[derive(Clone, Debug)]
pub(super) enum FollowUpReply {
    Extend(ExtendReply),
    Heal,
}

impl Reply for FollowUpReply {
    fn answers(call: &Call) -> bool {
        ExtendReply::answers(call) || call.is(&HEAL)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        if ExtendReply::answers(call) {
            return ExtendReply::parse(call, value).map(Self::Extend);
        }
        match Fields::of(value)?.tag()? {
            b"healed" | b"foreign" | b"stale" => Ok(Self::Heal),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum RaiseReply {
    Raised,
    /// The tokens here, of which at least one is in the way.
    Refused(Vec<u64>),
}

impl Reply for RaiseReply {
    fn answers(call: &Call) -> bool {
        call.is(&RAISE)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
        match fields.tag()? {
            b"raised" => Ok(Self::Raised),
            b"refused" => Ok(Self::Refused(fields.one_for_each_lock(1, call)?)),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ReleaseReply {
    Released,
    NotOurs(Loss),
}

impl Reply for ReleaseReply {
    fn answers(call: &Call) -> bool {
        call.is(&RELEASE)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        match Fields::of(value)?.tag()? {
            b"released" => Ok(Self::Released),
            tag => loss(tag).map(Self::NotOurs),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum BreakReply {
    Free,
    /// What holds the lock, or held it before it was broken.
    Held(Box<Blocked>),
}

impl Reply for BreakReply {
    fn answers(call: &Call) -> bool {
        call.is(&BREAK)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
        match fields.tag()? {
            b"free" => Ok(Self::Free),
            b"blocked" => Ok(Self::Held(Box::new(fields.blocked(call)?))),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

/// What the runs that we run under hold.
#[derive(Clone, Debug)]
pub(super) struct OuterReply {
    pub run_id: Vec<u8>,
    /// One for each key, `None` if none of them holds it.
    pub holds: Vec<Option<OuterHold>>,
}

#[derive(Clone, Debug)]
pub(super) struct OuterHold {
    pub lock: OuterLock,
    /// Empty if it is held exclusively.
    pub mode_tag: Vec<u8>,
}

impl Reply for OuterReply {
    fn answers(call: &Call) -> bool {
        call.is(&OUTER)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = Fields::of(value)?;
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
            let lock = OuterLock { claim, fence: fields.number(at + 1)?, slot: fields.number(at + 2)? };
            Ok(Some(OuterHold { lock, mode_tag: fields.bytes(at + 3)?.to_vec() }))
        };
        let holds = (2..fields.0.len()).step_by(4).map(hold).collect::<Result<_, _>>()?;
        Ok(Self { run_id: fields.bytes(1)?.to_vec(), holds })
    }
}

/// BLPOP has returned, with an element or without. It only wakes: the next request tells what has changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken;

impl Reply for Woken {
    fn answers(call: &Call) -> bool {
        matches!(call, Call::BlockingPop { .. })
    }

    fn parse(_call: &Call, _value: &Value) -> Result<Self, Problem> {
        Ok(Self)
    }
}

fn loss(tag: &[u8]) -> Result<Loss, Problem> {
    match tag {
        b"expired" => Ok(Loss::Expired),
        b"foreign" => Ok(Loss::Foreign),
        _ => Err(Problem::UnexpectedReply),
    }
}

/// Where the fields of the holder's info begin in a 'blocked' reply.
const INFO: usize = 10;

/// A script's reply: a list of strings of which the first is the tag, or the tag alone.
struct Fields(Vec<Vec<u8>>);

impl Fields {
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    fn of(value: &Value) -> Result<Self, Problem> {
        let fields = match value {
            Value::Array(items) => items.iter().map(string).collect(),
            single => string(single).map(|tag| vec![tag]),
        };
        fields.map(Self).ok_or(Problem::UnexpectedReply)
    }

    fn tag(&self) -> Result<&[u8], Problem> {
        self.bytes(0)
    }

    fn bytes(&self, at: usize) -> Result<&[u8], Problem> {
        self.0.get(at).map(Vec::as_slice).ok_or(Problem::UnexpectedReply)
    }

    fn number<T: FromStr>(&self, at: usize) -> Result<T, Problem> {
        parse_number(self.bytes(at)?).ok_or(Problem::UnexpectedReply)
    }

    /// "7 8"
    fn one_for_each_lock<T: FromStr>(&self, at: usize, call: &Call) -> Result<Vec<T>, Problem> {
        let numbers = self.bytes(at)?.split(|&b| b == b' ').filter(|number| !number.is_empty());
        let numbers: Option<Vec<T>> = numbers.map(parse_number).collect();
        numbers.filter(|numbers| numbers.len() == call.lock_count()).ok_or(Problem::UnexpectedReply)
    }

    /// `None` for a negative number, which means "never" or "unknown".
    fn non_negative<T: TryFrom<i64>>(&self, at: usize) -> Result<Option<T>, Problem> {
        self.number::<i64>(at).map(|number| T::try_from(number).ok())
    }

    fn non_negative_millis(&self, at: usize) -> Result<Option<Duration>, Problem> {
        Ok(self.non_negative(at)?.map(Duration::from_millis))
    }

    /// A field of the holder's info.
    fn info_field(&self, name: &str) -> Option<&[u8]> {
        let mut pairs = self.0.get(INFO..)?.chunks_exact(2);
        pairs.find(|pair| pair[0] == name.as_bytes()).map(|pair| pair[1].as_slice())
    }

    /// As `blocked_by` in lua/ writes it.
    fn blocked(&self, call: &Call) -> Result<Blocked, Problem> {
        let key = self.number(1)?;
        if key >= call.lock_count() {
            return Err(Problem::UnexpectedReply);
        }
        let is_free = self.bytes(3)?.is_empty();
        let expires_in = self.non_negative_millis(4)?;
        let holding = || {
            Ok(Holding {
                info: HolderInfo::from_fields(&self.0[INFO..]),
                others: self.number(6)?,
                held_for: self.non_negative_millis(5)?,
                expires_in,
            })
        };
        let info = self.0.get(INFO..).ok_or(Problem::UnexpectedReply)?;
        let has_ended = info.chunks_exact(2).any(|pair| pair[0] == b"ended");
        Ok(Blocked {
            key,
            position: self.non_negative(2)?,
            queue_length: self.number(9)?,
            by: match (is_free, info.is_empty(), has_ended) {
                (true, ..) => Blocker::Queue,
                (false, true, _) => Blocker::Foreign { expires_in },
                (false, false, true) => Blocker::Reservation(holding()?),
                (false, false, false) => Blocker::Holder(holding()?),
            },
        })
    }
}

fn parse_number<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn string(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::redis::script::KEYS_OF_LOCK;
    use proptest::prelude::*;

    /// A request for this many locks, by whatever script.
    fn call(locks: usize) -> Call {
        let keys = vec![Vec::new(); locks * KEYS_OF_LOCK + 2];
        Call::Script { script: &ACQUIRE, keys, args: Vec::new() }
    }

    fn value(fields: &[&str]) -> Value {
        Value::Array(fields.iter().map(|field| Value::BulkString(field.as_bytes().to_vec())).collect())
    }

    fn acquire(fields: &[&str]) -> Result<AcquireReply, Problem> {
        acquire_of(1, fields)
    }

    fn acquire_of(locks: usize, fields: &[&str]) -> Result<AcquireReply, Problem> {
        AcquireReply::parse(&call(locks), &value(fields))
    }

    #[test]
    fn a_grant_has_tokens_and_slots() {
        let Ok(AcquireReply::Granted(granted)) =
            acquire_of(2, &["granted", "ab", "42 43", "0 7", "1700", "5000", "30000"])
        else {
            panic!("granted");
        };
        assert_eq!((granted.fences, granted.slots, granted.stamp), (vec![42, 43], vec![0, 7], 1700));
        assert_eq!(granted.memory.longest_quarantine, Duration::from_secs(30));
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
        assert!(matches!(acquire(&["quarantined", "1500", "30000"]), Ok(AcquireReply::Quarantined(_))));
        assert!(matches!(acquire(&["slots_mismatch", "4"]), Err(Problem::OtherSlots(4))));
    }

    #[test]
    fn an_unexpected_reply_is_an_error() {
        for wrong in [
            &["granted"][..],
            &["granted", "ab", "x", ""],
            &["granted", "ab", "", "", "1700", "5000", "30000"],
            &["granted", "ab", "42 43", "", "1700", "5000", "30000"],
            &["granted", "ab", "42", "0 7", "1700", "5000", "30000"],
            &["quarantined", "-1"],
            &["blocked", "1", "-1", "", "-1", "-1", "0", "", "-1"],
            &["blocked", "0"],
            &["blocked", "0", "-1", "c.1", "-1", "-1"],
            &["quarantined", "1", "-1"],
            &["released"],
            &["?"],
            &[],
        ] {
            assert!(matches!(acquire(wrong), Err(Problem::UnexpectedReply)), "{wrong:?}");
        }
        assert!(matches!(ReleaseReply::parse(&call(1), &Value::Nil), Err(Problem::UnexpectedReply)));
        assert!(matches!(ReleaseReply::parse(&call(1), &value(&["granted"])), Err(Problem::UnexpectedReply)));
    }

    #[test]
    fn a_holder_is_described() {
        let fields = [
            "blocked", "1", "2", "c.1", "-1", "2000", "3", "ab", "17", "4", "host", "web1", "gate", "cd",
            "stamp", "9",
        ];
        let Ok(AcquireReply::Refused(refusal)) = acquire_of(2, &fields) else { panic!("blocked") };
        assert_eq!((refusal.stamp, refusal.holder_stamp), (Some(17), Some(9)));
        assert_eq!((refusal.run_id.as_slice(), refusal.holder_gate.as_slice()), (&b"ab"[..], &b"cd"[..]));
        let blocked = refusal.blocked;
        assert_eq!((blocked.key, blocked.position, blocked.queue_length), (1, Some(2), 4));
        let Blocker::Holder(holding) = blocked.by else { panic!("{:?}", blocked.by) };
        assert_eq!((holding.expires_in, holding.others), (None, 3));
        assert_eq!(holding.held_for, Some(Duration::from_secs(2)));
        assert_eq!(holding.info.host, "web1");
    }

    #[test]
    fn what_blocks_is_told_apart() {
        let by = |holder: &str, more: &[&str]| {
            let fields = [&["blocked", "0", "-1", holder, "500", "-1", "0", "", "-1", "0"], more].concat();
            match acquire(&fields) {
                Ok(AcquireReply::Refused(refusal)) => refusal.blocked.by,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(by("", &[]), Blocker::Queue));
        assert!(matches!(by("x", &[]), Blocker::Foreign { expires_in: Some(_) }));
        assert!(matches!(by("x", &["host", "h", "ended", "1"]), Blocker::Reservation(_)));
    }

    proptest! {
        #[test]
        fn no_reply_can_upset_the_parsers(fields in proptest::collection::vec("[a-z0-9 -]{0,12}", 0..10)) {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            for tag in ["granted", "blocked", "extended", "refused", "quarantined"] {
                let value = value(&[&[tag], fields.as_slice()].concat());
                let call = call(1);
                let _ = (AcquireReply::parse(&call, &value), ExtendReply::parse(&call, &value), RaiseReply::parse(&call, &value));
            }
        }
    }
}
