//! The requests, put together.

use std::time::Duration;

use super::Quorum;
use crate::lock::node::{ACQUIRE, BREAK, Call, EXTEND, HEAL, RAISE, RELEASE, Script};
use crate::lock::{Claim, Grant, Mode, Names, Patience, Prefer, Request};

/// How long a waiter counts as alive without.
const PLACE_LEASE: Duration = Duration::from_millis(5000);
/// A fencing token outlives its lock; when it is forgotten the server's clock keeps tokens growing.
const KEEP_FENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is asked for, in the scripts' words.
#[derive(Debug, Default)]
pub(super) struct Wish {
    /// What stands at the lock's key while it is shared; empty for one that is not.
    mark: Vec<u8>,
    /// How we queue.
    flags: Vec<u8>,
    ancestors: Vec<u8>,
    /// Field and value in turn.
    who: Vec<Vec<u8>>,
    min_hold: Duration,
}

impl Wish {
    pub(super) fn of(request: &Request, keys: usize) -> Self {
        let mark = match &request.mode {
            // One slot is a lock.
            Mode::Exclusive | Mode::Slot { of: 1 } => Vec::new(),
            Mode::Shared { group } => [b"shared:", group.as_slice()].concat(),
            Mode::Slot { of } => format!("slots:{of}").into(),
        };
        let goes_first = match (&request.mode, request.prefer) {
            (Mode::Exclusive, Prefer::Writers) => Some(b'!'),
            (Mode::Shared { .. }, Prefer::Readers) => Some(b'+'),
            _ => None,
        };
        let needs_others = (keys > 1).then_some(b'&');
        let ancestors: Vec<String> =
            request.ancestors.iter().map(|held| held.claim.waiter.to_string()).collect();
        Self {
            mark,
            flags: goes_first.into_iter().chain(needs_others).collect(),
            ancestors: ancestors.join(" ").into(),
            who: request
                .who
                .fields()
                .into_iter()
                .flat_map(|(field, value)| [field, value].map(Into::into))
                .collect(),
            min_hold: request.min_hold,
        }
    }
}

impl Quorum {
    pub(super) fn claim(&self) -> Claim {
        Claim { waiter: self.id, attempt: self.attempts }
    }

    fn call(&self, script: &'static Script, claim: Claim, more: Vec<Vec<u8>>) -> Call {
        let of_key = |names: &Names| {
            let Names { lock, queue, waiters, info, fence, shared, .. } = names;
            [lock, queue, waiters, info, fence, shared].map(Clone::clone)
        };
        let mut keys: Vec<Vec<u8>> = self.names.iter().flat_map(of_key).collect();
        let Names { notify, node, .. } = self.any_name();
        keys.extend([self.any_name().gone_of(claim.waiter), node.clone()]);
        let nodes = self.nodes.len().to_string().into_bytes();
        let Wish { mark, flags, .. } = &self.wish;
        let mut args = vec![claim.to_string().into(), notify.clone(), nodes, mark.clone(), flags.clone()];
        args.extend(more);
        Call::Script { script, keys, args }
    }

    /// `proposed` are the gate's tokens; `None` at the gate itself.
    pub(super) fn acquire_call(&self, patience: Patience, proposed: Option<&[u64]>) -> Call {
        let place_lease = match (patience, proposed) {
            (Patience::None, _) | (_, Some(_)) => Duration::ZERO,
            (Patience::AtMost(_) | Patience::Forever, None) => PLACE_LEASE,
        };
        let mut args = vec![self.life(Duration::ZERO), millis(place_lease), millis(KEEP_FENCE)];
        args.push(proposed.map_or_else(Vec::new, in_a_row));
        args.extend([millis(self.timing.quarantine), self.wish.ancestors.clone()]);
        args.extend_from_slice(&self.wish.who);
        self.call(&ACQUIRE, self.claim(), args)
    }

    pub(super) fn extend_call(&self, grant: &Grant) -> Call {
        let life = self.life(grant.taken_at.elapsed());
        self.call(&EXTEND, grant.claim, vec![life, millis(self.timing.quarantine)])
    }

    pub(super) fn heal_call(&self, grant: &Grant) -> Call {
        let life = self.life(grant.taken_at.elapsed());
        let held_for = millis(grant.taken_at.elapsed());
        let mut args = vec![life, millis(KEEP_FENCE), in_a_row(&grant.fences), held_for];
        args.extend_from_slice(&self.wish.who);
        self.call(&HEAL, grant.claim, args)
    }

    pub(super) fn raise_call(&self, fences: &[u64]) -> Call {
        self.call(&RAISE, self.claim(), vec![in_a_row(fences), millis(KEEP_FENCE)])
    }

    pub(super) fn break_call(&self, yes: bool) -> Call {
        self.call(&BREAK, self.claim(), vec![u8::from(yes).to_string().into()])
    }

    /// `stay`: how long the locks are to stay taken by themselves.
    pub(super) fn release_call(&self, claim: Claim, keep_gone: Duration, stay: Duration) -> Call {
        self.call(&RELEASE, claim, vec![millis(keep_gone), millis(stay)])
    }

    /// How long the keys live from now on, if nobody renews them: the lease, or longer if they are to stay taken
    /// for so long anyway. Longer does no harm: what we rely on is the lease.
    fn life(&self, held_for: Duration) -> Vec<u8> {
        let to_keep = self.wish.min_hold.saturating_sub(held_for);
        self.timing.ttl.map_or_else(|| b"0".to_vec(), |ttl| millis(ttl.max(to_keep)))
    }
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}

fn in_a_row(numbers: &[u64]) -> Vec<u8> {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join(" ").into_bytes()
}
