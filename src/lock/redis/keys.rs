//! The names of our keys on a server.

use super::discovery::{slot_of, tag_in, tag_of};
use super::server::Server;
use crate::lock::claim::WaiterId;
use crate::lock::lock_name;

/// Begins the names of all records of a lock without a prefix.
pub(crate) const BARE: &str = "bare";

/// The names for one user's key. The lock itself is a plain string, so that any library that does
/// SET NX PX under the same name excludes us and is excluded.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The user's key, and the prefix.
    pub key: Vec<u8>,
    pub prefix: String,
    pub lock: Vec<u8>,
    pub queue: Vec<u8>,
    pub waiters: Vec<u8>,
    pub info: Vec<u8>,
    pub fence: Vec<u8>,
    pub shared: Vec<u8>,
    pub modes: Vec<u8>,
    pub newest: Vec<u8>,
    /// The finished runs.
    pub log: Vec<u8>,
    pub who: Vec<u8>,
    /// The mark of success.
    pub done: Vec<u8>,
    /// A prefix, followed by a waiter's name.
    pub notify: Vec<u8>,
    tombstone: Vec<u8>,
    /// The server's marker, for all keys with this prefix.
    pub node: Vec<u8>,
}

impl Keys {
    /// The names on these servers.
    pub(crate) fn new(servers: &[Server], prefix: &str, key: &[u8]) -> Self {
        let is_cluster = servers.iter().any(Server::is_cluster);
        let names = if is_cluster { Self::in_cluster(prefix, key) } else { Self::plain(prefix, key) };
        Self { key: key.to_vec(), prefix: prefix.to_owned(), ..names }
    }

    /// An empty prefix makes the lock the bare key, for programs that use no prefix.
    fn plain(prefix: &str, key: &[u8]) -> Self {
        Self::named(prefix, lock_name(prefix, key), key, "")
    }

    /// On a cluster all names are in one slot. Names that are not about one lock are the same for
    /// all locks of the slot, so that the holder of any of them can wake a waiter for several.
    fn in_cluster(prefix: &str, key: &[u8]) -> Self {
        let tagged = tagged(key);
        // A bare key is in the slot of its own tag or, without one, of the whole key, which is then
        // the tag.
        let is_in_its_slot = slot_of(key) == slot_of(&tagged);
        let lock = lock_name(prefix, if prefix.is_empty() && is_in_its_slot { key } else { &tagged });
        let slot_tag = format!(":{{{}}}", tag_in(slot_of(&tagged)));
        Self::named(prefix, lock, &tagged, &slot_tag)
    }

    /// The slot of all names, on a cluster.
    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.queue)
    }

    /// `suffix`: the end of names that are not about one lock.
    fn named(prefix: &str, lock: Vec<u8>, key: &[u8], suffix: &str) -> Self {
        let family = if prefix.is_empty() { BARE } else { prefix };
        let named_for = |role: &str| [family.as_bytes(), b"-", role.as_bytes(), b":", key].concat();
        Self {
            key: Vec::new(),
            prefix: String::new(),
            lock,
            queue: named_for("queue"),
            waiters: named_for("waiters"),
            info: named_for("info"),
            fence: named_for("fence"),
            shared: named_for("shared"),
            modes: named_for("modes"),
            newest: named_for("newest"),
            log: named_for("log"),
            who: named_for("who"),
            done: named_for("done"),
            notify: format!("{family}-notify{suffix}:").into(),
            tombstone: format!("{family}-tombstone{suffix}:").into(),
            node: format!("{family}-node{suffix}").into(),
        }
    }

    pub(crate) fn notify_of(&self, waiter: WaiterId) -> Vec<u8> {
        [self.notify.as_slice(), waiter.to_string().as_bytes()].concat()
    }

    pub(crate) fn tombstone_of(&self, waiter: WaiterId) -> Vec<u8> {
        [self.tombstone.as_slice(), waiter.to_string().as_bytes()].concat()
    }
}

/// What a scan looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Taken locks. Without a prefix a lock's own name could be anything: there they are found by the
    /// records of their holders.
    Locks,
    /// The logs of finished runs.
    Logs,
}

/// For a scan: the part of a name before the user's key, and the pattern that the names match.
pub(crate) fn scan_pattern(wanted: Wanted, prefix: &str, pattern: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let before = match wanted {
        Wanted::Logs => Keys::plain(prefix, b"").log,
        Wanted::Locks if prefix.is_empty() => Keys::plain("", b"").info,
        Wanted::Locks => lock_name(prefix, b""),
    };
    let mut glob = Vec::new();
    for &byte in &before {
        if b"*?[]\\^".contains(&byte) {
            glob.push(b'\\');
        }
        glob.push(byte);
    }
    glob.extend_from_slice(pattern.unwrap_or(b"*"));
    (before, glob)
}

/// The same on a cluster, where names have a tag before the key.
pub(crate) fn cluster_patterns(
    wanted: Wanted,
    prefix: &str,
    pattern: Option<&[u8]>,
) -> (Vec<u8>, Vec<Vec<u8>>) {
    let Some(pattern) = pattern else {
        let (before, glob) = scan_pattern(wanted, prefix, Some(b"{*"));
        return (before, vec![glob]);
    };
    let globs = [[b"{", pattern, b"}"].concat(), [b"{*}:", pattern].concat()];
    let globs = globs.map(|glob| scan_pattern(wanted, prefix, Some(&glob)).1);
    (scan_pattern(wanted, prefix, None).0, globs.to_vec())
}

/// The key from a name that [`tagged`] returned.
pub(crate) fn untagged(name: &[u8]) -> Option<&[u8]> {
    let end = name.iter().position(|&b| b == b'}')?;
    match name.split_at(end) {
        ([b'{', key @ ..], b"}") | (_, [b'}', b':', key @ ..]) => Some(key),
        _ => None,
    }
}

/// The key after a hash tag that precedes all other braces: "{K}" if the key has no braces;
/// otherwise "{T}:K", where T is the key's own tag, as servers see it, or else the key without its
/// braces. The part after the first '}' is empty or the whole key, so no two keys have the same
/// name.
fn tagged(key: &[u8]) -> Vec<u8> {
    let is_brace = |b: &u8| matches!(b, b'{' | b'}');
    if !key.iter().any(is_brace) {
        return [b"{", key, b"}"].concat();
    }
    let without_braces = || key.iter().copied().filter(|b| !is_brace(b)).collect::<Vec<u8>>();
    let tag = tag_of(key).map_or_else(without_braces, <[u8]>::to_vec);
    let tag = if tag.is_empty() { b"_".as_slice() } else { &tag };
    [b"{", tag, b"}:", key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(keys: &Keys) -> Vec<Vec<u8>> {
        let waiter = WaiterId::random();
        let Keys { lock, queue, waiters, info, fence, shared, modes, newest, log, who, done, node, .. } =
            keys.clone();
        let own = [lock, queue, waiters, info, fence, shared, modes, newest, log, who, done, node];
        own.into_iter().chain([keys.notify_of(waiter), keys.tombstone_of(waiter)]).collect()
    }

    #[test]
    fn on_a_cluster_the_key_is_the_tag() {
        let names = Keys::in_cluster("lock", b"deploy");
        assert_eq!(names.lock, b"lock:{deploy}");
        assert_eq!(names.queue, b"lock-queue:{deploy}");
        assert!(names.notify.starts_with(b"lock-notify:{") && names.notify.ends_with(b"}:"));
        assert_eq!(Keys::in_cluster("lock", b"{app}:a").lock, b"lock:{app}:{app}:a");
        assert_eq!(Keys::in_cluster("lock", b"x{app}").slot(), Keys::in_cluster("lock", b"{app}y").slot());
        assert_eq!(Keys::in_cluster("lock", b"app").slot(), Keys::in_cluster("lock", b"{app}").slot());
        assert_eq!(Keys::in_cluster("lock", b"app").notify, Keys::in_cluster("lock", b"{app}").notify);
    }

    #[test]
    fn on_a_cluster_a_bare_key_is_the_lock() {
        for key in [&b"deploy"[..], b"{app}:a", b"x{app}"] {
            assert_eq!(Keys::in_cluster("", key).lock, key);
        }
    }

    proptest! {
        #[test]
        fn on_a_cluster_all_names_are_in_one_slot(key in "[ab{}:]{1,6}", prefix in prop_oneof!["lock", ""]) {
            let keys = Keys::in_cluster(&prefix, key.as_bytes());
            for name in all(&keys) {
                prop_assert_eq!(slot_of(&name), keys.slot(), "{}", String::from_utf8_lossy(&name));
            }
        }

        #[test]
        fn on_a_cluster_no_two_keys_have_the_same_name(one in "[ab{}:]{1,5}", other in "[ab{}:]{1,5}") {
            if one != other {
                prop_assert_ne!(tagged(one.as_bytes()), tagged(other.as_bytes()));
            }
            let name = tagged(one.as_bytes());
            prop_assert_eq!(untagged(&name), Some(one.as_bytes()));
        }
    }

    #[test]
    fn the_prefix_names_the_family() {
        let names = Keys::plain("lock", b"deploy");
        assert_eq!(names.lock, b"lock:deploy");
        assert_eq!(names.queue, b"lock-queue:deploy");
        assert_eq!(names.notify, b"lock-notify:");
    }

    #[test]
    fn without_a_prefix_the_lock_is_the_bare_key() {
        let names = Keys::plain("", b"deploy");
        assert_eq!(names.lock, b"deploy");
        assert_eq!(names.queue, b"bare-queue:deploy");
    }

    #[test]
    fn a_scan_takes_the_prefix_as_it_is() {
        assert_eq!(scan_pattern(Wanted::Locks, "lock", None), (b"lock:".to_vec(), b"lock:*".to_vec()));
        assert_eq!(
            scan_pattern(Wanted::Locks, "a*[b", Some(b"x?")),
            (b"a*[b:".to_vec(), br"a\*\[b:x?".to_vec())
        );
        assert_eq!(scan_pattern(Wanted::Locks, "", None), (b"bare-info:".to_vec(), b"bare-info:*".to_vec()));
        let logs = |prefix| scan_pattern(Wanted::Logs, prefix, Some(b"k")).1;
        assert_eq!([logs("lock"), logs("")], [b"lock-log:k".to_vec(), b"bare-log:k".to_vec()]);
    }

    #[test]
    fn any_bytes_are_a_key() {
        assert_eq!(Keys::plain("p", b"\xff\0'").lock, b"p:\xff\0'");
    }
}
