//! Who holds the lock, and until when. Time is a clock of whole ticks, stored as "ticks left".
//!
//! A client sends rounds of requests: for votes and, with the same claim, for renewals of the votes
//! that it keeps while it waits for others, and of the lock. A server's vote counts until the
//! deadline of its round, `ttl` after the round was sent, whenever the reply arrives; the client
//! holds the lock while the votes of a majority count.
//!
//! Clients may have different settings. Then a server's marker contains the longest quarantine of
//! all clients. The age of the marker is counted from the server's restart, which is earlier than
//! the first request that can set it: the model permits more than the rule.

pub mod state;

mod steps;
mod tests;

use stateright::{Model, Property};

use crate::NODES;
use crate::rules::Rules;
use state::{Claim, Client, Node, Phase, State, Talk, bit, rounds};

pub const EXCLUSION: &str = "no client holds beside a writer";
pub const ACQUIRED: &str = "a client acquires";
pub const TOGETHER: &str = "sharers hold together";
pub const HEALED_COUNTS: &str = "a healed server is counted";

pub const ANY_NUMBER: u8 = u8::MAX;

/// The settings of a run: what may happen, apart from what may always happen.
#[derive(Clone, Copy, Debug)]
pub struct Exclusion<const CLIENTS: usize> {
    pub rules: Rules,
    /// Number of clients that request an exclusive lock; the others request a shared one.
    pub writers: usize,
    pub settings: [Settings; CLIENTS],
    /// Number of attempts of one waiter.
    pub attempts: u8,
    /// Number of restarts of all servers together, or `ANY_NUMBER`.
    pub restarts: u8,
    /// Holders renew.
    pub renewals: bool,
    /// The reply to a renewal may be late, but not later than its own deadline.
    pub late_answers: bool,
    /// At least one of the servers that reply to an attempt knows the longest quarantine.
    pub a_client_knows: bool,
    pub healing: Healing,
    pub old_copies: OldCopies,
    pub leftovers: Leftovers,
    /// Treat states that differ only in the names of servers and clients as one.
    pub symmetry: bool,
}

/// The settings of a client, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub ttl: u8,
    /// 0 = off.
    pub quarantine: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Healing {
    Never,
    /// After a round in which a majority renewed and this server replied that the claim has
    /// expired.
    ByTheRule,
    /// At any time, for any claim that was ever requested: more than the rule allows, with fewer
    /// states.
    AtWill,
}

/// A server may restart with older data: a promoted replica, a restored file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OldCopies {
    Never,
    /// With the claim from before its last change.
    LosingTheLastChange,
    /// With any claim that was ever requested: more than can happen, with fewer states.
    OfAnyClaim,
}

/// Claims on servers and requests in flight that no client relies on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leftovers {
    All,
    /// Not those of a waiter that has made its last attempt; a new waiter replaces it, forever.
    /// They could only block others, which the network can do as well: no late release affects the
    /// claim of another client.
    OfLiveWaiters,
    /// None at all: a claim exists only while its client relies on it, and a renewal finds a claim
    /// wherever a late vote, a heal or an old copy can have put one. Nothing else blocks a request.
    None,
}

/// A server executes a request at any time: at once, late, repeatedly, or never. Its reply arrives
/// at once or never: a later one would count until the same deadline, so the client would only hold
/// for less time. (Late replies are checked as well, with `late_answers`.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    ClientStarts {
        client: usize,
    },
    ClientGivesBack {
        client: usize,
    },
    /// Sends a round.
    ClientRenews {
        client: usize,
    },
    NodeAcquires {
        node: usize,
        claim: Claim,
        answer: Answer,
    },
    NodeReleases {
        node: usize,
        claim: Claim,
    },
    NodeExtends {
        node: usize,
        claim: Claim,
        answer: Answer,
    },
    LateYes {
        node: usize,
        client: usize,
        round: u8,
    },
    NodeHeals {
        node: usize,
        claim: Claim,
    },
    NodeRestarts {
        node: usize,
    },
    NodeRestartsEmpty {
        node: usize,
    },
    NodeRestartsFromOldCopy {
        node: usize,
        claim: Claim,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    Lost,
    /// To the request of the round with this many ticks left.
    AtOnce(u8),
    Late(u8),
}

impl<const CLIENTS: usize> Exclusion<CLIENTS> {
    pub fn longest(&self) -> u8 {
        self.settings.iter().map(|settings| settings.quarantine).max().expect("a client")
    }

    fn are_alike(&self) -> bool {
        self.settings.iter().all(|settings| *settings == self.settings[0])
    }

    fn answers(&self, state: &State<CLIENTS>, claim: Claim) -> Vec<Answer> {
        let asking = state.clients[claim.client as usize];
        let is_current = claim.attempt == asking.attempt && asking.phase != Phase::Idle;
        let mut answers = vec![];
        if is_current {
            answers.extend(rounds(asking.rounds).map(Answer::AtOnce));
            if asking.phase == Phase::Asking && !self.rules.deadline {
                answers.push(Answer::AtOnce(self.settings[claim.client as usize].ttl));
            }
        }
        if self.leftovers != Leftovers::None {
            answers.push(Answer::Lost);
        }
        answers
    }

    fn request_actions(&self, state: &State<CLIENTS>, client: usize, attempt: u8, actions: &mut Vec<Action>) {
        let asking = state.clients[client];
        let claim = Claim { client: client as u8, attempt };
        let current = attempt == asking.attempt;
        let answers = self.answers(state, claim);
        for node in 0..NODES {
            for &answer in &answers {
                actions.push(Action::NodeAcquires { node, claim, answer });
                if self.renewals {
                    actions.push(Action::NodeExtends { node, claim, answer });
                }
                if let (Answer::AtOnce(round), true) = (answer, self.late_answers) {
                    actions.push(Action::NodeExtends { node, claim, answer: Answer::Late(round) });
                }
            }
            if self.leftovers != Leftovers::None && (!current || asking.phase == Phase::Idle) {
                actions.push(Action::NodeReleases { node, claim });
            }
            let talk = state.nodes[node].talk[client];
            if current {
                actions.extend(rounds(talk.late).map(|round| Action::LateYes { node, client, round }));
            }
            if talk.heal_sent & bit(attempt) != 0 || self.healing == Healing::AtWill {
                actions.push(Action::NodeHeals { node, claim });
            }
        }
    }

    fn restart_actions(&self, state: &State<CLIENTS>, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.push(Action::NodeRestartsEmpty { node });
            if self.leftovers == Leftovers::None && self.are_alike() {
                continue; // A renewal finds its claim as if the server had kept it.
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
}

impl<const CLIENTS: usize> Model for Exclusion<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let (nodes, clients) = ([Node::new(self.longest()); NODES], [Client::default(); CLIENTS]);
        vec![State { nodes, clients, restarts_left: self.restarts }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        actions.push(Action::Tick);
        for (client, doing) in state.clients.iter().enumerate() {
            match doing.phase {
                Phase::Idle if doing.attempt < self.attempts => actions.push(Action::ClientStarts { client }),
                Phase::Idle => {}
                Phase::Asking | Phase::Holding => {
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
                asking.rounds = bit(self.settings[client].ttl);
            }
            Action::ClientGivesBack { client } => self.stop(&mut state, client),
            Action::ClientRenews { client } => {
                state.clients[client].rounds |= bit(self.settings[client].ttl);
            }
            Action::NodeAcquires { node, claim, answer } => self.acquire(&mut state, node, claim, answer),
            Action::NodeReleases { node, claim } => self.release(&mut state, node, claim),
            Action::NodeExtends { node, claim, answer } => self.extend(&mut state, node, claim, answer),
            Action::LateYes { node, client, round } => self.late_yes(&mut state, node, client, round),
            Action::NodeHeals { node, claim } => self.heal(&mut state, node, claim),
            Action::NodeRestarts { node } => self.restart(&mut state, node),
            Action::NodeRestartsEmpty { node } => {
                self.forget(&mut state, node);
                self.restart(&mut state, node);
            }
            Action::NodeRestartsFromOldCopy { node, claim } => {
                self.forget(&mut state, node);
                state.nodes[node].entries[claim.client as usize] = self.entry(claim);
                self.restart(&mut state, node);
            }
        }
        if self.old_copies == OldCopies::LosingTheLastChange {
            state.remember_what_was_before(before);
        }
        if self.leftovers == Leftovers::None {
            state.drop_what_nobody_counts_on();
        }
        if state == *before {
            return None;
        }
        Some(if self.symmetry { state.representative(self.writers, self.are_alike()) } else { state })
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
                    let healed = |talk: &Talk| talk.heal_sent != 0 && talk.yes_left > 0 && talk.lost_it == 0;
                    node.talk.iter().any(healed)
                })
            }));
        }
        properties
    }
}
