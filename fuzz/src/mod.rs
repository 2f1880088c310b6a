//! The inputs of the fuzzer, and the properties that must hold. One function for each target in
//! fuzz_targets/.
//!
//! redlock is a program without a library, so fuzz/ compiles src/main.rs as a library. This file is
//! then a module of it (`cfg(fuzzing)`), and redis.rs, local.rs and child.rs are modules of the
//! corresponding modules, so that they can access private items.

mod config;
mod durations;
pub(crate) mod memory;

pub use config::config;
pub use durations::durations;

/// Bytes from a server, before they are known to be a reply.
pub fn resp(data: &[u8]) {
    crate::lock::fuzz_redis::resp(data);
}

/// Replies to our scripts.
pub fn replies(data: &[u8]) {
    crate::lock::fuzz_redis::replies(data);
}

/// The URL of a server.
pub fn urls(data: &[u8]) {
    crate::lock::fuzz_redis::urls(data);
}

/// The contents of a lock file.
pub fn lock_file(data: &[u8]) {
    crate::lock::fuzz_local::lock_file(data);
}

/// Messages between redlock and its guardian.
pub fn messages(data: &[u8]) {
    crate::child::fuzz::messages(data);
}

/// In an input: stands for a password.
pub(crate) const SECRET: &str = "SECRET";

/// Printed text contains no password, and nothing that a terminal could interpret as an escape
/// sequence.
pub(crate) fn assert_printable(message: &str, is_secret: bool) {
    let printed = crate::report::sanitize(message.as_bytes());
    assert!(!printed.chars().any(char::is_control), "{printed:?}");
    assert!(!(is_secret && printed.contains(SECRET)), "{printed:?}");
}

/// Whether the word appears only where a URL has its password.
pub(crate) fn is_only_password(text: &str) -> bool {
    text.contains(SECRET) && !text.replace(&format!("://:{SECRET}@"), "").contains(SECRET)
}
