//! The script calls of one lock. The order of KEYS and ARGV is that of the headers in lua/.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::keys::Keys;
use super::log::LogEntry;
use super::reply::REASON;
use super::script::{
    ACQUIRE, BREAK, Call, EXTEND, HEAL, JOINS, KEYS_OF_LOCK, MULTI, OUTER, PREFERRED, RAISE, RELEASE,
    SUPERSEDES, Script, WATCH,
};
use crate::clock::BootTime;
use crate::lock::claim::{Claim, WaiterId};
use crate::lock::done::mark_kept_for;
use crate::lock::{AncestorLock, Ended, Fields, HolderInfo, Mode, Outcome, Prefer, Reason, Renewal, Request};
use crate::world::{Rule, follows};

/// A request that is in flight when its client gives up arrives within this time.
pub(super) const TOMBSTONE_TTL: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// `None` for a lock that never expires.
    pub ttl: Option<Duration>,
    /// How long one server may take to reply, including the connection.
    pub node_timeout: Duration,
    /// How long a server that has lost its data must not vote; zero = it votes at once.
    pub quarantine: Duration,
}

/// A request in the form that the scripts expect.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    /// The value at the lock's key while it is shared; empty for an exclusive lock.
    pub mode_tag: Vec<u8>,
    /// The flags of lua/include/constants.lua.
    flags: Vec<u8>,
    ancestors: Vec<u8>,
    /// Field, value, ... of the client.
    holder: Vec<Vec<u8>>,
    /// Field, value, ... of the grant, for the holder's record.
    more: Vec<Vec<u8>>,
    /// No process will hold the lock: `redlock acquire` without a keeper.
    pub is_unheld: bool,
    min_hold: Duration,
    /// Number of finished runs to keep.
    history: u32,
    /// For the history of a run that did not get the lock.
    pub exit_if_held: u8,
    /// A run that succeeded within this time makes ours unnecessary.
    once: Option<Duration>,
}

impl Terms {
    pub(super) fn new(request: &Request, keys: usize) -> Self {
        // A single slot is an exclusive lock.
        let mode_tag = if request.mode == (Mode::Slot { of: 1 }) { Vec::new() } else { request.mode.tag() };
        let preference = match (&request.mode, request.prefer) {
            (Mode::Exclusive | Mode::Slot { of: 1 }, Prefer::Writers) => Some(PREFERRED),
            (Mode::Shared { .. }, Prefer::Readers) => Some(JOINS),
            (Mode::Exclusive | Mode::Shared { .. } | Mode::Slot { .. }, _) => None,
        };
        let needs_other_keys = (keys > 1).then_some(MULTI);
        let supersedes = request.supersedes.then_some(SUPERSEDES);
        Self {
            mode_tag,
            flags: preference.into_iter().chain(needs_other_keys).chain(supersedes).collect(),
            ancestors: names_of(&request.ancestors),
            holder: client_fields(&request.holder),
            more: held_field(&request.ancestors)
                .into_iter()
                .chain(grant_fields(request.min_hold, &request.holder, keys))
                .collect(),
            is_unheld: request.holder.renewal == Renewal::Nobody,
            min_hold: request.min_hold,
            history: request.history,
            exit_if_held: request.exit_if_held,
            once: request.once,
        }
    }

    /// Without empty fields: the server need not store them.
    fn holder_details(&self) -> impl Iterator<Item = Vec<u8>> {
        self.holder.chunks_exact(2).filter(|pair| !pair[1].is_empty()).flatten().cloned()
    }

    /// Further locks that this process runs under.
    pub(super) fn add_ancestors(&mut self, found: &[AncestorLock]) {
        self.ancestors = [&self.ancestors, &b" "[..], &names_of(found)].concat();
    }

    /// Whether servers vote for a numbered slot.
    pub(super) fn has_slots(&self) -> bool {
        self.mode_tag.starts_with(b"slots:")
    }

    /// How long the mark of success is kept, if a run that ends like this leaves one.
    pub(super) fn mark_kept_for(&self, ended: &Ended) -> Option<Duration> {
        mark_kept_for(self.once, ended)
    }

    /// The terms of a grant, from its record.
    pub(super) fn of_record(
        mode_tag: Vec<u8>,
        holder: &HolderInfo,
        min_hold: Duration,
        history: u32,
        keys: usize,
    ) -> Self {
        let (holder, more) = (client_fields(holder), grant_fields(min_hold, holder, keys));
        Self { mode_tag, holder, more, min_hold, history, ..Self::default() }
    }

    /// The terms of a client that has only a token.
    pub(super) fn of_bearer(client: &HolderInfo) -> Self {
        Self { mode_tag: b"?".to_vec(), holder: client_fields(client), ..Self::default() }
    }
}

/// The role in which a server is asked for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask<'a> {
    /// As the gate, where the request may queue. `stamp`: when we arrived, if a server has reported
    /// it. `proposed`: a guess at the token, which the other servers get at the same time. `slots`: the
    /// lowest to try, if lower ones were refused elsewhere.
    Gate { queues: bool, stamp: Option<&'a Stamp>, proposed: Option<u64>, slots: &'a [u32] },
    /// At the same time as the gate, and only granted if there are no waiters. `proposed`: a guess
    /// at the token.
    Newcomer { proposed: u64 },
    /// After the gate's vote. `proposed` and `slots` are the gate's tokens and slots, `gate` its
    /// run_id.
    Vote { proposed: &'a [u64], slots: &'a [u32], gate: &'a [u8], stamp: Option<&'a Stamp>, queues: bool },
}

/// When a waiter arrived, by the clock of the first server that reported it.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub micros: u64,
    /// The run_id of that server.
    pub clock: Vec<u8>,
    /// When its report arrived.
    pub known_since: BootTime,
}

impl Stamp {
    pub(super) fn new(micros: u64, clock: &[u8]) -> Self {
        Self { micros, clock: clock.to_vec(), known_since: BootTime::now() }
    }

    /// With its age, for servers whose clocks differ.
    fn in_full(&self) -> Vec<u8> {
        let micros = self.micros.to_string().into_bytes();
        let age = self.known_since.elapsed().as_micros().to_string().into_bytes();
        [micros, self.clock.clone(), age].join(&b' ')
    }
}

/// Where a client queues, or queued: the run_id of its gate, and its arrival stamp.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub gate: Vec<u8>,
    pub stamp: u64,
}

/// What lua/break.lua does with the holders' claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakAction {
    Mark,
    Unmark,
    Free,
    /// Deletes the mark of success.
    Forget,
}

/// The parameters that all calls of one lock share.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    keys: Vec<Keys>,
    servers: usize,
    timing: Timing,
}

impl Requests {
    pub(super) fn new(keys: Vec<Keys>, servers: usize, timing: Timing) -> Self {
        Self { keys, servers, timing }
    }

    pub(super) fn set_ttl(&mut self, ttl: Option<Duration>) {
        self.timing.ttl = ttl;
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The list whose elements wake this waiter.
    pub(super) fn notify_list(&self, waiter: WaiterId) -> Vec<u8> {
        self.keys[0].notify_of(waiter)
    }

    pub(super) fn keys(&self) -> &[Keys] {
        &self.keys
    }

    pub(super) fn quarantine(&self) -> Duration {
        self.timing.quarantine
    }

    pub(super) fn acquire(&self, claim: Claim, terms: &Terms, ask: &Ask<'_>) -> Call {
        let keys = self.key_count();
        let none = (&[][..], &[][..]);
        let (role, queues, stamp, (gate, slots), proposed) = match *ask {
            Ask::Gate { queues, stamp, proposed, slots } => {
                let proposed = proposed.map_or_else(Vec::new, |proposed| joined(&vec![proposed; keys]));
                ("gate", queues, stamp, (&[][..], slots), proposed)
            }
            Ask::Newcomer { proposed } => ("newcomer", false, None, none, joined(&vec![proposed; keys])),
            Ask::Vote { proposed, slots, gate, stamp, queues } => {
                ("vote", queues, stamp, (gate, slots), joined(proposed))
            }
        };
        // A single server's vote is a grant. One of several may stay a vote, and must not block others
        // for longer than a lease: the grant keeps the minimum hold.
        let ttl = if self.servers == 1 || !follows(Rule::VoteTtl) {
            self.key_ttl(terms, Duration::ZERO)
        } else {
            self.lease()
        };
        let mut args = vec![
            ttl,
            role.into(),
            flag(queues),
            gate.to_vec(),
            proposed,
            millis(self.timing.quarantine),
            terms.ancestors.clone(),
            terms.history.to_string().into(),
            joined(slots),
            terms.once.map_or_else(Vec::new, millis),
            self.lease(),
        ];
        args.extend(terms.holder_details());
        args.extend_from_slice(&terms.more);
        let supersedes = terms.flags.contains(&SUPERSEDES);
        let stamp = stamp.map(|stamp| if supersedes { stamp.in_full() } else { decimal(stamp.micros) });
        self.call(&ACQUIRE, claim, terms, stamp, args)
    }

    /// `taken_at`: when the grant was requested; `None` for a vote, which no minimum hold keeps.
    /// `place`: our place, for a server that voted before it was known.
    pub(super) fn extend(
        &self,
        claim: Claim,
        taken_at: Option<BootTime>,
        terms: &Terms,
        place: Option<&Place>,
    ) -> Call {
        let ttl = taken_at.map_or_else(|| self.lease(), |taken| self.key_ttl(terms, taken.elapsed()));
        let gate = place.map_or_else(Vec::new, |place| place.gate.clone());
        let mut more = vec![ttl, millis(self.timing.quarantine), gate, terms.history.to_string().into()];
        more.push(self.lease());
        self.call(&EXTEND, claim, terms, place.map(|place| decimal(place.stamp)), more)
    }

    /// Restores a grant with these fences and slots. `gate` and `stamp` are those of the granted
    /// request.
    pub(super) fn heal(
        &self,
        claim: Claim,
        (fences, slots, held_for): (&[u64], &[u32], Duration),
        terms: &Terms,
        gate: &[u8],
        stamp: Option<u64>,
    ) -> Call {
        let history = terms.history.to_string().into();
        let mut args =
            vec![self.key_ttl(terms, held_for), joined(fences), millis(held_for), gate.to_vec(), history];
        args.push(joined(slots));
        args.extend(terms.holder_details());
        args.extend_from_slice(&terms.more);
        self.call(&HEAL, claim, terms, stamp.map(decimal), args)
    }

    pub(super) fn raise(&self, claim: Claim, terms: &Terms, fences: &[u64]) -> Call {
        self.call(&RAISE, claim, terms, None, vec![joined(fences)])
    }

    /// `tombstone_ttl`: how long late requests of this waiter are refused. `min_hold`: how long the
    /// locks stay held from now on. `mark_kept_for`: how long to keep the mark of success, if the run
    /// leaves one. `entry`: for the history.
    pub(super) fn release(
        &self,
        claim: Claim,
        terms: &Terms,
        tombstone_ttl: Duration,
        min_hold: Duration,
        mark_kept_for: Option<Duration>,
        entry: Option<&LogEntry>,
    ) -> Call {
        let mark = mark_kept_for.map_or_else(Vec::new, |time| {
            let who = Fields::from_list(&terms.holder).without_empty().to_json();
            [millis(time), b" ".to_vec(), who].concat()
        });
        let mut args = vec![millis(tombstone_ttl), millis(min_hold), mark, terms.history.to_string().into()];
        if let Some(entry) = entry.filter(|_| terms.history > 0) {
            args.extend(entry.args());
            args.extend_from_slice(&terms.holder);
        }
        self.call(&RELEASE, claim, terms, None, args)
    }

    /// Releases a grant that the client does not know: its record has the rest. `client`: the
    /// client that releases it.
    pub(super) fn release_by_token(&self, claim: Claim, terms: &Terms, client: &HolderInfo) -> Call {
        let unknown = Vec::new;
        let mut args = vec![millis(TOMBSTONE_TTL), millis(Duration::ZERO), unknown()];
        args.push(terms.history.to_string().into());
        args.extend([unknown(), unknown(), Outcome::Released.name().into()]);
        args.extend([unknown(), unknown(), unknown(), unknown(), client.fields().without_empty().to_json()]);
        args.extend_from_slice(&terms.holder);
        self.call(&RELEASE, claim, terms, None, args)
    }

    /// `claims`: the claims of the runs that we run under.
    pub(super) fn outer(&self, claim: Claim, terms: &Terms, claims: &[Claim]) -> Call {
        let claims: Vec<String> = claims.iter().map(Claim::to_string).collect();
        self.call(&OUTER, claim, terms, None, vec![claims.join(" ").into()])
    }

    pub(super) fn watch(&self, claim: Claim, terms: &Terms) -> Call {
        self.call(&WATCH, claim, terms, None, Vec::new())
    }

    /// `breaker`: the breaking client. `claims`: the holders' claims to act on.
    pub(super) fn break_lock(
        &self,
        (breaker, who): (WaiterId, &HolderInfo),
        action: BreakAction,
        claims: &[Vec<u8>],
        reason: Reason,
    ) -> Call {
        let action = match action {
            BreakAction::Mark => "mark",
            BreakAction::Unmark => "unmark",
            BreakAction::Free => "free",
            BreakAction::Forget => "forget",
        };
        let mut args = vec![action.into(), claims.join(&b' ')];
        args.extend(client_fields(who));
        if reason != Reason::Broken {
            args.extend([REASON.into(), reason.name().into()]);
        }
        let claim = Claim { waiter: breaker, attempt: 0 };
        self.call(&BREAK, claim, &Terms::default(), None, args)
    }

    fn call(
        &self,
        script: &'static Script,
        claim: Claim,
        terms: &Terms,
        stamp: Option<Vec<u8>>,
        more: Vec<Vec<u8>>,
    ) -> Call {
        let of_key = |keys: &Keys| -> [Vec<u8>; KEYS_OF_LOCK] {
            let Keys { lock, queue, waiters, info, fence, shared, modes, newest, log, who, done, .. } = keys;
            [lock, queue, waiters, info, fence, shared, modes, newest, log, who, done].map(Clone::clone)
        };
        // The last two keys, and the prefix of the notify lists, are the same for all locks.
        let common = &self.keys[0];
        let mut keys: Vec<Vec<u8>> = self.keys.iter().flat_map(of_key).collect();
        keys.extend([common.tombstone_of(claim.waiter), common.node.clone()]);
        let mut args = vec![
            claim.to_string().into(),
            common.notify.clone(),
            self.servers.to_string().into(),
            terms.mode_tag.clone(),
            terms.flags.clone(),
            stamp.unwrap_or_default(),
        ];
        args.extend(more);
        Call::Script { script, keys, args, in_full: false }
    }

    /// As long as a command may rely on the lock without a renewal.
    fn lease(&self) -> Vec<u8> {
        self.timing.ttl.map_or_else(|| b"0".to_vec(), millis)
    }

    /// Whether the minimum hold is longer than the lease.
    pub(super) fn outlives_lease(&self, terms: &Terms) -> bool {
        self.timing.ttl.is_some_and(|ttl| terms.min_hold > ttl)
    }

    /// How long the keys live if they are not renewed: the lease, or longer to keep a minimum hold.
    fn key_ttl(&self, terms: &Terms, held_for: Duration) -> Vec<u8> {
        let to_keep = terms.min_hold.saturating_sub(held_for);
        self.timing.ttl.map_or_else(|| b"0".to_vec(), |ttl| millis(ttl.max(to_keep)))
    }
}

/// Field, value, ...: the minimum hold, if there is one, and the number of locks that a token
/// covers, if there are several.
fn grant_fields(min_hold: Duration, holder: &HolderInfo, keys: usize) -> Vec<Vec<u8>> {
    let mut fields = Vec::new();
    if !min_hold.is_zero() {
        fields.extend([b"min_hold".to_vec(), millis(min_hold)]);
    }
    if keys > 1 && holder.renewal != Renewal::Run {
        fields.extend([b"locks".to_vec(), keys.to_string().into()]);
    }
    fields
}

/// Field, value: the locks of the runs that a waiter runs under, for those that look for a deadlock.
fn held_field(ancestors: &[AncestorLock]) -> Vec<Vec<u8>> {
    let held: Vec<AncestorLock> =
        ancestors.iter().filter(|lock| !lock.keys.is_empty()).map(AncestorLock::for_others).collect();
    if held.is_empty() { Vec::new() } else { vec![b"held".to_vec(), joined(&held)] }
}

/// The names of the waiters that have these locks.
fn names_of(ancestors: &[AncestorLock]) -> Vec<u8> {
    joined(&ancestors.iter().map(|lock| lock.claim.waiter).collect::<Vec<_>>())
}

/// Field, value, ... of a client.
fn client_fields(client: &HolderInfo) -> Vec<Vec<u8>> {
    client.fields().into_list()
}

fn flag(is_set: bool) -> Vec<u8> {
    u8::from(is_set).to_string().into_bytes()
}

pub(super) fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().to_string().into_bytes()
}

fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) fn joined<T: ToString>(numbers: &[T]) -> Vec<u8> {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    numbers.join(" ").into_bytes()
}
