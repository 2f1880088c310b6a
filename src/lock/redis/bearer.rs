//! Extending and releasing by the token alone. The scripts find the mode and the number of servers in what the grant has
//! left on each server (lua/include/bearer.lua); a majority decides, as in a renewal.

use std::time::Duration;

use super::break_lock::RedisBreaker;
use super::release::verdict;
use super::renewal_tally::{RenewalTally, renewal_counts};
use super::reply::{ExtendReply, FollowUpReply, ReleaseReply, Reply};
use super::requests::{Requests, Terms};
use super::script::Call;
use super::servers::Servers;
use super::{FOREVER, Keys, Server, Timing};
use crate::clock::BootTime;
use crate::lock::{
    BackendError, Bearer, BreakMode, Breaker, Claim, Extended, Fault, Fields, HolderInfo, Lease, Loss,
    Problem, Released, Renewal,
};

/// How long a run without a lease may take to stop its command; and how much later than its server said a lease may end.
const PATIENCE: Duration = Duration::from_secs(10);
const SLACK: Duration = Duration::from_secs(1);

pub(crate) struct RedisBearer {
    /// For a second set of connections, with which a run is told.
    configured: Vec<Server>,
    first_key: Keys,
    timing: Timing,
    requests: Requests,
    servers: Servers,
    claim: Claim,
    /// The client that has the token.
    who: HolderInfo,
    terms: Terms,
}

impl RedisBearer {
    pub(crate) fn new(
        servers: Vec<Server>,
        keys: Vec<Keys>,
        timing: Timing,
        claim: Claim,
        who: HolderInfo,
    ) -> Self {
        Self {
            configured: servers.clone(),
            first_key: keys[0].clone(),
            timing,
            requests: Requests::new(keys, servers.len(), timing),
            servers: Servers::new(servers, timing.node_timeout),
            claim,
            terms: Terms::of_bearer(&who),
            who,
        }
    }

    /// The reply of every server, or why there is none. A server that fails is asked once more, over a new connection; not
    /// one that is late if a majority has done what was asked: it has the request, and will find it when it goes on.
    fn ask<R: Reply>(
        &mut self,
        call: &Call,
        is_done: impl Fn(&R) -> bool,
    ) -> Vec<(usize, Result<R, BackendError>)> {
        let mut replies = self.ask_once(self.servers.all().collect(), call);
        let done = replies.iter().filter(|(_, reply)| reply.as_ref().is_ok_and(&is_done)).count();
        let is_decided = done >= self.servers.majority();
        let may_pass = |reply: &Result<R, BackendError>| {
            reply.as_ref().is_err_and(|error| {
                let is_late = matches!(error.problem, Problem::TimedOut);
                error.fault() == Fault::Unavailable && !(is_late && is_decided)
            })
        };
        let again: Vec<usize> =
            replies.iter().filter(|(_, reply)| may_pass(reply)).map(|(at, _)| *at).collect();
        replies.retain(|(at, _)| !again.contains(at));
        for &at in &again {
            self.servers[at].node.disconnect();
        }
        replies.extend(self.ask_once(again, call));
        replies
    }

    /// With the whole script: a server that is asked once need not know it.
    fn ask_once<R: Reply>(&mut self, whom: Vec<usize>, call: &Call) -> Vec<(usize, Result<R, BackendError>)> {
        let round = self.servers.round(whom.into_iter().map(|at| (at, call.clone().in_full())));
        let until = BootTime::now() + self.servers.node_timeout;
        round.replies(&mut self.servers, Some(until))
    }

    /// A run stops its command and gives all its locks back, in this order: it is told as by a break, and waited for.
    fn release_run(&self) -> Result<Released, BackendError> {
        let (configured, key) = (self.configured.clone(), self.first_key.clone());
        let mut breaker = RedisBreaker::of_bearer(configured, key, self.timing, self.who.clone());
        let (token, mut give_up_at) = (self.claim.to_string(), None);
        loop {
            let held = breaker.holders()?.into_iter().find(|held| held.token.as_ref() == Some(&token));
            let Some(held) = held else { return Ok(Released::Done(Vec::new())) };
            let at_most = held.expires_in.unwrap_or(PATIENCE) + SLACK;
            let until = *give_up_at.get_or_insert_with(|| BootTime::now() + at_most);
            if until.has_passed() {
                return Err(self.servers[0].node.timed_out());
            }
            breaker.notify(&[held], BreakMode::Gentle)?;
            breaker.wait(until);
        }
    }

    /// Right after a majority has extended: give the claim back to servers that have lost it. They count the next time.
    fn heal(&mut self, servers: Vec<usize>, record: &GrantRecord) {
        let GrantRecord { terms, fences, held_for, gate, stamp } = record;
        let call = self.requests.heal(self.claim, (fences, *held_for), terms, gate, *stamp);
        // One that fails again is no matter of this round.
        let _ = self.ask_once::<FollowUpReply>(servers, &call);
    }

    /// The first request may have been executed, and only its reply lost.
    fn was_it_us(&self, loss: &Loss) -> bool {
        matches!(loss, Loss::Released { by } if **by == self.who)
    }
}

impl Bearer for RedisBearer {
    fn extend(&mut self) -> Extended {
        let (servers, asked) = (self.servers.len(), BootTime::now());
        let call = self.requests.extend(self.claim, asked, &self.terms, None);
        let mut tally = RenewalTally::default();
        let (mut record, mut lost_claim) = (None, Vec::new());
        let is_done = |reply: &ExtendReply| matches!(reply, ExtendReply::Extended { .. });
        for (at, reply) in self.ask(&call, is_done) {
            match reply {
                // What it has voted before is not known here. A single server has never been healed: what is there was
                // granted there, or by the master whose place it took, and has not expired since.
                Ok(ExtendReply::Extended { quarantine, .. })
                    if servers > 1 && !renewal_counts(None, !quarantine.is_zero(), BootTime::now()) =>
                {
                    tally.add_error(self.servers[at].node.error(Problem::InQuarantine(quarantine)));
                }
                Ok(ExtendReply::Extended { run_id, records, .. }) => {
                    record = record.or_else(|| GrantRecord::parse(&records));
                    tally.add_ours(run_id, asked);
                }
                Ok(ExtendReply::Lost(loss)) => {
                    lost_claim.extend(matches!(loss, Loss::Expired).then_some(at));
                    tally.add_lost(loss);
                }
                Err(error) => tally.add_error(error),
            }
        }
        let ttl = self.timing.ttl.unwrap_or(FOREVER);
        // A reply that came when the lease was over again says nothing about now.
        let lease = tally.renewed_from(servers).map(|from| Lease::new(from, ttl));
        let lease = lease.filter(|lease| !lease.deadline().has_passed());
        if let (Some(_), Some(record)) = (lease, record)
            && !lost_claim.is_empty()
        {
            self.heal(lost_claim, &record);
        }
        tally.verdict(servers, lease, Vec::new(), self.servers[0].node.timed_out())
    }

    fn release(&mut self) -> Released {
        let call = self.requests.release_by_token(self.claim, &self.terms, &self.who);
        let is_done = |reply: &ReleaseReply| matches!(reply, ReleaseReply::Released);
        let replies = self.ask(&call, is_done).into_iter().map(|(_, reply)| match reply {
            Ok(ReleaseReply::NotOurs(loss)) if self.was_it_us(&loss) => Ok(ReleaseReply::Released),
            reply => reply,
        });
        let replies: Vec<_> = replies.collect();
        if replies.iter().any(|reply| matches!(reply, Ok(ReleaseReply::HeldByRun))) {
            return self.release_run().unwrap_or_else(Released::Unknown);
        }
        verdict(replies, &self.servers)
    }
}

/// The records of a grant, which a server sends to a bearer: enough to heal another server.
#[derive(Clone, Debug)]
struct GrantRecord {
    terms: Terms,
    fences: Vec<u64>,
    held_for: Duration,
    gate: Vec<u8>,
    stamp: Option<u64>,
}

impl GrantRecord {
    /// Parses a JSON object for each lock. `None` if a field is missing, or if a process renews the
    /// lock: it heals the servers itself.
    fn parse(records: &[Vec<u8>]) -> Option<Self> {
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
    fn only_a_complete_record_that_no_process_renews_is_used() {
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
