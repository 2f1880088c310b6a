//! What a lock file is called, and of which lock a file is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use uuid::Uuid;

use super::format::{LONGEST_KEPT_NAME, NAME, number, read_at_most};
use super::lock_file::LockFile;

const LONGEST: usize = 200;
const PREFIX: &str = "redlock-";
/// Before a digest; it stands in no other file name.
const DIGEST: u8 = b'~';

/// Readable, and different for different locks: harmless characters stand for themselves, all others as
/// %XX, and what would be too long for a file name as a digest.
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

/// Whether a file may be a lock's, by its name.
pub(super) fn may_be_ours(file_name: &OsStr) -> bool {
    file_name.as_bytes().starts_with(PREFIX.as_bytes())
}

/// The name of the lock, unless it is a digest.
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
    /// The name of the lock: only if the file is called as that lock's file is, so nobody can pretend. `None` for a
    /// digest under which no name was kept.
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        let file_name = self.path().file_name()?.as_bytes();
        let name = if file_name.contains(&DIGEST) { self.kept_name() } else { decode(file_name) };
        name.filter(|name| encode(name).as_bytes() == file_name)
    }

    /// Keep the name in the file if the file's own name does not tell it. All that come write the same.
    pub(super) fn keep_name(&self, name: &[u8]) {
        let is_digest = self.path().file_name().is_some_and(|file| file.as_bytes().contains(&DIGEST));
        if is_digest && name.len() <= LONGEST_KEPT_NAME && self.kept_name().as_deref() != Some(name) {
            let bytes = [&(name.len() as u64).to_le_bytes(), name].concat();
            // The lock is a lock without it, too.
            let _ = self.locks().file().write_all_at(&bytes, NAME);
        }
    }

    fn kept_name(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 8 + LONGEST_KEPT_NAME];
        let read = read_at_most(self, &mut bytes, NAME);
        let (length, name) = bytes[..read].split_at_checked(8)?;
        name.get(..usize::try_from(number(length)).ok()?).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_keys_become_harmless_names() {
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
        fn a_name_that_is_no_digest_reads_back(name: Vec<u8>) {
            let encoded = encode(&name);
            let is_digest = encoded.as_bytes().contains(&DIGEST);
            prop_assert!(is_digest || decode(encoded.as_bytes()) == Some(name));
        }

        #[test]
        fn no_file_name_can_upset_us(file_name: Vec<u8>) {
            let _ = decode(&[PREFIX.as_bytes(), &file_name].concat());
        }

        #[test]
        fn different_keys_have_different_files(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a == b, encode(&a) == encode(&b));
        }
    }
}
