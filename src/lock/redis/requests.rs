//! The script calls of one lock, put together. The order of KEYS and ARGV is that of the headers in lua/.

use std::time::Duration;

use super::keys::Keys;
use super::script::{ACQUIRE, BREAK, Call, EXTEND, HEAL, RAISE, RELEASE, Script, WAITER_LEASE};
use crate::lock::claim::{Claim, WaiterId};
use crate::lock::{Grant, Mode, Prefer, Request};

/// A fencing token outlives its lock; when it is forgotten the server's clock keeps tokens growing.
const FENCE_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// `None` for a lock that never expires.
    pub ttl: Option<Duration>,
    /// What one server may take to answer, connecting included.
    pub node_timeout: Duration,
    /// How long a server that has lost its data does not vote; zero = it votes at once.
    pub quarantine: Duration,
}

/// A request in the scripts' terms.
#[derive(Debug, Default)]
pub struct Terms {
    /// The value at the lock's key while it is shared; empty for an exclusive lock.
    mode_tag: Vec<u8>,
    /// How the request queues.
    flags: Vec<u8>,
    ancestors: Vec<u8>,
    /// Field and value in turn.
    holder: Vec<Vec<u8>>,
    min_hold: Duration,
}

impl Terms {
    pub fn new(request: &Request, keys: usize) -> Self {
        let mode_tag = match &request.mode {
            // One slot is a lock.
            Mode::Exclusive | Mode::Slot { of: 1 } => Vec::new(),
            Mode::Shared { group } => [b"shared:", group.as_slice()].concat(),
            Mode::Slot { of } => format!("slots:{of}").into(),
        };
        let preference = match (&request.mode, request.prefer) {
            (Mode::Exclusive, Prefer::Writers) => Some(b'!'),
            (Mode::Shared { .. }, Prefer::Readers) => Some(b'+'),
            (Mode::Exclusive | Mode::Shared { .. } | Mode::Slot { .. }, _) => None,
        };
        let needs_other_keys = (keys > 1).then_some(b'&');
        let ancestors: Vec<String> =
            request.ancestors.iter().map(|lock| lock.claim.waiter.to_string()).collect();
        Self {
            mode_tag,
            flags: preference.into_iter().chain(needs_other_keys).collect(),
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

/// What all calls of one lock have in common.
#[derive(Debug)]
pub struct Requests {
    keys: Vec<Keys>,
    servers: usize,
    timing: Timing,
}

impl Requests {
    pub fn new(keys: Vec<Keys>, servers: usize, timing: Timing) -> Self {
        Self { keys, servers, timing }
    }

    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The list on which this waiter is woken.
    pub fn notify_list(&self, waiter: WaiterId) -> Vec<u8> {
        self.keys[0].notify_of(waiter)
    }

    /// `proposed` are the gate's tokens; `None` at the gate itself, where the request may queue.
    pub fn acquire(&self, claim: Claim, terms: &Terms, queues: bool, proposed: Option<&[u64]>) -> Call {
        let waiter_lease = if queues && proposed.is_none() { WAITER_LEASE } else { Duration::ZERO };
        let mut args = vec![
            self.key_ttl(terms, Duration::ZERO),
            millis(waiter_lease),
            millis(FENCE_TTL),
            proposed.map_or_else(Vec::new, joined),
            millis(self.timing.quarantine),
            terms.ancestors.clone(),
        ];
        args.extend_from_slice(&terms.holder);
        self.call(&ACQUIRE, claim, terms, args)
    }

    pub fn extend(&self, grant: &Grant, terms: &Terms) -> Call {
        let ttl = self.key_ttl(terms, grant.taken_at.elapsed());
        self.call(&EXTEND, grant.claim, terms, vec![ttl, millis(self.timing.quarantine)])
    }

    pub fn heal(&self, grant: &Grant, terms: &Terms) -> Call {
        let held_for = grant.taken_at.elapsed();
        let mut args =
            vec![self.key_ttl(terms, held_for), millis(FENCE_TTL), joined(&grant.fences), millis(held_for)];
        args.extend_from_slice(&terms.holder);
        self.call(&HEAL, grant.claim, terms, args)
    }

    pub fn raise(&self, claim: Claim, terms: &Terms, fences: &[u64]) -> Call {
        self.call(&RAISE, claim, terms, vec![joined(fences), millis(FENCE_TTL)])
    }

    /// `tombstone_ttl`: how long late requests of this waiter are refused. `min_hold`: how long the locks stay
    /// taken from now on.
    pub fn release(&self, claim: Claim, terms: &Terms, tombstone_ttl: Duration, min_hold: Duration) -> Call {
        self.call(&RELEASE, claim, terms, vec![millis(tombstone_ttl), millis(min_hold)])
    }

    pub fn break_lock(&self, claim: Claim, yes: bool) -> Call {
        self.call(&BREAK, claim, &Terms::default(), vec![u8::from(yes).to_string().into()])
    }

    fn call(&self, script: &'static Script, claim: Claim, terms: &Terms, more: Vec<Vec<u8>>) -> Call {
        let of_key = |keys: &Keys| {
            let Keys { lock, queue, waiters, info, fence, shared, .. } = keys;
            [lock, queue, waiters, info, fence, shared].map(Clone::clone)
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

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}

fn joined(numbers: &[u64]) -> Vec<u8> {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    numbers.join(" ").into_bytes()
}
