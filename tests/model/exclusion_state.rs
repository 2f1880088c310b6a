//! What nodes, clients and the network are like at one moment, for `exclusion`.

use crate::NODES;
use crate::names::least_under_all_names;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub client: u8,
    pub attempt: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Asks for nothing and relies on nothing; has sent a release for every attempt so far.
    Idle,
    Asking,
    Holding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    pub granted_on_its_way: bool,
    pub extended_on_its_way: bool,
    pub extended_resting_on_its_way: bool,
    pub expired_on_its_way: bool,
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
    pub fn count(&mut self) {
        self.counted = true;
        self.granted_on_its_way = false;
        self.extended_on_its_way = false;
        self.extended_resting_on_its_way = false;
    }

    pub fn end_round(&mut self) {
        *self = Talk { heal_sent: self.heal_sent, yes_left: self.yes_left, ..Talk::default() };
    }

    pub fn end_attempt(&mut self) {
        *self = Talk { heal_sent: self.heal_sent, ..Talk::default() };
    }
}

/// One node and all that concerns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    pub holder: Option<Claim>,
    /// The claim before the last change, where old copies need it.
    pub before: Option<Claim>,
    /// Ticks until the claim expires.
    pub left: u8,
    /// Ticks until the node may vote again.
    pub rest: u8,
    pub talk: [Talk; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State<const CLIENTS: usize> {
    pub nodes: [Node<CLIENTS>; NODES],
    pub clients: [Client; CLIENTS],
    pub restarts_left: u8,
}

impl<const CLIENTS: usize> Node<CLIENTS> {
    pub fn free(&mut self) {
        self.holder = None;
        self.left = 0;
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    /// Everything that was ever asked for.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        let attempts = self.clients.iter().map(|client| client.attempt).enumerate();
        attempts
            .flat_map(|(client, last)| (1..=last).map(move |attempt| Claim { client: client as u8, attempt }))
    }

    pub fn counted(&self, client: usize) -> usize {
        self.nodes.iter().filter(|node| node.talk[client].counted).count()
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

    pub fn remember_what_was_before(&mut self, before: &Self) {
        for (node, was) in self.nodes.iter_mut().zip(&before.nodes) {
            if node.holder != was.holder && was.holder.is_some() {
                node.before = was.holder;
            }
        }
    }

    /// `yes_left` is asked for only where a node rests.
    pub fn forget_what_cannot_matter(&mut self) {
        if self.restarts_left > 0 {
            return;
        }
        for node in self.nodes.iter_mut().filter(|node| node.rest == 0) {
            for talk in node.talk.iter_mut().filter(|talk| !talk.extended_resting_on_its_way) {
                talk.yes_left = 0;
            }
        }
    }

    /// The one state that stands for all that differ from it in names only.
    pub fn representative(&self) -> Self {
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
            for holder in [&mut node.holder, &mut node.before].into_iter().flatten() {
                holder.client = names[holder.client as usize] as u8;
            }
        }
        renamed.nodes.sort_unstable();
        renamed
    }
}

pub fn bit(attempt: u8) -> u8 {
    1 << attempt
}
