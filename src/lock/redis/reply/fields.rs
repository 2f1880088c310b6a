//! The strings of a script's reply.

use std::str::FromStr;
use std::time::Duration;

use redis::Value;

use super::REASON;
use super::acquire::Bound;
use crate::lock::redis::script::Call;
use crate::lock::{Blocked, Blocker, Fields, HolderInfo, Holding, Problem, Reason};

/// Index of the first field of the holder's record in a 'blocked' reply.
const INFO: usize = 11;

/// A script's reply: a list of strings that starts with the tag, or the tag alone.
pub(super) struct ReplyFields(Vec<Vec<u8>>);

impl ReplyFields {
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(super) fn of(value: &Value) -> Result<Self, Problem> {
        let fields = match value {
            Value::Array(items) => items.iter().map(bytes_of).collect(),
            single => bytes_of(single).map(|tag| vec![tag]),
        };
        fields.map(Self).ok_or(Problem::UnexpectedReply)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn tag(&self) -> Result<&[u8], Problem> {
        self.bytes(0)
    }

    pub(super) fn bytes(&self, at: usize) -> Result<&[u8], Problem> {
        self.0.get(at).map(Vec::as_slice).ok_or(Problem::UnexpectedReply)
    }

    /// All strings from this one on.
    pub(super) fn rest(&self, at: usize) -> Vec<Vec<u8>> {
        self.0.get(at..).unwrap_or_default().to_vec()
    }

    pub(super) fn number<T: FromStr>(&self, at: usize) -> Result<T, Problem> {
        parse_number(self.bytes(at)?).ok_or(Problem::UnexpectedReply)
    }

    /// Parses a list such as "7 8".
    pub(super) fn one_for_each_lock<T: FromStr>(&self, at: usize, call: &Call) -> Result<Vec<T>, Problem> {
        let numbers = self.bytes(at)?.split(|&b| b == b' ').filter(|number| !number.is_empty());
        let numbers: Option<Vec<T>> = numbers.map(parse_number).collect();
        numbers.filter(|numbers| numbers.len() == call.lock_count()).ok_or(Problem::UnexpectedReply)
    }

    /// `None` for a negative number, which means "never" or "unknown".
    pub(super) fn non_negative<T: TryFrom<i64>>(&self, at: usize) -> Result<Option<T>, Problem> {
        self.number::<i64>(at).map(|number| T::try_from(number).ok())
    }

    pub(super) fn non_negative_millis(&self, at: usize) -> Result<Option<Duration>, Problem> {
        Ok(self.non_negative(at)?.map(Duration::from_millis))
    }

    /// The longest bound of any lease: its length, and the time since it was raised, in ms.
    pub(super) fn bound(&self, at: usize) -> Result<Bound, Problem> {
        let text = self.bytes(at)?;
        let mut numbers =
            text.split(|&b| b == b' ').map(|number| parse_number(number).map(Duration::from_millis));
        match (numbers.next().flatten(), numbers.next().flatten(), numbers.next()) {
            (Some(longest), Some(raised_ago), None) => Ok(Bound { longest, raised_ago }),
            _ => Err(Problem::UnexpectedReply),
        }
    }

    /// Names and values in turn, from this one on.
    pub(super) fn fields_from(&self, at: usize) -> Fields {
        Fields::from_list(self.0.get(at..).unwrap_or_default())
    }

    pub(super) fn info_from(&self, at: usize) -> HolderInfo {
        HolderInfo::from_fields(&self.fields_from(at))
    }

    /// The reply that `other_protocol` in lua/include/protocol.lua returns.
    pub(super) fn other_protocol(&self) -> Result<Problem, Problem> {
        let version = String::from_utf8_lossy(self.bytes(2)?).into_owned();
        Ok(Problem::OtherProtocol { protocol: self.number(1)?, version })
    }

    /// Why a client has taken the lock away.
    pub(super) fn reason_from(&self, at: usize) -> Reason {
        Reason::from_name(self.fields_from(at).get(REASON))
    }

    /// The holder's record in a 'blocked' reply.
    pub(super) fn blocking_record(&self) -> Fields {
        self.fields_from(INFO)
    }

    /// Parses the reply that `blocked_by` in lua/include/blocked.lua returns.
    pub(super) fn blocked(&self, call: &Call) -> Result<Blocked, Problem> {
        let key = self.number(1)?;
        if key >= call.lock_count() {
            return Err(Problem::UnexpectedReply);
        }
        let is_free = self.bytes(3)?.is_empty();
        let expires_in = self.non_negative_millis(4)?;
        let holding = || {
            let name = String::from_utf8_lossy(self.bytes(3)?);
            Ok(Holding {
                id: name.trim_end_matches('!').to_owned(),
                info: self.info_from(INFO),
                others: self.number(6)?,
                held_for: self.non_negative_millis(5)?,
                expires_in,
            })
        };
        let info = self.0.get(INFO..).ok_or(Problem::UnexpectedReply)?;
        let has_ended = !self.blocking_record().get("ended").is_empty();
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

pub(in crate::lock::redis) fn parse_number<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
pub(super) fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}
