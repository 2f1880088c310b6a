//! Releasing the lock of a redlock that has died, in the process of its guardian.

use std::time::Duration;

use super::{Claim, Grant};
use crate::clock::BootTime;

/// Releases the lock, or the place in the queue, of a redlock that has died. Created before the
/// guardian is forked, and called there when no process runs under the lock any more. The first
/// argument is the result of [`Grant::to_bytes`], if the guardian has received a grant; the second
/// is whether the command ran.
pub(crate) type ReleaseOrphan = Box<dyn FnOnce(Option<&[u8]>, bool)>;

/// The part of a grant that its release needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrphanGrant {
    pub claim: Claim,
    pub taken_at: BootTime,
    pub waited: Duration,
    pub fences: Vec<u64>,
    pub slots: Vec<u32>,
}

impl Grant {
    /// The grant as the guardian keeps it, without knowing about locks. Empty if there is nothing
    /// to release: the lock belongs to an outer run, or there is none.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        if !self.is_locked() || !self.outer.is_empty() {
            return Vec::new();
        }
        let (taken_at, waited) = (self.taken_at.as_nanos(), self.waited.as_nanos());
        let [fences, slots] = [joined(&self.fences), joined(&self.slots)];
        format!("{} {taken_at} {waited} {fences} {slots}", self.claim).into()
    }
}

impl OrphanGrant {
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.split(' ');
        let claim = parts.next()?.parse().ok()?;
        let taken_at = BootTime::from_nanos(parts.next()?.parse().ok()?);
        let waited = Duration::from_nanos(parts.next()?.parse().ok()?);
        let [fences, slots] = [split(parts.next()?)?, split(parts.next()?)?];
        let slots = slots.into_iter().map(|slot| slot.try_into().ok()).collect::<Option<_>>()?;
        Some(Self { claim, taken_at, waited, fences, slots })
    }
}

fn joined<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn split(text: &str) -> Option<Vec<u64>> {
    text.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Unlocked;

    #[test]
    fn a_grant_reads_back() {
        for slots in [vec![], vec![3, 0]] {
            let waited = Duration::from_nanos(5);
            let grant = Grant { fences: vec![1, 1 << 60], slots: slots.clone(), waited, ..Unlocked::grant() };
            let Grant { claim, taken_at, fences, .. } = grant.clone();
            let expected = OrphanGrant { claim, taken_at, waited, fences, slots };
            assert_eq!(OrphanGrant::from_bytes(&grant.to_bytes()), Some(expected));
        }
    }

    #[test]
    fn a_run_without_a_lock_of_its_own_has_nothing_to_release() {
        let unlocked = Unlocked::grant();
        let under_outer = Grant { fences: vec![1], outer: vec![unlocked.claim], ..unlocked.clone() };
        for grant in [unlocked, under_outer] {
            assert_eq!(OrphanGrant::from_bytes(&grant.to_bytes()), None);
        }
    }
}
