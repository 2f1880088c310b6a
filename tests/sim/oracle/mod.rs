//! What must never happen, and what must happen in time.
//!
//! The clients report what they believe (granted, renewed, released); the servers report what they
//! have executed; the plan reports which faults it causes. A client that has no reason to fail must
//! not fail: a server counts as calm for a client if no fault has touched either, or the line
//! between them, since a given moment.

mod deadlock;
mod extensions;
mod invariants;

use std::collections::{BTreeMap, BTreeSet};

use deadlock::Nesting;
use extensions::Extension;

use crate::lock::majority_of;
use crate::network::{ServerId, SiteId};
use crate::scenario::FIRST_START_US;
use crate::server::reply::Reply;
use crate::server::{Change, Executed};
use crate::trace::script_call;

/// In the quiet after the last fault, no waiter may be overtaken more often than this.
const MOST_OVERTAKES: u32 = 10;

/// The number of arguments of release.lua if nothing is written into the history.
const ARGS_WITHOUT_ENTRY: usize = 10;

/// No client has a longer usual lease.
const LONGEST_TTL_US: u64 = 30_000_000;

/// Two requests within this time may arrive in either order.
const ABOUT_NOW_US: u64 = 5_000_000;

/// How a key is held, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Exclusive,
    Shared(Vec<u8>),
    /// The number is not known while it waits.
    Slot {
        of: u32,
        number: Option<u32>,
    },
}

impl Held {
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(ours), Self::Shared(theirs)) => ours != theirs,
            (Self::Slot { of, number }, Self::Slot { of: their_of, number: their_number }) => {
                of != their_of || (number.is_some() && number == their_number)
            }
            _ => true,
        }
    }
}

/// A holder, from its grant to its release or its deadline.
#[derive(Clone, Debug)]
struct Holding {
    site: SiteId,
    how: Held,
    from: u64,
    /// When its command is gone at the latest.
    until: u64,
    /// When it asked for its last grant or renewal.
    asked_at: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    keys: Vec<String>,
    how: Held,
    started: u64,
    /// It stays in the queue until it is served.
    queues: bool,
    overtaken: u32,
    /// The largest token of each key when it began.
    floors: Vec<u64>,
    /// What it may have been granted was taken away from it.
    is_excused: bool,
}

/// When a request arrived at its first gate, by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    stamp: u64,
    gate: ServerId,
}

/// A run with --once whose command has ended with 0.
#[derive(Clone, Debug)]
struct Success {
    site: SiteId,
    keys: Vec<String>,
    /// When it began to release, and when a majority had confirmed that.
    began: u64,
    confirmed: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub kind: &'static str,
    pub at_us: u64,
    pub text: String,
    /// The host that was passed.
    passed: Option<SiteId>,
}

/// What a fault has touched: a server, or the line from a host to a server.
type Touched = (Option<SiteId>, ServerId);

#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    active: u32,
    last: u64,
}

#[derive(Default)]
pub struct Oracle {
    pub now_us: u64,
    pub servers: usize,
    /// No fault of this episode may change the order.
    pub is_order_strict: bool,
    /// This episode has faults.
    pub has_faults: bool,
    /// Requests with a preference pass others on purpose.
    pub has_preferences: bool,
    /// The last fault is over, and its effects should be, too.
    pub is_quiet: bool,
    pub grants: u64,
    pub violations: Vec<Violation>,
    holdings: BTreeMap<String, Vec<Holding>>,
    tokens: BTreeMap<String, BTreeSet<u64>>,
    waiting: BTreeMap<SiteId, Waiting>,
    arrivals: BTreeMap<SiteId, Arrival>,
    /// The servers that have confirmed the token of each claim.
    confirmed: BTreeMap<String, BTreeSet<ServerId>>,
    /// The requests that extend the lock of each token.
    extensions: BTreeMap<SiteId, Vec<Extension>>,
    troubles: BTreeMap<Touched, Trouble>,
    /// Servers that have lost data, or whose clock has jumped.
    unreliable: BTreeSet<ServerId>,
    /// Requests with --supersede: host, and the end of its process.
    superseding: BTreeMap<SiteId, Option<u64>>,
    /// The last attempt of each waiter that a server has released.
    released: BTreeMap<(ServerId, String), u32>,
    /// The waiters of each host, as servers have seen them.
    waiters: BTreeMap<SiteId, BTreeSet<String>>,
    /// When the runs with --cancel-in-progress began.
    cancelling: BTreeMap<SiteId, u64>,
    /// The successful runs with --once.
    done: Vec<Success>,
    /// When every server has lost the locks of these hosts.
    forgotten: BTreeMap<SiteId, u64>,
    nesting: Nesting,
}

impl Oracle {
    pub fn violation(&mut self, kind: &'static str, text: String) {
        self.violations.push(Violation { kind, at_us: self.now_us, text, passed: None });
    }

    /// A client gives up because of its servers: those who passed it have passed nobody who waited.
    pub fn fails(&mut self, site: SiteId) {
        self.violations.retain(|violation| violation.passed != Some(site));
    }

    /// A client asks for these keys.
    pub fn begins(&mut self, site: SiteId, keys: &[String], how: Held, queues: bool, supersedes: bool) {
        let floors = keys.iter().map(|key| self.last_token(key)).collect();
        let (keys, started) = (keys.to_vec(), self.now_us);
        self.waiting
            .insert(site, Waiting { keys, how, started, queues, overtaken: 0, floors, is_excused: false });
        if supersedes {
            self.superseding.insert(site, None);
        }
    }

    fn last_token(&self, key: &str) -> u64 {
        self.tokens.get(key).and_then(|tokens| tokens.last().copied()).unwrap_or(0)
    }

    /// The client was told to give up.
    pub fn stops_waiting(&mut self, site: SiteId) {
        if let Some(waiting) = self.waiting.get_mut(&site) {
            waiting.queues = false;
        }
    }

    /// The process is gone, or its command is.
    pub fn process_ended(&mut self, site: SiteId) {
        self.waiting.remove(&site);
        if let Some(end) = self.superseding.get_mut(&site) {
            *end = Some(self.now_us);
        }
    }

    /// A client has been granted all its keys. Unless they are renewed its command is gone at
    /// `until`. `asked`: when the lease began.
    pub fn granted(&mut self, site: SiteId, hows: Vec<Held>, fences: &[u64], asked: u64, until: u64) {
        self.grants += 1;
        let Some(request) = self.waiting.remove(&site) else { return };
        for (at, key) in request.keys.iter().enumerate().filter(|_| !request.is_excused) {
            let how = hows[at].clone();
            self.check_order(site, key, &how, request.started);
            self.check_exclusion(site, key, &how);
            self.check_token(site, key, &how, fences[at], request.floors[at]);
            let holding = Holding { site, how, from: self.now_us, until, asked_at: asked };
            self.holdings.entry(key.clone()).or_default().push(holding);
        }
    }

    fn check_exclusion(&mut self, site: SiteId, key: &str, how: &Held) {
        let now = self.now_us;
        let holdings = self.holdings.entry(key.into()).or_default();
        holdings.retain(|holding| holding.until > now);
        let other = holdings.iter().find(|holding| holding.how.excludes(how));
        let full = match how {
            Held::Slot { of, .. } if holdings.len() >= *of as usize => holdings.first(),
            _ => None,
        };
        if let Some(other) = other.or(full).cloned() {
            let text = format!(
                "host {site} holds {key} ({how:?}) beside host {} ({:?}, since {:.3}, until {:.3})",
                other.site,
                other.how,
                other.from as f64 / 1e6,
                other.until as f64 / 1e6
            );
            self.violation("two-holders", text);
        }
    }

    fn check_token(&mut self, site: SiteId, key: &str, how: &Held, token: u64, floor: u64) {
        let last = self.last_token(key);
        let at_least = if *how == Held::Exclusive { last } else { floor };
        if token <= at_least || !self.tokens.entry(key.into()).or_default().insert(token) {
            let text = format!("host {site} has token {token} of {key} after {at_least} (largest {last})");
            self.violation("token", text);
        }
    }

    /// `asked`: when the request for this lease was sent.
    pub fn renewed(&mut self, site: SiteId, asked: u64, until: u64) {
        if self.forgotten.get(&site).is_some_and(|at| *at < asked) {
            self.violation("revived", format!("host {site} renews a lock that no server has"));
        }
        for holding in self.holdings.values_mut().flatten().filter(|holding| holding.site == site) {
            (holding.until, holding.asked_at) = (until, asked);
        }
    }

    /// A run with --cancel-in-progress.
    pub fn may_be_cancelled(&mut self, site: SiteId) {
        self.cancelling.insert(site, self.now_us);
    }

    /// A holder was stopped by a run with --cancel-in-progress: it must have agreed, and another one
    /// must have come after it.
    pub fn cancelled(&mut self, site: SiteId) {
        let Some(began) = self.cancelling.get(&site).copied() else {
            let text = format!("host {site} is stopped by a newer run, but has not agreed to that");
            return self.violation("cancelled", text);
        };
        // A reply that was lost, or another gate, gives a client another stamp than we have seen.
        let is_newer =
            |(other, theirs): (&SiteId, &u64)| match (self.arrivals.get(other), self.arrivals.get(&site)) {
                (Some(theirs), Some(ours)) if theirs.gate == ours.gate && self.troubles.is_empty() => {
                    theirs.stamp > ours.stamp
                }
                _ => *other != site && theirs + ABOUT_NOW_US >= began,
            };
        if !self.cancelling.iter().any(is_newer) {
            self.violation("cancelled", format!("host {site} is stopped, but no newer run has come"));
        }
    }

    /// A command of a run with --once has ended with 0: the release begins.
    pub fn succeeds(&mut self, site: SiteId, keys: &[String]) {
        let (keys, began) = (keys.to_vec(), self.now_us);
        self.done.push(Success { site, keys, began, confirmed: None });
    }

    /// The release of its lock was confirmed.
    pub fn success_is_confirmed(&mut self, site: SiteId) {
        let now = self.now_us;
        for success in self.done.iter_mut().filter(|success| success.site == site) {
            success.confirmed = Some(now);
        }
    }

    /// A command starts although it was done within the time that its run asks for.
    pub fn runs_once(&mut self, site: SiteId, keys: &[String], within: u64) {
        // A server that has lost its data has lost the mark.
        if !self.unreliable.is_empty() {
            return;
        }
        // The server's clock decides, which may be a little faster.
        let since = self.now_us.saturating_sub(within / 100 * 99);
        let is_done = |key: &String| {
            let counts = |success: &&Success| {
                success.confirmed.is_some() && success.keys.contains(key) && success.began > since
            };
            self.done.iter().any(|success| counts(&success))
        };
        if keys.iter().all(is_done) {
            self.violation("ran-twice", format!("host {site} runs what was done for {keys:?}"));
        }
    }

    /// A run was told that another one has done what it was asked for. Clocks differ by half a
    /// percent at most.
    pub fn done_already(&mut self, site: SiteId, keys: &[String], within: u64) {
        let now = self.now_us;
        let is_done = |key: &String| {
            let recent = |success: &Success| now - success.began < within + within / 100 + 60_000_000;
            self.done.iter().any(|success| success.keys.contains(key) && recent(success))
        };
        if !keys.iter().all(is_done) {
            self.violation("not-done", format!("host {site} skips {keys:?}, which no run has done"));
        }
    }

    /// The client's command is gone.
    pub fn ended(&mut self, site: SiteId) {
        for holdings in self.holdings.values_mut() {
            holdings.retain(|holding| holding.site != site);
        }
    }

    /// A server's clock has jumped, or a lock was freed without its holder: no promise is left.
    pub fn excuse(&mut self, key: Option<&str>) {
        self.holdings.retain(|name, _| key.is_some_and(|key| key != name));
        for waiting in self.waiting.values_mut() {
            waiting.is_excused |= key.is_none_or(|key| waiting.keys.iter().any(|name| name == key));
        }
    }

    /// A holder lost its lock for no reason that it could have named.
    pub fn lost(&mut self, site: SiteId, why: &str) {
        let since = self.holdings.values().flatten().find(|holding| holding.site == site);
        let Some(since) = since.map(|holding| holding.asked_at) else { return };
        // A holder may have the votes of a bare majority: one that fails is enough.
        if self.reliable(site, since) == self.servers {
            self.violation("lost", format!("host {site} lost its lock without a reason: {why}"));
        }
    }

    /// `status` does not show what keeps a client out. A server that refuses requests keeps claims
    /// that were released elsewhere (R129).
    pub fn unseen(&mut self, site: SiteId, text: String) {
        if self.reliable(site, self.now_us.saturating_sub(LONGEST_TTL_US)) == self.servers {
            self.violation("unseen", text);
        }
    }

    /// A client was told that the servers cannot serve.
    pub fn unavailable(&mut self, site: SiteId, why: &str) {
        // Votes that a break has freed cannot become a grant.
        let waiting = self.waiting.get(&site).filter(|waiting| !waiting.is_excused);
        let Some(started) = waiting.map(|waiting| waiting.started) else { return };
        let is_new = started < FIRST_START_US;
        if !is_new && self.reliable(site, started.saturating_sub(500_000)) >= majority_of(self.servers) {
            self.violation(
                "healthy-majority",
                format!("host {site} is refused by a healthy majority: {why}"),
            );
        }
    }

    /// A client was superseded: another one must have been there after it.
    pub fn superseded(&mut self, site: SiteId) {
        let Some(started) = self.waiting.get(&site).map(|waiting| waiting.started) else { return };
        let is_later = |end: &Option<u64>| end.is_none_or(|end| end > started);
        if !self.superseding.iter().any(|(other, end)| *other != site && is_later(end)) {
            self.violation("superseded", format!("host {site} is superseded by a run that has ended"));
        }
    }

    /// An operator has flushed every server: no lock that is held now may be renewed.
    pub fn everything_is_flushed(&mut self) {
        let now = self.now_us;
        for holding in self.holdings.values().flatten() {
            self.forgotten.insert(holding.site, now);
        }
    }

    /// The server has lost data: what it did before does not count.
    pub fn forgets(&mut self, server: ServerId) {
        self.released.retain(|(other, _), _| *other != server);
    }

    /// The waiters with which this host has asked for its locks.
    pub fn waiters_of(&self, site: SiteId) -> impl Iterator<Item = &String> {
        self.waiters.get(&site).into_iter().flatten()
    }

    pub fn trouble_begins(&mut self, touched: Touched) {
        let now = self.now_us;
        let trouble = self.troubles.entry(touched).or_default();
        (trouble.active, trouble.last) = (trouble.active + 1, now);
    }

    pub fn trouble_ends(&mut self, touched: Touched) {
        let now = self.now_us;
        let trouble = self.troubles.entry(touched).or_default();
        (trouble.active, trouble.last) = (trouble.active.saturating_sub(1), now);
    }

    /// A moment of trouble.
    pub fn trouble(&mut self, touched: Touched) {
        self.trouble_begins(touched);
        self.trouble_ends(touched);
    }

    pub fn is_unreliable(&mut self, server: ServerId) {
        self.unreliable.insert(server);
    }

    /// No fault has touched the server, or the line to it, since this moment.
    pub fn is_calm(&self, site: SiteId, server: ServerId, since: u64) -> bool {
        self.is_untouched((Some(site), server), since) && self.is_server_calm(server, since)
    }

    /// No fault has touched the server itself.
    pub fn is_server_calm(&self, server: ServerId, since: u64) -> bool {
        self.is_untouched((None, server), since)
    }

    fn is_untouched(&self, touched: Touched, since: u64) -> bool {
        let trouble = self.troubles.get(&touched);
        trouble.is_none_or(|trouble| trouble.active == 0 && trouble.last < since)
    }

    /// How many servers have had no reason to fail this client since this moment.
    fn reliable(&self, site: SiteId, since: u64) -> usize {
        let is_reliable =
            |server: &ServerId| !self.unreliable.contains(server) && self.is_calm(site, *server, since);
        (0..self.servers).filter(is_reliable).count()
    }
}
