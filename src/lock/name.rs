//! What the lock itself is called, on a server and as a file.

/// An empty prefix makes the lock the bare key, for programs that use no prefix.
pub(crate) fn lock_name(prefix: &str, key: &[u8]) -> Vec<u8> {
    match prefix {
        "" => key.to_vec(),
        prefix => [prefix.as_bytes(), b":", key].concat(),
    }
}
