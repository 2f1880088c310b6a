//! What the fuzzer feeds, and what must then hold. One function for each target in fuzz_targets/.
//!
//! redlock is a program without a library, so fuzz/ compiles src/main.rs once more, as one. This file is a module
//! of it then (`cfg(fuzzing)`), and redis.rs, local.rs and child.rs are modules of those rooms: they see what a
//! room keeps to itself.

mod config;
mod durations;
pub(crate) mod memory;

pub use config::config;
pub use durations::durations;

/// What a server sends, before it is known to be a reply.
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

/// What is printed has no password, and nothing that a terminal could take for an escape sequence.
pub(crate) fn assert_printable(message: &str, is_secret: bool) {
    let printed = crate::report::sanitize(message.as_bytes());
    assert!(!printed.chars().any(char::is_control), "{printed:?}");
    assert!(!(is_secret && printed.contains(SECRET)), "{printed:?}");
}

/// Whether the word stands nowhere but in places where a URL has its password.
pub(crate) fn is_only_password(text: &str) -> bool {
    text.contains(SECRET) && !text.replace(&format!("://:{SECRET}@"), "").contains(SECRET)
}
