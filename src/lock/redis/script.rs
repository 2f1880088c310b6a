//! Requests to a server: our Lua scripts, and plain commands.

use std::time::Duration;

/// A script's text, and the hash by which servers cache it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    pub(super) hash: &'static str,
}

// build.rs generates this from lua/: the scripts ACQUIRE, BREAK, EXTEND, HEAL, INSPECT, OUTER,
// RAISE, RELEASE and WATCH, and the constants of lua/include/constants.lua.
include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// One request: one round trip.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Script {
        script: &'static Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
        /// Sends the script's text instead of its hash: one round trip, whether the server has
        /// cached it or not.
        in_full: bool,
    },
    /// Blocks until an element is pushed to this list, at most this long.
    BlockingPop { list: Vec<u8>, at_most: Duration },
    /// Any other command. The reply is a [`CommandReply`](super::reply::CommandReply).
    Command { name: &'static str, args: Vec<Vec<u8>> },
}

/// The number of a script's keys that belong to one lock. Keys that all locks share come after
/// them.
pub(super) const KEYS_OF_LOCK: usize = 11;

impl Call {
    /// The same request with the script's text.
    pub(super) fn in_full(mut self) -> Self {
        if let Self::Script { in_full, .. } = &mut self {
            *in_full = true;
        }
        self
    }

    pub(super) fn is_in_full(&self) -> bool {
        matches!(self, Self::Script { in_full: true, .. })
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self, Self::Script { script, .. } if script.hash == RELEASE.hash)
    }

    /// The number of locks in the request.
    pub(super) fn lock_count(&self) -> usize {
        match self {
            Self::Script { keys, .. } => keys.len() / KEYS_OF_LOCK,
            Self::BlockingPop { .. } | Self::Command { .. } => 0,
        }
    }

    pub(super) fn is(&self, wanted: &'static Script) -> bool {
        matches!(self, Self::Script { script, .. } if script.hash == wanted.hash)
    }

    pub(super) fn packed(&self) -> Vec<u8> {
        match self {
            Self::Script { script, keys, args, .. } => evaluate("EVALSHA", script.hash, keys, args),
            Self::BlockingPop { list, at_most } => redis::cmd("BLPOP")
                .arg(list)
                .arg(format!("{:.3}", at_most.as_secs_f64()))
                .get_packed_command(),
            Self::Command { name, args } => redis::cmd(name).arg(args).get_packed_command(),
        }
    }

    /// The name of the request in errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Script { .. } => "the lock script",
            Self::BlockingPop { .. } => "BLPOP",
            Self::Command { name, .. } => name,
        }
    }

    /// The request with the script's text, for a server that has not cached the script.
    pub(super) fn packed_in_full(&self) -> Option<Vec<u8>> {
        match self {
            Self::Script { script, keys, args, .. } => Some(evaluate("EVAL", script.text, keys, args)),
            Self::BlockingPop { .. } | Self::Command { .. } => None,
        }
    }
}

fn evaluate(command: &str, script: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Vec<u8> {
    let bytes: usize = keys.iter().chain(args).map(Vec::len).sum();
    let mut request = redis::Cmd::with_capacity(3 + keys.len() + args.len(), bytes + script.len() + 20);
    request.arg(command).arg(script).arg(keys.len()).arg(keys).arg(args);
    request.get_packed_command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_defines_a_function_that_it_does_not_use() {
        for script in [&ACQUIRE, &BREAK, &EXTEND, &HEAL, &INSPECT, &OUTER, &RAISE, &RELEASE, &WATCH] {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let words: Vec<&str> = script.text.split(|c| !is_word(c)).collect();
            for pair in words.windows(2).filter(|pair| pair[0] == "function" && !pair[1].is_empty()) {
                let uses = words.iter().filter(|&word| *word == pair[1]).count();
                assert!(uses > 1, "{} in {}", pair[1], script.text);
            }
        }
    }
}
