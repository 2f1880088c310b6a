//! All servers together: how many can vote, and how many more may fail.

use std::time::Duration;

use super::quarantine::first_quarantine;
use super::server::CanVote;
use super::text::milliseconds;
use super::{Check, Finding, Level};
use crate::duration::format_seconds;
use crate::lock::checkup::ServersCheckup;
use crate::lock::{Timing, majority_of};

/// Servers whose clocks differ by more than this disagree about the order of events.
pub(super) const CLOCK_TOLERANCE_MS: u64 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quorum {
    pub servers: usize,
    pub needed: usize,
    pub can_vote: usize,
    /// Servers without a lock so far. They start voting this long after their first use.
    pub unused: usize,
    pub after: Duration,
}

impl Quorum {
    /// `votes`: one for each server of the check-up.
    pub(super) fn count(checkup: &ServersCheckup, votes: &[CanVote], timing: &Timing) -> Self {
        let servers = checkup.configured;
        let of = |at: usize| {
            // All masters of a cluster must serve: a lock may be on any of them.
            let members = checkup.servers.iter().zip(votes).filter(|(server, _)| server.configured == at);
            members.map(|(_, vote)| *vote).min().unwrap_or(CanVote::No)
        };
        let count = |wanted| (0..servers).filter(|&at| of(at) == wanted).count();
        Self {
            servers,
            needed: majority_of(servers),
            can_vote: count(CanVote::Now),
            unused: count(CanVote::AfterFirstUse),
            after: first_quarantine(timing),
        }
    }

    /// How many more servers may fail.
    pub(super) fn may_fail(self) -> usize {
        (self.can_vote + self.unused).saturating_sub(self.needed)
    }

    pub(super) fn is_missing(self) -> bool {
        self.can_vote + self.unused < self.needed
    }

    pub(super) fn check(self) -> Finding {
        let level = if self.is_missing() {
            Level::Problem
        } else if self.can_vote == self.servers {
            Level::Ok
        } else {
            Level::Warning
        };
        let needs_majority = "a lock needs the votes of a majority of all configured servers";
        let why = if self.servers > 1 { needs_majority } else { "" };
        Check::QUORUM.found(level, self.text(), why, "see the findings about each server")
    }

    /// "2 of 3 servers can vote, tolerates no further loss"
    pub(super) fn text(self) -> String {
        let Self { servers, needed, can_vote, unused, after } = self;
        let after = format!("{} after the first run", format_seconds(after));
        match (servers, can_vote, unused) {
            (1, 1, _) => "the server grants locks".into(),
            (1, _, 1) => format!("the server starts granting locks {after}"),
            (1, ..) => "the server cannot grant locks now".into(),
            _ if self.is_missing() => {
                format!("{can_vote} of {servers} servers can vote, {needed} are needed")
            }
            _ if unused == servers => format!("all {servers} servers start voting {after}"),
            (.., 1) => format!("{can_vote} of {servers} servers can vote, 1 more starts voting {after}"),
            (.., 2..) => {
                format!("{can_vote} of {servers} servers can vote, {unused} more start voting {after}")
            }
            (.., 0) => {
                let spare = match self.may_fail() {
                    0 => "no further loss".into(),
                    count => format!("the loss of {count} more"),
                };
                format!("{can_vote} of {servers} servers can vote, tolerates {spare}")
            }
        }
    }
}

pub(super) fn even_number(checkup: &ServersCheckup) -> Option<Finding> {
    let count = checkup.configured;
    count.is_multiple_of(2).then(|| {
        Check::QUORUM.warning(
            format!("{count} is an even number of servers"),
            "one server fewer tolerates as many failures",
            "use 3 or 5 servers",
        )
    })
}

pub(super) fn clocks(checkup: &ServersCheckup) -> Option<Finding> {
    let clocks = checkup.servers.iter().filter_map(|server| {
        let clock = server.found.as_ref().ok()?.clock.as_ref().ok()?;
        let uncertainty = i64::try_from(clock.uncertainty.as_millis()).unwrap_or(i64::MAX);
        Some((clock.ahead_ms, uncertainty))
    });
    let clocks: Vec<(i64, i64)> = clocks.collect();
    // The smallest difference that the measurements allow.
    let latest = clocks.iter().map(|(ahead, uncertainty)| ahead - uncertainty).max()?;
    let earliest = clocks.iter().map(|(ahead, uncertainty)| ahead + uncertainty).min()?;
    let difference = u64::try_from(latest - earliest).unwrap_or(0);
    (checkup.configured > 1 && difference > CLOCK_TOLERANCE_MS).then(|| {
        Check::CLOCK.warning(
            format!("their clocks differ by {}", milliseconds(difference)),
            "after a loss of data, fencing tokens come from the clocks and may go backwards",
            "synchronise their clocks (chrony, systemd-timesyncd)",
        )
    })
}
