//! The script calls of one lock, put together. The order of KEYS and ARGV is that of the headers in lua/.

use std::time::Duration;

use super::keys::Keys;
use super::script::{
    ACQUIRE, BREAK, COME_WITHIN, Call, EXTEND, HEAL, JOINS, KEYS_OF_LOCK, MULTI, OUTER, PREFERRED, RAISE,
    RELEASE, SUPERSEDES, Script,
};
use crate::clock::BootTime;
use crate::lock::claim::{Claim, WaiterId};
use crate::lock::{Grant, Mode, Prefer, Request};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// `None` for a lock that never expires.
    pub ttl: Option<Duration>,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
    /// How long a server that has lost its data does not vote; zero = it votes at once.
    pub quarantine: Duration,
}

/// A request in the scripts' terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    /// The value at the lock's key while it is shared; empty for an exclusive lock.
    pub mode_tag: Vec<u8>,
    /// How the request queues.
    flags: Vec<u8>,
    ancestors: Vec<u8>,
    /// Field and value in turn.
    holder: Vec<Vec<u8>>,
    min_hold: Duration,
}

impl Terms {
    pub(super) fn new(request: &Request, keys: usize) -> Self {
        let mode_tag = match &request.mode {
            // One slot is a lock.
            Mode::Exclusive | Mode::Slot { of: 1 } => Vec::new(),
            Mode::Shared { group } => [b"shared:", group.as_slice()].concat(),
            Mode::Slot { of } => format!("slots:{of}").into(),
        };
        let preference = match (&request.mode, request.prefer) {
            (Mode::Exclusive | Mode::Slot { of: 1 }, Prefer::Writers) => Some(PREFERRED),
            (Mode::Shared { .. }, Prefer::Readers) => Some(JOINS),
            (Mode::Exclusive | Mode::Shared { .. } | Mode::Slot { .. }, _) => None,
        };
        let needs_other_keys = (keys > 1).then_some(MULTI);
        let supersedes = request.supersedes.then_some(SUPERSEDES);
        let ancestors: Vec<String> =
            request.ancestors.iter().map(|lock| lock.claim.waiter.to_string()).collect();
        Self {
            mode_tag,
            flags: preference.into_iter().chain(needs_other_keys).chain(supersedes).collect(),
            ancestors: ancestors.join(" ").into(),
            holder: request
                .holder
                .fields()
                .into_iter()
                .flat_map(|(field, value)| [field, value].map(Into::into))
                .collect(),
            min_hold: request.min_hold,
        }
    }
}

/// How a server is asked for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask<'a> {
    /// As the gate, where the request may queue. `stamp`: when we arrived, if a server has told it.
    /// `proposed`: what the others are asked for at the same time. `briefly`: the vote ends after COME_WITHIN
    /// unless it is renewed.
    Gate { queues: bool, stamp: Option<u64>, proposed: Option<u64>, briefly: bool },
    /// At the same time as the gate: only if nobody waits. `proposed`: a guess at the token.
    Newcomer { proposed: u64 },
    /// With the gate's vote in hand. `proposed` are the gate's tokens, `gate` its run_id.
    Vote { role: Role, proposed: &'a [u64], gate: &'a [u8], stamp: Option<u64>, queues: bool },
}

/// Where a client queues, or queued: the run_id of its gate, and its arrival stamp.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub gate: Vec<u8>,
    pub stamp: u64,
}

/// Of a vote that is asked for with the gate's vote in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    First,
    /// BLPOP and [`Role::Again`] are sent behind it.
    Ahead,
    /// The server was asked before with the same attempt.
    Again,
}

/// What all calls of one lock have in common.
#[derive(Debug)]
pub(super) struct Requests {
    keys: Vec<Keys>,
    servers: usize,
    timing: Timing,
}

impl Requests {
    pub(super) fn new(keys: Vec<Keys>, servers: usize, timing: Timing) -> Self {
        Self { keys, servers, timing }
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The list on which this waiter is woken.
    pub(super) fn notify_list(&self, waiter: WaiterId) -> Vec<u8> {
        self.keys[0].notify_of(waiter)
    }

    pub(super) fn quarantine(&self) -> Duration {
        self.timing.quarantine
    }

    pub(super) fn acquire(&self, claim: Claim, terms: &Terms, ask: &Ask<'_>) -> Call {
        let keys = self.key_count();
        let mut ttl = self.key_ttl(terms, Duration::ZERO);
        let (role, queues, stamp, gate, proposed) = match *ask {
            Ask::Gate { queues, stamp, proposed, briefly } => {
                if briefly {
                    ttl = millis(self.timing.ttl.map_or(COME_WITHIN, |ttl| ttl.min(COME_WITHIN)));
                }
                let proposed = proposed.map_or_else(Vec::new, |proposed| joined(&vec![proposed; keys]));
                ("gate", queues, stamp, &[][..], proposed)
            }
            Ask::Newcomer { proposed } => ("newcomer", false, None, &[][..], joined(&vec![proposed; keys])),
            Ask::Vote { role, proposed, gate, stamp, queues } => {
                let role = match role {
                    Role::First => "vote",
                    Role::Ahead => "ahead",
                    Role::Again => "again",
                };
                (role, queues, stamp, gate, joined(proposed))
            }
        };
        let mut args = vec![
            ttl,
            role.into(),
            flag(queues),
            gate.to_vec(),
            proposed,
            millis(self.timing.quarantine),
            terms.ancestors.clone(),
        ];
        args.extend_from_slice(&terms.holder);
        self.call(&ACQUIRE, claim, terms, stamp, args)
    }

    /// `taken_at`: when the grant, or the vote, was asked for. `place`: for a vote that was given before
    /// it was known.
    pub(super) fn extend(
        &self,
        claim: Claim,
        taken_at: BootTime,
        terms: &Terms,
        place: Option<&Place>,
    ) -> Call {
        let ttl = self.key_ttl(terms, taken_at.elapsed());
        let gate = place.map_or_else(Vec::new, |place| place.gate.clone());
        let more = vec![ttl, millis(self.timing.quarantine), gate];
        self.call(&EXTEND, claim, terms, place.map(|place| place.stamp), more)
    }

    /// `gate` and `stamp` as in the request that was granted.
    pub(super) fn heal(&self, grant: &Grant, terms: &Terms, gate: &[u8], stamp: Option<u64>) -> Call {
        let held_for = grant.taken_at.elapsed();
        let mut args =
            vec![self.key_ttl(terms, held_for), joined(&grant.fences), millis(held_for), gate.to_vec()];
        args.extend_from_slice(&terms.holder);
        self.call(&HEAL, grant.claim, terms, stamp, args)
    }

    pub(super) fn raise(&self, claim: Claim, terms: &Terms, fences: &[u64]) -> Call {
        self.call(&RAISE, claim, terms, None, vec![joined(fences)])
    }

    /// `tombstone_ttl`: how long late requests of this waiter are refused. `min_hold`: how long the locks stay
    /// taken from now on.
    pub(super) fn release(
        &self,
        claim: Claim,
        terms: &Terms,
        tombstone_ttl: Duration,
        min_hold: Duration,
    ) -> Call {
        self.call(&RELEASE, claim, terms, None, vec![millis(tombstone_ttl), millis(min_hold)])
    }

    /// `claims`: of runs that we run under.
    pub(super) fn outer(&self, claim: Claim, terms: &Terms, claims: &[Claim]) -> Call {
        let claims: Vec<String> = claims.iter().map(Claim::to_string).collect();
        self.call(&OUTER, claim, terms, None, vec![claims.join(" ").into()])
    }

    pub(super) fn break_lock(&self, claim: Claim, yes: bool) -> Call {
        self.call(&BREAK, claim, &Terms::default(), None, vec![flag(yes)])
    }

    fn call(
        &self,
        script: &'static Script,
        claim: Claim,
        terms: &Terms,
        stamp: Option<u64>,
        more: Vec<Vec<u8>>,
    ) -> Call {
        let of_key = |keys: &Keys| -> [Vec<u8>; KEYS_OF_LOCK] {
            let Keys { lock, queue, waiters, info, fence, shared, modes, newest, .. } = keys;
            [lock, queue, waiters, info, fence, shared, modes, newest].map(Clone::clone)
        };
        // The last two, and the prefix of the notify lists, are the same for all keys.
        let common = &self.keys[0];
        let mut keys: Vec<Vec<u8>> = self.keys.iter().flat_map(of_key).collect();
        keys.extend([common.tombstone_of(claim.waiter), common.node.clone()]);
        let mut args = vec![
            claim.to_string().into(),
            common.notify.clone(),
            self.servers.to_string().into(),
            terms.mode_tag.clone(),
            terms.flags.clone(),
            stamp.map_or_else(Vec::new, |stamp| stamp.to_string().into()),
        ];
        args.extend(more);
        Call::Script { script, keys, args }
    }

    /// How long the keys live from now on if they are not renewed: the lease, or longer if a minimum hold asks
    /// for it. Longer does no harm: what the client relies on is the lease.
    fn key_ttl(&self, terms: &Terms, held_for: Duration) -> Vec<u8> {
        let to_keep = terms.min_hold.saturating_sub(held_for);
        self.timing.ttl.map_or_else(|| b"0".to_vec(), |ttl| millis(ttl.max(to_keep)))
    }
}

fn flag(is_set: bool) -> Vec<u8> {
    u8::from(is_set).to_string().into_bytes()
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}

fn joined(numbers: &[u64]) -> Vec<u8> {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    numbers.join(" ").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{HolderInfo, Votes};

    /// The arguments that the headers of a script and of include/request.lua list: how many, and whether fields
    /// of the holder follow.
    fn listed(script: &str) -> (usize, bool) {
        let request = include_str!("../../../lua/include/request.lua");
        let header = request.lines().chain(script.lines()).filter_map(|line| line.strip_prefix("-- ARGV["));
        let (more, single): (Vec<&str>, Vec<&str>) = header.partition(|line| line.contains("...]"));
        let number = |line: &str| line.split([']', '.']).next().unwrap().parse::<usize>().unwrap();
        let numbers: Vec<usize> = single.iter().chain(&more).map(|line| number(line)).collect();
        assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "each once, in order");
        (single.len(), !more.is_empty())
    }

    fn calls(of: usize) -> Vec<(&'static str, Call)> {
        let timing = Timing {
            ttl: Some(Duration::from_secs(30)),
            node_timeout: Duration::from_secs(1),
            quarantine: Duration::ZERO,
        };
        let requests = Requests::new(vec![Keys::new("lock", b"k"); of], 1, timing);
        let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
        let terms = Terms {
            holder: vec![b"?".to_vec(); HolderInfo::default().fields().len() * 2],
            ..Terms::default()
        };
        let grant = Grant {
            claim,
            ancestor_locks: Vec::new(),
            fences: vec![7; of],
            slots: Vec::new(),
            lease: None,
            taken_at: BootTime::now(),
            waited: Duration::ZERO,
            votes: Votes::default(),
            outer: Vec::new(),
        };
        vec![
            (
                include_str!("../../../lua/acquire.lua"),
                requests.acquire(
                    claim,
                    &terms,
                    &Ask::Gate { queues: true, stamp: None, proposed: None, briefly: false },
                ),
            ),
            (include_str!("../../../lua/break.lua"), requests.break_lock(claim, true)),
            (include_str!("../../../lua/extend.lua"), requests.extend(claim, grant.taken_at, &terms, None)),
            (include_str!("../../../lua/heal.lua"), requests.heal(&grant, &terms, b"", None)),
            (include_str!("../../../lua/outer.lua"), requests.outer(claim, &terms, &[claim])),
            (include_str!("../../../lua/raise.lua"), requests.raise(claim, &terms, &[7])),
            (
                include_str!("../../../lua/release.lua"),
                requests.release(claim, &terms, Duration::ZERO, Duration::ZERO),
            ),
        ]
    }

    #[test]
    fn each_script_gets_the_arguments_that_its_header_lists() {
        for (script, call) in calls(1) {
            let Call::Script { args, .. } = call else { panic!("{call:?}") };
            let (listed, has_fields) = listed(script);
            let fields = if has_fields { HolderInfo::default().fields().len() * 2 } else { 0 };
            assert_eq!(args.len(), listed + fields, "{}", script.lines().next().unwrap());
        }
    }

    #[test]
    fn each_script_gets_the_keys_that_the_header_lists() {
        let request = include_str!("../../../lua/include/request.lua");
        let names = request.lines().filter_map(|line| line.strip_prefix("--   "));
        let (of_one_key, common): (Vec<&str>, Vec<&str>) = names.partition(|name| name.contains(":K "));
        for of in [1, 3] {
            for (script, call) in calls(of) {
                let Call::Script { keys, .. } = call else { panic!("{call:?}") };
                assert_eq!(keys.len(), of * of_one_key.len() + common.len(), "{script}");
            }
        }
    }
}
