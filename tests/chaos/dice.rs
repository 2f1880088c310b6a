//! Numbers from a seed: the same seed, the same numbers (splitmix64).

pub struct Dice(u64);

impl Dice {
    /// A separate stream for each use of a seed.
    pub fn new(seed: u64, stream: u64) -> Dice {
        let mut dice = Dice(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        dice.next();
        dice
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True `chance` times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }

    /// Each with the weight beside it.
    pub fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut at = self.next() % of.iter().map(|(weight, _)| weight).sum::<u64>();
        for (weight, item) in of {
            if at < *weight {
                return *item;
            }
            at -= weight;
        }
        unreachable!("at is below the sum")
    }
}
