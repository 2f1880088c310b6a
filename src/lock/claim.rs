//! Who asks, and for the how-manieth time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

/// Spreads bits evenly: 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One waiter, from its first request to its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(Uuid);

impl WaiterId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Different waiters get different fractions of `most`, so that they do not retry in step.
    pub fn jitter(&self, round: u32, most: Duration) -> Duration {
        let (high, low) = self.0.as_u64_pair();
        let bits = (high ^ low).rotate_left(round * 11).wrapping_mul(GOLDEN) >> 32;
        most.mul_f64(bits as f64 / f64::from(u32::MAX))
    }
}

impl fmt::Display for WaiterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value at the lock's key: `<waiter>.<attempt>`. The attempt grows with each request, so a late
/// command of an earlier one can neither release nor overwrite what a later one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub waiter: WaiterId,
    pub attempt: u32,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.waiter, self.attempt)
    }
}

impl FromStr for Claim {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (waiter, attempt) = text.split_once('.').ok_or(())?;
        Ok(Self {
            waiter: WaiterId(Uuid::try_parse(waiter).map_err(drop)?),
            attempt: attempt.parse().map_err(drop)?,
        })
    }
}

/// A lock that is held, as it is told to those who run under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub claim: Claim,
    pub on_host: Option<OnHost>,
}

/// A lock on this host: which file, and which ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHost {
    pub device: u64,
    pub inode: u64,
    pub ticket: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.claim.fmt(f)?;
        match &self.on_host {
            Some(OnHost { device, inode, ticket }) => write!(f, "@{device}:{inode}:{ticket}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Held {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (claim, place) = text.split_once('@').map_or((text, None), |(claim, place)| (claim, Some(place)));
        let on_host = |place: &str| {
            let numbers: Vec<u64> =
                place.split(':').map(str::parse).collect::<Result<_, _>>().map_err(drop)?;
            let [device, inode, ticket] = numbers.try_into().map_err(drop)?;
            Ok(OnHost { device, inode, ticket })
        };
        Ok(Self { claim: claim.parse()?, on_host: place.map(on_host).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_back_what_it_wrote() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 7 };
        assert_eq!(claim.to_string().parse(), Ok(claim));
    }

    #[test]
    fn jitter_is_spread_over_its_whole_range() {
        for round in 0..20 {
            let parts =
                (0..1000).map(|_| WaiterId::random().jitter(round, Duration::from_secs(10)).as_secs());
            let mut seconds: Vec<u64> = parts.collect();
            assert!(seconds.iter().all(|&second| second <= 10));
            seconds.sort_unstable();
            seconds.dedup();
            assert!(seconds.len() >= 10, "round {round}: {seconds:?}");
        }
    }

    #[test]
    fn what_is_held_reads_back() {
        let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
        for on_host in [None, Some(OnHost { device: 1, inode: 2, ticket: 3 })] {
            let held = Held { claim, on_host };
            assert_eq!(held.to_string().parse(), Ok(held));
        }
        assert_eq!(format!("{claim}@1:2").parse::<Held>(), Err(()));
    }

    #[test]
    fn foreign_values_are_no_claims() {
        for text in ["", ".", "x.1", "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31", "3f2b8c1e.1.2"] {
            assert_eq!(text.parse::<Claim>(), Err(()), "{text}");
        }
    }
}
