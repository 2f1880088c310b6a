//! The steps of time, servers and clients in `exclusion`.

use super::state::{Claim, Entry, Phase, State, bit, later};
use super::{ANY_NUMBER, Answer, Exclusion, Healing, Leftovers};
use crate::MAJORITY;

impl<const CLIENTS: usize> Exclusion<CLIENTS> {
    /// The attempt number in the claim.
    fn number(&self, attempt: u8) -> u8 {
        if self.rules.attempt_numbers { attempt } else { 1 }
    }

    pub fn entry(&self, claim: Claim) -> Entry {
        Entry { attempt: self.number(claim.attempt), left: self.settings[claim.client as usize].ttl }
    }

    pub fn tick(&self, state: &mut State<CLIENTS>) {
        for node in &mut state.nodes {
            node.known_for = (node.known_for + 1).min(self.longest());
            for (client, entry) in node.entries.iter_mut().enumerate() {
                entry.left = entry.left.saturating_sub(1);
                let may_be_renewed = client >= self.writers && !self.rules.expired_is_expired;
                if !entry.lives() && !may_be_renewed {
                    *entry = Entry::NONE;
                }
            }
            for (talk, client) in node.talk.iter_mut().zip(&state.clients) {
                let counts_for_ever = client.phase == Phase::Asking && !self.rules.deadline;
                talk.yes_left = talk.yes_left.saturating_sub(if counts_for_ever { 0 } else { 1 });
                talk.lost_it = talk.lost_it.saturating_sub(1);
                talk.late = later(talk.late);
                if talk.yes_left == 0 {
                    talk.known_for = 0;
                }
            }
        }
        for client in 0..CLIENTS {
            state.clients[client].rounds = later(state.clients[client].rounds);
            if state.holds(client) && state.lease(client) == 0 {
                self.stop(state, client);
            }
        }
    }

    pub fn stop(&self, state: &mut State<CLIENTS>, client: usize) {
        state.stop(client);
        let last = state.clients[client].attempt == self.attempts;
        if last && self.leftovers != Leftovers::All {
            state.forget(client);
        }
    }

    /// The required age of a server's marker for its votes to count, as far as the server or the
    /// client knows.
    fn quarantine(&self, state: &State<CLIENTS>, node: usize, client: usize) -> u8 {
        let own = self.settings[client].quarantine;
        match (self.rules.quarantine, self.rules.longest_counts) {
            (false, _) => 0,
            (true, false) => own,
            (true, true) => own.max(state.nodes[node].longest).max(state.clients[client].heard),
        }
    }

    /// Each request raises the marker's longest quarantine, and each reply reports it.
    fn tell_the_longest(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, answer: Answer) {
        let client = claim.client as usize;
        let asked = &mut state.nodes[node];
        asked.longest = asked.longest.max(self.settings[client].quarantine);
        if answer != Answer::Lost && !self.are_alike() {
            let heard = &mut state.clients[client].heard;
            *heard = asked.longest.max(*heard);
        }
    }

    /// Counts a vote of this round. A late vote counts until the deadline of its own round.
    fn count(&self, state: &mut State<CLIENTS>, node: usize, client: usize, round: u8, known_for: u8) {
        let talk = &mut state.nodes[node].talk[client];
        talk.yes_left = talk.yes_left.max(round);
        talk.known_for = if self.are_alike() { 0 } else { known_for };
        if state.clients[client].phase == Phase::Asking {
            self.hold_if_enough(state, client);
        } else {
            self.send_heals(state, client);
        }
    }

    /// The longest quarantine that any server reported applies to all votes of the attempt.
    fn hold_if_enough(&self, state: &mut State<CLIENTS>, client: usize) {
        let heard = state.clients[client].heard;
        if self.a_client_knows && heard < self.longest() {
            return;
        }
        let heard = if self.rules.longest_counts { heard } else { 0 };
        let counts = |talk: &super::Talk| talk.yes_left > 0 && (self.are_alike() || talk.known_for >= heard);
        if state.nodes.iter().filter(|node| counts(&node.talk[client])).count() < MAJORITY {
            return;
        }
        state.clients[client].phase = Phase::Holding;
        for talk in state.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            if !counts(talk) {
                talk.yes_left = 0;
            } else if !self.rules.deadline {
                talk.yes_left = self.settings[client].ttl;
            }
            talk.known_for = 0;
        }
    }

    pub fn acquire(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, answer: Answer) {
        let client = claim.client as usize;
        self.tell_the_longest(state, node, claim, answer);
        let quarantine = self.quarantine(state, node, client);
        let asked = &mut state.nodes[node];
        let entry = &asked.entries[client];
        if asked.known_for < quarantine && (self.rules.rest_comes_first || !entry.lives()) {
            return;
        }
        if !asked.is_free_for(client, self.writers) || entry.attempt > self.number(claim.attempt) {
            return;
        }
        asked.entries[client] = self.entry(claim);
        let known_for = asked.known_for;
        match answer {
            Answer::AtOnce(round) => self.count(state, node, client, round, known_for),
            Answer::Late(_) | Answer::Lost => {}
        }
    }

    pub fn release(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let client = claim.client as usize;
        let entries = &mut state.nodes[node].entries;
        if entries[client].lives() && entries[client].attempt <= self.number(claim.attempt) {
            entries[client] = Entry::NONE;
        } else if client >= self.writers && !self.rules.own_entries {
            // A release subtracts one from a counter, at the expense of another client.
            let another = entries[self.writers..].iter_mut().find(|entry| entry.lives());
            another.into_iter().for_each(|entry| *entry = Entry::NONE);
        }
    }

    pub fn extend(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim, answer: Answer) {
        let client = claim.client as usize;
        self.tell_the_longest(state, node, claim, answer);
        let quarantine = self.quarantine(state, node, client);
        let asked = &mut state.nodes[node];
        let free = asked.is_free_for(client, self.writers);
        if free && self.leftovers == Leftovers::None {
            asked.entries[client] = self.entry(claim);
        }
        let talk = &mut asked.talk[client];
        if asked.entries[client].attempt == self.number(claim.attempt) {
            asked.entries[client] = self.entry(claim);
            // A quarantined server's record of our claim counts only while it cannot have voted for
            // another client.
            let rests = asked.known_for < quarantine;
            let counts = !rests || talk.yes_left > 0 || !self.rules.rest_breaks_chain;
            let known_for = if rests { talk.known_for } else { asked.known_for };
            match answer {
                Answer::AtOnce(round) if counts => self.count(state, node, client, round, known_for),
                Answer::Late(round) if counts => talk.late |= bit(round),
                _ => {}
            }
        } else if let (Answer::AtOnce(round), true) = (answer, free && self.healing == Healing::ByTheRule) {
            talk.lost_it = round;
            self.send_heals(state, client);
        }
    }

    /// A vote that arrives after others of its round, or after a later round was sent.
    pub fn late_yes(&self, state: &mut State<CLIENTS>, node: usize, client: usize, round: u8) {
        let newest = state.clients[client].rounds.checked_ilog2().map_or(round, |newest| newest as u8);
        let talk = &mut state.nodes[node].talk[client];
        talk.late &= !bit(round);
        let known_for = talk.known_for;
        let until = if self.rules.own_deadline { round } else { newest };
        self.count(state, node, client, until, known_for);
    }

    /// Sends heals at once if a majority has voted in the round in which the server reported the
    /// loss, or in a later one.
    fn send_heals(&self, state: &mut State<CLIENTS>, client: usize) {
        if !state.holds(client) {
            return;
        }
        let attempt = state.clients[client].attempt;
        let lease = state.lease(client);
        for talk in state.nodes.iter_mut().map(|node| &mut node.talk[client]) {
            if talk.lost_it > 0 && lease >= talk.lost_it {
                talk.heal_sent |= bit(attempt);
                talk.lost_it = 0;
            }
        }
    }

    pub fn heal(&self, state: &mut State<CLIENTS>, node: usize, claim: Claim) {
        let client = claim.client as usize;
        let asked = &mut state.nodes[node];
        if asked.is_free_for(client, self.writers) && !asked.entries[client].lives() {
            asked.entries[client] = self.entry(claim);
        }
    }

    pub fn forget(&self, state: &mut State<CLIENTS>, node: usize) {
        state.nodes[node].entries = [Entry::NONE; CLIENTS];
        if !self.are_alike() {
            state.nodes[node].longest = 0;
        }
    }

    pub fn restart(&self, state: &mut State<CLIENTS>, node: usize) {
        if state.restarts_left != ANY_NUMBER {
            state.restarts_left -= 1;
        }
        state.nodes[node].known_for = 0;
    }
}
