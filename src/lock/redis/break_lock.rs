//! Taking a lock on servers away from its holders.
//!
//! A claim is marked on a majority of the servers: from then on its holder cannot renew it, and is told. It is freed by
//! its holder, or when its lease is over: see lua/include/mark.lua.

use std::collections::BTreeMap;
use std::time::Duration;

use super::listening::{Heard, Listening};
use super::reply::{BreakReply, Mark, ServerHolder};
use super::requests::{BreakAction, Requests};
use super::servers::Servers;
use super::{Keys, Server, Timing, WAITER_RENEWAL};
use crate::clock::BootTime;
use crate::lock::claim::WaiterId;
use crate::lock::wait::wait;
use crate::lock::{
    BackendError, BreakTarget, Breaker, Fault, Freed, HeldBy, HolderInfo, How, Told, majority_of,
};

pub(crate) struct RedisBreaker {
    requests: Requests,
    servers: Servers,
    /// For a second set of connections, on which we sleep.
    configured: Vec<Server>,
    /// Who we are to the servers: what holders are told, and where we are woken.
    id: WaiterId,
    who: HolderInfo,
    /// We have the token, and release the lock rather than break it.
    has_token: bool,
    /// A majority was marked: from then on we only mark again, and take nothing back.
    has_told: bool,
    listening: Option<Listening>,
}

/// The replies of one round, and the servers that have not replied.
struct Round {
    replies: Vec<BreakReply>,
    errors: Vec<BackendError>,
    servers: usize,
}

impl RedisBreaker {
    pub(crate) fn new(servers: Vec<Server>, keys: Keys, timing: Timing, who: HolderInfo) -> Self {
        Self {
            requests: Requests::new(vec![keys], servers.len(), timing),
            servers: Servers::new(servers.clone(), timing.node_timeout),
            configured: servers,
            id: WaiterId::random(),
            who,
            has_token: false,
            has_told: false,
            listening: None,
        }
    }

    /// For a client that has the token: the holder is told so.
    pub(super) fn of_bearer(servers: Vec<Server>, keys: Keys, timing: Timing, who: HolderInfo) -> Self {
        Self { has_token: true, ..Self::new(servers, keys, timing, who) }
    }

    fn ask_all(&mut self, action: BreakAction, claims: &[Vec<u8>]) -> Round {
        let call = self.requests.break_lock((self.id, &self.who), action, claims, self.has_token);
        let asked = self.servers.timed_round(self.servers.to_all(&call));
        let mut round = Round { replies: Vec::new(), errors: Vec::new(), servers: self.servers.len() };
        for (at, reply) in asked.replies(&mut self.servers, None) {
            match reply {
                Ok(reply) => round.replies.push(reply),
                Err(error) => {
                    self.servers[at].node.disconnect();
                    round.errors.push(error);
                }
            }
        }
        round
    }

    /// Once more than marking takes: a server that had lost the claim may have got it back from its holder in between,
    /// without the mark. What we had marked on a majority before the second round began cannot be undone in this way; nor by
    /// another client that takes its own marks back.
    fn mark(&mut self, claims: &[Vec<u8>]) -> Result<(), BackendError> {
        let mut round = self.ask_all(BreakAction::Mark, claims);
        let mut is_done = round.has_marked(claims, |mark| mark != Mark::None);
        if self.servers.len() > 1 && is_done {
            round = self.ask_all(BreakAction::Mark, claims);
            is_done = round.has_marked(claims, |mark| mark == Mark::Old);
        }
        if is_done {
            self.has_told = true;
            return Ok(());
        }
        if !self.has_told {
            self.ask_all(BreakAction::Unmark, claims);
        }
        Err(BackendError::no_majority(round.errors, self.servers.len()))
    }
}

impl Breaker for RedisBreaker {
    fn holders(&mut self) -> Result<Vec<BreakTarget>, BackendError> {
        self.ask_all(BreakAction::Look, &[]).holders()
    }

    fn tell(&mut self, holders: &[BreakTarget], how: How) -> Result<Told, BackendError> {
        let claim = |held: &BreakTarget| held.token.clone().into_bytes();
        let freed = match how {
            How::Gently => {
                self.mark(&holders.iter().map(claim).collect::<Vec<_>>())?;
                Freed::No
            }
            How::AtOnce => {
                // What is deleted cannot be brought back, and a mark can be taken back: so a majority is marked first.
                // Other programs know no marks.
                let is_run = |held: &&BreakTarget| held.by != HeldBy::Stranger;
                let marked: Vec<Vec<u8>> = holders.iter().filter(is_run).map(claim).collect();
                let are_marked = self.servers.len() > 1 && marked.len() == holders.len();
                if self.servers.len() > 1 && !marked.is_empty() {
                    self.mark(&marked)?;
                }
                let claims: Vec<Vec<u8>> = holders.iter().map(claim).collect();
                match self.ask_all(BreakAction::Free, &claims).holders() {
                    Ok(_) => Freed::Yes,
                    Err(error) if are_marked => Freed::OnlyTold(error),
                    // It has said no.
                    Err(error) if self.servers.len() == 1 && error.fault() != Fault::Unavailable => {
                        return Err(error);
                    }
                    Err(error) => Freed::Unknown(error),
                }
            }
        };
        Ok(Told { untold: Vec::new(), freed })
    }

    /// A release wakes us. Other ends are found by looking again.
    fn wait(&mut self, until: BootTime) {
        let until = until.min(BootTime::now() + WAITER_RENEWAL);
        let listening = self.listening.get_or_insert_with(|| {
            Listening::new(
                self.configured.clone(),
                self.servers.node_timeout,
                self.requests.break_lock((self.id, &self.who), BreakAction::Look, &[], self.has_token),
                self.requests.notify_list(self.id),
                WAITER_RENEWAL,
                BootTime::now(),
            )
        });
        let mut is_woken = false;
        while !is_woken && !until.has_passed() {
            listening.advance::<BreakReply>(|_, heard| is_woken |= matches!(heard, Heard::Element(_)));
            if !is_woken {
                let next = listening.next_moment().map_or(until, |moment| moment.min(until));
                wait(&listening.poll_for(), next, None);
            }
        }
    }

    fn frees_at_once(&self) -> bool {
        true
    }
}

impl Round {
    /// Of each claim, what the servers know about it, one record for each server; those that a majority may have.
    fn by_claim(&self) -> BTreeMap<&[u8], Vec<&ServerHolder>> {
        let mut claims: BTreeMap<&[u8], Vec<&ServerHolder>> = BTreeMap::new();
        let mut run_ids: Vec<&[u8]> = Vec::new();
        for reply in &self.replies {
            // A server that is listed twice has one vote.
            if run_ids.contains(&reply.run_id.as_slice()) {
                continue;
            }
            run_ids.push(&reply.run_id);
            for holder in &reply.holders {
                claims.entry(&holder.claim).or_default().push(holder);
            }
        }
        claims.retain(|_, votes| votes.len() + self.errors.len() >= majority_of(self.servers));
        claims
    }

    fn holders(self) -> Result<Vec<BreakTarget>, BackendError> {
        if self.errors.len() > self.servers - majority_of(self.servers) {
            return Err(BackendError::no_majority(self.errors, self.servers));
        }
        let held = |(claim, votes): (&[u8], Vec<&ServerHolder>)| {
            let known = votes.iter().find(|vote| vote.info.is_some()).unwrap_or(&votes[0]);
            BreakTarget {
                by: match (&known.info, known.has_ended) {
                    (Some(_), false) => HeldBy::Run,
                    (Some(_), true) => HeldBy::Reservation,
                    (None, _) if is_claim(claim) => HeldBy::Run,
                    (None, _) => HeldBy::Stranger,
                },
                token: String::from_utf8_lossy(claim).into_owned(),
                info: known.info.clone().unwrap_or_default(),
                slot: known.slot,
                slots: self.replies.iter().find_map(|reply| reply.slots),
                held_for: known.held_for,
                expires_in: self.expires_in(&votes),
                broken_by: votes.iter().find_map(|vote| vote.broken_by.clone()),
            }
        };
        let mut holders: Vec<BreakTarget> = self.by_claim().into_iter().map(held).collect();
        holders.sort_by_key(|held| (held.slot, std::cmp::Reverse(held.held_for)));
        Ok(holders)
    }

    /// When there is no majority any more.
    fn expires_in(&self, votes: &[&ServerHolder]) -> Option<Duration> {
        let mut all: Vec<Option<Duration>> = votes.iter().map(|vote| vote.expires_in).collect();
        // Never is the longest.
        all.sort_by_key(|left| std::cmp::Reverse(left.unwrap_or(Duration::MAX)));
        let last = (majority_of(self.servers) - 1).min(all.len() - 1);
        all[if self.errors.is_empty() { last } else { 0 }]
    }

    /// Whether none of these claims can be renewed any more, or is there at all.
    fn has_marked(&self, claims: &[Vec<u8>], is_marked: impl Fn(Mark) -> bool) -> bool {
        let present = self.by_claim();
        let counts = |vote: &&&ServerHolder| is_marked(vote.mark) || vote.is_freed_at_once();
        let is_enough =
            |votes: &Vec<&ServerHolder>| votes.iter().filter(counts).count() >= majority_of(self.servers);
        // A claim that no server has shown is gone only if those that have not replied are no majority.
        let is_gone = self.errors.len() < majority_of(self.servers);
        claims.iter().all(|claim| present.get(claim.as_slice()).map_or(is_gone, is_enough))
    }
}

fn is_claim(value: &[u8]) -> bool {
    str::from_utf8(value).is_ok_and(|text| text.parse::<crate::lock::Claim>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Problem;

    const CLAIM: &[u8] = b"3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1";

    /// Of three servers: one for each of these marks has the claim, so many have nothing there, and the rest fails.
    fn round(marks: &[Mark], free: usize) -> Round {
        let holder = |mark: &Mark| ServerHolder {
            claim: CLAIM.to_vec(),
            slot: None,
            expires_in: None,
            held_for: None,
            info: None,
            has_ended: false,
            broken_by: None,
            mark: *mark,
        };
        let holders = marks.iter().map(|mark| vec![holder(mark)]).chain((0..free).map(|_| Vec::new()));
        let replies = holders.enumerate().map(|(at, holders)| BreakReply {
            run_id: vec![u8::try_from(at).unwrap()],
            slots: None,
            holders,
        });
        let replies: Vec<BreakReply> = replies.collect();
        let errors = (replies.len()..3).map(|_| BackendError::new("n", Problem::TimedOut)).collect();
        Round { replies, errors, servers: 3 }
    }

    #[test]
    fn a_claim_is_broken_if_no_majority_can_renew_it() {
        let is_broken = |marks: &[Mark], free| {
            round(marks, free).has_marked(&[CLAIM.to_vec()], |mark| mark != Mark::None)
        };
        assert!(is_broken(&[Mark::New, Mark::Old], 0));
        assert!(is_broken(&[Mark::New, Mark::New, Mark::None], 0));
        assert!(!is_broken(&[Mark::New, Mark::None], 1), "it may be marked on one, and renewed on two");
        assert!(!is_broken(&[Mark::New], 0), "the others may renew it");
        assert!(!is_broken(&[Mark::New], 1), "the third may have it, too");
        assert!(is_broken(&[Mark::None], 2), "a minority is no lock");
        assert!(is_broken(&[], 2), "gone");
        assert!(!is_broken(&[], 1) && !is_broken(&[], 0), "not known");
    }
}
