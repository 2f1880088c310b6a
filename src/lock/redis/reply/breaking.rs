//! The replies to the client that breaks a lock, and to the holder that watches for it.

use redis::Value;

use super::Reply;
use super::fields::ReplyFields;
use crate::lock::redis::script::{BREAK, Call, WATCH};
use crate::lock::{HolderInfo, Problem, Reason};

/// The reply to a holder.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) enum WatchReply {
    Ours,
    /// Its claim is marked.
    Broken {
        run_id: Vec<u8>,
        by: HolderInfo,
        reason: Reason,
    },
    /// Its claim does not exist.
    Gone {
        run_id: Vec<u8>,
    },
}

impl Reply for WatchReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&WATCH)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        let run_id = || fields.bytes(1).map(<[u8]>::to_vec);
        match fields.tag()? {
            b"ours" => Ok(Self::Ours),
            b"broken" => {
                Ok(Self::Broken { run_id: run_id()?, by: fields.info_from(2), reason: fields.reason_from(2) })
            }
            b"gone" => Ok(Self::Gone { run_id: run_id()? }),
            _ => Err(Problem::UnexpectedReply),
        }
    }
}

/// The reply to the breaking client.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct BreakReply {
    pub run_id: Vec<u8>,
    /// The claim of each holder, without its slot and its mark, or the name of a foreign value.
    pub holders: Vec<(Vec<u8>, Mark)>,
}

/// The state of a holder's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lock::redis) enum Mark {
    None,
    /// Marked by this request, and not by this client before.
    New,
    /// Marked before, by this client or for good.
    Old,
    /// Freed by this request.
    Freed,
}

impl Reply for BreakReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&BREAK)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let fields = ReplyFields::of(value)?;
        match fields.tag()? {
            b"holders" => {}
            b"replica" => return Err(Problem::Replica),
            b"different_server_count" => return Err(Problem::OtherServerCount(fields.number(1)?)),
            b"other_protocol" => return Err(fields.other_protocol()?),
            _ => return Err(Problem::UnexpectedReply),
        }
        let holder = |at: usize| {
            let mark = match fields.bytes(at + 1)? {
                b"" => Mark::None,
                b"new" => Mark::New,
                b"old" => Mark::Old,
                b"freed" => Mark::Freed,
                _ => return Err(Problem::UnexpectedReply),
            };
            Ok((fields.bytes(at)?.to_vec(), mark))
        };
        let holders = (2..fields.len()).step_by(2).map(holder).collect::<Result<_, _>>()?;
        Ok(Self { run_id: fields.bytes(1)?.to_vec(), holders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::redis::reply::test_support::{call, value};

    #[test]
    fn each_holder_has_its_mark() {
        let fields = ["holders", "ab", "c.1", "old", "foreign:x", "freed"];
        let reply = BreakReply::parse(&call(1), &value(&fields)).unwrap();
        assert_eq!(reply.holders, [(b"c.1".to_vec(), Mark::Old), (b"foreign:x".to_vec(), Mark::Freed)]);
    }

    #[test]
    fn a_reply_that_was_cut_short_is_an_error() {
        for wrong in [&["holders"][..], &["holders", "ab", "c.1"], &["holders", "ab", "c.1", "?"]] {
            assert!(BreakReply::parse(&call(1), &value(wrong)).is_err(), "{wrong:?}");
        }
    }
}
