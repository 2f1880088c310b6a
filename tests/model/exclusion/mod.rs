//! Who holds the lock, and until when. Time is a clock of whole ticks, kept as "ticks left".

pub mod state;

mod tests;

use stateright::{Model, Property};

use crate::NODES;
use crate::rules::Rules;
use state::{Claim, Client, Entry, Node, Phase, State, Talk, bit};

pub const EXCLUSION: &str = "nobody holds beside a writer";
pub const ACQUIRED: &str = "a client acquires";
pub const TOGETHER: &str = "sharers hold together";
pub const HEALED_COUNTS: &str = "a healed node is counted";

pub const ANY_NUMBER: u8 = u8::MAX;

/// What the world may do, apart from what it may always do.
#[derive(Clone, Copy, Debug)]
pub struct Exclusion<const CLIENTS: usize> {
    pub rules: Rules,
    /// The first of the clients ask for an exclusive lock, the others for a shared one.
    pub writers: usize,
    pub ttl: u8,
    /// Of one waiter.
    pub attempts: u8,
    /// Of all nodes together; or `ANY_NUMBER`.
    pub restarts: u8,
    /// Holders renew.
    pub renewals: bool,
    pub healing: Healing,
    pub old_copies: OldCopies,
    pub leftovers: Leftovers,
    /// Treat states that differ only in the names of nodes and clients as one.
    pub symmetry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Healing {
    Never,
    /// After a round in which a majority said "extended" and this node said "expired".
    ByTheRule,
    /// Whenever the network likes, for whatever was ever asked for: more than the rule allows, with
    /// fewer states.
    AtWill,
}

/// A node may come back with an older state: a promoted replica, a restored file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OldCopies {
    Never,
    /// With the claim it had before its last change.
    LosingTheLastChange,
    /// With whatever claim was ever asked for: more than can happen, with fewer states.
    OfAnyClaim,
}

/// Claims on nodes and requests under way on which no client counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leftovers {
    All,
    /// Not those of a waiter that has made its last attempt; a new waiter comes in its place, forever. They
    /// could only keep others out, which the network can do as well: no late release touches another's claim.
    OfLiveWaiters,
    /// None at all: a claim stands only as long as its client counts on it, and a renewal finds one wherever one
    /// can have been put before, by a late vote, a heal or an old copy. No request is kept out for anything else.
    None,
}

/// A node carries out a request when the network likes: at once, late, again, or never. Its answer arrives at
/// once or never: a later one would count until the same deadline, so the client would only hold for less time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    ClientStarts { client: usize },
    ClientGivesBack { client: usize },
    ClientRenews { client: usize },
    NodeAcquires { node: usize, claim: Claim, answer_is_lost: bool },
    NodeReleases { node: usize, claim: Claim },
    NodeExtends { node: usize, claim: Claim },
    NodeHeals { node: usize, claim: Claim },
    NodeRestarts { node: usize },
    NodeRestartsEmpty { node: usize },
    NodeRestartsFromOldCopy { node: usize, claim: Claim },
}

impl<const CLIENTS: usize> Exclusion<CLIENTS> {
    /// The attempt number that stands in the claim.
    fn number(&self, attempt: u8) -> u8 {
        if self.rules.attempt_numbers { attempt } else { 1 }
    }

    fn entry(&self, claim: Claim) -> Entry {
        Entry { attempt: self.number(claim.attempt), left: self.ttl }
    }

    fn request_actions(&self, state: &State<CLIENTS>, client: usize, attempt: u8, actions: &mut Vec<Action>) {
        let asking = state.clients[client];
        let claim = Claim { client: client as u8, attempt };
        let current = attempt == asking.attempt;
        let anything_late = self.leftovers != Leftovers::None;
        for node in 0..NODES {
            if current && asking.phase == Phase::Asking {
                actions.push(Action::NodeAcquires { node, claim, answer_is_lost: false });
            }
            if anything_late {
                actions.push(Action::NodeAcquires { node, claim, answer_is_lost: true });
            }
            if anything_late && (!current || asking.phase == Phase::Idle) {
                actions.push(Action::NodeReleases { node, claim });
            }
            if self.renewals && (anything_late || asking.round > 0) {
                actions.push(Action::NodeExtends { node, claim });
            }
            let heal_sent = state.nodes[node].talk[client].heal_sent & bit(attempt) != 0;
            if heal_sent || self.healing == Healing::AtWill {
                actions.push(Action::NodeHeals { node, claim });
            }
        }
    }

    fn restart_actions(&self, state: &State<CLIENTS>, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.push(Action::NodeRestartsEmpty { node });
            if self.leftovers == Leftovers::None {
                continue; // A renewal finds its claim there as well as if the node had kept it.
            }
            actions.push(Action::NodeRestarts { node });
            match self.old_copies {
                OldCopies::Never => {}
                OldCopies::LosingTheLastChange => {
                    let copied = state.nodes[node].before;
                    actions.extend(copied.map(|claim| Action::NodeRestartsFromOldCopy { node, claim }));
                }
                OldCopies::OfAnyClaim => actions
                    .extend(state.claims().map(|claim| Action::NodeRestartsFromOldCopy { node, claim })),
            }
        }
    }

    fn tick(&self, state: &mut State<CLIENTS>) {
        for node in &mut state.nodes {
            node.rest = node.rest.saturating_sub(1);
            for (client, entry) in node.entries.iter_mut().enumerate() {
                entry.left = entry.left.saturating_sub(1);
                let may_be_renewed = client >= self.writers && !self.rules.expired_is_expired;
                if !entry.lives() && !may_be_renewed {
                    *entry = Entry::NONE;
                }
            }
            for talk in &mut node.talk {
                talk.yes_left = talk.yes_left.saturating_sub(1);
            }
        }
        for client in 0..CLIENTS {
            let ticking = &mut state.clients[client];
            ticking.lease = ticking.lease.saturating_sub(1);
            let round_ends = ticking.round == 1;
            ticking.round = ticking.round.saturating_sub(1);
            let waits_for_ever = ticking.phase == Phase::Asking && !self.rules.deadline;
            if ticking.phase != Phase::Idle && ticking.lease == 0 && !waits_for_ever {
                self.stop(state, client);
            } else if round_ends {
                state.end_round(client);
            }
        }
    }

    fn stop(&self, state: &mut State<CLIENTS>, client: usize) {
        state.stop(client);
        let last = state.clients[client].attempt == self.attempts;
        if last && self.leftovers != Leftovers::All {
            state.forget(client);
        }
    }

    fn acquire(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, answer_is_lost: bool) {
        let client = claim.client as usize;
        let asked = &mut state.nodes[node];
        let entry = &asked.entries[client];
        if asked.rest > 0 && (self.rules.rest_comes_first || !entry.lives()) {
            return;
        }
        if !asked.is_free_for(client, self.writers) || entry.attempt > self.number(claim.attempt) {
            return;
        }
        asked.entries[client] = self.entry(claim);
        if !answer_is_lost {
            asked.talk[client].count(state.clients[client].lease);
            if state.has_majority(client) {
                self.begin_to_hold(state, client);
            }
        }
    }

    fn begin_to_hold(&self, state: &mut State<CLIENTS>, client: usize) {
        state.clients[client].phase = Phase::Holding;
        if !self.rules.deadline {
            state.clients[client].lease = self.ttl;
        }
        state.end_round(client);
    }

    fn release(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let client = claim.client as usize;
        let entries = &mut state.nodes[node].entries;
        if entries[client].lives() && entries[client].attempt <= self.number(claim.attempt) {
            entries[client] = Entry::NONE;
        } else if client >= self.writers && !self.rules.own_entries {
            // Subtract one from a counter, and it is another client's.
            let another = entries[self.writers..].iter_mut().find(|entry| entry.lives());
            another.into_iter().for_each(|entry| *entry = Entry::NONE);
        }
    }

    fn extend(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let client = claim.client as usize;
        let renewing = state.clients[client];
        let awaited = renewing.round > 0 && renewing.attempt == claim.attempt;
        let asked = &mut state.nodes[node];
        let free = asked.is_free_for(client, self.writers);
        if free && self.leftovers == Leftovers::None {
            asked.entries[client] = self.entry(claim);
        }
        let talk = &mut asked.talk[client];
        if asked.entries[client].attempt == self.number(claim.attempt) {
            asked.entries[client] = self.entry(claim);
            // While it rests, its memory of our claim is worth something only as long as no other client can have
            // been granted there.
            let counts = asked.rest == 0 || talk.yes_left > 0 || !self.rules.rest_breaks_chain;
            if awaited && counts {
                talk.count(renewing.round);
            }
        } else if awaited && free && self.healing == Healing::ByTheRule {
            talk.lost_it = true;
        }
        if awaited && state.has_majority(client) {
            state.clients[client].lease = renewing.round;
            self.send_heals(state, client);
        }
    }

    fn send_heals(&self, state: &mut State<CLIENTS>, client: usize) {
        let attempt = state.clients[client].attempt;
        for talk in state.nodes.iter_mut().map(|node| &mut node.talk[client]).filter(|talk| talk.lost_it) {
            talk.heal_sent |= bit(attempt);
        }
    }

    fn heal(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let client = claim.client as usize;
        let asked = &mut state.nodes[node];
        if asked.is_free_for(client, self.writers) && !asked.entries[client].lives() {
            asked.entries[client] = self.entry(claim);
        }
    }

    fn restart(&self, state: &mut State<CLIENTS>, node: usize) {
        if state.restarts_left != ANY_NUMBER {
            state.restarts_left -= 1;
        }
        state.nodes[node].rest = if self.rules.quarantine { self.ttl } else { 0 };
    }
}

impl<const CLIENTS: usize> Model for Exclusion<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let (nodes, clients) = ([Node::NEW; NODES], [Client::default(); CLIENTS]);
        vec![State { nodes, clients, restarts_left: self.restarts }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        actions.push(Action::Tick);
        for (client, doing) in state.clients.iter().enumerate() {
            match doing.phase {
                Phase::Idle if doing.attempt < self.attempts => actions.push(Action::ClientStarts { client }),
                Phase::Idle => {}
                Phase::Asking => actions.push(Action::ClientGivesBack { client }),
                Phase::Holding => {
                    actions.push(Action::ClientGivesBack { client });
                    if self.renewals {
                        actions.push(Action::ClientRenews { client });
                    }
                }
            }
            for attempt in 1..=doing.attempt {
                self.request_actions(state, client, attempt, actions);
            }
        }
        if state.restarts_left > 0 {
            self.restart_actions(state, actions);
        }
    }

    fn next_state(&self, before: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *before;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::ClientStarts { client } => {
                let asking = &mut state.clients[client];
                asking.phase = Phase::Asking;
                asking.attempt += 1;
                asking.lease = self.ttl;
            }
            Action::ClientGivesBack { client } => self.stop(&mut state, client),
            Action::ClientRenews { client } => {
                let renewing = &mut state.clients[client];
                renewing.round = self.ttl;
                state.end_round(client);
            }
            Action::NodeAcquires { node, claim, answer_is_lost } => {
                self.acquire(&mut state, node, claim, answer_is_lost);
            }
            Action::NodeReleases { node, claim } => self.release(&mut state, node, claim),
            Action::NodeExtends { node, claim } => self.extend(&mut state, node, claim),
            Action::NodeHeals { node, claim } => self.heal(&mut state, node, claim),
            Action::NodeRestarts { node } => self.restart(&mut state, node),
            Action::NodeRestartsEmpty { node } => {
                state.nodes[node].entries = [Entry::NONE; CLIENTS];
                self.restart(&mut state, node);
            }
            Action::NodeRestartsFromOldCopy { node, claim } => {
                state.nodes[node].entries = [Entry::NONE; CLIENTS];
                state.nodes[node].entries[claim.client as usize] = self.entry(claim);
                self.restart(&mut state, node);
            }
        }
        if self.old_copies == OldCopies::LosingTheLastChange {
            state.remember_what_was_before(before);
        }
        if self.leftovers == Leftovers::None {
            state.drop_what_nobody_counts_on();
        } else {
            state.forget_what_cannot_matter();
        }
        if state == *before {
            return None;
        }
        Some(if self.symmetry { state.representative(self.writers) } else { state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |model: &Self, state: &Self::State| {
                let holders = (0..CLIENTS).filter(|&client| state.holds(client)).count();
                holders <= 1 || !(0..model.writers).any(|client| state.holds(client))
            }),
            Property::sometimes(ACQUIRED, |_, state: &Self::State| {
                (0..CLIENTS).any(|client| state.holds(client))
            }),
        ];
        if CLIENTS > self.writers + 1 {
            properties.push(Property::sometimes(TOGETHER, |model: &Self, state: &Self::State| {
                (model.writers..CLIENTS).all(|client| state.holds(client))
            }));
        }
        if self.renewals && self.healing == Healing::ByTheRule {
            properties.push(Property::sometimes(HEALED_COUNTS, |_, state: &Self::State| {
                state.nodes.iter().any(|node| {
                    let healed = |talk: &Talk| talk.heal_sent != 0 && talk.counted && !talk.lost_it;
                    node.talk.iter().any(healed)
                })
            }));
        }
        properties
    }
}
