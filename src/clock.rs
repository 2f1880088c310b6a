//! The clock that keeps counting while the machine is suspended.
//!
//! A laptop that was suspended for an hour has lost its lease, although neither CLOCK_MONOTONIC nor
//! `Instant` has moved. The wall clock may jump.

use std::ops::Add;
use std::time::{Duration, SystemTime};

use nix::poll::PollTimeout;

use crate::world;

/// A moment on the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(Duration);

impl BootTime {
    pub(crate) fn now() -> Self {
        Self(world::boot_time())
    }

    /// Zero if `earlier` is in fact later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since this moment.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time until this moment; zero if it has passed.
    pub(crate) fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    pub(crate) fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// Rounded up, so that the moment has passed when poll returns.
    pub(crate) fn poll_timeout(self) -> PollTimeout {
        let millis = self.remaining().as_micros().div_ceil(1000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    }

    pub(crate) fn minus(self, earlier_by: Duration) -> Self {
        Self(self.0.saturating_sub(earlier_by))
    }

    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later_by: Duration) -> Self {
        Self(self.0.saturating_add(later_by))
    }
}

/// The wall clock, for times that other machines read. It may jump.
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + world::wall_clock()
}

pub(crate) fn wall_clock_millis() -> u64 {
    u64::try_from(world::wall_clock().as_millis()).unwrap_or(u64::MAX)
}

/// A random part of `at_most`, so that processes that failed together do not retry together.
pub(crate) fn jitter(at_most: Duration) -> Duration {
    // The fixed bits of a version 4 UUID are not among the last four bytes.
    let [.., a, b, c, d] = world::random_uuid().into_bytes();
    at_most.mul_f64(f64::from(u32::from_ne_bytes([a, b, c, d])) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_over_its_whole_range() {
        let mut seconds: Vec<u64> = (0..1000).map(|_| jitter(Duration::from_secs(10)).as_secs()).collect();
        assert!(seconds.iter().all(|&second| second <= 10));
        seconds.sort_unstable();
        seconds.dedup();
        assert!(seconds.len() >= 10, "{seconds:?}");
    }
}
