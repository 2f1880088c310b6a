//! Waiters, their claims, and the form in which a lock is passed to the runs inside its command.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::world;

/// One waiter, from its first request to its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId(Uuid);

impl WaiterId {
    pub(crate) fn random() -> Self {
        Self(world::random_uuid())
    }
}

impl fmt::Display for WaiterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value at the lock's key: `<waiter>.<attempt>`. The attempt grows with each request, so a
/// late command of an earlier one can neither release nor overwrite what a later one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub waiter: WaiterId,
    pub attempt: u32,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.waiter, self.attempt)
    }
}

impl FromStr for Claim {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (waiter, attempt) = text.split_once('.').ok_or(())?;
        Ok(Self {
            waiter: WaiterId(Uuid::try_parse(waiter).map_err(drop)?),
            attempt: attempt.parse().map_err(drop)?,
        })
    }
}

/// A lock that a run holds, as REDLOCK_HELD passes it to the runs inside its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AncestorLock {
    pub claim: Claim,
    pub host_ticket: Option<HostTicket>,
    /// The user's keys. Without those that are too long for an environment variable.
    pub keys: Vec<Vec<u8>>,
    /// Where runs attach that want to use the lock, for the guardian or the keeper to read.
    pub attach_id: Option<String>,
}

/// Longer keys are left out of [`AncestorLock::keys`].
const LONGEST_KEY: usize = 512;

impl AncestorLock {
    /// From a list separated by spaces. Skips what it cannot parse.
    pub(crate) fn parse_all(list: &str) -> Vec<Self> {
        list.split_ascii_whitespace().filter_map(|lock| lock.parse().ok()).collect()
    }

    /// Identifies the grant, where it is.
    pub(super) fn grant(&self) -> String {
        self.host_ticket.as_ref().map_or_else(|| self.claim.waiter.to_string(), HostTicket::name)
    }

    /// What other waiters need to know.
    pub(super) fn for_others(&self) -> Self {
        Self { host_ticket: None, attach_id: None, ..self.clone() }
    }

    pub(crate) fn with_keys(self, keys: &[Vec<u8>]) -> Self {
        let keys = keys.iter().filter(|key| key.len() <= LONGEST_KEY).cloned().collect();
        Self { keys, ..self }
    }
}

/// Any bytes, as two hexadecimal digits each.
fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>, ()> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty()).ok_or(())
}

/// A lock on this host: its file, ticket, token and slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostTicket {
    pub device: u64,
    pub inode: u64,
    pub ticket: u64,
    pub fence: u64,
    pub slot: u32,
}

impl HostTicket {
    /// Identifies the grant.
    pub(super) fn name(&self) -> String {
        format!("{}:{}:{}", self.device, self.inode, self.ticket)
    }
}

impl fmt::Display for AncestorLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.claim.fmt(f)?;
        if let Some(HostTicket { device, inode, ticket, fence, slot }) = &self.host_ticket {
            write!(f, "@{device}:{inode}:{ticket}:{fence}:{slot}")?;
        }
        if !self.keys.is_empty() {
            let keys: Vec<String> = self.keys.iter().map(|key| hex(key)).collect();
            write!(f, "={}", keys.join(","))?;
        }
        self.attach_id.as_ref().map_or(Ok(()), |id| write!(f, "+{id}"))
    }
}

impl FromStr for AncestorLock {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let split = |text, at| match str::split_once(text, at) {
            Some((before, after)) => (before, Some(after)),
            None => (text, None),
        };
        let (text, attach_id) = split(text, '+');
        let (text, keys) = split(text, '=');
        let (claim, ticket) = split(text, '@');
        let host_ticket = |text: &str| {
            let numbers: Vec<u64> =
                text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(drop)?;
            let [device, inode, ticket, fence, slot] = numbers.try_into().map_err(drop)?;
            let slot = slot.try_into().map_err(drop)?;
            Ok(HostTicket { device, inode, ticket, fence, slot })
        };
        Ok(Self {
            claim: claim.parse()?,
            host_ticket: ticket.map(host_ticket).transpose()?,
            keys: keys.map_or(Ok(Vec::new()), |keys| keys.split(',').map(from_hex).collect())?,
            attach_id: attach_id.map(ToOwned::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_back_what_it_wrote() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 7 };
        assert_eq!(claim.to_string().parse(), Ok(claim));
    }

    #[test]
    fn an_ancestor_lock_reads_back() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
        let ticket = HostTicket { device: 1, inode: 2, ticket: 3, fence: 4, slot: 5 };
        for host_ticket in [None, Some(ticket)] {
            for attach_id in [None, Some("12:3:45".to_owned())] {
                for keys in [vec![], vec![b"\xff +=,@\n".to_vec(), b"b".to_vec()]] {
                    let (host_ticket, attach_id) = (host_ticket.clone(), attach_id.clone());
                    let held = AncestorLock { claim, host_ticket, keys, attach_id };
                    assert_eq!(held.to_string().parse(), Ok(held));
                }
            }
        }
        for wrong in ["@1:2", "@1:2:3:4:5:6", "@1:2:3:4:99999999999", "=6", "=6z"] {
            assert_eq!(format!("{claim}{wrong}").parse::<AncestorLock>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn foreign_values_are_not_claims() {
        for text in ["", ".", "x.1", "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31", "3f2b8c1e.1.2"] {
            assert_eq!(text.parse::<Claim>(), Err(()), "{text}");
        }
    }
}
