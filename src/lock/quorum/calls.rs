//! The requests, put together.

use std::time::Duration;

use super::Quorum;
use crate::lock::node::{ACQUIRE, Call, EXTEND, HEAL, RAISE, RELEASE, Script};
use crate::lock::{Claim, Grant, Names, Patience};

/// How long a waiter counts as alive without.
const PLACE_LEASE: Duration = Duration::from_millis(5000);
/// A fencing token outlives its lock; when it is forgotten the server's clock keeps tokens growing.
const KEEP_FENCE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Quorum {
    pub(super) fn claim(&self) -> Claim {
        Claim { waiter: self.id, attempt: self.attempts }
    }

    fn call(&self, script: &'static Script, claim: Claim, more: Vec<Vec<u8>>) -> Call {
        let Names { lock, queue, waiters, info, fence, notify, node, .. } = &self.names[0];
        let gone = self.names[0].gone_of(claim.waiter);
        let keys = [lock, queue, waiters, info, fence, &gone, node].map(Clone::clone).to_vec();
        let nodes = self.nodes.len().to_string().into_bytes();
        let args = [vec![claim.to_string().into_bytes(), notify.clone(), nodes], more].concat();
        Call::Script { script, keys, args }
    }

    /// `proposed` is the gate's token; `None` at the gate itself.
    pub(super) fn acquire_call(&self, patience: Patience, proposed: Option<u64>) -> Call {
        let place_lease = match (patience, proposed) {
            (Patience::None, _) | (_, Some(_)) => Duration::ZERO,
            (Patience::AtMost(_) | Patience::Forever, None) => PLACE_LEASE,
        };
        let mut args = [self.timing.ttl.unwrap_or_default(), place_lease, KEEP_FENCE].map(millis).to_vec();
        args.push(proposed.map_or_else(Vec::new, |fence| fence.to_string().into_bytes()));
        args.push(millis(self.timing.quarantine));
        args.extend(self.who_fields());
        self.call(&ACQUIRE, self.claim(), args)
    }

    pub(super) fn extend_call(&self, grant: &Grant) -> Call {
        self.call(
            &EXTEND,
            grant.claim,
            [self.timing.ttl.unwrap_or_default(), self.timing.quarantine].map(millis).to_vec(),
        )
    }

    pub(super) fn heal_call(&self, grant: &Grant) -> Call {
        let mut args = [self.timing.ttl.unwrap_or_default(), KEEP_FENCE].map(millis).to_vec();
        args.push(grant.fences[0].to_string().into_bytes());
        args.extend(self.who_fields());
        self.call(&HEAL, grant.claim, args)
    }

    pub(super) fn raise_call(&self, fence: u64) -> Call {
        self.call(&RAISE, self.claim(), vec![fence.to_string().into_bytes(), millis(KEEP_FENCE)])
    }

    pub(super) fn release_call(&self, claim: Claim, keep_gone: Duration) -> Call {
        self.call(&RELEASE, claim, vec![millis(keep_gone)])
    }

    fn who_fields(&self) -> impl Iterator<Item = Vec<u8>> {
        self.who.fields().into_iter().flat_map(|(field, value)| [field.into(), value.into()])
    }
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}
