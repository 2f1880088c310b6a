//! The clock that counts while the machine sleeps, and how long a grant may be relied on.
//!
//! Pure arithmetic apart from [`BootTime::now`]. CLOCK_BOOTTIME, because a laptop that was suspended
//! for an hour has lost its lease though neither CLOCK_MONOTONIC nor `Instant` moved; never the wall
//! clock, which may jump.

use std::ops::Add;
use std::time::Duration;

use nix::poll::PollTimeout;
use nix::time::{ClockId, clock_gettime};

/// A moment on the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has a boot-time clock");
        Self(Duration::from(now))
    }

    /// Zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// How long since this moment.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// How long until this moment; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// For poll: rounded up, so that the moment has passed when it returns.
    pub fn poll_timeout(self) -> PollTimeout {
        let millis = self.remaining().as_micros().div_ceil(1000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    }

    pub fn minus(self, earlier_by: Duration) -> Self {
        Self(self.0.saturating_sub(earlier_by))
    }

    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later_by: Duration) -> Self {
        Self(self.0.saturating_add(later_by))
    }
}

/// A grant's validity, counted from BEFORE the request that won it was sent: the server's own clock
/// for the key started later than that, so it ends later too.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    asked: BootTime,
    ttl: Duration,
}

impl Lease {
    pub fn new(asked: BootTime, ttl: Duration) -> Self {
        Self { asked, ttl }
    }

    /// From here on somebody else may hold the lock. One percent and 2 ms early, for two clocks that
    /// do not run at exactly the same speed.
    pub fn deadline(&self) -> BootTime {
        self.asked + self.ttl.saturating_sub(self.ttl / 100 + Duration::from_millis(2))
    }

    /// When to renew: with two thirds of the lease left for retries and for stopping the command.
    pub fn refresh_at(&self) -> BootTime {
        self.asked + self.ttl / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn deadline_is_drift_before_expiry() {
        let lease = Lease::new(BootTime(Duration::from_secs(100)), Duration::from_secs(30));
        assert_eq!(lease.deadline(), BootTime(Duration::from_millis(129_698)));
        assert_eq!(lease.refresh_at(), BootTime(Duration::from_secs(110)));
    }

    proptest! {
        #[test]
        fn deadline_is_never_after_the_servers_expiry(asked in 0u64..1 << 50, ttl in 0u64..1 << 40) {
            let lease = Lease::new(BootTime(Duration::from_micros(asked)), Duration::from_micros(ttl));
            prop_assert!(lease.deadline() <= lease.asked + lease.ttl);
            prop_assert!(lease.deadline() >= lease.asked);
        }

        #[test]
        fn there_is_time_to_retry_between_refresh_and_deadline(ttl in 100u64..1 << 30) {
            let lease = Lease::new(BootTime(Duration::ZERO), Duration::from_millis(ttl));
            prop_assert!(lease.refresh_at() < lease.deadline());
        }
    }
}
