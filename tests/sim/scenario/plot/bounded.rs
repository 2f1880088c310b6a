//! Plots in which a client must have its lock within a bounded time, or must not be stopped: without
//! the rule the clients only wait for longer, which no promise about the order forbids.

use super::*;
use crate::scheduler::Clock;

impl Stage {
    fn served_by(&mut self, at_us: u64, actor: u64) {
        self.0.push(FIRST_START_US + at_us, What::Served(actor));
    }

    /// Connecting, and one round trip to all servers.
    pub(super) fn far_newcomer(&mut self) {
        let near = self.run(QUEUES, Self::command(0), 5, 30);
        self.start(0, near);
        let mut far = self.run(QUEUES, Self::command(1), 5, 30);
        far.site.wall_clock = Clock::default();
        far.latencies_us = vec![self.between_ms(20, 30); 3];
        let latest = 5 * far.latencies_us[0];
        let far = self.start(1_000_000, far);
        self.served_by(1_000_000 + latest, far);
    }

    pub(super) fn stray_votes(&mut self) {
        let mut first = self.run(QUEUES, Self::command(1), 5, 30);
        let mut second = self.run(QUEUES, Self::command(1), 5, 30);
        for server in [1, 2] {
            first.latencies_us[server] = self.between_ms(5, 30);
        }
        second.latencies_us[0] = self.between_ms(5, 30);
        let (starts, their_start) = (self.between_ms(0, 2), self.between_ms(0, 2));
        let first = self.start(starts, first);
        self.start(their_start, second);
        self.served_by(1_500_000, first);
    }

    pub(super) fn lone_gate_vote(&mut self) {
        let holder = self.run(QUEUES, Self::command(1), 5, 30);
        self.start(0, holder);
        let client = self.run(QUEUES, Self::command(1), 5, 30);
        let client = self.start(10_000, client);
        let servers = vec![1, 2];
        self.fault(500_000, Fault::Cut { actor: client, servers, how: Cut::Both, for_us: 60_000_000 });
        let (at, other) = (self.between_ms(1500, 4000), self.run(QUEUES, Self::command(1), 5, 30));
        let other = self.start(at, other);
        self.served_by(at + 2_000_000, other);
    }

    pub(super) fn restarted_gate(&mut self) {
        self.fault(0, Fault::Restart { server: 0, keeps: Keeps::All, for_us: 100_000 });
        for _ in 0..3 {
            let (at, client) = (self.between_ms(200, 3000), self.run(QUEUES, Self::command(0), 5, 30));
            let client = self.start(at, client);
            self.served_by(at + 2_000_000, client);
        }
    }

    pub(super) fn slow_voters(&mut self) {
        let holder = self.run(QUEUES, Self::command(1), 5, 30);
        self.start(0, holder);
        let (first, second) =
            (self.run(QUEUES, Self::command(0), 5, 30), self.run(QUEUES, Self::command(5), 5, 30));
        let first = self.start(10_000, first);
        self.start(100_000, second);
        for server in [1, 2] {
            let for_us = self.between_ms(290, 450);
            self.fault(990_000, Fault::PauseServer { server, for_us });
        }
        self.served_by(2_000_000, first);
    }

    /// The reply that the older holder blocks it is on its way to a distant client when a newer one is
    /// granted the lock.
    pub(super) fn newer_holder(&mut self) {
        let run = |stage: &mut Self| {
            let run = Run { cancels: true, supersedes: true, ..stage.0.plain_run(QUEUES) };
            stage.client(Job::Run(Run { subject: Self::command(2), ..run }), 5, 30)
        };
        let holder = run(self);
        self.start(0, holder);
        let mut distant = run(self);
        distant.latencies_us = vec![self.between_ms(40, 45); 3];
        // The holder listens for breaks after half a second.
        self.start(1_000_000, distant);
        let (at, newest) = (self.between_ms(1160, 1240), run(self));
        self.start(at, newest);
    }

    pub(super) fn second_bound(&mut self) {
        let first = self.run(QUEUES, Self::command(1), 40, 60);
        self.start(0, first);
        let loses = self.between_ms(2000, 10_000);
        self.majority_forgets(loses);
        for at_s in [15, 80] {
            let client = self.run(QUEUES, Self::command(1), 40, 60);
            self.start(at_s * 1_000_000, client);
        }
        let asks_at = self.between_ms(90_000, 95_000);
        self.asks_for_long_lease(asks_at);
        let client = self.run(QUEUES, Self::command(1), 5, 30);
        let client = self.start(100_000_000, client);
        self.served_by(105_000_000, client);
    }
}
