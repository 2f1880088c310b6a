//! The name of a lock's file, and the lock that a file belongs to.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use uuid::Uuid;

use super::format::{LONGEST_KEPT_NAME, NAME, number};
use super::lock_file::LockFile;

const LONGEST: usize = 200;
const PREFIX: &str = "redlock-";
/// Precedes a digest; no other file name contains it.
const DIGEST: u8 = b'~';

/// Readable, and different for each lock: letters, digits, `_` and `-` stay, other bytes become
/// %XX, and the end of a name that is too long becomes a digest.
pub(super) fn encode(name: &[u8]) -> String {
    let mut encoded = String::from(PREFIX);
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"_-".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() > LONGEST {
        encoded.truncate(LONGEST / 2);
        encoded.push(DIGEST.into());
        encoded.push_str(&Uuid::new_v5(&Uuid::NAMESPACE_OID, name).to_string());
    }
    encoded
}

/// Whether a file with this name may be a lock file.
pub(super) fn may_be_ours(file_name: &OsStr) -> bool {
    file_name.as_bytes().starts_with(PREFIX.as_bytes())
}

/// The name of the lock, unless the file name has a digest.
fn decode(file_name: &[u8]) -> Option<Vec<u8>> {
    let mut rest = file_name.strip_prefix(PREFIX.as_bytes())?;
    let mut name = Vec::new();
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                (u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?, after)
            }
            (first, after) => (*first, after),
        };
        name.push(byte);
        rest = after;
    }
    Some(name)
}

impl LockFile {
    /// The name of the lock, checked against the name of the file, so that no file can claim to be
    /// another lock's. `None` for a digest if the file does not contain the name.
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        let file_name = self.path().file_name()?.as_bytes();
        let name = if file_name.contains(&DIGEST) { self.kept_name() } else { decode(file_name) };
        name.filter(|name| encode(name).as_bytes() == file_name)
    }

    /// Write the name into the file if its file name has a digest. Every process writes the same
    /// bytes.
    pub(super) fn keep_name(&self, name: &[u8]) {
        let is_digest = self.path().file_name().is_some_and(|file| file.as_bytes().contains(&DIGEST));
        if is_digest && name.len() <= LONGEST_KEPT_NAME && self.kept_name().as_deref() != Some(name) {
            let bytes = [&(name.len() as u64).to_le_bytes(), name].concat();
            // The lock works without it.
            let _ = self.write_at(&bytes, NAME);
        }
    }

    fn kept_name(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 8 + LONGEST_KEPT_NAME];
        let read = self.read_at_most(&mut bytes, NAME);
        let (length, name) = bytes[..read].split_at_checked(8)?;
        name.get(..usize::try_from(number(length)).ok()?).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(encode(b"lock:deploy"), "redlock-lock%3Adeploy");
        assert_eq!(encode(b"../a b"), "redlock-%2E%2E%2Fa%20b");
        assert_ne!(encode(&[b'x'; 400]), encode(&[b'x'; 401]));
    }

    proptest! {
        #[test]
        fn every_key_has_a_short_plain_name(name: Vec<u8>) {
            let name = encode(&name);
            prop_assert!(name.len() < 255 && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
        }

        #[test]
        fn a_name_without_a_digest_reads_back(name: Vec<u8>) {
            let encoded = encode(&name);
            let is_digest = encoded.as_bytes().contains(&DIGEST);
            prop_assert!(is_digest || decode(encoded.as_bytes()) == Some(name));
        }

        #[test]
        fn decoding_survives_any_file_name(file_name: Vec<u8>) {
            let _ = decode(&[PREFIX.as_bytes(), &file_name].concat());
        }

        #[test]
        fn different_keys_have_different_files(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a == b, encode(&a) == encode(&b));
        }
    }
}
