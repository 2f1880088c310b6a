//! Forwarding each request to stop once: whether the command still needs a signal that redlock
//! received.
//!
//! A service manager or a CI runner that ends a job may signal each of its processes: redlock, the
//! guardian and the command. The guardian, in its own process group, is the witness: a signal that
//! it receives, the command has received too, and must not receive twice. So a signal is forwarded
//! after a pause in which the guardian would have received it as well. A signal that only the
//! guardian receives was meant for redlock.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::BootTime;

/// How much later than redlock the guardian may receive a signal from a sender that signals all
/// processes.
const PAUSE: Duration = Duration::from_millis(50);
/// How much later than the guardian redlock may report that it received the signal.
const WINDOW: Duration = Duration::from_millis(200);

/// How long the guardian's copy of a signal that the command has received counts as the same
/// request, as a sender may be slow.
const SETTLED: Duration = Duration::from_secs(1);

/// The signals that the guardian records as a witness.
pub(super) const WITNESSED: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// To the command.
    Forward(Signal),
    /// To redlock, which has not received it.
    PassUp(Signal),
}

/// The signals in transit, each with the moment at which its fate is decided.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    /// From redlock, for the command.
    ordered: Vec<(Signal, BootTime)>,
    /// Received by the guardian, not yet reported by redlock.
    witnessed: Vec<(Signal, BootTime)>,
    /// Received by the command. A copy that reaches the guardian before this moment is the same
    /// request.
    settled: Vec<(Signal, BootTime)>,
}

impl Forwarding {
    /// redlock has received this signal.
    pub(super) fn order(&mut self, signal: Signal, now: BootTime) {
        if take(&mut self.witnessed, signal) {
            self.settle(signal, now);
        } else {
            let pause = if WITNESSED.contains(&signal) { PAUSE } else { Duration::ZERO };
            self.ordered.push((signal, now + pause));
        }
    }

    /// The guardian has received this signal.
    pub(super) fn witness(&mut self, signal: Signal, now: BootTime) {
        self.forget_settled(now);
        if take(&mut self.ordered, signal) {
            self.settle(signal, now);
        } else if ![&self.witnessed, &self.settled].iter().any(|list| list.iter().any(|(s, _)| *s == signal))
        {
            self.witnessed.push((signal, now + WINDOW));
        }
    }

    fn settle(&mut self, signal: Signal, now: BootTime) {
        self.forget_settled(now);
        self.settled.push((signal, now + SETTLED));
    }

    fn forget_settled(&mut self, now: BootTime) {
        self.settled.retain(|&(_, until)| until > now);
    }

    /// The next moment at which a signal is due.
    pub(super) fn next_moment(&self) -> Option<BootTime> {
        self.ordered.iter().chain(&self.witnessed).map(|&(_, at)| at).min()
    }

    /// The signals to send now, in the order in which they arrived.
    pub(super) fn due(&mut self, now: BootTime) -> Vec<Due> {
        let ordered = self.ordered.extract_if(.., |(_, at)| *at <= now);
        let ordered: Vec<Signal> = ordered.map(|(signal, _)| signal).collect();
        for &signal in &ordered {
            self.settle(signal, now);
        }
        let witnessed = self.witnessed.extract_if(.., |(_, at)| *at <= now);
        // User signals are private to a process and its parent, and kill a command that does not
        // handle them.
        let passed_up = witnessed
            .filter(|(signal, _)| !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2))
            .map(|(signal, _)| Due::PassUp(signal));
        ordered.into_iter().map(Due::Forward).chain(passed_up).collect()
    }
}

/// Remove the first entry of this signal; false if there is none.
fn take(list: &mut Vec<(Signal, BootTime)>, signal: Signal) -> bool {
    let found = list.iter().position(|(other, _)| *other == signal);
    found.map(|at| list.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{SIGCONT, SIGINT, SIGTERM, SIGUSR1};

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_signal_that_only_redlock_receives_is_forwarded_after_a_pause() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        assert_eq!((forwarding.next_moment(), forwarding.due(at(49))), (Some(at(50)), vec![]));
        assert_eq!(forwarding.due(at(50)), [Due::Forward(SIGTERM)]);
        assert_eq!((forwarding.next_moment(), forwarding.due(at(1000))), (None, vec![]));
    }

    #[test]
    fn a_signal_that_the_guardian_receives_too_is_not_forwarded() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        forwarding.witness(SIGTERM, at(1));
        assert_eq!(forwarding.next_moment(), None);
        forwarding.witness(SIGINT, at(1000));
        forwarding.order(SIGINT, at(1150));
        assert_eq!(forwarding.next_moment(), None);
    }

    #[test]
    fn a_repeated_copy_within_a_second_is_the_same_request() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        forwarding.witness(SIGTERM, at(1));
        forwarding.witness(SIGTERM, at(100));
        assert_eq!(forwarding.next_moment(), None);
        forwarding.witness(SIGTERM, at(1100));
        assert_eq!(forwarding.due(at(1300)), [Due::PassUp(SIGTERM)]);
    }

    #[test]
    fn a_copy_from_a_slow_sender_is_the_same_request() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        assert_eq!(forwarding.due(at(50)), [Due::Forward(SIGTERM)]);
        forwarding.witness(SIGTERM, at(60));
        assert_eq!(forwarding.next_moment(), None);
    }

    #[test]
    fn a_signal_that_only_the_guardian_receives_is_passed_up_unless_it_is_a_user_signal() {
        let mut forwarding = Forwarding::default();
        forwarding.witness(SIGTERM, at(0));
        forwarding.witness(SIGUSR1, at(0));
        assert_eq!(forwarding.due(at(199)), vec![]);
        assert_eq!(forwarding.due(at(200)), [Due::PassUp(SIGTERM)]);
    }

    #[test]
    fn forwarded_signals_are_forgotten() {
        let mut forwarding = Forwarding::default();
        for second in 0..100 {
            forwarding.order(SIGUSR1, at(second * 1000));
            assert_eq!(forwarding.due(at(second * 1000 + 50)), [Due::Forward(SIGUSR1)]);
        }
        assert_eq!(forwarding.settled.len(), 1);
    }

    #[test]
    fn a_job_control_signal_is_forwarded_at_once() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGCONT, at(7));
        assert_eq!(forwarding.due(at(7)), [Due::Forward(SIGCONT)]);
    }
}
