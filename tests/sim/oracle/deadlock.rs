//! Nested runs that wait for each other, according to what the clients report. Of each circle the
//! youngest waiter gives up in time, names the circle, and nobody else gives up.

use super::*;

/// Without a fault a circle is found within this time after it was closed.
const FOUND_WITHIN_US: u64 = 5_000_000;
/// A client that gives up leaves its queue before it reports that.
const REPORTED_WITHIN_US: u64 = 100_000;

/// Waiters, and those for which each of them waits.
type WaitsFor = BTreeMap<SiteId, BTreeSet<SiteId>>;

#[derive(Default)]
pub(super) struct Nesting {
    /// The host of the outer run for that of each inner one.
    outer: BTreeMap<SiteId, SiteId>,
    /// The waiters that wait for each other, and since when.
    circles: BTreeMap<BTreeSet<SiteId>, u64>,
    /// When each waiter was last seen in a circle.
    last_seen: BTreeMap<SiteId, u64>,
}

impl Oracle {
    /// The run asks for its keys inside the command of another one.
    pub fn is_inside(&mut self, site: SiteId, outer: SiteId) {
        self.nesting.outer.insert(site, outer);
    }

    pub fn nested_runs(&self) -> usize {
        self.nesting.outer.len()
    }

    fn is_below(&self, site: SiteId, holder: SiteId) -> bool {
        std::iter::successors(self.nesting.outer.get(&site), |outer| self.nesting.outer.get(outer))
            .any(|outer| *outer == holder)
    }

    /// Those of `stuck` without which this waiter cannot have this key.
    fn blockers(&self, site: SiteId, key: &str, stuck: &BTreeSet<SiteId>) -> BTreeSet<SiteId> {
        let (arrival, how) = (self.arrivals[&site].stamp, &self.waiting[&site].how);
        let is_ahead = |other: &&SiteId| {
            let waits = self.waiting[*other].keys.iter().any(|name| name == key);
            waits && self.arrivals[*other].stamp < arrival
        };
        let ahead = stuck.iter().filter(is_ahead).copied();
        let living = self.holdings.get(key).into_iter().flatten().filter(|held| held.until > self.now_us);
        let behind = |held: &Holding| -> Vec<SiteId> {
            stuck.iter().copied().filter(|other| self.is_below(*other, held.site)).collect()
        };
        let holders: Vec<Vec<SiteId>> = match how {
            Held::Slot { of, .. } => {
                let holders: Vec<_> = living.map(behind).collect();
                let has_room = holders.len() < *of as usize || holders.iter().any(Vec::is_empty);
                if has_room { Vec::new() } else { holders }
            }
            Held::Exclusive | Held::Shared(_) => {
                living.filter(|held| held.how.excludes(how)).map(behind).collect()
            }
        };
        ahead.chain(holders.into_iter().flatten().filter(|other| *other != site)).collect()
    }

    /// The waiters that can never go on.
    fn stuck(&self) -> WaitsFor {
        let mut stuck: BTreeSet<SiteId> =
            self.waiting.keys().copied().filter(|site| self.arrivals.contains_key(site)).collect();
        loop {
            let waits_for = |site: &SiteId| -> BTreeSet<SiteId> {
                self.waiting[site].keys.iter().flat_map(|key| self.blockers(*site, key, &stuck)).collect()
            };
            let left: WaitsFor = stuck.iter().map(|site| (*site, waits_for(site))).collect();
            let left: WaitsFor = left.into_iter().filter(|(_, others)| !others.is_empty()).collect();
            if left.len() == stuck.len() {
                return left;
            }
            stuck = left.into_keys().collect();
        }
    }

    /// Something has changed on a server.
    pub(super) fn look_for_circles(&mut self) {
        if self.nesting.outer.is_empty() {
            return;
        }
        let (now, stuck) = (self.now_us, self.stuck());
        let circles: BTreeSet<BTreeSet<SiteId>> = stuck.keys().map(|site| circle_of(*site, &stuck)).collect();
        self.nesting.circles.retain(|circle, _| circles.contains(circle));
        for circle in circles.into_iter().filter(|circle| !circle.is_empty()) {
            self.nesting.last_seen.extend(circle.iter().map(|site| (*site, now)));
            let since = *self.nesting.circles.entry(circle.clone()).or_insert(now);
            if now > since + FOUND_WITHIN_US && !self.has_faults {
                self.nesting.circles.insert(circle.clone(), u64::MAX - FOUND_WITHIN_US);
                self.violation("unfound-deadlock", format!("hosts {circle:?} wait for each other"));
            }
        }
    }

    /// A waiter gives up because of a deadlock, in which each step is a wait for this key.
    pub fn gives_up(&mut self, site: SiteId, steps: &[String]) {
        let (now, stuck) = (self.now_us, self.stuck());
        let circle = circle_of(site, &stuck);
        let since = self.nesting.circles.get(&circle).copied().unwrap_or(now);
        let is_settled = now >= since.saturating_add(REPORTED_WITHIN_US);
        let holding = circle.iter().filter(|other| self.nesting.outer.contains_key(other));
        let youngest = holding.max_by_key(|other| self.arrivals[other].stamp).copied();
        let last_seen = self.nesting.last_seen.get(&site).copied();
        // A circle is confirmed as it was at a first look: a waiter in it may have died since then.
        let remembered_for = if self.has_faults { FOUND_WITHIN_US } else { REPORTED_WITHIN_US };
        if circle.is_empty() && last_seen.is_none_or(|at| at + remembered_for < now) {
            self.violation("no-deadlock", format!("host {site} gives up, but can go on"));
        } else if is_settled && youngest != Some(site) {
            let text = format!("host {site} gives up, but of {circle:?} host {youngest:?} is the youngest");
            self.violation("not-youngest", text);
        } else if is_settled && !self.closes(site, steps, &stuck) {
            self.violation("misnamed", format!("host {site} is not in a circle through {steps:?}"));
        }
        self.waiting.remove(&site);
    }

    /// Whether these steps lead from the waiter back to itself.
    fn closes(&self, site: SiteId, steps: &[String], stuck: &WaitsFor) -> bool {
        let all: BTreeSet<SiteId> = stuck.keys().copied().collect();
        let follow = |at: BTreeSet<SiteId>, key: &String| {
            let waiting = at.iter().filter(|site| self.waiting[*site].keys.contains(key));
            waiting.flat_map(|site| self.blockers(*site, key, &all)).collect()
        };
        !steps.is_empty() && steps.iter().fold([site].into(), follow).contains(&site)
    }
}

/// The waiters for which this one waits, and that wait for it.
fn circle_of(site: SiteId, stuck: &WaitsFor) -> BTreeSet<SiteId> {
    let reach = |site: SiteId| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![site]);
        while let Some(site) = open.pop() {
            let next = stuck.get(&site).into_iter().flatten();
            open.extend(next.filter(|next| reached.insert(**next)));
        }
        reached
    };
    reach(site).into_iter().filter(|other| reach(*other).contains(&site)).collect()
}
