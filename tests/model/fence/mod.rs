//! Which token a grant gets. There is no clock: a claim may disappear, and a reply may count, at
//! any time.
//!
//! So writers and sharers do not differ: a server votes for a writer if the claims of others are
//! gone, and they may be gone anywhere. All clients are sharers here; what holds for them holds for
//! every mix. Claims stay, since a claim that is gone could only prevent a raise.
//!
//! A client sends its request to the gate and the other servers at once, and proposes a token to
//! all of them; the gate also uses its clock. Any fence can be proposed, a different one to each
//! server: `FenceGrows`. Where proposals are `Told` they are explicit, to show that equal ones are
//! harmless.
//!
//! If `exclusive`, no server votes for a second client before the first has released its vote
//! there. Then tokens grow in the order of grants; otherwise a grant is compared only with those
//! that were complete before it began.

mod tests;

use stateright::{Model, Property};

use crate::names::least_under_all_names;
use crate::rules::Rules;
use crate::{MAJORITY, NODES};

pub const UNIQUE: &str = "no two grants have the same token";
pub const ORDERED: &str = "a grant has a larger token than every grant that was complete before it began";
pub const SUCCEEDED: &str = "a grant follows another";
pub const RAISED: &str = "a token is the result of a raise round";
pub const ONE_ROUND: &str = "a majority replies with the same largest token at once";

/// Waiters arrive, leave and retry without end; only the fences are bounded.
#[derive(Clone, Copy, Debug)]
pub struct Fence<const CLIENTS: usize> {
    pub rules: Rules,
    /// States with a larger fence are not explored.
    pub largest_fence: u8,
    /// How often a server may lose its data, including the fence.
    pub empty_restarts: u8,
    /// An abandoned attempt leaves claims and requests. They can do no more than `FenceGrows`, but
    /// only because a repeated request gets a new vote.
    pub leftovers: bool,
    pub proposals: Proposals,
    pub exclusive: bool,
    pub symmetry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proposals {
    /// Any, through `FenceGrows`, like everything else that raises a fence.
    Any,
    /// Each attempt proposes one of these to all servers, and nothing else raises a fence.
    Told { largest: u8 },
}

/// A set of fences.
type Fences = u8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// Requests of this waiter may be in flight.
    known: bool,
    asking: bool,
    /// The largest token of a grant that was complete when this attempt began.
    complete_before: u8,
    /// The client's proposal to all servers.
    proposed: u8,
}

/// The state between one client and one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// The server has the waiter's claim, of this attempt or an earlier one.
    claim: bool,
    /// The fences in the server's replies to the votes and raises of this attempt, all of which set
    /// them.
    answers: Fences,
    /// This attempt uses the queue of this server, which uses its clock.
    is_gate: bool,
    /// The server lost its data during this attempt, and is quarantined until the attempt ends.
    rests: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    fence: u8,
    /// The waiter whose claim set the fence, if it matters.
    set_by: Option<u8>,
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
    /// A lower bound of the servers' clocks.
    clock: u8,
    empty_restarts_left: u8,
}

/// A reply arrives at once, but the client may delay its decision, and bases it on any replies of
/// this attempt: fewer replies would permit nothing more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// `gate`: none where no clock matters; so a majority may be one without the gate.
    ClientStarts {
        client: usize,
        gate: Option<usize>,
        proposed: u8,
    },
    ClientGivesUp {
        client: usize,
    },
    NodeVotes {
        node: usize,
        client: usize,
    },
    NodeRaises {
        node: usize,
        client: usize,
        to: u8,
    },
    ClientIsGranted {
        client: usize,
        token: u8,
    },
    FenceGrows {
        node: usize,
    },
    NodeRestartsEmpty {
        node: usize,
    },
}

impl<const CLIENTS: usize> Fence<CLIENTS> {
    fn request_actions(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.push(Action::NodeVotes { node, client });
        }
        for to in 1..=self.largest_fence {
            // The raises of an earlier attempt, to any fence, may still be in flight.
            if state.clients[client].asking && !state.has_votes_up_to(client, to) {
                continue;
            }
            actions.extend((0..NODES).map(|node| Action::NodeRaises { node, client, to }));
        }
    }

    fn starts(&self, client: usize, actions: &mut Vec<Action>) {
        let largest = match self.proposals {
            Proposals::Any => 0,
            Proposals::Told { largest } => largest,
        };
        for proposed in 0..=largest {
            if self.empty_restarts == 0 {
                actions.push(Action::ClientStarts { client, gate: None, proposed });
                continue;
            }
            let gates = (0..NODES).map(Some);
            actions.extend(gates.map(|gate| Action::ClientStarts { client, gate, proposed }));
        }
    }

    fn grants(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for token in 1..=self.largest_fence {
            let enough = if self.rules.raise_round { MAJORITY } else { 1 };
            let mut gates = state.nodes.iter().filter(|node| node.talk[client].is_gate);
            let counts = self.empty_restarts == 0
                || !self.rules.gate_is_counted
                || gates.any(|gate| gate.talk[client].voted_up_to(token));
            if counts && state.has_votes_up_to(client, token) && state.standing(client, token) >= enough {
                actions.push(Action::ClientIsGranted { client, token });
            }
        }
    }

    fn vote(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        let asking = state.clients[client];
        let clock = state.clock;
        let asked = &mut state.nodes[node];
        let is_taken = (0..CLIENTS).any(|other| other != client && asked.talk[other].claim);
        let talk = &mut asked.talk[client];
        if talk.rests || self.exclusive && is_taken {
            return;
        }
        if !talk.claim || self.rules.votes_are_new {
            let at_least = if talk.is_gate { asking.proposed.max(clock) } else { asking.proposed };
            asked.fence = at_least.max(asked.fence + 1);
            asked.set_by = Some(client as u8);
        }
        talk.claim = true;
        if asking.asking {
            talk.answers |= set_of(asked.fence);
        }
    }

    fn raise(&self, state: &mut State<CLIENTS>, node: usize, client: usize, to: u8) {
        let asked = &mut state.nodes[node];
        let has_set_it = asked.set_by == Some(client as u8) || !self.rules.setter_only;
        let talk = &mut asked.talk[client];
        if talk.claim && (to > asked.fence || to == asked.fence && has_set_it) {
            asked.fence = to;
            asked.set_by = Some(client as u8);
            // This attempt raises only servers that have voted; raises of other servers are late
            // ones of earlier attempts.
            if state.clients[client].asking && talk.answers != 0 {
                talk.answers |= set_of(to);
            }
        }
    }

    fn restart_empty(&self, state: &mut State<CLIENTS>, node: usize) {
        state.empty_restarts_left -= 1;
        if self.rules.clock_floor {
            let largest = state.nodes.iter().map(|node| node.fence).max().expect("a node");
            // A proposal may be ahead of the clock: by how much more than the quarantine?
            let ahead = if self.rules.proposals_within_quarantine { 0 } else { 2 };
            state.clock = state.clock.max((largest + 1).saturating_sub(ahead));
        }
        let restarting = &mut state.nodes[node];
        restarting.fence = 0;
        restarting.set_by = None;
        for (talk, client) in restarting.talk.iter_mut().zip(&state.clients) {
            talk.claim = false;
            talk.rests = client.asking && self.rules.quarantine;
        }
    }
}

impl Talk {
    fn voted_up_to(&self, fence: u8) -> bool {
        self.answers & (set_of(fence + 1) - 1) != 0
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    fn start(&mut self, client: usize, gate: Option<usize>, proposed: u8) {
        let complete_before = self.largest_token();
        self.clients[client] = Client { known: true, asking: true, complete_before, proposed };
        if let Some(gate) = gate {
            self.nodes[gate].talk[client].is_gate = true;
        }
    }

    fn largest_token(&self) -> u8 {
        members(self.tokens).max().unwrap_or(0)
    }

    fn give_up(&mut self, client: usize) {
        self.clients[client] = Client { known: true, ..Client::default() };
        for talk in self.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            *talk = Talk { claim: talk.claim, ..Talk::default() };
        }
    }

    /// A majority has voted, with no larger fence than this.
    fn has_votes_up_to(&self, client: usize, fence: u8) -> bool {
        self.nodes.iter().filter(|node| node.talk[client].voted_up_to(fence)).count() >= MAJORITY
    }

    /// Number of servers that have confirmed to this client that it has set this fence.
    fn standing(&self, client: usize, fence: u8) -> usize {
        self.nodes.iter().filter(|node| node.talk[client].answers & set_of(fence) != 0).count()
    }

    fn complete(&mut self, client: usize, token: u8, exclusive: bool) {
        self.twice |= self.tokens & set_of(token) != 0;
        let before = if exclusive { self.largest_token() } else { self.clients[client].complete_before };
        self.regressed |= token <= before;
        self.tokens |= set_of(token);
        self.forget(client);
    }

    /// The next attempt is another waiter's. Late requests and heals of this one are covered by
    /// `FenceGrows`.
    fn forget(&mut self, client: usize) {
        self.clients[client] = Client::default();
        for node in &mut self.nodes {
            node.talk[client] = Talk::default();
            node.set_by = node.set_by.filter(|&setter| setter as usize != client);
        }
    }

    fn a_raise_round_was_enough(&self, client: usize) -> bool {
        let raised = |node: &Node<CLIENTS>, to| node.talk[client].answers.trailing_zeros() < to as u32;
        (1..Fences::BITS as u8)
            .any(|to| self.standing(client, to) >= MAJORITY && self.nodes.iter().any(|node| raised(node, to)))
    }

    /// Each server has replied once, and a majority with the same fence.
    fn one_round_was_enough(&self, client: usize) -> bool {
        let answers = self.nodes.map(|node| node.talk[client].answers);
        let once = answers.iter().all(|answers| answers.count_ones() <= 1);
        let largest = answers.into_iter().max().expect("a node");
        once && largest != 0 && answers.iter().filter(|&&answers| answers == largest).count() >= MAJORITY
    }

    /// The state that represents all those that differ only in names.
    fn representative(&self) -> Self {
        least_under_all_names(&self.clients, CLIENTS, |names| self.renamed(names))
    }

    fn renamed(&self, names: &[usize; CLIENTS]) -> Self {
        let mut renamed = *self;
        for (old, &new) in names.iter().enumerate() {
            renamed.clients[new] = self.clients[old];
            for (node, before) in renamed.nodes.iter_mut().zip(&self.nodes) {
                node.talk[new] = before.talk[old];
            }
        }
        for setter in renamed.nodes.iter_mut().flat_map(|node| &mut node.set_by) {
            *setter = names[*setter as usize] as u8;
        }
        renamed.nodes.sort_unstable();
        renamed
    }
}

impl<const CLIENTS: usize> Model for Fence<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node { fence: 0, set_by: None, talk: [Talk::default(); CLIENTS] }; NODES],
            clients: [Client::default(); CLIENTS],
            tokens: 0,
            twice: false,
            regressed: false,
            clock: 0,
            empty_restarts_left: self.empty_restarts,
        }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        for (client, doing) in state.clients.iter().enumerate() {
            if doing.asking {
                actions.push(Action::ClientGivesUp { client });
                self.grants(state, client, actions);
            } else {
                self.starts(client, actions);
            }
            if doing.known {
                self.request_actions(state, client, actions);
            }
        }
        for node in 0..NODES {
            if self.proposals == Proposals::Any {
                actions.push(Action::FenceGrows { node });
            }
            if state.empty_restarts_left > 0 {
                actions.push(Action::NodeRestartsEmpty { node });
            }
        }
    }

    fn next_state(&self, before: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *before;
        match action {
            Action::ClientStarts { client, gate, proposed } => state.start(client, gate, proposed),
            Action::ClientGivesUp { client } if self.leftovers => state.give_up(client),
            Action::ClientGivesUp { client } => state.forget(client),
            Action::NodeVotes { node, client } => self.vote(&mut state, node, client),
            Action::NodeRaises { node, client, to } => self.raise(&mut state, node, client, to),
            Action::ClientIsGranted { client, token } => state.complete(client, token, self.exclusive),
            Action::FenceGrows { node } => {
                state.nodes[node].fence += 1;
                state.nodes[node].set_by = None;
            }
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
            Property::sometimes(SUCCEEDED, |_, state: &Self::State| members(state.tokens).count() > 1),
            Property::sometimes(RAISED, |_, state: &Self::State| {
                (0..CLIENTS).any(|client| state.a_raise_round_was_enough(client))
            }),
            Property::sometimes(ONE_ROUND, |_, state: &Self::State| {
                (0..CLIENTS).any(|client| state.one_round_was_enough(client))
            }),
        ]
    }
}

fn set_of(fence: u8) -> Fences {
    1 << fence
}

fn members(fences: Fences) -> impl Iterator<Item = u8> {
    (1..Fences::BITS as u8).filter(move |&fence| fences & set_of(fence) != 0)
}
