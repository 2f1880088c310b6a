//! Renewal and release with only the token. The scripts read the mode and the number of servers
//! from the record of the grant on each server (lua/include/bearer.lua); a majority decides, as in
//! a renewal.

use std::time::Duration;

use super::break_lock::RedisBreaker;
use super::release::verdict;
use super::renewal_tally::{RenewalTally, renewal_counts};
use super::reply::{ExtendReply, FollowUpReply, ReleaseReply, Reply};
use super::requests::{Requests, Terms};
use super::script::{Call, USUAL_LEASE};
use super::servers::Servers;
use super::{FOREVER, Keys, Server, Timing};
use crate::clock::BootTime;
use crate::lock::{
    BackendError, Bearer, BreakMode, Breaker, Claim, Extended, Fields, HolderInfo, Lease, Loss, Problem,
    Reason, Released, Renewal,
};
use crate::world::{Rule, follows};

/// How long a run without a lease may take to stop its command.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much later than its server reported a lease may end.
const SLACK: Duration = Duration::from_secs(1);

pub(crate) struct RedisBearer {
    /// The servers as configured, for a second set of connections that notifies a run.
    configured: Vec<Server>,
    first_key: Keys,
    timing: Timing,
    requests: Requests,
    servers: Servers,
    claim: Claim,
    /// This client, which has the token.
    who: HolderInfo,
    terms: Terms,
    /// How many servers have released each lock.
    released: Vec<usize>,
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
            released: Vec::new(),
        }
    }

    /// The reply or error of every server, within the node timeout. A server that is silent for half
    /// of it gets the request over another connection as well: this one's packets may be lost. It
    /// does not if a majority has executed the request: it has received the request and will execute
    /// it. A server that fails at once gets one retry.
    fn request<R: Reply>(
        &mut self,
        call: &Call,
        is_done: impl Fn(&R) -> bool,
    ) -> Vec<(usize, Result<R, BackendError>)> {
        let (call, sent_at, node_timeout) =
            (call.clone().in_full(), BootTime::now(), self.servers.node_timeout);
        let mut round = self.servers.round(self.servers.to_all(&call));
        let mut replies = Vec::new();
        while let Some(reply) = round.reply(&mut self.servers, Some(sent_at + node_timeout / 2)) {
            replies.push(reply);
        }
        let done = replies.iter().filter(|(_, reply)| reply.as_ref().is_ok_and(&is_done)).count();
        if done < self.servers.majority() {
            let lease = Lease::new(BootTime::now(), self.timing.ttl.unwrap_or(FOREVER));
            for at in round.pending() {
                self.servers[at].repeat(call.clone(), lease, node_timeout);
            }
        }
        replies.extend(round.replies(&mut self.servers, Some(sent_at + node_timeout)));
        let failed_at_once = |reply: &Result<R, BackendError>| {
            let error = reply.as_ref().err();
            error.is_some_and(|error| error.may_pass() && !matches!(error.problem, Problem::TimedOut))
        };
        let again: Vec<usize> =
            replies.iter().filter(|(_, reply)| failed_at_once(reply)).map(|(at, _)| *at).collect();
        replies.retain(|(at, _)| !again.contains(at));
        for &at in &again {
            self.servers[at].node.disconnect();
        }
        replies.extend(self.request_once(again, &call));
        replies
    }

    /// Sends the whole script, since the server may not have it.
    fn request_once<R: Reply>(
        &mut self,
        whom: Vec<usize>,
        call: &Call,
    ) -> Vec<(usize, Result<R, BackendError>)> {
        let round = self.servers.round(whom.into_iter().map(|at| (at, call.clone().in_full())));
        let until = BootTime::now() + self.servers.node_timeout;
        round.replies(&mut self.servers, Some(until))
    }

    /// A run stops its command before it releases its locks: notifies it as a break would, and
    /// waits until it has done so.
    fn release_run(&self) -> Result<Released, BackendError> {
        let (configured, key) = (self.configured.clone(), self.first_key.clone());
        let mut breaker =
            RedisBreaker::new(configured, key, self.timing, self.who.clone()).with_reason(Reason::Released);
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

    /// Restores the claim on servers that have lost it, right after a majority has renewed. They
    /// count the next time.
    fn heal(&mut self, servers: Vec<usize>, record: &GrantRecord) {
        let GrantRecord { terms, fences, slots, held_for, gate, stamp } = record;
        let call = self.requests.heal(self.claim, (fences, slots, *held_for), terms, gate, *stamp);
        // A failure does not affect this renewal.
        let _ = self.request_once::<FollowUpReply>(servers, &call);
    }

    /// A server that was stopped may have executed a request of an earlier attempt since the grant, and
    /// hold the lock for that. A majority has confirmed the token, so it is no mistyped one.
    fn release_older_attempts(&mut self, servers: Vec<usize>) {
        let call =
            self.requests.release(self.claim, &Terms::default(), Duration::ZERO, Duration::ZERO, None, None);
        let _ = self.request_once::<ReleaseReply>(servers, &call);
    }

    /// The first request may have been executed, and only its reply lost.
    fn was_it_us(&self, loss: &Loss) -> bool {
        matches!(loss, Loss::Released { by } if **by == self.who)
    }
}

impl Bearer for RedisBearer {
    fn extend(&mut self) -> Extended {
        let (servers, sent_at) = (self.servers.len(), BootTime::now());
        let call = self.requests.extend(self.claim, Some(sent_at), &self.terms, None);
        let requested = Lease::new(sent_at, self.timing.ttl.unwrap_or(FOREVER));
        let mut tally = RenewalTally::default();
        let (mut record, mut lost_claim) = (None, Vec::new());
        let is_done = |reply: &ExtendReply| matches!(reply, ExtendReply::Extended { .. });
        let mut unacknowledged = Vec::new();
        for (at, reply) in self.request(&call, is_done) {
            if !matches!(&reply, Ok(ExtendReply::Extended { quarantine, .. }) if quarantine.is_zero()) {
                unacknowledged.push(self.servers[at].node.name());
            }
            match reply {
                // Its earlier votes are unknown here. A single server has never been healed: it
                // granted this claim, or replaced the master that did, and the claim has not
                // expired since.
                Ok(ExtendReply::Extended { quarantine, .. })
                    if servers > 1 && !renewal_counts(None, !quarantine.is_zero(), BootTime::now()) =>
                {
                    tally.add_error(self.servers[at].node.error(Problem::InQuarantine(quarantine)));
                }
                Ok(ExtendReply::Extended { run_id, records, .. }) => {
                    // The servers that agreed on the token have the largest one.
                    let records = record.into_iter().chain(GrantRecord::parse(&records));
                    record = records.max_by(|one, other| one.fences.cmp(&other.fences));
                    tally.add_ours(run_id, requested);
                }
                Ok(ExtendReply::Lost(loss)) => {
                    lost_claim.extend(matches!(loss, Loss::Expired).then_some(at));
                    tally.add_lost(loss);
                }
                Err(error) => tally.add_error(error),
            }
        }
        // If the new lease has already ended when the replies arrive, the lock may no longer be
        // ours.
        let lease = tally.lease(servers);
        let lease = lease.filter(|lease| !lease.deadline().has_passed());
        let has_quarantine = !self.timing.quarantine.is_zero();
        if servers > 1
            && has_quarantine
            && requested.ttl() > USUAL_LEASE
            && !unacknowledged.is_empty()
            && lease.is_some()
        {
            let problem = Problem::LongLease { servers: unacknowledged };
            return Extended::Unknown(BackendError { at: None, problem });
        }
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
        let (mut replies, mut foreign_at) = (Vec::new(), Vec::new());
        for (at, reply) in self.request(&call, is_done) {
            foreign_at.extend(matches!(reply, Ok(ReleaseReply::NotOurs(Loss::Foreign, _))).then_some(at));
            replies.push(match reply {
                Ok(ReleaseReply::NotOurs(loss, _)) if self.was_it_us(&loss) => Ok(ReleaseReply::Released),
                reply => reply,
            });
        }
        let is_released = |reply: &Result<ReleaseReply, BackendError>, key: usize| match reply {
            Ok(ReleaseReply::Released) => true,
            Ok(ReleaseReply::NotOurs(_, released)) => released.get(key) == Some(&1),
            Ok(ReleaseReply::HeldByRun) | Err(_) => false,
        };
        let servers = |key| replies.iter().filter(|reply| is_released(reply, key)).count();
        self.released = (0..self.requests.key_count()).map(servers).collect();
        if replies.iter().any(|reply| matches!(reply, Ok(ReleaseReply::HeldByRun))) {
            return self.release_run().unwrap_or_else(Released::Unknown);
        }
        let released = verdict(replies, &self.servers);
        if matches!(released, Released::Done(_)) && follows(Rule::ReleaseOlderAttempts) {
            self.release_older_attempts(foreign_at);
        }
        released
    }

    fn released(&self) -> Vec<usize> {
        let is_released = |key: &usize| self.released[*key] >= self.servers.majority();
        (0..self.released.len()).filter(is_released).collect()
    }
}

/// The records of a grant, which a server sends to a bearer: enough to heal another server.
#[derive(Clone, Debug)]
struct GrantRecord {
    terms: Terms,
    fences: Vec<u64>,
    slots: Vec<u32>,
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
            // Without slots there are none.
            slots: records.iter().filter_map(|record| record.parsed("slot")).collect(),
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
