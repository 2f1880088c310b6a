//! The names of our keys on a server.

use crate::lock::claim::WaiterId;
use crate::lock::lock_name;

/// The names for one user's key. The lock itself is a plain string, so that any library that does
/// SET NX PX under the same name excludes us and is excluded.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub lock: Vec<u8>,
    pub queue: Vec<u8>,
    pub waiters: Vec<u8>,
    pub info: Vec<u8>,
    pub fence: Vec<u8>,
    pub shared: Vec<u8>,
    pub modes: Vec<u8>,
    pub newest: Vec<u8>,
    /// Followed by a waiter's name.
    pub notify: Vec<u8>,
    tombstone: Vec<u8>,
    /// The server's mark, for all keys of this prefix.
    pub node: Vec<u8>,
}

impl Keys {
    /// An empty prefix makes the lock the bare key, for programs that use no prefix.
    pub(crate) fn new(prefix: &str, key: &[u8]) -> Self {
        let family = if prefix.is_empty() { "bare" } else { prefix };
        let beside = |role: &str| [family.as_bytes(), b"-", role.as_bytes(), b":", key].concat();
        Self {
            lock: lock_name(prefix, key),
            queue: beside("queue"),
            waiters: beside("waiters"),
            info: beside("info"),
            fence: beside("fence"),
            shared: beside("shared"),
            modes: beside("modes"),
            newest: beside("newest"),
            notify: format!("{family}-notify:").into(),
            tombstone: format!("{family}-tombstone:").into(),
            node: format!("{family}-node").into(),
        }
    }

    pub(crate) fn notify_of(&self, waiter: WaiterId) -> Vec<u8> {
        [self.notify.as_slice(), waiter.to_string().as_bytes()].concat()
    }

    pub(crate) fn tombstone_of(&self, waiter: WaiterId) -> Vec<u8> {
        [self.tombstone.as_slice(), waiter.to_string().as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_names_the_family() {
        let names = Keys::new("lock", b"deploy");
        assert_eq!(names.lock, b"lock:deploy");
        assert_eq!(names.queue, b"lock-queue:deploy");
        assert_eq!(names.notify, b"lock-notify:");
    }

    #[test]
    fn without_a_prefix_the_lock_is_the_bare_key() {
        let names = Keys::new("", b"deploy");
        assert_eq!(names.lock, b"deploy");
        assert_eq!(names.queue, b"bare-queue:deploy");
    }

    #[test]
    fn any_bytes_are_a_key() {
        assert_eq!(Keys::new("p", b"\xff\0'").lock, b"p:\xff\0'");
    }
}
