//! What must never be.

use std::collections::BTreeMap;

use crate::network::ClientId;

/// In which way a key is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Exclusive,
    Shared(Vec<u8>),
}

/// A holder, from its grant to its release or its deadline.
#[derive(Clone, Debug)]
struct Holding {
    client: ClientId,
    how: Held,
    fence: u64,
    from: u64,
    /// When its command is gone at the latest.
    until: u64,
}

#[derive(Default)]
pub struct Oracle {
    holdings: BTreeMap<String, Vec<Holding>>,
    last_fence: BTreeMap<String, u64>,
    pub grants: u64,
    pub violations: Vec<String>,
}

impl Oracle {
    pub fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// A client has got the lock; unless it is renewed its command is gone at `until`.
    pub fn granted(&mut self, client: ClientId, key: &str, how: Held, fence: u64, now: u64, until: u64) {
        self.grants += 1;
        let holdings = self.holdings.entry(key.into()).or_default();
        holdings.retain(|holding| holding.until > now);
        let conflicts = |holding: &&Holding| match (&holding.how, &how) {
            (Held::Shared(theirs), Held::Shared(ours)) => theirs != ours,
            _ => true,
        };
        if let Some(other) = holdings.iter().find(conflicts) {
            let text = format!(
                "two holders of {key} at {now}: client {client} ({how:?}) beside client {} ({:?}, since {}, until {})",
                other.client, other.how, other.from, other.until
            );
            self.violations.push(text);
        }
        let last = self.last_fence.entry(key.into()).or_default();
        let is_shared = matches!(how, Held::Shared(_));
        let equals_sharer = holdings.iter().any(|holding| holding.fence == fence);
        if (fence <= *last && !is_shared) || equals_sharer {
            self.violations.push(format!("the token of {key} for client {client} is {fence} after {last}"));
        }
        *last = fence.max(*last);
        holdings.push(Holding { client, how, fence, from: now, until });
    }

    pub fn renewed(&mut self, client: ClientId, until: u64) {
        for holding in self.holdings.values_mut().flatten().filter(|holding| holding.client == client) {
            holding.until = until;
        }
    }

    /// The client's command is gone: it releases, has lost the lock, or was killed with its tree.
    pub fn ended(&mut self, client: ClientId, now: u64) {
        for holding in self.holdings.values_mut().flatten().filter(|holding| holding.client == client) {
            holding.until = holding.until.min(now);
        }
    }
}
