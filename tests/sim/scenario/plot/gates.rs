//! Clients with different gates.

use super::*;

impl Stage {
    /// Without this server, which stays away, two clients have to agree.
    fn stop_for_good(&mut self, server: ServerId) {
        self.fault(0, Fault::PauseServer { server, for_us: 600_000_000 });
    }

    pub(super) fn two_gates(&mut self) {
        self.stop_for_good(1);
        let mut ours = self.run(QUEUES, Self::command(1), 5, 30);
        let mut theirs = self.run(QUEUES, Self::command(1), 5, 30);
        (ours.latencies_us[2], theirs.latencies_us[0]) = (self.between_ms(5, 20), self.between_ms(5, 20));
        Self::reverse_order(&mut theirs);
        let (at, their_start) = (self.between_ms(0, 3), self.between_ms(0, 3));
        self.start(at, ours);
        self.start(their_start, theirs);
    }

    pub(super) fn two_gates_of_five(&mut self) {
        self.stop_for_good(2);
        let mut older = self.run(QUEUES, Self::command(1), 5, 30);
        let mut younger = self.run(QUEUES, Self::command(1), 5, 30);
        for server in [0, 1] {
            older.latencies_us[server] = self.between_ms(5, 20);
            younger.latencies_us[4 - server] = self.between_ms(5, 20);
        }
        Self::reverse_order(&mut older);
        self.start(0, older);
        let at = self.between_ms(1, 3);
        let younger = self.start(at, younger);
        // It never learns whose gate the last server is.
        let servers = vec![4];
        self.fault(at + 10, Fault::Cut { actor: younger, servers, how: Cut::Both, for_us: 600_000_000 });
    }

    /// The older client waits for both others, and each of those waits behind it in a queue. They have
    /// another gate, and do not reach the first one.
    pub(super) fn two_keys_of_five(&mut self) {
        self.stop_for_good(1);
        self.0.scenario.keys = vec!["a".to_owned(), "b".to_owned()];
        let mut older = self.run_with_keys(&["a", "b"]);
        older.latencies_us[2..].fill(20_000);
        self.start(0, older);
        for (key, near, far) in [("a", 3, 2), ("b", 2, 3)] {
            let mut younger = self.run_with_keys(&[key]);
            (younger.latencies_us[0], younger.latencies_us[near]) = (UNREACHABLE_US, 1000);
            younger.latencies_us[far] = self.between_ms(50, 70);
            Self::reverse_order(&mut younger);
            let at = self.between_ms(1, 3);
            self.start(at, younger);
        }
    }

    fn run_with_keys(&mut self, keys: &[&str]) -> Actor {
        let mut actor = self.run(QUEUES, Self::command(1), 5, 30);
        if let Job::Run(run) = &mut actor.job {
            run.keys = keys.iter().map(|&key| key.to_owned()).collect();
        }
        actor
    }
}
