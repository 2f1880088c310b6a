//! What nodes, clients and the network are like at one moment, for `exclusion`.

use crate::names::least_under_all_names;
use crate::{MAJORITY, NODES};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub client: u8,
    pub attempt: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Asks for nothing and relies on nothing; has sent a release for every attempt so far.
    #[default]
    Idle,
    Asking,
    Holding,
}

/// A set of rounds, each known by the ticks to its deadline: a round is one request to all nodes.
pub type Rounds = u8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub phase: Phase,
    pub attempt: u8,
    /// Those under way whose deadline is not over.
    pub rounds: Rounds,
    /// The longest quarantine that a node has told in this attempt, where clients differ.
    pub heard: u8,
}

/// What one client and one node have told each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// Ticks until the last counted yes of this node has run out: to the deadline of its round.
    pub yes_left: u8,
    /// For how long the node had been known when it voted, where clients differ.
    pub known_for: u8,
    /// The node's yes to these rounds is on its way.
    pub late: Rounds,
    /// The node told a round with so many ticks left that it does not have our claim.
    pub lost_it: u8,
    /// Attempts for which a heal was sent (bits).
    pub heal_sent: u8,
}

/// The claim of one client on one node: a writer's is `lock:K` itself, a sharer's stands beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// 0 = there is none.
    pub attempt: u8,
    /// Ticks until it expires.
    pub left: u8,
}

impl Entry {
    pub const NONE: Entry = Entry { attempt: 0, left: 0 };

    pub fn lives(&self) -> bool {
        self.left > 0
    }
}

/// One node and all that concerns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    pub entries: [Entry; CLIENTS],
    /// The claim that the last change took away, where old copies need it.
    pub before: Option<Claim>,
    /// The marker: for how long it has been known, at most the longest quarantine of all.
    pub known_for: u8,
    /// The marker: the longest quarantine that a client came with.
    pub longest: u8,
    pub talk: [Talk; CLIENTS],
}

impl<const CLIENTS: usize> Node<CLIENTS> {
    pub fn new(longest: u8) -> Node<CLIENTS> {
        let (entries, talk) = ([Entry::NONE; CLIENTS], [Talk::default(); CLIENTS]);
        Node { entries, before: None, known_for: longest, longest, talk }
    }

    /// The first `writers` clients exclude all others, the rest exclude only them.
    pub fn is_free_for(&self, client: usize, writers: usize) -> bool {
        let excluding = if client < writers { CLIENTS } else { writers };
        self.entries[..excluding].iter().enumerate().all(|(other, entry)| other == client || !entry.lives())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State<const CLIENTS: usize> {
    pub nodes: [Node<CLIENTS>; NODES],
    pub clients: [Client; CLIENTS],
    pub restarts_left: u8,
}

impl<const CLIENTS: usize> State<CLIENTS> {
    /// Everything that was ever asked for and is not forgotten.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        let attempts = self.clients.iter().map(|client| client.attempt).enumerate();
        attempts
            .flat_map(|(client, last)| (1..=last).map(move |attempt| Claim { client: client as u8, attempt }))
    }

    pub fn holds(&self, client: usize) -> bool {
        self.clients[client].phase == Phase::Holding
    }

    /// A majority has said yes until then, or for longer: the deadline.
    pub fn lease(&self, client: usize) -> u8 {
        let mut yes_left = self.nodes.map(|node| node.talk[client].yes_left);
        yes_left.sort_unstable();
        yes_left[NODES - MAJORITY]
    }

    /// The client relies on nothing any more, and its releases are under way.
    pub fn stop(&mut self, client: usize) {
        let stopped = &mut self.clients[client];
        *stopped = Client { attempt: stopped.attempt, ..Client::default() };
        for talk in self.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            *talk = Talk { heal_sent: talk.heal_sent, ..Talk::default() };
        }
    }

    /// As if this waiter had never been: the next attempt is a new waiter's.
    pub fn forget(&mut self, client: usize) {
        self.clients[client] = Client::default();
        for node in &mut self.nodes {
            node.entries[client] = Entry::NONE;
            node.talk[client] = Talk::default();
        }
    }

    pub fn remember_what_was_before(&mut self, before: &Self) {
        for (node, was) in self.nodes.iter_mut().zip(&before.nodes) {
            for (client, (entry, was)) in node.entries.iter().zip(&was.entries).enumerate() {
                if entry.attempt != was.attempt && was.attempt > 0 {
                    node.before = Some(Claim { client: client as u8, attempt: was.attempt });
                }
            }
        }
    }

    pub fn drop_what_nobody_counts_on(&mut self) {
        for node in &mut self.nodes {
            for (entry, talk) in node.entries.iter_mut().zip(&node.talk) {
                entry.left = entry.left.min(talk.yes_left);
                if !entry.lives() {
                    *entry = Entry::NONE;
                }
            }
        }
    }

    /// The one state that stands for all that differ from it in the names of nodes, and of clients if these are
    /// `alike`; writers stay writers.
    pub fn representative(&self, writers: usize, alike: bool) -> Self {
        if !alike {
            let mut sorted = *self;
            sorted.nodes.sort_unstable();
            return sorted;
        }
        least_under_all_names(&self.clients, writers, |names| self.renamed(names))
    }

    fn renamed(&self, names: &[usize; CLIENTS]) -> Self {
        let mut renamed = *self;
        for (old, &new) in names.iter().enumerate() {
            renamed.clients[new] = self.clients[old];
            for (node, before) in renamed.nodes.iter_mut().zip(&self.nodes) {
                node.talk[new] = before.talk[old];
                node.entries[new] = before.entries[old];
            }
        }
        for claim in renamed.nodes.iter_mut().flat_map(|node| &mut node.before) {
            claim.client = names[claim.client as usize] as u8;
        }
        renamed.nodes.sort_unstable();
        renamed
    }
}

pub fn bit(number: u8) -> u8 {
    1 << number
}

pub fn rounds(set: Rounds) -> impl Iterator<Item = u8> {
    (1..Rounds::BITS as u8).filter(move |&round| set & bit(round) != 0)
}

/// A tick later; what has no tick left is over.
pub fn later(set: Rounds) -> Rounds {
    (set >> 1) & !1
}
