//! Which token a grant gets. No clock at all: a claim may vanish, and an answer may count, at any time.

use stateright::{Model, Property};

use crate::names::permutations;
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
    pub attempts: u8,
    /// States with a larger fence are not looked at.
    pub largest_fence: u8,
    /// How far the nodes' fences may differ at the start.
    pub spread: u8,
    /// How often a node may lose its memory, fence and all.
    pub empty_restarts: u8,
    pub symmetry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    client: u8,
    attempt: u8,
}

/// A set of fences.
type Fences = u16;

/// All that an attempt has sent or come to; what it has sent may be carried out at any later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// The gate's answer, which the other nodes are asked with; 0 = not yet.
    proposed: u8,
    raises_sent: Fences,
    /// 0 = not granted.
    token: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    asking: bool,
    attempt: u8,
    /// The largest token of a grant that was complete when this attempt began.
    complete_before: u8,
    attempts: [Attempt; ATTEMPTS],
}

/// What one client and one node have told each other in the attempt under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// The attempts (bits) for which this node is the gate.
    gate_of: u8,
    /// The fence in the answer that will arrive, if any does: of several, one can be counted.
    granted_on_its_way: u8,
    /// "Raised to the largest of the votes."
    raised_on_its_way: bool,
    /// The answer the client has counted; 0 = none.
    vote: u8,
    /// The node has been raised to the largest of the votes.
    raised: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    holder: Option<Claim>,
    pub fence: u8,
    talk: [Talk; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State<const CLIENTS: usize> {
    pub nodes: [Node<CLIENTS>; NODES],
    clients: [Client; CLIENTS],
    /// The tokens of all complete grants.
    tokens: Fences,
    twice: bool,
    regressed: bool,
    /// What the servers' clocks show at least.
    clock: u8,
    empty_restarts_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    ClientStarts {
        client: usize,
        gate: usize,
    },
    ClientGivesUp {
        client: usize,
    },
    NodeVotes {
        node: usize,
        claim: Claim,
        answer_is_lost: bool,
    },
    NodeRaises {
        node: usize,
        claim: Claim,
        to: u8,
    },
    NodeHeals {
        node: usize,
        claim: Claim,
    },
    GrantedArrives {
        node: usize,
        client: usize,
    },
    RaisedArrives {
        node: usize,
        client: usize,
    },
    /// Expiry, a release, or a renewal that came too late: the claim is gone.
    ClaimVanishes {
        node: usize,
    },
    NodeRestartsEmpty {
        node: usize,
    },
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
                actions.push(Action::NodeRaises { node, claim, to });
            }
            if sent.token > 0 {
                actions.push(Action::NodeHeals { node, claim });
            }
        }
    }

    fn answer_actions(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            let talk = state.nodes[node].talk[client];
            if talk.granted_on_its_way > 0 {
                actions.push(Action::GrantedArrives { node, client });
            }
            if talk.raised_on_its_way {
                actions.push(Action::RaisedArrives { node, client });
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
            None => {
                let is_gate = talk.gate_of & bit(claim.attempt) != 0;
                let at_least = if is_gate { state.clock } else { asking.of(claim.attempt).proposed };
                asked.fence = at_least.max(asked.fence + 1);
                asked.holder = Some(claim);
            }
            Some(holder) if asking.is_earlier_attempt_of_same_waiter(client, holder, claim) => {
                asked.holder = Some(claim);
            }
            Some(_) => return,
        }
        if asking.awaits(claim) && talk.vote == 0 && !answer_is_lost {
            talk.granted_on_its_way = asked.fence;
        }
    }

    fn raise(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, to: u8) {
        let client = claim.client as usize;
        let asked = &mut state.nodes[node];
        if asked.holder == Some(claim) && to >= asked.fence {
            asked.fence = to;
            if state.clients[client].awaits(claim) && state.largest_vote(client) == to {
                let talk = &mut state.nodes[node].talk[client];
                talk.raised_on_its_way = !talk.raised;
            }
        }
    }

    fn heal(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let token = state.clients[claim.client as usize].of(claim.attempt).token;
        let asked = &mut state.nodes[node];
        if asked.holder.is_none() {
            asked.holder = Some(claim);
            asked.fence = asked.fence.max(token);
        }
    }

    fn granted_arrives(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        let largest_before = state.largest_vote(client);
        let talk = &mut state.nodes[node].talk[client];
        let fence = talk.granted_on_its_way;
        talk.vote = fence;
        talk.granted_on_its_way = 0;
        let asking = &mut state.clients[client];
        if talk.gate_of & bit(asking.attempt) != 0 {
            asking.current().proposed = fence;
        }
        if fence > largest_before {
            for node in &mut state.nodes {
                node.talk[client].raised = false;
                node.talk[client].raised_on_its_way = false;
            }
        }
        self.decide(state, client);
    }

    fn raised_arrives(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        let talk = &mut state.nodes[node].talk[client];
        talk.raised = true;
        talk.raised_on_its_way = false;
        self.decide(state, client);
    }

    fn decide(&self, state: &mut State<CLIENTS>, client: usize) {
        let votes = state.nodes.iter().filter(|node| node.talk[client].vote > 0).count();
        if votes < MAJORITY {
            return;
        }
        let token = state.largest_vote(client);
        let stands = |talk: &Talk| talk.vote == token || talk.raised;
        let standing = state.nodes.iter().filter(|node| stands(&node.talk[client])).count();
        if standing >= MAJORITY || !self.rules.raise_round {
            state.complete(client, token);
        } else {
            state.clients[client].current().raises_sent |= set_of(token);
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

    /// A client that was granted the lock is a new waiter when it asks again.
    fn is_earlier_attempt_of_same_waiter(&self, client: usize, holder: Claim, claim: Claim) -> bool {
        let same_waiter = (holder.attempt..claim.attempt).all(|attempt| self.of(attempt).token == 0);
        holder.client as usize == client && holder.attempt <= claim.attempt && same_waiter
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    fn largest_vote(&self, client: usize) -> u8 {
        self.nodes.iter().map(|node| node.talk[client].vote).max().expect("a node")
    }

    fn complete(&mut self, client: usize, token: u8) {
        self.twice |= self.tokens & set_of(token) != 0;
        self.regressed |= token <= self.clients[client].complete_before;
        self.tokens |= set_of(token);
        self.clients[client].current().token = token;
        self.stop(client);
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
        permutations::<CLIENTS>().iter().map(|names| self.renamed(names)).min().expect("a permutation")
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

    /// Every way in which the fences may differ at the start, up to the names of the nodes.
    fn init_states(&self) -> Vec<Self::State> {
        let client = Client { asking: false, attempt: 0, complete_before: 0, attempts: Default::default() };
        let node = |fence| Node { holder: None, fence, talk: [Talk::default(); CLIENTS] };
        let mut states = vec![];
        for high in 0..=self.spread {
            for middle in 0..=high {
                states.push(State {
                    nodes: [node(0), node(middle), node(high)],
                    clients: [client; CLIENTS],
                    tokens: 0,
                    twice: false,
                    regressed: false,
                    clock: 0,
                    empty_restarts_left: self.empty_restarts,
                });
            }
        }
        states
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        for (client, doing) in state.clients.iter().enumerate() {
            if doing.asking {
                actions.push(Action::ClientGivesUp { client });
            } else if doing.attempt < self.attempts {
                actions.extend((0..NODES).map(|gate| Action::ClientStarts { client, gate }));
            }
            for attempt in 1..=doing.attempt {
                self.request_actions(state, client, attempt, actions);
            }
            self.answer_actions(state, client, actions);
        }
        for node in 0..NODES {
            if state.nodes[node].holder.is_some() {
                actions.push(Action::ClaimVanishes { node });
            }
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
            Action::NodeRaises { node, claim, to } => self.raise(&mut state, node, claim, to),
            Action::NodeHeals { node, claim } => self.heal(&mut state, node, claim),
            Action::GrantedArrives { node, client } => self.granted_arrives(&mut state, node, client),
            Action::RaisedArrives { node, client } => self.raised_arrives(&mut state, node, client),
            Action::ClaimVanishes { node } => state.nodes[node].holder = None,
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
            Property::sometimes(RAISED, |_, state: &Self::State| {
                let raised = |attempt: &Attempt| attempt.raises_sent & set_of(attempt.token) & !1 != 0;
                state.clients.iter().any(|client| client.attempts.iter().any(raised))
            }),
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
