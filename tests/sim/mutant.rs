//! Mutants: a rule of the protocol is left out, and the simulator must notice.

use crate::server::Patch;
use crate::world::{LeftOut, Rule, leave_out};

/// A rule that is left out, in the scripts or in the client.
#[derive(Debug)]
pub struct Mutant {
    pub name: &'static str,
    /// Changes to the texts of the scripts.
    pub patches: &'static [Patch],
    pub rule: Option<Rule>,
    /// On how many servers it shows soonest.
    pub servers: usize,
}

impl Mutant {
    /// This thread's clients do without the rule until the returned value is dropped.
    pub fn enter(&self) -> LeftOut {
        leave_out(self.rule)
    }

    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|mutant| mutant.name == name)
    }
}

pub static ALL: &[Mutant] = &[];
