//! Which token a grant gets. No clock at all: a claim may vanish, and an answer may count, at any time.

use stateright::{Model, Property};

use crate::names::least_under_all_names;
use crate::rules::Rules;
use crate::{MAJORITY, NODES};

pub const UNIQUE: &str = "no two grants have the same token";
pub const ORDERED: &str = "a grant has a larger token than every grant that was complete before it began";
pub const ACQUIRED: &str = "a client acquires";
pub const RAISED: &str = "a token comes out of a raise round";
pub const SUCCEEDED: &str = "a grant follows another";

/// At most this many attempts of a client.
pub const ATTEMPTS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct Fence<const CLIENTS: usize> {
    pub rules: Rules,
    /// Attempts of all clients together, and at most `ATTEMPTS` of each.
    pub starts: u8,
    /// States with a larger fence are not looked at.
    pub largest_fence: u8,
    /// How often a node may lose its memory, fence and all.
    pub empty_restarts: u8,
    /// Clients raise to any fence from the largest vote on, not to that one only: a node that refuses
    /// tells a larger one.
    pub raises_higher: bool,
    pub symmetry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    client: u8,
    attempt: u8,
}

/// A set of fences.
type Fences = u16;

/// What an attempt has sent, and may be carried out at any later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// The gate's answer, which the other nodes are asked with; 0 = not yet.
    proposed: u8,
    raises_sent: Fences,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    asking: bool,
    attempt: u8,
    /// The largest token of a grant that was complete when this attempt began.
    complete_before: u8,
    /// Of this waiter. Those of a finished one are part of `FenceGrows`.
    attempts: [Attempt; ATTEMPTS],
}

/// What one client and one node have told each other in the attempt under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// The attempts (bits) for which this node is the gate.
    gate_of: u8,
    /// The fence in its answer; 0 = none has arrived.
    vote: u8,
    /// What it last said it was raised to.
    raised_to: u8,
    /// The node lost its memory during this attempt, and rests until it is over.
    rests: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    holder: Option<Claim>,
    fence: u8,
    talk: [Talk; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State<const CLIENTS: usize> {
    nodes: [Node<CLIENTS>; NODES],
    clients: [Client; CLIENTS],
    /// The tokens of all complete grants.
    tokens: Fences,
    twice: bool,
    regressed: bool,
    /// The last grant took a raise round.
    raised: bool,
    /// What the servers' clocks show at least.
    clock: u8,
    empty_restarts_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    ClientStarts { client: usize, gate: usize },
    ClientGivesUp { client: usize },
    NodeVotes { node: usize, claim: Claim, answer_is_lost: bool },
    NodeRaises { node: usize, claim: Claim, to: u8, answer_is_lost: bool },
    ClientRaises { client: usize, to: u8 },
    ClientIsGranted { client: usize, token: u8 },
    ClaimVanishes { node: usize },
    FenceGrows { node: usize },
    NodeRestartsEmpty { node: usize },
}

impl<const CLIENTS: usize> Fence<CLIENTS> {
    fn request_actions(&self, state: &State<CLIENTS>, client: usize, attempt: u8, actions: &mut Vec<Action>) {
        let sent = state.clients[client].of(attempt);
        let claim = Claim { client: client as u8, attempt };
        for node in 0..NODES {
            let is_gate = state.nodes[node].talk[client].gate_of & bit(attempt) != 0;
            if is_gate || sent.proposed > 0 {
                actions.push(Action::NodeVotes { node, claim, answer_is_lost: false });
                actions.push(Action::NodeVotes { node, claim, answer_is_lost: true });
            }
            for to in members(sent.raises_sent) {
                actions.push(Action::NodeRaises { node, claim, to, answer_is_lost: false });
                actions.push(Action::NodeRaises { node, claim, to, answer_is_lost: true });
            }
        }
    }

    /// A client decides by the votes of any majority: the others may be still on their way.
    fn decisions(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        let votes = state.nodes.map(|node| node.talk[client].vote);
        for token in 1..=self.largest_fence {
            if !votes.contains(&token) && !self.raises_higher {
                continue;
            }
            if votes.iter().filter(|&&vote| 0 < vote && vote <= token).count() < MAJORITY {
                continue;
            }
            let stands = |talk: &Talk| talk.vote == token || talk.raised_to == token;
            let standing = state.nodes.iter().filter(|node| stands(&node.talk[client])).count();
            let enough = if self.rules.raise_round { MAJORITY } else { 1 };
            if standing >= enough {
                actions.push(Action::ClientIsGranted { client, token });
            } else {
                actions.push(Action::ClientRaises { client, to: token });
            }
        }
    }

    fn start(&self, state: &mut State<CLIENTS>, client: usize, gate: usize) {
        let complete_before = members(state.tokens).max().unwrap_or(0);
        let starting = &mut state.clients[client];
        starting.asking = true;
        starting.attempt += 1;
        starting.complete_before = complete_before;
        state.nodes[gate].talk[client].gate_of |= bit(starting.attempt);
    }

    fn vote(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, answer_is_lost: bool) {
        let client = claim.client as usize;
        let asking = state.clients[client];
        let asked = &mut state.nodes[node];
        let talk = &mut asked.talk[client];
        match asked.holder {
            None if talk.rests && asking.awaits(claim) => return,
            None => {
                let is_gate = talk.gate_of & bit(claim.attempt) != 0;
                let at_least = if is_gate { state.clock } else { asking.of(claim.attempt).proposed };
                asked.fence = at_least.max(asked.fence + 1);
                asked.holder = Some(claim);
            }
            Some(holder) if holder.client == claim.client && holder.attempt <= claim.attempt => {
                asked.holder = Some(claim);
            }
            Some(_) => return,
        }
        if asking.awaits(claim) && talk.vote == 0 && !answer_is_lost {
            talk.vote = asked.fence;
            if talk.gate_of & bit(claim.attempt) != 0 {
                state.clients[client].current().proposed = asked.fence;
            }
        }
    }

    fn raise(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, to: u8, answer_is_lost: bool) {
        let asked = &mut state.nodes[node];
        if asked.holder == Some(claim) && to >= asked.fence {
            asked.fence = to;
            if state.clients[claim.client as usize].awaits(claim) && !answer_is_lost {
                asked.talk[claim.client as usize].raised_to = to;
            }
        }
    }

    fn restart_empty(&self, state: &mut State<CLIENTS>, node: usize) {
        state.empty_restarts_left -= 1;
        if self.rules.clock_floor {
            let largest = state.nodes.iter().map(|node| node.fence).max().expect("a node");
            state.clock = state.clock.max(largest + 1);
        }
        state.nodes[node].holder = None;
        state.nodes[node].fence = 0;
        if self.rules.quarantine {
            for (talk, client) in state.nodes[node].talk.iter_mut().zip(&state.clients) {
                talk.rests = client.asking;
            }
        }
    }
}

impl Client {
    fn of(&self, attempt: u8) -> &Attempt {
        &self.attempts[attempt as usize - 1]
    }

    fn current(&mut self) -> &mut Attempt {
        &mut self.attempts[self.attempt as usize - 1]
    }

    fn awaits(&self, claim: Claim) -> bool {
        self.asking && self.attempt == claim.attempt
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    fn complete(&mut self, client: usize, token: u8) {
        self.twice |= self.tokens & set_of(token) != 0;
        self.regressed |= token <= self.clients[client].complete_before;
        self.tokens |= set_of(token);
        self.raised = self.clients[client].current().raises_sent & set_of(token) != 0;
        self.stop(client);
        self.forget_waiter(client);
    }

    /// Who was granted the lock comes back as another waiter. A claim left behind could only keep others
    /// waiting, which the network can do as well.
    fn forget_waiter(&mut self, client: usize) {
        self.clients[client].attempts = Default::default();
        for node in &mut self.nodes {
            node.talk[client] = Talk::default();
            node.holder = node.holder.filter(|holder| holder.client as usize != client);
        }
    }

    fn stop(&mut self, client: usize) {
        self.clients[client].asking = false;
        self.clients[client].complete_before = 0;
        for node in &mut self.nodes {
            node.talk[client] = Talk { gate_of: node.talk[client].gate_of, ..Talk::default() };
        }
    }

    /// The one state that stands for all that differ from it in names only.
    fn representative(&self) -> Self {
        least_under_all_names(|names| self.renamed(names))
    }

    fn renamed(&self, names: &[usize; CLIENTS]) -> Self {
        let mut renamed = *self;
        for (old, &new) in names.iter().enumerate() {
            renamed.clients[new] = self.clients[old];
            for (node, before) in renamed.nodes.iter_mut().zip(&self.nodes) {
                node.talk[new] = before.talk[old];
            }
        }
        for node in &mut renamed.nodes {
            if let Some(holder) = &mut node.holder {
                holder.client = names[holder.client as usize] as u8;
            }
        }
        renamed.nodes.sort_unstable();
        renamed
    }
}

impl<const CLIENTS: usize> Model for Fence<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let client = Client { asking: false, attempt: 0, complete_before: 0, attempts: Default::default() };
        let node = Node { holder: None, fence: 0, talk: [Talk::default(); CLIENTS] };
        vec![State {
            nodes: [node; NODES],
            clients: [client; CLIENTS],
            tokens: 0,
            twice: false,
            regressed: false,
            raised: false,
            clock: 0,
            empty_restarts_left: self.empty_restarts,
        }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        let may_start = state.clients.iter().map(|client| client.attempt).sum::<u8>() < self.starts;
        for (client, doing) in state.clients.iter().enumerate() {
            if may_start && doing.attempt < ATTEMPTS as u8 {
                if doing.asking {
                    actions.push(Action::ClientGivesUp { client });
                } else {
                    actions.extend((0..NODES).map(|gate| Action::ClientStarts { client, gate }));
                }
            }
            for attempt in 1..=doing.attempt {
                self.request_actions(state, client, attempt, actions);
            }
            self.decisions(state, client, actions);
        }
        for node in 0..NODES {
            actions.push(match state.nodes[node].holder {
                Some(_) => Action::ClaimVanishes { node },
                None => Action::FenceGrows { node },
            });
            if state.empty_restarts_left > 0 {
                actions.push(Action::NodeRestartsEmpty { node });
            }
        }
    }

    fn next_state(&self, before: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *before;
        match action {
            Action::ClientStarts { client, gate } => self.start(&mut state, client, gate),
            Action::ClientGivesUp { client } => state.stop(client),
            Action::NodeVotes { node, claim, answer_is_lost } => {
                self.vote(&mut state, node, claim, answer_is_lost);
            }
            Action::NodeRaises { node, claim, to, answer_is_lost } => {
                self.raise(&mut state, node, claim, to, answer_is_lost);
            }
            Action::ClientRaises { client, to } => state.clients[client].current().raises_sent |= set_of(to),
            Action::ClientIsGranted { client, token } => state.complete(client, token),
            Action::ClaimVanishes { node } => state.nodes[node].holder = None,
            Action::FenceGrows { node } => state.nodes[node].fence += 1,
            Action::NodeRestartsEmpty { node } => self.restart_empty(&mut state, node),
        }
        if state == *before {
            return None;
        }
        Some(if self.symmetry { state.representative() } else { state })
    }

    fn within_boundary(&self, state: &Self::State) -> bool {
        state.nodes.iter().all(|node| node.fence <= self.largest_fence)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNIQUE, |_, state: &Self::State| !state.twice),
            Property::always(ORDERED, |_, state: &Self::State| !state.regressed),
            Property::sometimes(ACQUIRED, |_, state: &Self::State| state.tokens != 0),
            Property::sometimes(SUCCEEDED, |_, state: &Self::State| members(state.tokens).count() > 1),
            Property::sometimes(RAISED, |_, state: &Self::State| state.raised),
        ]
    }
}

fn bit(attempt: u8) -> u8 {
    1 << attempt
}

fn set_of(fence: u8) -> Fences {
    1 << fence
}

fn members(fences: Fences) -> impl Iterator<Item = u8> {
    (1..Fences::BITS as u8).filter(move |&fence| fences & set_of(fence) != 0)
}
