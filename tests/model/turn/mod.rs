//! Whose turn it is: gates, queues and stamps, and which client yields to which.
//!
//! There is no clock, and no server fails: a vote stays until its client releases it (the client
//! renews its votes), and a client that dies is one that gives up. This model checks order and
//! progress, and exclusion only as far as it depends on which votes are counted; `exclusion` checks
//! the rest.
//!
//! - Each client uses the servers that it can reach, in the same order for all clients. The first
//!   is its gate.
//! - A request is executed at any time after it could be sent, so that it, and a release behind it,
//!   may be arbitrarily late. Its reply arrives at once: a late reply is equivalent to a late next
//!   request, since the client does nothing visible in between.
//! - A waiting client repeats its request at any time. Wake-ups are not modelled: they only
//!   determine when. The 200 ms that a client waits before it yields are the time between two
//!   refusals.
//! - Stamps are ranks. If `clocks_differ`, a server's new stamp is later than its earlier ones, but
//!   in any order with those of other servers.

pub mod state;

mod steps;
mod tests;

use stateright::{Model, Property};

use crate::rules::Rules;
use state::{Link, Phase, Set, State, has, members, only};

pub const EXCLUSION: &str = "no client holds beside a writer";
pub const ORDER: &str = "grants come in the order of arrival at the gate";
pub const OVERTAKEN: &str = "a client that a majority knows is overtaken at most this often";
pub const SERVED: &str = "a client is granted the lock after it waited";

#[derive(Clone, Copy, Debug)]
pub struct Turn<const SERVERS: usize, const CLIENTS: usize> {
    pub rules: Rules,
    /// Number of clients that request an exclusive lock; the others request a shared one.
    pub writers: usize,
    /// The servers that each client can use.
    pub reach: [Set; CLIENTS],
    /// The first gate of each client. For other clients it may be only a voter.
    pub gates: [u8; CLIENTS],
    /// These servers are quarantined, and stay so.
    pub quarantined: Set,
    pub newcomers: Newcomers,
    /// Waiters may give up.
    pub give_up: bool,
    /// These clients request the lock again and again, the others once.
    pub loops: Set,
    pub clocks_differ: bool,
    /// A waiter may lose one vote, once: it was paused for too long, or the server has restarted.
    pub a_vote_lapses: bool,
    /// How often a waiter may be overtaken; `None` where order is promised.
    pub overtaken_at_most: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Newcomers {
    AskTheGateFirst,
    AskAllAtOnce,
    /// A repeated request (`--retries`) asks the gate first.
    DoEither,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    ClientComes {
        client: usize,
        asks_all: bool,
    },
    ClientGivesUp {
        client: usize,
    },
    ClientReleases {
        client: usize,
    },
    /// Sends a voter the stamp that was unknown when it voted, or learns that the vote is lost.
    ClientRenews {
        client: usize,
        server: usize,
    },
    ServerReplies {
        server: usize,
        client: usize,
        stamp: u8,
    },
    /// Executes the request of a client that no longer wants the lock.
    ServerIsLate {
        server: usize,
        client: usize,
        stamp: u8,
    },
    ServerReleases {
        server: usize,
        client: usize,
    },
    VoteLapses {
        server: usize,
        client: usize,
    },
}

impl<const SERVERS: usize, const CLIENTS: usize> Turn<SERVERS, CLIENTS> {
    pub fn conflict(&self, one: usize, other: usize) -> bool {
        one != other && (one < self.writers || other < self.writers)
    }

    fn asks(&self, state: &State<SERVERS, CLIENTS>, client: usize, server: usize) -> bool {
        let asking = state.clients[client];
        let wants = match asking.phase {
            Phase::Newcomer => has(asking.unanswered, server),
            Phase::Queued => server == asking.gate as usize,
            Phase::Voting | Phase::Holding => !has(asking.votes, server),
            Phase::Away | Phase::Leaving => false,
        };
        let link = state.servers[server].known[client].link;
        wants && has(self.reach[client], server) && link == Link::Clear
    }

    fn may_come(&self, state: &State<SERVERS, CLIENTS>, client: usize) -> bool {
        let known = state.clients[client];
        known.phase == Phase::Away && (!known.was_served || has(self.loops, client))
    }

    /// Every client has had the lock and has left no trace.
    pub fn all_are_served(&self, state: &State<SERVERS, CLIENTS>) -> bool {
        state.clients.iter().all(|client| client.phase == Phase::Away && client.was_served)
    }
}

impl<const SERVERS: usize, const CLIENTS: usize> Model for Turn<SERVERS, CLIENTS> {
    type State = State<SERVERS, CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State::new()]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        for client in 0..CLIENTS {
            let known = state.clients[client];
            if self.may_come(state, client) {
                let ways: &[bool] = match self.newcomers {
                    Newcomers::AskTheGateFirst => &[false],
                    Newcomers::AskAllAtOnce => &[true],
                    Newcomers::DoEither => &[false, true],
                };
                actions.extend(ways.iter().map(|&asks_all| Action::ClientComes { client, asks_all }));
            }
            if self.give_up && state.waits(client) {
                actions.push(Action::ClientGivesUp { client });
            }
            if known.phase == Phase::Holding {
                actions.push(Action::ClientReleases { client });
            }
            for server in 0..SERVERS {
                // Only a client without a stamp receives one.
                let stamps = match known.stamp {
                    0 => state.next_stamps(server, self.clocks_differ),
                    stamp => stamp..=stamp,
                };
                if has(known.votes, server) && known.phase == Phase::Voting {
                    actions.push(Action::ClientRenews { client, server });
                    if self.a_vote_lapses && !state.has_lapsed {
                        actions.push(Action::VoteLapses { server, client });
                    }
                }
                if self.asks(state, client, server) {
                    actions.extend(stamps.clone().map(|stamp| Action::ServerReplies {
                        server,
                        client,
                        stamp,
                    }));
                }
                match state.servers[server].known[client].link {
                    Link::Clear => {}
                    Link::Release => actions.push(Action::ServerReleases { server, client }),
                    Link::RequestAndRelease { .. } => {
                        actions.extend(stamps.map(|stamp| Action::ServerIsLate { server, client, stamp }));
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *before;
        match action {
            Action::ClientComes { client, asks_all } => self.come(&mut state, client, asks_all),
            Action::ClientGivesUp { client } | Action::ClientReleases { client } => {
                self.leave(&mut state, client);
            }
            Action::ClientRenews { client, server } => self.renew(&mut state, server, client),
            Action::VoteLapses { server, client } => {
                state.servers[server].held &= !only(client);
                state.has_lapsed = true;
            }
            Action::ServerReplies { server, client, stamp } => self.reply(&mut state, server, client, stamp),
            Action::ServerIsLate { server, client, stamp } => self.late(&mut state, server, client, stamp),
            Action::ServerReleases { server, client } => {
                let releasing = &mut state.servers[server];
                releasing.held &= !only(client);
                releasing.queue &= !only(client);
                releasing.known[client].link = Link::Clear;
            }
        }
        state.tidy();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |model: &Self, state: &Self::State| {
                state.holders().all(|one| state.holders().all(|other| !model.conflict(one, other)))
            }),
            Property::sometimes(SERVED, |model: &Self, state: &Self::State| {
                members(model.all_clients()).all(|client| state.clients[client].was_served)
            }),
        ];
        if self.overtaken_at_most.is_some() {
            properties.push(Property::always(OVERTAKEN, |model: &Self, state: &Self::State| {
                let most = model.overtaken_at_most.expect("asked for");
                state.clients.iter().all(|client| client.overtaken <= most)
            }));
        } else {
            properties.push(Property::always(ORDER, |_, state: &Self::State| !state.inverted));
        }
        properties
    }
}
