//! What `redlock break` needs to know.

use std::time::Duration;

use super::backend::Backend;
use super::sources::Sources;
use super::{one_key, prefix};
use crate::cli::BreakArgs;
use crate::exit::Failure;
use crate::lock::{Claim, How, MOST_SLOTS};

#[derive(Debug)]
pub(crate) struct BreakSettings {
    pub key: Vec<u8>,
    pub backend: Backend,
    pub prefix: String,
    /// Do not ask.
    pub yes: bool,
    /// Of the only grant that is meant.
    pub token: Option<String>,
    pub slot: Option<u32>,
    pub how: How,
    /// How long to wait for the outcome at most.
    pub wait: Option<Duration>,
    /// What is wrong with the settings without making them unusable.
    pub warnings: Vec<String>,
}

impl BreakSettings {
    pub(crate) fn resolve(args: BreakArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let key = one_key(args.key)?;
        let backend = Backend::to_look_at(&args.servers, args.host, sources)?;
        // These two say what this one call is to do: those of a run around it are not meant.
        let typed = |id, value: Option<String>| value.filter(|_| sources.was_typed(id));
        let (token, wait) = (typed("token", args.token), typed("wait", args.wait));
        if token.as_ref().is_some_and(|token| token.parse::<Claim>().is_err()) {
            return Err(sources.must("token", "be the token of a grant, as REDLOCK_TOKEN has it"));
        }
        Ok(Self {
            key,
            warnings: backend.warnings(&args.servers, sources),
            backend,
            prefix: prefix(args.servers.prefix),
            yes: args.yes,
            token,
            slot: sources.whole_number("slot", args.slot.as_deref(), 0, MOST_SLOTS - 1)?,
            how: if args.now { How::AtOnce } else { How::Gently },
            wait: sources.duration("wait", wait.as_deref())?,
        })
    }
}
