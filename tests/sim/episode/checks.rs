//! What must be true of the servers' data after a release, after the last lease, and at the end.

use super::*;

impl Driver<'_> {
    /// Nothing of the claim is left: after a release, on servers that the releasing host could reach
    /// since then; after the last lease that was asked for, on any server.
    pub(super) fn check_claims(
        &mut self,
        simulation: &mut Simulation,
        actor: u64,
        released: Option<(SiteId, u64)>,
        kind: &'static str,
    ) {
        let shared = simulation.shared.borrow();
        let (site, Some(record)) = (shared.actors[&actor], shared.records.get(&actor)) else { return };
        if record.keeps_min_hold {
            return;
        }
        let waiters: Vec<&String> = shared.oracle.waiters_of(site).collect();
        let Some(Job::Run(run)) = self.actors.get(&actor).map(|actor| &actor.job) else { return };
        // Another client may have extended the lease, and a minimum hold outlives its process.
        let has_min_hold = record.claim.is_some() && !run.min_hold.is_zero();
        let is_excused = self.was_extended.contains(&actor) || has_min_hold;
        let is_token = record.subject == Some(Subject::Token);
        if released.is_none() && is_excused || is_token && has_min_hold {
            return;
        }
        let mut left = Vec::new();
        for (server, host) in simulation.hosts.iter().enumerate() {
            let is_checked = match released {
                Some((by, since)) => [site, by].into_iter().all(|host| {
                    let has_crossed = shared.network.has_crossed(host, server, since);
                    shared.oracle.is_calm(host, server, since) && !has_crossed
                }),
                // A server that was stopped may have received a request that it executes much later.
                None => {
                    let has_steps = self.scenario.features.contains(&Feature::ClockSteps);
                    let is_calm = match record.is_killed {
                        true => shared.oracle.is_calm(site, server, record.started),
                        false => shared.oracle.is_server_calm(server, record.started),
                    };
                    !has_steps && is_calm
                }
            };
            if !is_checked {
                continue;
            }
            let mut data = host.server.data();
            data.now_us = host.now(shared.now_us);
            let is_left = |key: &&String| waiters.iter().any(|waiter| claims(&mut data, key, waiter));
            let names = run.keys.iter().filter(is_left);
            left.extend(names.map(|key| format!("{key} on server {server}")));
        }
        drop(shared);
        for what in left {
            let text = format!("the claim of host {site} is still at {what}");
            simulation.shared.borrow_mut().oracle.violation(kind, text);
        }
    }

    /// The actor has had its lock, unless it was never started.
    pub(super) fn check_served(&self, simulation: &Simulation, actor: u64) {
        let mut shared = simulation.shared.borrow_mut();
        if shared.records.get(&actor).is_some_and(|record| record.claim.is_none()) {
            let text = format!("host {} still waits", shared.actors[&actor]);
            shared.oracle.violation("not-served", text);
        }
    }

    /// All processes have ended, and the network is well: what status shows must be what a client
    /// gets.
    pub(super) fn audit(&mut self, simulation: &mut Simulation) {
        let _ = self.mutant;
        let Some(model) = self.actors.values().next().cloned() else { return };
        for (at, key) in self.scenario.keys.iter().enumerate() {
            let job = Job::Audit { key: key.clone() };
            let actor = Actor { number: 900_000 + at as u64, job, ..model.clone() };
            self.start(simulation, &actor);
            let end = simulation.now() + PATIENCE_US;
            simulation.run_until(end, self);
            self.reap(simulation);
        }
    }
}

/// Whether this waiter has a claim on the key, in any database.
fn claims(data: &mut crate::server::data::Data, key: &str, waiter: &str) -> bool {
    let databases: Vec<u32> = data.databases.keys().copied().collect();
    databases.into_iter().any(|database| {
        data.selected = database;
        let now_ms = (data.now_us / 1000) as f64;
        let store = data.store();
        let holds = store.string(format!("lock:{key}").as_bytes());
        let shares = store.members_above(format!("lock-shared:{key}").as_bytes(), now_ms);
        let is_tag =
            holds.as_ref().is_some_and(|value| value.starts_with(b"shared:") || value.starts_with(b"slots:"));
        holds.is_some_and(|value| value.starts_with(waiter.as_bytes()))
            || is_tag && shares.iter().any(|member| member.starts_with(waiter.as_bytes()))
    })
}

/// What stays long after the last run: the marker, tokens, finished runs, the newest request, the
/// last success, and the records of runs that were killed, until the next run logs them.
const STAYS: [&[u8]; 7] = [
    b"lock-node",
    b"lock-fence:",
    b"lock-log:",
    b"lock-info:",
    b"lock-shared:",
    b"lock-newest:",
    b"lock-done:",
];

/// Keys that never expire, and keys that live for longer than any lease.
pub(super) fn leftovers(host: &Host, now: u64) -> Vec<String> {
    let mut data = host.server.data();
    data.now_us = host.now(now);
    let databases: Vec<u32> = data.databases.keys().copied().collect();
    let mut found = Vec::new();
    for database in databases {
        data.selected = database;
        let is_left = |key: &[u8], expires: Option<u64>| {
            let is_expected = STAYS.iter().any(|name| key.starts_with(name));
            (expires.is_none() && key != b"lock-node") || !is_expected && !key.starts_with(b"lock-tombstone")
        };
        let keys = data.store().expiries().filter(|(key, expires)| is_left(key, *expires));
        found.extend(keys.map(|(key, expires)| format!("{} ({expires:?})", String::from_utf8_lossy(key))));
    }
    found
}
