//! Requests that arrive late: after those of the next attempt, or when the claim has ended.

use super::*;
use crate::lock::BreakMode;

impl Stage {
    pub(super) fn late_requests(&mut self) {
        let policy = self.0.dice.one_of(&[
            QUEUES,
            WaitPolicy::Retry { count: 5, interval: Duration::from_millis(50), at_most: None },
        ]);
        let mut client = self.run(policy, Subject::Command(Duration::from_millis(500)), 3, 30);
        // Its lines are slow at first, and then they are not: what was sent later arrives earlier.
        let slow: Vec<ServerId> = (0..3).filter(|_| self.0.dice.percent(60)).collect();
        for &server in &slow {
            client.latencies_us[server] = 200;
        }
        let client = self.start(0, client);
        for &server in &slow {
            let (latency_us, for_us) = (self.between_ms(400, 1500), self.between_ms(1, 60));
            self.fault(300, Fault::Slow { actor: client, servers: vec![server], latency_us, for_us });
        }
        if self.0.dice.percent(40) {
            let at = self.between_ms(5, 700);
            self.fault(at, Fault::Signal { actor: client });
        }
        for _ in 0..2 {
            let (at, waiter) = (self.between_ms(0, 1500), self.run(QUEUES, Self::command(0), 5, 30));
            self.start(at, waiter);
        }
    }

    pub(super) fn released_while_extended(&mut self) {
        let token = self.run(QUEUES, Subject::Token, 5, 30);
        let token = self.start(0, token);
        self.fault(10, Fault::Cut { actor: token, servers: vec![0], how: Cut::Both, for_us: 400_000 });
        let stops = self.between_ms(1000, 2000);
        self.fault(stops, Fault::PauseServer { server: 0, for_us: 200_000 });
        let mut extend = self.client(Job::Extend { of: token, keys: vec!["a".into()] }, 30, 30);
        extend.latencies_us[0] = self.between_ms(1, 5);
        let at = stops + self.between_ms(0, 80);
        self.start(at, extend);
        let release = self.client(Job::Release { of: token, keys: vec!["a".into()] }, 5, 30);
        let at = stops + self.between_ms(20, 190);
        self.start(at, release);
    }

    pub(super) fn late_token(&mut self) {
        let stops = self.between_ms(0, 1000);
        let lasts = self.between_ms(400, 1500);
        self.fault(stops, Fault::PauseServer { server: 0, for_us: lasts });
        let token = self.run(QUEUES, Subject::Token, 5, 30);
        let token = self.start(stops + 1000, token);
        let release = self.client(Job::Release { of: token, keys: vec!["a".into()] }, 5, 30);
        let at = stops + lasts + self.between_ms(10, 1000);
        self.start(at, release);
    }

    pub(super) fn cut_gate(&mut self) {
        let holder = self.run(QUEUES, Self::command(5), 5, 30);
        self.start(0, holder);
        let waiter = self.run(QUEUES, Self::command(0), 5, 30);
        let waiter = self.start(10_000, waiter);
        let (at, servers) = (self.between_ms(100, 1900), vec![0]);
        self.fault(at, Fault::Cut { actor: waiter, servers, how: Cut::ToServer, for_us: 7_000_000 - at });
    }

    pub(super) fn former_name(&mut self) {
        self.fault(0, Fault::PauseServer { server: 1, for_us: 4_000_000 });
        let holder = self.run(QUEUES, Subject::Command(Duration::from_millis(300)), 5, 30);
        self.start(10_000, holder);
        let retry = WaitPolicy::Retry { count: 3, interval: Duration::from_millis(500), at_most: None };
        let mut client = self.run(retry, Self::command(4), 10, 30);
        client.latencies_us[0] = self.between_ms(10, 30);
        let client = self.start(100_000, client);
        // The server has the request then, and never gets the release behind it.
        let cut = self.between_ms(1, 10);
        let servers = vec![1];
        self.fault(100_000 + cut, Fault::Cut { actor: client, servers, how: Cut::Both, for_us: 1_200_000 });
    }

    pub(super) fn late_votes(&mut self) {
        let lives = self.between_ms(500, 1000);
        let command = Subject::Command(Duration::from_micros(lives));
        let holder = self.run(QUEUES, command, 5, 30);
        self.start(0, holder);
        let waiter = self.run(QUEUES, Self::command(3), 3, 30);
        let waiter = self.start(100_000, waiter);
        let lasts = self.between_ms(20, 150);
        for server in [1, 2] {
            let latency_us = self.between_ms(500, 1500);
            let servers = vec![server];
            self.fault(lives - 10_000, Fault::Slow { actor: waiter, servers, latency_us, for_us: lasts });
        }
    }

    pub(super) fn broken_vote(&mut self) {
        let mut token = self.run(QUEUES, Subject::Token, 5, 30);
        let (near, far) = (self.between_ms(1, 20), self.between_ms(60, 90));
        token.latencies_us = vec![near, far, self.0.dice.one_of(&[far, UNREACHABLE_US])];
        self.start(0, token);
        let at = 3 * near + self.between_ms(2, 30);
        let mut breaks = self.client(Job::Break { key: "a".into(), how: BreakMode::Gentle }, 5, 30);
        // A break that does not reach all servers must not free a part of the votes.
        breaks.latencies_us[2] = self.0.dice.one_of(&[100, 100, UNREACHABLE_US]);
        self.start(at, breaks);
        for _ in 0..2 {
            let (later, waiter) = (self.between_ms(1, 300), self.run(QUEUES, Self::command(3), 5, 30));
            self.start(at + later, waiter);
        }
    }
}
