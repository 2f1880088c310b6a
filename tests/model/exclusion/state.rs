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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub phase: Phase,
    pub attempt: u8,
    /// Ticks to the deadline of what it asks for or holds.
    pub lease: u8,
    /// Ticks to the deadline that the renewal under way would give; 0 = none is under way.
    pub round: u8,
}

/// What one client and one node have told each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// The client has counted this node in the attempt or renewal under way.
    pub counted: bool,
    /// The node told the renewal under way that it does not have our claim.
    pub lost_it: bool,
    /// Attempts for which a heal was sent (bits).
    pub heal_sent: u8,
    /// Ticks until the last counted yes of this node has run out.
    pub yes_left: u8,
}

impl Talk {
    pub fn count(&mut self, yes_left: u8) {
        self.counted = true;
        self.yes_left = yes_left;
    }

    pub fn end_round(&mut self) {
        *self = Talk { heal_sent: self.heal_sent, yes_left: self.yes_left, ..Talk::default() };
    }

    pub fn end_attempt(&mut self) {
        *self = Talk { heal_sent: self.heal_sent, ..Talk::default() };
    }
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
    /// Ticks until the node may vote again.
    pub rest: u8,
    pub talk: [Talk; CLIENTS],
}

impl<const CLIENTS: usize> Node<CLIENTS> {
    pub const NEW: Node<CLIENTS> = Node {
        entries: [Entry::NONE; CLIENTS],
        before: None,
        rest: 0,
        talk: [Talk { counted: false, lost_it: false, heal_sent: 0, yes_left: 0 }; CLIENTS],
    };

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

    pub fn has_majority(&self, client: usize) -> bool {
        self.nodes.iter().filter(|node| node.talk[client].counted).count() >= MAJORITY
    }

    pub fn holds(&self, client: usize) -> bool {
        self.clients[client].phase == Phase::Holding
    }

    pub fn end_round(&mut self, client: usize) {
        self.nodes.iter_mut().for_each(|node| node.talk[client].end_round());
    }

    /// The client relies on nothing any more, and its releases are under way.
    pub fn stop(&mut self, client: usize) {
        let stopped = &mut self.clients[client];
        *stopped = Client { phase: Phase::Idle, lease: 0, round: 0, ..*stopped };
        self.nodes.iter_mut().for_each(|node| node.talk[client].end_attempt());
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

    /// `yes_left` is asked for only where a node rests.
    pub fn forget_what_cannot_matter(&mut self) {
        if self.restarts_left > 0 {
            return;
        }
        for node in self.nodes.iter_mut().filter(|node| node.rest == 0) {
            for talk in &mut node.talk {
                talk.yes_left = 0;
            }
        }
    }

    /// The one state that stands for all that differ from it in names only; writers stay writers.
    pub fn representative(&self, writers: usize) -> Self {
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

pub fn bit(attempt: u8) -> u8 {
    1 << attempt
}
