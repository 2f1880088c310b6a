//! Who holds the lock, and until when. Time is a clock of whole ticks, kept as "ticks left".

use stateright::{Model, Property};

use crate::exclusion_state::{Claim, Client, Node, Phase, State, Talk, bit};
use crate::rules::Rules;
use crate::{MAJORITY, NODES};

pub const EXCLUSION: &str = "at most one client holds";
pub const ACQUIRED: &str = "a client acquires";
pub const HEALED_COUNTS: &str = "a healed node is counted";

/// What the world may do, apart from what it may always do.
#[derive(Clone, Copy, Debug)]
pub struct Exclusion<const CLIENTS: usize> {
    pub rules: Rules,
    pub ttl: u8,
    pub attempts: u8,
    pub restarts: u8,
    /// Holders renew.
    pub renewals: bool,
    pub healing: Healing,
    pub old_copies: OldCopies,
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

/// A node carries out a request when the network likes: at once, late, again, or never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    ClientStarts { client: usize },
    ClientGivesBack { client: usize },
    ClientRenews { client: usize },
    NodeAcquires { node: usize, claim: Claim },
    NodeReleases { node: usize, claim: Claim },
    NodeExtends { node: usize, claim: Claim },
    NodeHeals { node: usize, claim: Claim },
    GrantedArrives { node: usize, client: usize },
    ExtendedArrives { node: usize, client: usize, resting: bool },
    ExpiredArrives { node: usize, client: usize },
    NodeRestarts { node: usize },
    NodeRestartsEmpty { node: usize },
    NodeRestartsFromOldCopy { node: usize, claim: Claim },
}

impl<const CLIENTS: usize> Exclusion<CLIENTS> {
    /// The claim that an attempt puts on the nodes.
    fn claim(&self, client: usize, attempt: u8) -> Claim {
        Claim { client: client as u8, attempt: if self.rules.attempt_numbers { attempt } else { 1 } }
    }

    fn request_actions(&self, state: &State<CLIENTS>, client: usize, attempt: u8, actions: &mut Vec<Action>) {
        let asking = state.clients[client];
        let claim = Claim { client: client as u8, attempt };
        let released = attempt < asking.attempt || asking.phase == Phase::Idle;
        for node in 0..NODES {
            actions.push(Action::NodeAcquires { node, claim });
            if released {
                actions.push(Action::NodeReleases { node, claim });
            }
            if self.renewals {
                actions.push(Action::NodeExtends { node, claim });
            }
            let heal_sent = state.nodes[node].talk[client].heal_sent & bit(attempt) != 0;
            if heal_sent || self.healing == Healing::AtWill {
                actions.push(Action::NodeHeals { node, claim });
            }
        }
    }

    fn answer_actions(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            let talk = state.nodes[node].talk[client];
            if talk.granted_on_its_way {
                actions.push(Action::GrantedArrives { node, client });
            }
            if talk.extended_on_its_way {
                actions.push(Action::ExtendedArrives { node, client, resting: false });
            }
            if talk.extended_resting_on_its_way {
                actions.push(Action::ExtendedArrives { node, client, resting: true });
            }
            if talk.expired_on_its_way {
                actions.push(Action::ExpiredArrives { node, client });
            }
        }
    }

    fn restart_actions(&self, state: &State<CLIENTS>, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.push(Action::NodeRestarts { node });
            actions.push(Action::NodeRestartsEmpty { node });
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
            node.left = node.left.saturating_sub(1);
            node.rest = node.rest.saturating_sub(1);
            if node.left == 0 {
                node.free();
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
                state.stop(client);
            } else if round_ends {
                state.end_round(client);
            }
        }
    }

    fn acquire(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let (client, attempt) = (claim.client as usize, claim.attempt);
        let claim = self.claim(client, attempt);
        let asked = &mut state.nodes[node];
        let ours = asked.holder.is_some_and(|holder| holder.client == claim.client);
        if asked.rest > 0 && (self.rules.rest_comes_first || !ours) {
            return;
        }
        if asked.holder.is_some_and(|holder| !ours || holder.attempt > claim.attempt) {
            return;
        }
        asked.holder = Some(claim);
        asked.left = self.ttl;
        let asking = state.clients[client];
        if asking.phase == Phase::Asking && asking.attempt == attempt {
            let talk = &mut asked.talk[client];
            talk.granted_on_its_way = !talk.counted;
        }
    }

    fn release(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let claim = self.claim(claim.client as usize, claim.attempt);
        let held = state.nodes[node].holder;
        if held.is_some_and(|held| held.client == claim.client && held.attempt <= claim.attempt) {
            state.nodes[node].free();
        }
    }

    fn extend(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let (client, attempt) = (claim.client as usize, claim.attempt);
        let renewing = state.clients[client];
        let answer_counts = renewing.round > 0 && renewing.attempt == attempt;
        let asked = &mut state.nodes[node];
        if asked.holder == Some(self.claim(client, attempt)) {
            asked.left = self.ttl;
            let talk = &mut asked.talk[client];
            if answer_counts && !talk.counted {
                let resting = asked.rest > 0;
                talk.extended_on_its_way |= !resting;
                talk.extended_resting_on_its_way |= resting && self.resting_yes_counts(talk);
            }
        } else if asked.holder.is_none() && answer_counts && self.healing == Healing::ByTheRule {
            let talk = &mut asked.talk[client];
            talk.expired_on_its_way = !talk.lost_it;
        }
    }

    fn heal(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let asked = &mut state.nodes[node];
        if asked.holder.is_none() {
            asked.holder = Some(self.claim(claim.client as usize, claim.attempt));
            asked.left = self.ttl;
        }
    }

    fn granted_arrives(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        state.nodes[node].talk[client].count();
        if state.counted(client) < MAJORITY {
            return;
        }
        let winner = &mut state.clients[client];
        winner.phase = Phase::Holding;
        if !self.rules.deadline {
            winner.lease = self.ttl;
        }
        let lease = winner.lease;
        for node in &mut state.nodes {
            let talk = &mut node.talk[client];
            talk.yes_left = if talk.counted { lease } else { 0 };
            talk.end_round();
        }
    }

    fn extended_arrives(&self, state: &mut State<CLIENTS>, node: usize, client: usize, resting: bool) {
        let round = state.clients[client].round;
        let talk = &mut state.nodes[node].talk[client];
        if resting && !self.resting_yes_counts(talk) {
            return;
        }
        talk.count();
        talk.yes_left = round;
        if state.counted(client) >= MAJORITY {
            state.clients[client].lease = round;
            self.send_heals(state, client);
        }
    }

    fn expired_arrives(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        let talk = &mut state.nodes[node].talk[client];
        talk.lost_it = true;
        talk.expired_on_its_way = false;
        if state.counted(client) >= MAJORITY {
            self.send_heals(state, client);
        }
    }

    /// Its memory of our claim is worth something only while nobody else can have been granted there.
    fn resting_yes_counts(&self, talk: &Talk) -> bool {
        talk.yes_left > 0 || !self.rules.rest_breaks_chain
    }

    fn send_heals(&self, state: &mut State<CLIENTS>, client: usize) {
        let attempt = state.clients[client].attempt;
        for node in &mut state.nodes {
            if node.talk[client].lost_it {
                node.talk[client].heal_sent |= bit(attempt);
            }
        }
    }

    fn restart(&self, state: &mut State<CLIENTS>, node: usize) {
        state.restarts_left -= 1;
        state.nodes[node].rest = if self.rules.quarantine { self.ttl } else { 0 };
    }
}

impl<const CLIENTS: usize> Model for Exclusion<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let node = Node { holder: None, before: None, left: 0, rest: 0, talk: [Talk::default(); CLIENTS] };
        let client = Client { phase: Phase::Idle, attempt: 0, lease: 0, round: 0 };
        vec![State { nodes: [node; NODES], clients: [client; CLIENTS], restarts_left: self.restarts }]
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
            self.answer_actions(state, client, actions);
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
            Action::ClientGivesBack { client } => state.stop(client),
            Action::ClientRenews { client } => {
                let renewing = &mut state.clients[client];
                renewing.round = self.ttl;
                state.end_round(client);
            }
            Action::NodeAcquires { node, claim } => self.acquire(&mut state, node, claim),
            Action::NodeReleases { node, claim } => self.release(&mut state, node, claim),
            Action::NodeExtends { node, claim } => self.extend(&mut state, node, claim),
            Action::NodeHeals { node, claim } => self.heal(&mut state, node, claim),
            Action::GrantedArrives { node, client } => self.granted_arrives(&mut state, node, client),
            Action::ExtendedArrives { node, client, resting } => {
                self.extended_arrives(&mut state, node, client, resting)
            }
            Action::ExpiredArrives { node, client } => self.expired_arrives(&mut state, node, client),
            Action::NodeRestarts { node } => self.restart(&mut state, node),
            Action::NodeRestartsEmpty { node } => {
                state.nodes[node].free();
                self.restart(&mut state, node);
            }
            Action::NodeRestartsFromOldCopy { node, claim } => {
                state.nodes[node].holder = Some(self.claim(claim.client as usize, claim.attempt));
                state.nodes[node].left = self.ttl;
                self.restart(&mut state, node);
            }
        }
        if self.old_copies == OldCopies::LosingTheLastChange {
            state.remember_what_was_before(before);
        }
        state.forget_what_cannot_matter();
        if state == *before {
            return None;
        }
        Some(if self.symmetry { state.representative() } else { state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &Self::State| {
                state.clients.iter().filter(|client| client.phase == Phase::Holding).count() <= 1
            }),
            Property::sometimes(ACQUIRED, |_, state: &Self::State| {
                state.clients.iter().any(|client| client.phase == Phase::Holding)
            }),
        ];
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
