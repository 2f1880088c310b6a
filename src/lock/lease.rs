//! How long a grant is valid: pure arithmetic.

use std::time::Duration;

use crate::clock::BootTime;

/// The validity of a grant, counted from BEFORE its request was sent: the server's clock for the
/// key starts later, so it ends later too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    sent_at: BootTime,
    ttl: Duration,
}

impl Lease {
    pub(crate) fn new(sent_at: BootTime, ttl: Duration) -> Self {
        Self { sent_at, ttl }
    }

    /// From then on another client may hold the lock. One percent and 2 ms early, since two clocks
    /// never run at exactly the same speed.
    pub(crate) fn deadline(&self) -> BootTime {
        self.sent_at + self.ttl.saturating_sub(self.ttl / 100 + Duration::from_millis(2))
    }

    pub(crate) fn sent_at(&self) -> BootTime {
        self.sent_at
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When the servers forget it, if it is not renewed.
    pub(crate) fn end(&self) -> BootTime {
        self.sent_at + self.ttl
    }

    /// When to renew: with two thirds of the lease left for retries and for stopping the command.
    pub(crate) fn refresh_at(&self) -> BootTime {
        self.sent_at + self.ttl / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_deadline_leaves_room_for_clock_drift() {
        let lease = Lease::new(at(100_000), Duration::from_secs(30));
        assert_eq!(lease.deadline(), at(129_698));
        assert_eq!(lease.refresh_at(), at(110_000));
    }

    proptest! {
        #[test]
        fn the_deadline_is_never_after_the_servers_expiry(sent_at in 0u64..1 << 50, ttl in 0u64..1 << 40) {
            let lease = Lease::new(BootTime::from_nanos(sent_at * 1000), Duration::from_micros(ttl));
            prop_assert!(lease.deadline() <= lease.sent_at + lease.ttl);
            prop_assert!(lease.deadline() >= lease.sent_at);
        }

        #[test]
        fn there_is_time_to_retry_between_refresh_and_deadline(ttl in 100u64..1 << 30) {
            let lease = Lease::new(BootTime::from_nanos(0), Duration::from_millis(ttl));
            prop_assert!(lease.refresh_at() < lease.deadline());
        }
    }
}
