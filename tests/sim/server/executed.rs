//! What a server has executed, and what it changed.

use super::*;

/// A command that a server has executed, and its reply.
#[derive(Debug)]
pub struct Executed {
    pub connection: ConnectionId,
    pub command: Command,
    /// `None` while BLPOP blocks.
    pub reply: Option<Reply>,
    /// The locks that a script has changed.
    pub changes: Vec<Change>,
}

/// A lock before and after a script.
#[derive(Debug)]
pub struct Change {
    pub key: Vec<u8>,
    pub before: Option<Held>,
    pub after: Option<Held>,
}

pub(super) fn changes(before: BTreeMap<Vec<u8>, Held>, after: BTreeMap<Vec<u8>, Held>) -> Vec<Change> {
    if before == after {
        return Vec::new();
    }
    let keys: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let change = |key: &Vec<u8>| {
        let (before, after) = (before.get(key).cloned(), after.get(key).cloned());
        (before != after).then(|| Change { key: key.clone(), before, after })
    };
    keys.into_iter().filter_map(change).collect()
}
