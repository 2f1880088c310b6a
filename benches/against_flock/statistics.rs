//! Medians and quartiles.

use std::time::Duration;

pub struct Summary {
    pub lower_quartile: Duration,
    pub median: Duration,
    pub upper_quartile: Duration,
}

impl Summary {
    /// Needs at least one sample.
    pub fn of(samples: &[Duration]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort();
        let at = |quarters: usize| sorted[(sorted.len() - 1) * quarters / 4];
        Self { lower_quartile: at(1), median: at(2), upper_quartile: at(3) }
    }

    /// The ratio of medians.
    pub fn ratio_to(&self, other: &Self) -> f64 {
        self.median.as_secs_f64() / other.median.as_secs_f64()
    }
    /// The ratio of lower quartiles, where the machine disturbed least.
    pub fn quiet_ratio_to(&self, other: &Self) -> f64 {
        self.lower_quartile.as_secs_f64() / other.lower_quartile.as_secs_f64()
    }

    /// The upper quartile divided by the lower one.
    pub fn noise(&self) -> f64 {
        self.upper_quartile.as_secs_f64() / self.lower_quartile.as_secs_f64()
    }
}
