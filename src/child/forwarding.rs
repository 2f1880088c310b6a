//! One request is one signal: whether the command still has to be sent what redlock was sent.
//!
//! A service manager or a CI runner that ends a job may signal each of its processes: redlock, the guardian and
//! the command. The guardian, in a process group of its own, is the witness: what it receives as well, the
//! command has received, and must not receive again. So a signal is forwarded after a moment in which the
//! guardian would have got it, too. One that only the guardian has got was meant for redlock.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::BootTime;

/// How much later than redlock the guardian may be signalled by a sender that signals all.
const PAUSE: Duration = Duration::from_millis(50);
/// How much later than the guardian redlock may say that it was signalled.
const WINDOW: Duration = Duration::from_millis(200);

/// How long the guardian's copy of a signal that the command has got belongs to the same request: a sender may be slow.
const SETTLED: Duration = Duration::from_secs(1);

/// What it is to be known of that the guardian was sent it.
pub(super) const WITNESSED: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// To the command.
    Forward(Signal),
    /// To redlock: it has not got it.
    PassUp(Signal),
}

/// The signals on their way, each with the moment at which it is decided.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    /// From redlock, for the command.
    ordered: Vec<(Signal, BootTime)>,
    /// Received by the guardian; redlock has not spoken of it yet.
    witnessed: Vec<(Signal, BootTime)>,
    /// The command has got it. What the guardian receives of it until this moment is the same request.
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
        self.settled.retain(|&(_, until)| until > now);
        if take(&mut self.ordered, signal) {
            self.settle(signal, now);
        } else if ![&self.witnessed, &self.settled].iter().any(|list| list.iter().any(|(s, _)| *s == signal))
        {
            self.witnessed.push((signal, now + WINDOW));
        }
    }

    fn settle(&mut self, signal: Signal, now: BootTime) {
        self.settled.push((signal, now + SETTLED));
    }

    /// When there is something to decide.
    pub(super) fn next_moment(&self) -> Option<BootTime> {
        self.ordered.iter().chain(&self.witnessed).map(|&(_, at)| at).min()
    }

    /// What is to be sent now, in the order in which it came.
    pub(super) fn due(&mut self, now: BootTime) -> Vec<Due> {
        let ordered = self.ordered.extract_if(.., |(_, at)| *at <= now);
        let ordered: Vec<Signal> = ordered.map(|(signal, _)| signal).collect();
        for &signal in &ordered {
            self.settle(signal, now);
        }
        let witnessed = self.witnessed.extract_if(.., |(_, at)| *at <= now);
        // Others are between a process and its parent, and would end a command that does not handle them.
        let passed_up = witnessed
            .filter(|(signal, _)| !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2))
            .map(|(signal, _)| Due::PassUp(signal));
        ordered.into_iter().map(Due::Forward).chain(passed_up).collect()
    }
}

/// Removes the first of its kind; false if there is none.
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
    fn what_only_redlock_has_got_is_forwarded_after_a_moment() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        assert_eq!((forwarding.next_moment(), forwarding.due(at(49))), (Some(at(50)), vec![]));
        assert_eq!(forwarding.due(at(50)), [Due::Forward(SIGTERM)]);
        assert_eq!((forwarding.next_moment(), forwarding.due(at(1000))), (None, vec![]));
    }

    #[test]
    fn what_the_guardian_has_got_too_is_not_whichever_came_first() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        forwarding.witness(SIGTERM, at(1));
        assert_eq!(forwarding.next_moment(), None);
        forwarding.witness(SIGINT, at(1000));
        forwarding.order(SIGINT, at(1150));
        assert_eq!(forwarding.next_moment(), None);
    }

    #[test]
    fn a_repeated_copy_in_the_same_breath_is_no_second_wish() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        forwarding.witness(SIGTERM, at(1));
        forwarding.witness(SIGTERM, at(100));
        assert_eq!(forwarding.next_moment(), None);
        forwarding.witness(SIGTERM, at(1100));
        assert_eq!(forwarding.due(at(1300)), [Due::PassUp(SIGTERM)]);
    }

    #[test]
    fn a_sender_that_is_slow_is_no_second_wish_either() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGTERM, at(0));
        assert_eq!(forwarding.due(at(50)), [Due::Forward(SIGTERM)]);
        forwarding.witness(SIGTERM, at(60));
        assert_eq!(forwarding.next_moment(), None);
    }

    #[test]
    fn what_only_the_guardian_has_got_is_passed_up_but_not_user_signals() {
        let mut forwarding = Forwarding::default();
        forwarding.witness(SIGTERM, at(0));
        forwarding.witness(SIGUSR1, at(0));
        assert_eq!(forwarding.due(at(199)), vec![]);
        assert_eq!(forwarding.due(at(200)), [Due::PassUp(SIGTERM)]);
    }

    #[test]
    fn job_control_does_not_wait() {
        let mut forwarding = Forwarding::default();
        forwarding.order(SIGCONT, at(7));
        assert_eq!(forwarding.due(at(7)), [Due::Forward(SIGCONT)]);
    }
}
