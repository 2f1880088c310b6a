//! The state of servers, clients and the network in `exclusion`.

use crate::names::least_under_all_names;
use crate::{MAJORITY, NODES};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub client: u8,
    pub attempt: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Requests nothing and relies on nothing; has sent a release for every attempt so far.
    #[default]
    Idle,
    Asking,
    Holding,
}

/// A set of rounds, each identified by the ticks until its deadline. A round is one request to all
/// servers.
pub type Rounds = u8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub phase: Phase,
    pub attempt: u8,
    /// The rounds in flight whose deadline has not passed.
    pub rounds: Rounds,
    /// The longest quarantine that a server has reported in this attempt, where clients differ.
    pub heard: u8,
}

/// The messages between one client and one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Talk {
    /// Ticks until the last counted vote of this server ends: the deadline of its round.
    pub yes_left: u8,
    /// The age of the server's marker when it voted, where clients differ.
    pub known_for: u8,
    /// The rounds for which the server's vote is in flight.
    pub late: Rounds,
    /// The ticks left of the round to which the server replied that it does not have the claim.
    pub lost_it: u8,
    /// Attempts for which a heal was sent (bits).
    pub heal_sent: u8,
}

/// The claim of one client on one server: a writer's is `lock:K` itself, a sharer's is one of
/// several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// 0 = there is no claim.
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

/// One server and all messages from and to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node<const CLIENTS: usize> {
    pub entries: [Entry; CLIENTS],
    /// The claim that the last change removed, where old copies need it.
    pub before: Option<Claim>,
    /// The age of the marker, at most the longest quarantine of all clients.
    pub known_for: u8,
    /// The longest quarantine of any client so far, in the marker.
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
    /// All claims that were ever requested and are not forgotten.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        let attempts = self.clients.iter().map(|client| client.attempt).enumerate();
        attempts
            .flat_map(|(client, last)| (1..=last).map(move |attempt| Claim { client: client as u8, attempt }))
    }

    pub fn holds(&self, client: usize) -> bool {
        self.clients[client].phase == Phase::Holding
    }

    /// The deadline until which the votes of a majority count.
    pub fn lease(&self, client: usize) -> u8 {
        let mut yes_left = self.nodes.map(|node| node.talk[client].yes_left);
        yes_left.sort_unstable();
        yes_left[NODES - MAJORITY]
    }

    /// The client no longer relies on anything, and its releases are in flight.
    pub fn stop(&mut self, client: usize) {
        let stopped = &mut self.clients[client];
        *stopped = Client { attempt: stopped.attempt, ..Client::default() };
        for talk in self.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            *talk = Talk { heal_sent: talk.heal_sent, ..Talk::default() };
        }
    }

    /// Removes all traces of this waiter: the next attempt is a new waiter's.
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

    /// The state that represents all those that differ only in the names of servers, and of clients
    /// if these are `alike`; writers stay writers.
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

/// The rounds one tick later, without those that have ended.
pub fn later(set: Rounds) -> Rounds {
    (set >> 1) & !1
}
