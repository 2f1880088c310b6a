//! A slot of a cluster that moves between two masters, with or without its keys, and the shard
//! markers because of which its first lock need not wait.
//!
//! Time is a clock of whole ticks, stored as "ticks left" or as an age. Requests are executed at
//! once. Both masters have other slots, too; a request there only writes the shard marker. An old
//! copy of the data may lack anything. Replaced masters that still grant are in `failover`.

mod tests;

use stateright::{Model, Property};

use crate::rules::Rules;

const MASTERS: usize = 2;
const CLIENTS: usize = 2;

pub const EXCLUSION: &str = "no two clients hold";
pub const AT_ONCE: &str = "the first lock of a slot is granted at once";

/// The settings; times are in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    pub rules: Rules,
    pub ttl: u8,
    pub quarantine: u8,
    /// A slot may return with the marker that it left with: no client has used it in between.
    pub returns_unused: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Master {
    /// The client of the slot's claim, and the ticks until it expires.
    claim: Option<(u8, u8)>,
    /// The slot's marker.
    marker: Option<Marker>,
    shard_marker: Option<ShardMarker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Marker {
    /// The master that considers the marker its own.
    of: Option<u8>,
    /// How long the master has kept its data, up to the quarantine.
    age: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ShardMarker {
    /// The marker still describes the master's reign.
    is_of_this_reign: bool,
    is_of_this_epoch: bool,
    had_the_slot: bool,
    age: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    masters: [Master; MASTERS],
    owner: u8,
    /// Ticks for which each client holds the lock.
    holds: [u8; CLIENTS],
    granted_at_once: bool,
}

/// The data of a master after a restart, or of the replica that replaces it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeps {
    All,
    Markers,
    ShardMarker,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    /// The slot gets another owner, with the keys, or without them if the old owner is lost.
    Move {
        with_keys: bool,
    },
    Restart {
        master: usize,
        keeps: Keeps,
    },
    Flush {
        master: usize,
    },
    /// An operator deletes the slot's marker.
    DeleteMarker,
    /// A request for a key in another slot.
    UseOther {
        master: usize,
    },
    Acquire {
        client: usize,
        answered: bool,
    },
    Extend {
        client: usize,
    },
    Release {
        client: usize,
    },
    /// The client's command has ended, and its release does not arrive.
    End {
        client: usize,
    },
}

impl Shard {
    /// As in lua/include/marker.lua: the age of the shard marker, which is replaced if it does not
    /// describe the present.
    fn shard_known_for(&self, master: &mut Master, has_the_slot: bool) -> u8 {
        let rules = self.rules;
        let known = master.shard_marker.filter(|marker| {
            (marker.is_of_this_reign || !rules.shard_marker_names_reign)
                && (marker.is_of_this_epoch || !rules.shard_marker_names_epoch)
                && (marker.had_the_slot == has_the_slot || !rules.shard_marker_names_slots)
        });
        let marker = known.unwrap_or(ShardMarker {
            is_of_this_reign: true,
            is_of_this_epoch: true,
            had_the_slot: has_the_slot,
            age: 0,
        });
        master.shard_marker = Some(marker);
        marker.age
    }

    fn acquire(&self, state: &mut State, client: usize, answered: bool) {
        let owner = state.owner;
        let master = &mut state.masters[owner as usize];
        let own = master.marker.filter(|marker| marker.of == Some(owner));
        let is_first = own.is_none();
        let age = own.map_or_else(|| self.shard_known_for(master, true), |marker| marker.age);
        master.marker = Some(Marker { of: Some(owner), age });
        let is_free = master.claim.is_none_or(|(other, _)| other == client as u8);
        if age >= self.quarantine && is_free {
            master.claim = Some((client as u8, self.ttl));
            state.granted_at_once |= is_first;
            if answered {
                state.holds[client] = self.ttl;
            }
        }
    }

    fn extend(&self, state: &mut State, client: usize) {
        match &mut state.masters[state.owner as usize].claim {
            Some((other, left)) if *other == client as u8 => {
                *left = self.ttl;
                state.holds[client] = self.ttl;
            }
            // The holder learns that the lock is lost, and stops.
            _ => state.holds[client] = 0,
        }
    }

    fn tick(&self, state: &mut State) {
        for master in &mut state.masters {
            master.claim = master.claim.and_then(|(client, left)| (left > 1).then_some((client, left - 1)));
            let ages = [
                master.marker.as_mut().map(|marker| &mut marker.age),
                master.shard_marker.as_mut().map(|marker| &mut marker.age),
            ];
            ages.into_iter().flatten().for_each(|age| *age = (*age + 1).min(self.quarantine));
        }
        state.holds = state.holds.map(|left| left.saturating_sub(1));
    }

    /// The new owner has no old keys of the slot: it deleted them when it lost the slot.
    fn move_slot(state: &mut State, with_keys: bool) {
        let (from, to) = (state.owner as usize, 1 - state.owner as usize);
        let Master { claim, marker, .. } = state.masters[from];
        (state.masters[from].claim, state.masters[from].marker) = (None, None);
        let (claim, marker) = if with_keys { (claim, marker) } else { (None, None) };
        (state.masters[to].claim, state.masters[to].marker) = (claim, marker);
        if let Some(marker) = &mut state.masters[to].shard_marker {
            marker.is_of_this_epoch = false;
        }
        state.owner = to as u8;
    }

    fn restart(state: &mut State, at: usize, keeps: Keeps) {
        for master in &mut state.masters {
            if let Some(marker) = &mut master.marker
                && marker.of == Some(at as u8)
            {
                marker.of = None;
            }
        }
        let master = &mut state.masters[at];
        if let Some(marker) = &mut master.shard_marker {
            marker.is_of_this_reign = false;
        }
        let Master { marker, shard_marker, .. } = *master;
        *master = match keeps {
            Keeps::All => *master,
            Keeps::Markers => Master { claim: None, marker, shard_marker },
            Keeps::ShardMarker => Master { shard_marker, ..Master::default() },
            Keeps::Nothing => Master::default(),
        };
    }
}

impl Model for Shard {
    type State = State;
    type Action = Action;

    /// The first master has kept its data for long and has the slot, in which no lock was taken
    /// yet.
    fn init_states(&self) -> Vec<State> {
        let mut state = State::default();
        self.shard_known_for(&mut state.masters[0], true);
        (0..self.quarantine).for_each(|_| self.tick(&mut state));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::DeleteMarker]);
        actions.push(Action::Move { with_keys: false });
        let marker = state.masters[state.owner as usize].marker;
        if self.returns_unused || marker.and_then(|marker| marker.of) != Some(1 - state.owner) {
            actions.push(Action::Move { with_keys: true });
        }
        for master in 0..MASTERS {
            actions.extend([Action::Flush { master }, Action::UseOther { master }]);
            let kept = [Keeps::All, Keeps::Markers, Keeps::ShardMarker, Keeps::Nothing];
            actions.extend(kept.map(|keeps| Action::Restart { master, keeps }));
        }
        for client in 0..CLIENTS {
            if state.holds[client] == 0 {
                actions.extend([true, false].map(|answered| Action::Acquire { client, answered }));
            } else {
                actions.extend([
                    Action::Extend { client },
                    Action::Release { client },
                    Action::End { client },
                ]);
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        let owner = before.owner as usize;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Move { with_keys } => Self::move_slot(&mut state, with_keys),
            Action::Restart { master, keeps } => Self::restart(&mut state, master, keeps),
            Action::Flush { master } => state.masters[master] = Master::default(),
            Action::DeleteMarker => state.masters[owner].marker = None,
            Action::UseOther { master } => {
                self.shard_known_for(&mut state.masters[master], master == owner);
            }
            Action::Acquire { client, answered } => self.acquire(&mut state, client, answered),
            Action::Extend { client } => self.extend(&mut state, client),
            Action::Release { client } => {
                let claim = &mut state.masters[owner].claim;
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
            Property::sometimes(AT_ONCE, |_, state: &State| state.granted_at_once),
        ]
    }
}
