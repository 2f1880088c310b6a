//! Which token a grant gets. No clock at all: a claim may be gone, and an answer may count, at any time.
//!
//! So nothing is left of the difference between writers and sharers: a writer is voted for where the others'
//! claims are gone, and they may be gone anywhere. All clients are sharers here; what holds for them holds for
//! every mix. Claims stay where they were put, since one that is gone could only forbid a raise.

use stateright::{Model, Property};

use crate::names::least_under_all_names;
use crate::rules::Rules;
use crate::{MAJORITY, NODES};

pub const UNIQUE: &str = "no two grants have the same token";
pub const ORDERED: &str = "a grant has a larger token than every grant that was complete before it began";
pub const SUCCEEDED: &str = "a grant follows another";
pub const RAISED: &str = "a token comes out of a raise round";

/// Waiters come and go, and ask anew, without end; only the fences have one.
#[derive(Clone, Copy, Debug)]
pub struct Fence<const CLIENTS: usize> {
    pub rules: Rules,
    /// States with a larger fence are not looked at.
    pub largest_fence: u8,
    /// How often a node may lose its memory, fence and all.
    pub empty_restarts: u8,
    /// An attempt that was given up leaves claims and requests behind. They can do no more than `FenceGrows`,
    /// but only because a vote that is asked for again is a new one.
    pub leftovers: bool,
    pub symmetry: bool,
}

/// A set of fences.
type Fences = u8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// There may be requests of this waiter under way.
    known: bool,
    asking: bool,
    /// The largest token of a grant that was complete when this attempt began.
    complete_before: u8,
    /// What the gate proposes at least: what its clock showed when this attempt began.
    proposed: u8,
}

/// What one client and one node have to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// The node has the waiter's claim, of this attempt or an earlier one.
    claim: bool,
    /// The fences which the node answered to this attempt's votes and raises, all of which set them.
    answers: Fences,
    /// The node lost its memory during this attempt, and rests until it is over.
    rests: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    fence: u8,
    /// The waiter whose claim set the fence, if it is of any interest.
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
    /// What the servers' clocks show at least.
    clock: u8,
    empty_restarts_left: u8,
}

/// An answer arrives at once, but the client may wait with its decision, and makes it by any answers that it got
/// in this attempt: with fewer of them it could do no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    ClientStarts { client: usize },
    ClientGivesUp { client: usize },
    NodeVotes { node: usize, client: usize },
    NodeRaises { node: usize, client: usize, to: u8 },
    ClientIsGranted { client: usize, token: u8 },
    FenceGrows { node: usize },
    NodeRestartsEmpty { node: usize },
}

impl<const CLIENTS: usize> Fence<CLIENTS> {
    fn request_actions(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.push(Action::NodeVotes { node, client });
        }
        for to in 1..=self.largest_fence {
            // The raises of an earlier attempt, which may have been to any fence, are still under way.
            if state.clients[client].asking && !state.has_votes_up_to(client, to) {
                continue;
            }
            actions.extend((0..NODES).map(|node| Action::NodeRaises { node, client, to }));
        }
    }

    fn grants(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        for token in 1..=self.largest_fence {
            let enough = if self.rules.raise_round { MAJORITY } else { 1 };
            if state.has_votes_up_to(client, token) && state.standing(client, token) >= enough {
                actions.push(Action::ClientIsGranted { client, token });
            }
        }
    }

    fn vote(&self, state: &mut State<CLIENTS>, node: usize, client: usize) {
        let asking = state.clients[client];
        let asked = &mut state.nodes[node];
        let talk = &mut asked.talk[client];
        if talk.rests {
            return;
        }
        if !talk.claim || self.rules.votes_are_new {
            asked.fence = asking.proposed.max(asked.fence + 1);
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
            if state.clients[client].asking {
                talk.answers |= set_of(to);
            }
        }
    }

    fn restart_empty(&self, state: &mut State<CLIENTS>, node: usize) {
        state.empty_restarts_left -= 1;
        if self.rules.clock_floor {
            let largest = state.nodes.iter().map(|node| node.fence).max().expect("a node");
            state.clock = state.clock.max(largest + 1);
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

impl<const CLIENTS: usize> State<CLIENTS> {
    fn start(&mut self, client: usize) {
        let complete_before = members(self.tokens).max().unwrap_or(0);
        self.clients[client] = Client { known: true, asking: true, complete_before, proposed: self.clock };
    }

    fn give_up(&mut self, client: usize) {
        self.clients[client] = Client { known: true, ..Client::default() };
        for talk in self.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            *talk = Talk { claim: talk.claim, ..Talk::default() };
        }
    }

    /// A majority has voted, and answered no more than this.
    fn has_votes_up_to(&self, client: usize, fence: u8) -> bool {
        let up_to = |node: &&Node<CLIENTS>| node.talk[client].answers & (set_of(fence + 1) - 1) != 0;
        self.nodes.iter().filter(up_to).count() >= MAJORITY
    }

    /// How many nodes have told this client that it has set this fence.
    fn standing(&self, client: usize, fence: u8) -> usize {
        self.nodes.iter().filter(|node| node.talk[client].answers & set_of(fence) != 0).count()
    }

    fn complete(&mut self, client: usize, token: u8) {
        self.twice |= self.tokens & set_of(token) != 0;
        self.regressed |= token <= self.clients[client].complete_before;
        self.tokens |= set_of(token);
        self.forget(client);
    }

    /// The next attempt is another waiter's. What this one's late requests and heals can do is `FenceGrows`.
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

    /// The one state that stands for all that differ from it in names only.
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
                actions.push(Action::ClientStarts { client });
            }
            if doing.known {
                self.request_actions(state, client, actions);
            }
        }
        for node in 0..NODES {
            actions.push(Action::FenceGrows { node });
            if state.empty_restarts_left > 0 {
                actions.push(Action::NodeRestartsEmpty { node });
            }
        }
    }

    fn next_state(&self, before: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *before;
        match action {
            Action::ClientStarts { client } => state.start(client),
            Action::ClientGivesUp { client } if self.leftovers => state.give_up(client),
            Action::ClientGivesUp { client } => state.forget(client),
            Action::NodeVotes { node, client } => self.vote(&mut state, node, client),
            Action::NodeRaises { node, client, to } => self.raise(&mut state, node, client, to),
            Action::ClientIsGranted { client, token } => state.complete(client, token),
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
        ]
    }
}

fn set_of(fence: u8) -> Fences {
    1 << fence
}

fn members(fences: Fences) -> impl Iterator<Item = u8> {
    (1..Fences::BITS as u8).filter(move |&fence| fences & set_of(fence) != 0)
}
