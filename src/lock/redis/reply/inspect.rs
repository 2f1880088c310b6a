//! The reply to a read-only inspection.

use std::time::Duration;

use redis::Value;

use super::Reply;
use super::fields::{bytes_of, parse_number};
use crate::clock::BootTime;
use crate::lock::redis::log::expired_run;
use crate::lock::redis::script::{Call, INSPECT};
use crate::lock::{AncestorLock, Claim, Done, Fields, FinishedRun, HolderInfo, Mode, Problem};

/// Scores of preferred waiters are this much smaller: see lua/include/queue.lua.
const PREFERRED_LANE: i64 = 4_000_000_000_000_000;

#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct InspectReply {
    /// Identifies the server.
    pub run_id: Vec<u8>,
    pub is_replica: bool,
    /// The server does not vote for this long; zero = it does.
    pub quarantine: Duration,
    /// The end of the first lock's log, if requested.
    pub last_log_id: Option<Vec<u8>>,
    /// Expired holders of the first lock that no client has logged yet, if the log was requested.
    pub expired: Vec<FinishedRun>,
    /// One for each key.
    pub locks: Vec<Record>,
    /// The marks of success, one for each key.
    pub done: Vec<Option<Done>>,
    /// For how long the last successful runs held each lock, if requested.
    pub durations: Vec<Vec<Duration>>,
    received_at: BootTime,
}

impl InspectReply {
    /// Advances all durations to the present: other servers may have replied later than this one.
    pub(in crate::lock::redis) fn up_to_date(mut self) -> Self {
        let age = self.received_at.elapsed();
        self.done.iter_mut().flatten().for_each(|done| done.ago += age);
        let later = |left: &mut Option<Duration>| *left = left.map(|left| left.saturating_sub(age));
        for record in &mut self.locks {
            let queue = match record {
                Record::Free { queue } => queue,
                Record::Held { holders, queue, .. } => {
                    for holder in holders {
                        later(&mut holder.expires_in);
                        holder.held_for = holder.held_for.map(|held_for| held_for + age);
                    }
                    queue
                }
                Record::Foreign { expires_in, queue, .. } => {
                    later(expires_in);
                    queue
                }
                Record::WrongType => continue,
            };
            queue.waiters.iter_mut().for_each(|waiter| waiter.waited += age);
        }
        self
    }
}

/// One server's record of one lock.
#[derive(Clone, Debug)]
pub(in crate::lock::redis) enum Record {
    Free {
        queue: Queue,
    },
    Held {
        mode: Mode,
        holders: Vec<HolderRecord>,
        holder_count: usize,
        queue: Queue,
    },
    /// `id` represents its value. `expires_in`: `None` = it never expires.
    Foreign {
        id: Vec<u8>,
        expires_in: Option<Duration>,
        queue: Queue,
    },
    /// The key has a value of another type.
    WrongType,
}

impl Record {
    /// The number of servers that its holders' grants are spread over, if a record has it.
    pub(in crate::lock::redis) fn server_count(&self) -> Option<usize> {
        match self {
            Self::Held { holders, .. } => holders.iter().find_map(|holder| holder.servers),
            Self::Free { .. } | Self::Foreign { .. } | Self::WrongType => None,
        }
    }

    /// The problem if a holder's protocol and ours cannot share a lock.
    pub(in crate::lock::redis) fn protocol_problem(&self) -> Option<Problem> {
        match self {
            Self::Held { holders, .. } => holders.iter().find_map(|holder| holder.info.protocol_problem()),
            Self::Free { .. } | Self::Foreign { .. } | Self::WrongType => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct HolderRecord {
    pub claim: Claim,
    pub slot: Option<u32>,
    pub expires_in: Option<Duration>,
    /// Empty if its record was lost.
    pub info: HolderInfo,
    pub fence: Option<u64>,
    /// Known only for a single server: it needs the arrival and the grant by the same clock.
    pub waited: Option<Duration>,
    pub held_for: Option<Duration>,
    pub has_ended: bool,
    /// The number of servers that the grant is spread over.
    pub servers: Option<usize>,
    /// The client that broke the lock, if the claim is marked: the holder must release it.
    pub broken_by: Option<HolderInfo>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::lock::redis) struct Queue {
    pub count: usize,
    pub waiters: Vec<Waiter>,
}

#[derive(Clone, Debug)]
pub(in crate::lock::redis) struct Waiter {
    pub name: Vec<u8>,
    pub mode: Mode,
    /// Its place in the queue.
    pub score: i64,
    pub waited: Duration,
    pub info: HolderInfo,
    /// The locks of the runs that it runs under.
    pub held: Vec<AncestorLock>,
    /// Until when it counts as alive, in ms by the server's clock.
    pub lease: i64,
}

impl Waiter {
    /// When it arrived, in microseconds by its gate's clock.
    pub(in crate::lock::redis) fn stamp(&self) -> i64 {
        if self.score < 0 { self.score + PREFERRED_LANE } else { self.score }
    }
}

impl Reply for InspectReply {
    fn is_reply_to(call: &Call) -> bool {
        call.is(&INSPECT)
    }

    fn parse(_call: &Call, value: &Value) -> Result<Self, Problem> {
        let [now, run_id, is_replica, quarantine, last_log_id, left, locks @ ..] = list(value)? else {
            return Err(Problem::UnexpectedReply);
        };
        let now: u64 = number(now)?;
        Ok(Self {
            run_id: bytes(run_id)?,
            is_replica: bytes(is_replica)? == b"1",
            quarantine: Duration::from_millis(number(quarantine)?),
            last_log_id: Some(bytes(last_log_id)?).filter(|id| !id.is_empty()),
            expired: parse_expired(left)?,
            locks: locks.iter().map(|lock| record(lock, now)).collect::<Result<_, _>>()?,
            done: locks.iter().map(|lock| done(lock, now)).collect::<Result<_, _>>()?,
            durations: locks.iter().map(durations).collect::<Result<_, _>>()?,
            received_at: BootTime::now(),
        })
    }
}

/// Parses expired holders: claim or entry, ms at which the lease ended, record.
fn parse_expired(value: &Value) -> Result<Vec<FinishedRun>, Problem> {
    let mut runs = Vec::new();
    for left in list(value)? {
        let [claim, ended, record] = list(left)? else { return Err(Problem::UnexpectedReply) };
        runs.extend(expired_run(&bytes(claim)?, number(ended)?, &info_fields(record)?));
    }
    Ok(runs)
}

fn record(value: &Value, now: u64) -> Result<Record, Problem> {
    let [tag, fields @ ..] = list(value)? else { return Err(Problem::UnexpectedReply) };
    let [value, expires, fence, holder_count, holders, waiter_count, waiters, _, _] = fields else {
        return if bytes(tag)? == b"wrong_type" {
            Ok(Record::WrongType)
        } else {
            Err(Problem::UnexpectedReply)
        };
    };
    let waiters = list(waiters)?.iter().map(|waiter| parse_waiter(waiter, now));
    let queue = Queue { count: number(waiter_count)?, waiters: waiters.collect::<Result<_, _>>()? };
    let value = bytes(value)?;
    if value.is_empty() {
        return Ok(Record::Free { queue });
    }
    let last_fence = parse_number(&bytes(fence)?);
    let holders =
        list(holders)?.iter().filter_map(|holder| parse_holder(holder, now, last_fence).transpose());
    let holders: Vec<HolderRecord> = holders.collect::<Result<_, _>>()?;
    if holders.is_empty() {
        return Ok(Record::Foreign { id: value, expires_in: millis(expires)?, queue });
    }
    let mode = Mode::from_tag(&value).unwrap_or_default();
    Ok(Record::Held { mode, holders, holder_count: number(holder_count)?, queue })
}

/// The mark of success, as lua/include/done.lua describes it; `None` if there is none.
fn done(lock: &Value, now: u64) -> Result<Option<Done>, Problem> {
    let [_, .., mark, _] = list(lock)? else { return Ok(None) };
    let mark = bytes(mark)?;
    let mut parts = mark.splitn(2, |&b| b == b' ');
    let Some(at) = parts.next().and_then(parse_number::<u64>) else { return Ok(None) };
    let by = parts.next().and_then(HolderInfo::from_json).unwrap_or_default();
    Ok(Some(Done { by, ago: Duration::from_millis((now / 1000).abs_diff(at)) }))
}

fn durations(lock: &Value) -> Result<Vec<Duration>, Problem> {
    let [_, .., times] = list(lock)? else { return Ok(Vec::new()) };
    let times = bytes(times)?;
    Ok(times.split(|&b| b == b' ').filter_map(parse_number).map(Duration::from_millis).collect())
}

/// `None` for a foreign entry.
fn parse_holder(value: &Value, now: u64, last_fence: Option<u64>) -> Result<Option<HolderRecord>, Problem> {
    let [name, expires, info] = list(value)? else { return Err(Problem::UnexpectedReply) };
    let name = bytes(name)?;
    let is_marked = name.ends_with(MARK);
    let name = name.strip_suffix(MARK).unwrap_or(&name);
    let is_exclusive = !name.contains(&b'/');
    let mut parts = name.split(|&b| b == b'/');
    let Some(claim) = parts.next().and_then(parse_number::<Claim>) else { return Ok(None) };
    let fields = info_fields(info)?;
    let since: Option<u64> = fields.parsed("since");
    // In microseconds. Only a single server assigns it by the clock that `since` is from.
    let arrived =
        fields.parsed::<u64>("stamp").filter(|_| fields.get("nodes") == b"1").map(|stamp| stamp / 1000);
    Ok(Some(HolderRecord {
        claim,
        slot: parts.next().and_then(parse_number),
        expires_in: millis(expires)?,
        fence: fields.parsed("fence").or(last_fence.filter(|_| is_exclusive)),
        waited: arrived
            .zip(since)
            .map(|(arrived, since)| Duration::from_millis(since.saturating_sub(arrived))),
        held_for: since.map(|since| Duration::from_micros(now.saturating_sub(since.saturating_mul(1000)))),
        has_ended: !fields.get("ended").is_empty(),
        servers: fields.parsed("nodes"),
        broken_by: is_marked.then(|| HolderInfo::from_json(fields.get("broken")).unwrap_or_default()),
        info: HolderInfo::from_fields(&fields),
    }))
}

/// The mark of a broken claim: see lua/include/mark.lua.
const MARK: &[u8] = b"!";

fn parse_waiter(value: &Value, now: u64) -> Result<Waiter, Problem> {
    let [queued, score, who, lease] = list(value)? else { return Err(Problem::UnexpectedReply) };
    let (queued, score) = (bytes(queued)?, score_of(&bytes(score)?)?);
    // The same as parse_queued() in lua/include/queue.lua.
    let (name, rest) = match queued.iter().position(|&b| b == b' ') {
        Some(at) => (&queued[..at], &queued[at + 1..]),
        None => (&queued[..], &[][..]),
    };
    let flags = rest.iter().take_while(|b| b.is_ascii_punctuation()).count();
    let tag = &rest[flags..];
    let stamp = if score < 0 { score + PREFERRED_LANE } else { score };
    let fields = info_fields(who)?;
    Ok(Waiter {
        name: name.to_vec(),
        mode: Mode::from_tag(tag).unwrap_or_default(),
        score,
        waited: Duration::from_micros(now.saturating_sub(u64::try_from(stamp).unwrap_or(now))),
        info: HolderInfo::from_fields(&fields),
        held: AncestorLock::parse_all(&fields.text("held")),
        lease: number(lease)?,
    })
}

/// Empty if the record was lost.
fn info_fields(json: &Value) -> Result<Fields, Problem> {
    Ok(Fields::from_json(&bytes(json)?).unwrap_or_default())
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
fn list(value: &Value) -> Result<&[Value], Problem> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Problem::UnexpectedReply),
    }
}

fn bytes(value: &Value) -> Result<Vec<u8>, Problem> {
    bytes_of(value).ok_or(Problem::UnexpectedReply)
}

fn number<T: std::str::FromStr>(value: &Value) -> Result<T, Problem> {
    parse_number(&bytes(value)?).ok_or(Problem::UnexpectedReply)
}

/// `None` for a negative number, which means "never".
fn millis(value: &Value) -> Result<Option<Duration>, Problem> {
    Ok(u64::try_from(number::<i64>(value)?).ok().map(Duration::from_millis))
}

/// Servers write large scores with an exponent.
fn score_of(text: &[u8]) -> Result<i64, Problem> {
    let score: f64 = parse_number(text).ok_or(Problem::UnexpectedReply)?;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "scores are whole numbers below 2^53; others saturate"
    )]
    Ok(score as i64)
}
