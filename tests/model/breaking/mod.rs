//! `redlock break`: one holder, one client that breaks its claim, and one that waits for the lock.
//! Time is a clock of whole ticks, stored as "ticks left", as in `exclusion`.
//!
//! The claim is marked on one server after the other, while the holder renews in rounds, heals
//! servers that lost their data, and is notified or not. Once the breaking client has found marks
//! on a majority, it reports that the holder's lease is its last. A request is executed at once or
//! never; a heal that was sent, at any later time. A round of renewals is one moment: if a server
//! replies before it is marked, and another one loses its mark and replies after that, the holder
//! heals the latter and continues. Therefore the breaking client repeats its marks while it waits.
//!
//! A client that reaches too few servers gives up and removes its marks: each of these requests is
//! executed at any later time or never, and so is a mark that is still in flight. Another client
//! may break the same claim (`another`): it sets and removes marks at any time.

mod tests;

use stateright::{Model, Property};

use crate::rules::Rules;
use crate::{MAJORITY, NODES};

pub const EXCLUSION: &str = "the next client never holds beside the broken one";
pub const LAST_LEASE: &str = "a broken holder's lease is its last";
pub const HANDED_OVER: &str = "the next client holds";
pub const TAKEN_BACK: &str = "the holder continues after its marks were removed";
pub const TOLD: &str = "the holder releases the lock because it was notified";

#[derive(Clone, Copy, Debug)]
pub struct Breaking {
    pub rules: Rules,
    pub ttl: u8,
    /// Number of times that servers lose their data, in total.
    pub losses: u8,
    /// Another client breaks the claim, too.
    pub another: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum At {
    #[default]
    Free,
    Holder,
    /// The holder's claim with a mark.
    Marked,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Server {
    claim: At,
    /// Ticks until the claim expires.
    lease: u8,
    /// Ticks for which it is quarantined because it lost its data.
    rest: u8,
    /// Ticks for which the holder counts its vote.
    counts: u8,
    /// A heal is in flight.
    heal_sent: bool,
    /// The authors of the mark: the breaking client, the other client.
    ours: bool,
    others: bool,
    /// The breaking client has received the reply that the mark is set.
    marked: bool,
    /// A request to remove the mark is in flight.
    unmark_sent: bool,
}

impl Server {
    fn set(&mut self, claim: At) {
        (self.claim, self.ours, self.others) = (claim, false, false);
    }

    fn take_back(&mut self) {
        if self.claim == At::Marked && !self.ours && !self.others {
            self.claim = At::Holder;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    servers: [Server; NODES],
    /// The holder's command runs.
    runs: bool,
    was_told: bool,
    /// Ticks left of the last lease, since the breaking client knew that it was the last.
    last_lease: Option<u8>,
    /// The breaking client has ended.
    gave_up: bool,
    losses_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Tick,
    /// A round of renewals that reaches these servers, one bit for each.
    HolderRenews {
        reached: u8,
    },
    ServerHeals(usize),
    /// The holder learns of marks on a majority.
    HolderIsTold,
    /// Releases the claim of a holder whose command has ended.
    ServerReleases(usize),
    ServerMarks {
        server: usize,
        answered: bool,
    },
    /// In its second round the breaking client finds its earlier marks on a majority. A server that
    /// was marked before this round began, and still is when the request arrives, was marked when
    /// the first request of the round arrived: so this is one moment.
    MarksAreConfirmed,
    BreakIsGivenUp,
    ServerUnmarks(usize),
    ServerMarksForAnother(usize),
    ServerUnmarksForAnother(usize),
    ServerVotesForNext(usize),
    ServerLosesData(usize),
}

impl State {
    fn count(&self, what: impl Fn(&Server) -> bool) -> usize {
        self.servers.iter().filter(|server| what(server)).count()
    }

    fn holder_holds(&self) -> bool {
        self.runs && self.count(|server| server.counts > 0) >= MAJORITY
    }

    fn next_holds(&self) -> bool {
        self.count(|server| server.claim == At::Next) >= MAJORITY
    }
}

impl Breaking {
    fn tick(&self, state: &mut State) {
        for server in &mut state.servers {
            server.lease = server.lease.saturating_sub(1);
            server.rest = server.rest.saturating_sub(1);
            server.counts = server.counts.saturating_sub(1);
            if server.lease == 0 && matches!(server.claim, At::Holder | At::Marked) {
                server.set(At::Free);
            }
        }
        // The guardian stops the command in time.
        if state.runs && !state.holder_holds() {
            state.runs = false;
        }
        state.last_lease = state.last_lease.map(|left| left.saturating_sub(1));
    }

    fn renew(&self, state: &mut State, reached: u8) {
        let (mut ours, mut expired) = (0, Vec::new());
        for (at, server) in state.servers.iter_mut().enumerate().filter(|(at, _)| reached >> at & 1 == 1) {
            match server.claim {
                At::Marked if self.rules.marked_is_not_renewed => {}
                At::Holder | At::Marked => {
                    (server.lease, server.counts) = (self.ttl, self.ttl);
                    ours += 1;
                }
                At::Free => expired.push(at),
                At::Next => {}
            }
        }
        if ours >= MAJORITY {
            expired.into_iter().for_each(|at| state.servers[at].heal_sent = true);
        }
    }

    fn mark(&self, state: &mut State, at: usize, answered: bool) {
        let server = &mut state.servers[at];
        match server.claim {
            At::Holder if self.rules.freed_by_holder_or_lease => {
                (server.claim, server.ours) = (At::Marked, true)
            }
            At::Holder => server.set(At::Free),
            At::Marked => server.ours |= self.rules.marks_have_authors,
            At::Free | At::Next => return,
        }
        server.marked |= answered && !state.gave_up;
        if !self.rules.marks_are_confirmed {
            self.conclude(state, |server| server.marked);
        }
    }

    fn conclude(&self, state: &mut State, is_marked: impl Fn(&Server) -> bool) {
        if state.last_lease.is_none() && !state.gave_up && state.count(is_marked) >= MAJORITY {
            state.last_lease = Some(self.ttl);
        }
    }
}

impl Model for Breaking {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let held = Server { claim: At::Holder, lease: self.ttl, counts: self.ttl, ..Server::default() };
        let (servers, losses_left) = ([held; NODES], self.losses);
        vec![State { servers, runs: true, was_told: false, last_lease: None, gave_up: false, losses_left }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([
            Action::Tick,
            Action::HolderIsTold,
            Action::MarksAreConfirmed,
            Action::BreakIsGivenUp,
        ]);
        actions.extend((1..1 << NODES).map(|reached| Action::HolderRenews { reached }));
        for at in 0..NODES {
            actions.extend([
                Action::ServerHeals(at),
                Action::ServerReleases(at),
                Action::ServerMarks { server: at, answered: true },
                Action::ServerMarks { server: at, answered: false },
                Action::ServerUnmarks(at),
                Action::ServerVotesForNext(at),
            ]);
            if self.another {
                actions.extend([Action::ServerMarksForAnother(at), Action::ServerUnmarksForAnother(at)]);
            }
            if state.losses_left > 0 {
                actions.push(Action::ServerLosesData(at));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::HolderRenews { reached } if state.runs => self.renew(&mut state, reached),
            Action::ServerHeals(at) => {
                let server = &mut state.servers[at];
                if std::mem::take(&mut server.heal_sent) && server.claim == At::Free {
                    server.set(At::Holder);
                    server.lease = self.ttl;
                }
            }
            Action::HolderIsTold if state.count(|server| server.claim == At::Marked) >= MAJORITY => {
                state.was_told |= state.runs;
                state.runs = false;
            }
            Action::ServerReleases(at) if !state.runs => {
                let server = &mut state.servers[at];
                if matches!(server.claim, At::Holder | At::Marked) {
                    server.set(At::Free);
                }
            }
            Action::ServerMarks { server, answered } => self.mark(&mut state, server, answered),
            Action::MarksAreConfirmed if state.count(|server| server.marked) >= MAJORITY => {
                let is_any = !self.rules.marks_have_authors;
                self.conclude(&mut state, |server| server.ours || is_any && server.claim == At::Marked);
            }
            Action::BreakIsGivenUp
                if !state.gave_up && (state.last_lease.is_none() || !self.rules.told_is_not_taken_back) =>
            {
                state.gave_up = true;
                state.servers.iter_mut().for_each(|server| server.unmark_sent = true);
            }
            Action::ServerUnmarks(at) => {
                let server = &mut state.servers[at];
                if std::mem::take(&mut server.unmark_sent) && std::mem::take(&mut server.ours) {
                    server.take_back();
                }
            }
            Action::ServerMarksForAnother(at) => {
                let server = &mut state.servers[at];
                match server.claim {
                    At::Holder => (server.claim, server.others) = (At::Marked, true),
                    At::Marked => server.others |= self.rules.marks_have_authors,
                    At::Free | At::Next => {}
                }
            }
            Action::ServerUnmarksForAnother(at) => {
                let server = &mut state.servers[at];
                if std::mem::take(&mut server.others) {
                    server.take_back();
                }
            }
            Action::ServerVotesForNext(at) => {
                let server = &mut state.servers[at];
                if server.claim == At::Free && server.rest == 0 {
                    server.set(At::Next);
                }
            }
            Action::ServerLosesData(at) => {
                state.losses_left -= 1;
                let server = &mut state.servers[at];
                server.set(At::Free);
                server.rest = self.ttl;
            }
            Action::HolderRenews { .. }
            | Action::HolderIsTold
            | Action::ServerReleases(_)
            | Action::MarksAreConfirmed
            | Action::BreakIsGivenUp => return None,
        }
        // Servers differ only in their names.
        state.servers.sort_unstable();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| !(state.runs && state.next_holds())),
            Property::always(LAST_LEASE, |_, state: &State| state.last_lease != Some(0) || !state.runs),
            Property::sometimes(HANDED_OVER, |_, state: &State| state.next_holds()),
            Property::sometimes(TAKEN_BACK, |_, state: &State| {
                state.runs
                    && state.count(|server| server.marked && server.claim == At::Holder && server.counts > 0)
                        >= MAJORITY
            }),
            Property::sometimes(TOLD, |_, state: &State| state.was_told && state.next_holds()),
        ]
    }
}
