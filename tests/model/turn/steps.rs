//! The steps of servers and clients in `turn`.

use super::Turn;
use super::state::{Client, Link, Phase, Set, State, has, members, only};

/// The client that blocks another one, as in the refusal.
#[derive(Clone, Copy)]
struct Blocker {
    client: usize,
    holds: bool,
}

enum Reply {
    Granted,
    Refused(Blocker),
}

impl<const SERVERS: usize, const CLIENTS: usize> Turn<SERVERS, CLIENTS> {
    pub fn all_clients(&self) -> Set {
        only(CLIENTS) - 1
    }

    pub fn come(&self, state: &mut State<SERVERS, CLIENTS>, client: usize, asks_all: bool) {
        let reach = self.reach[client];
        let gate = self.gates[client];
        let (phase, unanswered) = if asks_all { (Phase::Newcomer, reach) } else { (Phase::Queued, 0) };
        let was_served = state.clients[client].was_served;
        state.clients[client] = Client { phase, gate, unanswered, was_served, ..Client::default() };
    }

    /// Releases everything, behind the requests that are in flight.
    pub fn leave(&self, state: &mut State<SERVERS, CLIENTS>, client: usize) {
        let leaving = state.clients[client];
        for server in members(self.reach[client]) {
            let registers = !has(leaving.unanswered, server);
            let asked = match leaving.phase {
                Phase::Queued => server == leaving.gate as usize,
                Phase::Newcomer => has(leaving.unanswered, server),
                _ => true,
            };
            self.let_go(state, client, server, asked, registers || server == leaving.gate as usize);
        }
        let left = &mut state.clients[client];
        *left = Client { phase: Phase::Leaving, votes: 0, unanswered: 0, overtaken: 0, ..leaving };
    }

    fn let_go(
        &self,
        state: &mut State<SERVERS, CLIENTS>,
        client: usize,
        server: usize,
        asked: bool,
        registers: bool,
    ) {
        let voted = has(state.clients[client].votes, server);
        let known = &mut state.servers[server].known[client];
        if known.link != Link::Clear {
            return; // A release is in flight already, and nothing was sent behind it.
        }
        if voted {
            known.link = Link::Release;
        } else if asked {
            known.link = Link::RequestAndRelease { registers };
        }
    }

    /// The holder, if there is one, otherwise the first waiter ahead of the client.
    fn blocker(&self, state: &State<SERVERS, CLIENTS>, server: usize, client: usize) -> Option<Blocker> {
        let asked = &state.servers[server];
        let oldest_of = |set: Set| {
            let conflicting = members(set).filter(|&other| self.conflict(client, other));
            conflicting.min_by_key(|&other| state.clients[other].stamp)
        };
        let holder = oldest_of(asked.held).map(|client| Blocker { client, holds: true });
        let waiter = oldest_of(asked.queue).filter(|&other| state.is_older(other, client));
        holder.or(waiter.map(|client| Blocker { client, holds: false }))
    }

    /// `is_our_turn` in lua/acquire.lua: the lock is free, and no older waiter's request conflicts.
    /// A refused client is registered with its stamp.
    fn vote(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize, stamp: u8) -> Reply {
        if state.clients[client].stamp == 0 {
            state.give_stamp(client, stamp, server);
        }
        let blocker = self.blocker(state, server, client);
        let gate = state.clients[client].gate;
        let asked = &mut state.servers[server];
        asked.known[client].gate = gate;
        asked.known[client].has_stamp = true;
        match blocker {
            Some(blocker) => {
                asked.queue |= only(client);
                Reply::Refused(blocker)
            }
            None => {
                asked.queue &= !only(client);
                asked.held |= only(client);
                Reply::Granted
            }
        }
    }

    /// Granted only if no client waits; never registered. The stamp was unknown when it was sent.
    fn newcomers_vote(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize) -> bool {
        let gate = state.clients[client].gate;
        let asked = &mut state.servers[server];
        let free = members(asked.held).all(|other| !self.conflict(client, other));
        if !free || asked.queue & !only(client) != 0 {
            return false;
        }
        asked.held |= only(client);
        asked.known[client].gate = gate;
        asked.known[client].has_stamp = false;
        true
    }

    pub fn late(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize, stamp: u8) {
        if has(self.quarantined, server) {
            // A quarantined server neither grants nor queues.
        } else if state.servers[server].known[client].link == (Link::RequestAndRelease { registers: true }) {
            self.vote(state, server, client, stamp);
        } else {
            self.newcomers_vote(state, server, client);
        }
        state.servers[server].known[client].link = Link::Release;
    }

    pub fn reply(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize, stamp: u8) {
        let asking = state.clients[client];
        let is_gate = server == asking.gate as usize;
        if has(self.quarantined, server) {
            return self.is_quarantined(state, server, client, stamp);
        }
        if has(asking.unanswered, server) && !is_gate {
            let granted = self.newcomers_vote(state, server, client);
            let newcomer = &mut state.clients[client];
            newcomer.unanswered &= !only(server);
            if granted {
                newcomer.votes |= only(server);
            }
            return self.hold_if_enough(state, client);
        }
        let has_waited = has(state.servers[server].queue, client);
        let reply = self.vote(state, server, client, stamp);
        state.clients[client].unanswered &= !only(server);
        match (reply, asking.phase) {
            (Reply::Granted, _) => {
                let voted = &mut state.clients[client];
                voted.votes |= only(server);
                if voted.phase != Phase::Holding {
                    voted.phase = Phase::Voting;
                }
                self.hold_if_enough(state, client);
            }
            (Reply::Refused(blocker), Phase::Voting) => {
                self.refused(state, server, client, blocker, has_waited);
            }
            (Reply::Refused(_), Phase::Holding) => {}
            (Reply::Refused(blocker), _) => self.queued(state, server, client, blocker),
        }
    }

    /// The server grants nothing. If it was the gate, the next server becomes the gate; if that one
    /// has voted already, its vote is now the gate's.
    fn is_quarantined(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize, stamp: u8) {
        let asking = &mut state.clients[client];
        asking.unanswered &= !only(server);
        let is_newcomer = asking.phase == Phase::Newcomer;
        if server != asking.gate as usize || !is_newcomer && asking.phase != Phase::Queued {
            return;
        }
        if !self.rules.quarantined_queue_nobody {
            state.servers[server].queue |= only(client);
            let itself = Blocker { client, holds: false };
            return self.queued(state, server, client, itself);
        }
        let usable = self.reach[client] & !self.quarantined;
        asking.gate = usable.trailing_zeros() as u8;
        if has(asking.votes, asking.gate as usize) {
            asking.phase = Phase::Voting;
            let gate = asking.gate as usize;
            state.give_stamp(client, stamp, gate);
            self.hold_if_enough(state, client);
        } else if is_newcomer && !has(asking.unanswered, asking.gate as usize) {
            // Refused there without being registered: it sends another request, as to a gate.
            asking.unanswered |= only(asking.gate as usize);
        }
    }

    /// Renews a vote that the client keeps while it waits for others.
    pub fn renew(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize) {
        let gate = state.clients[client].gate as usize;
        if has(state.servers[server].held, client) {
            let known = &mut state.servers[server].known[client];
            if self.rules.renewals_tell_the_stamp {
                known.has_stamp = true;
                known.gate = gate as u8;
            }
        } else if server == gate && self.rules.lost_gate_steps_back {
            self.step_back(state, client, gate);
        } else {
            state.clients[client].votes &= !only(server);
        }
    }

    fn hold_if_enough(&self, state: &mut State<SERVERS, CLIENTS>, client: usize) {
        if state.clients[client].phase != Phase::Voting || !state.has_majority(client) {
            return;
        }
        for other in (0..CLIENTS).filter(|&other| self.conflict(client, other)) {
            if state.waits(other) && state.is_older(other, client) {
                state.inverted |= self.overtaken_at_most.is_none();
                if state.is_known_to_a_majority(other) {
                    let most = self.overtaken_at_most.unwrap_or(0);
                    let overtaken = &mut state.clients[other].overtaken;
                    *overtaken = (*overtaken + 1).min(most + 1);
                }
            }
        }
        let granted = &mut state.clients[client];
        granted.phase = Phase::Holding;
        granted.was_served = true;
        granted.overtaken = 0;
    }

    /// Another server has refused a client that has the gate's vote. If it must yield, it first
    /// waits at that server (for 200 ms at most), where the refusal has registered it, and yields
    /// when it is refused again.
    fn refused(
        &self,
        state: &mut State<SERVERS, CLIENTS>,
        server: usize,
        client: usize,
        blocker: Blocker,
        has_waited: bool,
    ) {
        let about = state.servers[server].known[blocker.client];
        let gate = state.clients[client].gate;
        if !self.rules.keeps_its_turn {
            return self.step_back(state, client, gate as usize);
        }
        let is_older = about.has_stamp && state.is_older(blocker.client, client);
        if self.rules.younger_yields && about.gate != gate && is_older && has_waited {
            let there = about.gate as usize;
            let target = if has(self.reach[client], there) { there } else { server };
            self.step_back(state, client, target);
        }
    }

    /// Releases all votes and queues at the target with the client's stamp.
    fn step_back(&self, state: &mut State<SERVERS, CLIENTS>, client: usize, target: usize) {
        let unanswered = state.clients[client].unanswered;
        for server in members(self.reach[client]) {
            let asked = server != target;
            self.let_go(state, client, server, asked, !has(unanswered, server));
        }
        let back = &mut state.clients[client];
        *back = Client { phase: Phase::Queued, gate: target as u8, votes: 0, unanswered: 0, ..*back };
    }

    /// The gate has queued the client: a newcomer's other votes block the client that has the
    /// gate's.
    fn queued(&self, state: &mut State<SERVERS, CLIENTS>, server: usize, client: usize, blocker: Blocker) {
        let newcomer = state.clients[client];
        if newcomer.phase == Phase::Newcomer && self.rules.strays_are_released {
            for other in members(self.reach[client] & !only(server)) {
                self.let_go(state, client, other, has(newcomer.unanswered, other), false);
            }
        }
        let queued = &mut state.clients[client];
        queued.phase = Phase::Queued;
        queued.unanswered = 0;
        if self.rules.strays_are_released && !self.rules.released_do_not_count {
            // The client continues to count them.
        } else if self.rules.strays_are_released {
            queued.votes = 0;
        }
        let about = state.servers[server].known[blocker.client];
        let elsewhere = about.gate as usize != server && has(self.reach[client], about.gate as usize);
        let may_be_stray = !about.has_stamp && self.rules.strays_are_not_followed;
        if self.rules.follows_the_holder && blocker.holds && elsewhere && !may_be_stray {
            state.servers[server].known[client].link = Link::Release;
            state.clients[client].gate = about.gate;
        }
    }
}
