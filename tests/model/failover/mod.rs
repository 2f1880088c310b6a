//! One master and one replica, as with Sentinel or in a cluster: who holds the lock when the
//! replica takes the master's place, any number of times.
//!
//! Time is a clock of whole ticks, stored as "ticks left". Replication is asynchronous: the replica
//! has the data of the master at some earlier moment. A demoted server keeps its data until it is
//! synchronized, and may be promoted again before that.
//!
//! A marker is the server's own or not; which other server's it is does not matter. It is
//! replicated like all data. Requests are executed at once, and their replies arrive at once or
//! never: a client that receives a grant later only holds the lock for less time.

mod tests;

use stateright::{Model, Property};

use crate::rules::Rules;

const SERVERS: usize = 2;
const CLIENTS: usize = 2;

pub const EXCLUSION: &str = "no two clients hold";
pub const GRANTED: &str = "a promoted server grants";
pub const GOES_ON: &str = "a holder is renewed by a promoted server";

/// The settings; times are in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    pub rules: Rules,
    pub ttl: u8,
    pub quarantine: u8,
    /// How long a master continues to grant after the other server has been promoted: until it
    /// learns of that, or finds that it has lost its replica (min-replicas-to-write). 0 = not at
    /// all; 1 = until the next tick.
    pub serves_on: u8,
    /// Servers are restarted, with their data or without.
    pub restarts: bool,
    /// A holder renews while it has at least this many ticks left; otherwise it stops.
    pub renews_by: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    /// The client of the claim, and the ticks until it expires.
    claim: Option<(u8, u8)>,
    marker: Option<Marker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Marker {
    /// The server that considers the marker its own.
    of: Option<u8>,
    /// The age of the marker, up to the quarantine.
    age: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    servers: [Data; SERVERS],
    master: u8,
    /// The other server still grants for this many ticks.
    serves_on: u8,
    /// Ticks for which each client holds the lock.
    holds: [u8; CLIENTS],
    /// For the properties of a promoted server.
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
    /// The server no longer considers any marker its own.
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
            // The holder learns that the lock is lost, and stops.
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

    /// The first master's marker is old.
    fn init_states(&self) -> Vec<State> {
        let marker = Some(Marker { of: Some(0), age: self.quarantine });
        let servers = [Data { claim: None, marker }, Data::default()];
        vec![State { servers, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::Promote]);
        // A demoted master that still grants does not know of the other server.
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
