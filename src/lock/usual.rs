//! How long a lock is usually held.

use std::time::Duration;

/// With fewer runs the figures would say little.
const LEAST_RUNS: usize = 5;

/// From the last runs that released it and have not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usual {
    pub runs: usize,
    /// Half of them held the lock at most this long.
    pub median: Duration,
    /// 95 of 100 did.
    pub p95: Duration,
}

impl Usual {
    /// `None` if there are too few runs.
    pub(crate) fn of(mut held: Vec<Duration>) -> Option<Self> {
        held.sort_unstable();
        let [median, p95, _] = quantiles(&held).filter(|_| held.len() >= LEAST_RUNS)?;
        Some(Self { runs: held.len(), median, p95 })
    }
}

/// The 50th and the 95th percentile and the maximum of sorted times. `None` if there are none.
pub(crate) fn quantiles(times: &[Duration]) -> Option<[Duration; 3]> {
    let rank = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied();
    Some([rank(50)?, rank(95)?, rank(100)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seconds: &[u64]) -> Vec<Duration> {
        seconds.iter().copied().map(Duration::from_secs).collect()
    }

    #[test]
    fn quantiles_are_measured_times() {
        assert_eq!(quantiles(&[]), None);
        assert_eq!(quantiles(&times(&[7])).unwrap().to_vec(), times(&[7, 7, 7]));
        let all: Vec<u64> = (1..=100).collect();
        assert_eq!(quantiles(&times(&all)).unwrap().to_vec(), times(&[50, 95, 100]));
    }

    #[test]
    fn five_runs_in_any_order_are_enough() {
        assert_eq!(Usual::of(times(&[1, 2, 3, 4])), None);
        let [median, p95] = [3, 9].map(Duration::from_secs);
        assert_eq!(Usual::of(times(&[9, 1, 3, 2, 4])), Some(Usual { runs: 5, median, p95 }));
        let one_is_slow = [vec![240; 19], vec![3600]].concat();
        let both = Duration::from_secs(240);
        assert_eq!(Usual::of(times(&one_is_slow)), Some(Usual { runs: 20, median: both, p95: both }));
    }
}
