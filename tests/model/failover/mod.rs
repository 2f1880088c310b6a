//! One master and one replica, as Sentinel or a cluster keep them: who holds the lock when the replica takes the
//! master's place, once or as often as one likes.
//!
//! Time is a clock of whole ticks, kept as "ticks left". Replication is asynchronous: the replica has what the master had
//! at some moment, for as long as the network likes. A server that was demoted keeps what it has until it is
//! synchronized, and may be promoted again before that.
//!
//! A marker is the server's own or not; whose else it might be does not matter. It is data like any other, and is
//! replicated. Requests are executed at once, and their answers arrive at once or never: a client that hears of a grant
//! later only holds for less time.

mod tests;

use stateright::{Model, Property};

use crate::rules::Rules;

const SERVERS: usize = 2;
const CLIENTS: usize = 2;

pub const EXCLUSION: &str = "no two clients hold";
pub const GRANTED: &str = "a promoted server grants";
pub const GOES_ON: &str = "a holder is renewed by a promoted server";

/// In ticks.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    pub rules: Rules,
    pub ttl: u8,
    pub quarantine: u8,
    /// For how long a master goes on granting after the other one has been promoted: until it hears of it, or finds that
    /// it has no replica any more (min-replicas-to-write). 0 = not at all; 1 = until the next tick.
    pub serves_on: u8,
    /// Servers are restarted, with their data or without.
    pub restarts: bool,
    /// A holder renews while it has at least so many ticks left, or stops.
    pub renews_by: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    /// Whose claim, and how long it lives.
    claim: Option<(u8, u8)>,
    marker: Option<Marker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Marker {
    /// The server that would take it for its own.
    of: Option<u8>,
    /// For how long it has been there, up to the quarantine.
    age: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    servers: [Data; SERVERS],
    master: u8,
    /// The other one still grants for so many ticks.
    serves_on: u8,
    /// Ticks for which each client holds the lock.
    holds: [u8; CLIENTS],
    /// For the properties that are about a promoted server.
    was_promoted: bool,
    holder_was_renewed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    Replicate,
    Promote,
    Restart {
        server: usize,
        keeps_data: bool,
    },
    Acquire {
        server: usize,
        client: usize,
        answered: bool,
    },
    Extend {
        server: usize,
        client: usize,
    },
    Release {
        server: usize,
        client: usize,
    },
    /// The client's command has ended, and its release does not arrive.
    End {
        client: usize,
    },
}

impl Failover {
    /// The server is another one than before, as far as its marker tells.
    fn forget_markers(state: &mut State, server: usize) {
        for data in &mut state.servers {
            if let Some(marker) = &mut data.marker
                && marker.of == Some(server as u8)
            {
                marker.of = None;
            }
        }
    }

    fn is_quarantined(&self, data: &mut Data, server: usize) -> bool {
        if !self.rules.quarantine {
            return false;
        }
        let own = data.marker.filter(|marker| marker.of == Some(server as u8));
        let marker = own.unwrap_or(Marker { of: Some(server as u8), age: 0 });
        data.marker = Some(marker);
        marker.age < self.quarantine
    }

    fn acquire(&self, state: &mut State, server: usize, client: usize, answered: bool) {
        let data = &mut state.servers[server];
        let is_free = data.claim.is_none_or(|(other, _)| other == client as u8);
        if !self.is_quarantined(data, server) && is_free {
            data.claim = Some((client as u8, self.ttl));
            if answered {
                state.holds[client] = self.ttl;
            }
        }
    }

    fn extend(&self, state: &mut State, server: usize, client: usize) {
        match &mut state.servers[server].claim {
            Some((other, left)) if *other == client as u8 => {
                *left = self.ttl;
                state.holds[client] = self.ttl;
                state.holder_was_renewed |= state.was_promoted;
            }
            // It is told that the lock is lost, and stops.
            _ => state.holds[client] = 0,
        }
    }

    fn tick(&self, state: &mut State) {
        for data in &mut state.servers {
            data.claim = data.claim.and_then(|(client, left)| (left > 1).then_some((client, left - 1)));
            if let Some(marker) = &mut data.marker {
                marker.age = (marker.age + 1).min(self.quarantine);
            }
        }
        state.holds = state.holds.map(|left| left.saturating_sub(1));
        if state.serves_on < u8::MAX {
            state.serves_on = state.serves_on.saturating_sub(1);
        }
    }
}

impl Model for Failover {
    type State = State;
    type Action = Action;

    /// The first master has been known for long.
    fn init_states(&self) -> Vec<State> {
        let marker = Some(Marker { of: Some(0), age: self.quarantine });
        let servers = [Data { claim: None, marker }, Data::default()];
        vec![State { servers, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::Promote]);
        // A master that serves on knows nothing of the other one.
        if state.serves_on == 0 {
            actions.push(Action::Replicate);
        }
        for server in 0..SERVERS {
            if self.restarts {
                actions.extend([true, false].map(|keeps_data| Action::Restart { server, keeps_data }));
            }
            if server != state.master as usize && state.serves_on == 0 {
                continue;
            }
            for client in 0..CLIENTS {
                if state.holds[client] == 0 {
                    actions.extend([true, false].map(|answered| Action::Acquire {
                        server,
                        client,
                        answered,
                    }));
                } else {
                    actions.push(Action::Release { server, client });
                    if state.holds[client] >= self.renews_by {
                        actions.push(Action::Extend { server, client });
                    }
                }
            }
        }
        actions.extend((0..CLIENTS).map(|client| Action::End { client }));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        let master = before.master as usize;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Replicate => state.servers[1 - master] = state.servers[master],
            Action::Promote => {
                (state.master, state.was_promoted, state.serves_on) =
                    (1 - before.master, true, self.serves_on);
                if self.rules.marker_names_reign {
                    Self::forget_markers(&mut state, 1 - master);
                }
            }
            Action::Restart { server, keeps_data } => {
                Self::forget_markers(&mut state, server);
                if !keeps_data {
                    state.servers[server] = Data::default();
                }
            }
            Action::Acquire { server, client, answered } => {
                self.acquire(&mut state, server, client, answered)
            }
            Action::Extend { server, client } => self.extend(&mut state, server, client),
            Action::Release { server, client } => {
                let claim = &mut state.servers[server].claim;
                *claim = claim.filter(|(other, _)| *other != client as u8);
                state.holds[client] = 0;
            }
            Action::End { client } => state.holds[client] = 0,
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                state.holds.iter().filter(|&&left| left > 0).count() <= 1
            }),
            Property::sometimes(GRANTED, |_, state: &State| {
                state.was_promoted && !state.holder_was_renewed && state.holds.iter().any(|&left| left > 0)
            }),
            Property::sometimes(GOES_ON, |_, state: &State| state.holder_was_renewed),
        ]
    }
}
