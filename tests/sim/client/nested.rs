//! Runs inside the commands of other runs.

use super::*;

/// How often a run looks at the one that it is inside of, or that is inside of it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Client<'_> {
    /// The locks of the runs that this one is inside of, when its turn in their command has come; `None`
    /// if they end before.
    pub(super) fn ancestors(&self, run: &Run) -> Option<Vec<AncestorLock>> {
        let Some(Inside { outer, after }) = run.inside else { return Some(Vec::new()) };
        let site = self.site_of(outer)?;
        let held = loop {
            let held = self.record_of(outer, |record| Some(record.held.clone())).unwrap_or_default();
            if !held.is_empty() {
                break held;
            }
            if self.record_of(outer, |record| record.is_over.then_some(())).is_some() {
                return None;
            }
            world::sleep(&mut [], BootTime::now() + LOOK_EVERY);
        };
        let ends = BootTime::now() + after;
        while !ends.has_passed() {
            world::sleep(&mut [], ends);
        }
        self.world.shared().borrow_mut().oracle.is_inside(self.world.site(), site);
        Some(held)
    }

    pub(super) fn is_over(&self, actor: u64) -> bool {
        self.record_of(actor, |record| Some(record.is_over)).unwrap_or(true)
    }
}
