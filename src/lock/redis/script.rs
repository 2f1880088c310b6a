//! Requests to a server: our Lua scripts, and the one plain command that we need.

use std::time::Duration;

/// A script's text and the hash by which servers remember it.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    hash: &'static str,
}

// ACQUIRE, BREAK, EXTEND, HEAL, RAISE and RELEASE, made by build.rs from lua/.
include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// How long a waiter counts as alive without renewing its place in the queue.
pub const WAITER_LEASE: Duration = Duration::from_millis(5000);
/// How often a waiter renews its place: one BLPOP and one script in this time.
pub const WAITER_RENEWAL: Duration = Duration::from_millis(2100);

/// One request: one round trip.
#[derive(Clone, Debug)]
pub enum Call {
    Script {
        script: &'static Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    },
    /// Block until an element is pushed to this list, at most this long.
    BlockingPop {
        list: Vec<u8>,
        at_most: Duration,
    },
}

impl Call {
    pub fn is(&self, wanted: &'static Script) -> bool {
        matches!(self, Self::Script { script, .. } if script.hash == wanted.hash)
    }

    pub fn packed(&self) -> Vec<u8> {
        match self {
            Self::Script { script, keys, args } => evaluate("EVALSHA", script.hash, keys, args),
            Self::BlockingPop { list, at_most } => redis::cmd("BLPOP")
                .arg(list)
                .arg(format!("{:.3}", at_most.as_secs_f64()))
                .get_packed_command(),
        }
    }

    /// With the script's whole text, for a server that does not know the hash (any more).
    pub fn packed_in_full(&self) -> Option<Vec<u8>> {
        match self {
            Self::Script { script, keys, args } => Some(evaluate("EVAL", script.text, keys, args)),
            Self::BlockingPop { .. } => None,
        }
    }
}

fn evaluate(command: &str, script: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Vec<u8> {
    redis::cmd(command).arg(script).arg(keys.len()).arg(keys).arg(args).get_packed_command()
}
