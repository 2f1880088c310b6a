//! Hides passwords in URLs on the command line from `ps`, and reads passwords from files.
//!
//! Every user of the host can read a process's arguments in /proc, so they are overwritten before
//! any other process is started.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io, path};

use crate::arguments;

/// A password. One from a file may be changed while we run, so it is read again at each login.
#[derive(Clone)]
pub(crate) struct Password {
    file: Option<PathBuf>,
    last: Arc<Mutex<String>>,
    was_accepted: Arc<AtomicBool>,
}

impl Password {
    /// A password that never changes.
    pub(crate) fn fixed(text: &str) -> Self {
        Self { file: None, last: Arc::new(Mutex::new(text.to_owned())), was_accepted: Arc::default() }
    }

    /// The first line of the file; `None` if that is empty.
    pub(crate) fn from_file(path: &Path) -> io::Result<Option<Self>> {
        let text = fs::read_to_string(path)?;
        // A keeper changes its working directory.
        let file = path::absolute(path)?;
        Ok(first_line(&text).map(|line| Self { file: Some(file), ..Self::fixed(line) }))
    }

    /// A server has accepted it.
    pub(crate) fn accepted(&self) {
        self.was_accepted.store(true, Ordering::Relaxed);
    }

    /// Whether a refusal may pass: the password was right, but its file and a server cannot change
    /// at the same moment.
    pub(crate) fn may_be_changing(&self) -> bool {
        self.file.is_some() && self.was_accepted.load(Ordering::Relaxed)
    }

    /// The password at this moment. If its file cannot be read or is empty, the last one.
    pub(crate) fn current(&self) -> String {
        let text = self.file.as_deref().and_then(read_again).and_then(|bytes| String::from_utf8(bytes).ok());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = text.as_deref().and_then(first_line) {
            line.clone_into(&mut last);
        }
        last.clone()
    }
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().next().filter(|line| !line.is_empty())
}

/// The content of a file that was read at the start and may have been replaced since. `None` if it
/// cannot be read, or only once: a pipe as in `--password-file <(pass show redis)` would block, and
/// a descriptor may be of another file by now.
pub(crate) fn read_again(path: &Path) -> Option<Vec<u8>> {
    let is_descriptor = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|root| path.starts_with(root));
    let is_file = !is_descriptor && fs::metadata(path).is_ok_and(|about| about.is_file());
    if is_file { fs::read(path).ok() } else { None }
}

/// Mask these URLs in our own argument list. The last `of_the_command` arguments belong to the
/// command.
pub(crate) fn hide(urls: &[&OsStr], of_the_command: usize) -> io::Result<()> {
    if urls.is_empty() {
        return Ok(());
    }
    arguments::overwrite(|bytes| hide_in(bytes, urls, of_the_command))
}

fn hide_in(bytes: &mut [u8], urls: &[&OsStr], of_the_command: usize) {
    let ours = length_without_last(bytes, of_the_command);
    for url in urls {
        let url = url.as_bytes();
        let mut from = 0;
        while let Some(at) = find(&bytes[from..ours], url) {
            let end = from + at + url.len();
            mask(&mut bytes[from + at..end]);
            from = end;
        }
    }
}

/// Number of bytes before the last `count` arguments, each of which ends with a zero.
fn length_without_last(bytes: &[u8], count: usize) -> usize {
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, b)| **b == 0).map(|(at, _)| at + 1).collect();
    ends.len().checked_sub(count + 1).map_or(0, |last| ends[last])
}

/// Replace user and password, before the last @ and in a query, with stars. The length stays the
/// same.
fn mask(url: &mut [u8]) {
    let start = find(url, b"://").map_or(0, |at| at + 3);
    if let Some(at) = url.iter().rposition(|&b| b == b'@').filter(|&at| at >= start) {
        url[start..at].fill(b'*');
    }
    if let Some(at) = find(url, b"pass=") {
        let value = &mut url[at + b"pass=".len()..];
        let end = value.iter().position(|&b| b == b'&').unwrap_or(value.len());
        value[..end].fill(b'*');
    }
}

/// Stands for a password in our own hints.
const PLACEHOLDER: &str = ":PASSWORD@";

/// For messages that repeat what was typed: a URL may be anywhere in them.
pub(crate) fn without_passwords(text: &str) -> String {
    let mask_part = |part: &str| {
        let is_advice = part.contains(PLACEHOLDER) && !part.replacen(PLACEHOLDER, "", 1).contains('@');
        let mut bytes = part.as_bytes().to_vec();
        if find(&bytes, b"://").is_some() && !is_advice {
            mask(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    text.split_inclusive([' ', '\n', '\'', ',']).map(mask_part).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len().max(1)).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_url_has_no_password() {
        assert_eq!(
            without_passwords("unexpected argument 'redis://:secret@h' found\nUsage: x"),
            "unexpected argument 'redis://*******@h' found\nUsage: x"
        );
        let advice = "expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]";
        assert_eq!(without_passwords(advice), advice);
    }

    #[test]
    fn the_commands_arguments_are_left_alone() {
        assert_eq!(length_without_last(b"redlock\0-r\0u\0cmd\0a\0", 2), b"redlock\0-r\0u\0".len());
        assert_eq!(length_without_last(b"a\0b\0", 0), 4);
        assert_eq!(length_without_last(b"a\0", 5), 0);
    }

    #[test]
    fn a_password_that_cannot_be_read_again_stays_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        assert!(Password::from_file(&path).is_err());
        fs::write(&path, "\nx").unwrap();
        assert!(Password::from_file(&path).unwrap().is_none());
        fs::write(&path, "one\n").unwrap();
        let password = Password::from_file(&path).unwrap().unwrap();
        for (text, expected) in
            [(&b"two\r\nx"[..], "two"), (b"", "two"), (b"\xff", "two"), (b"three", "three")]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(password.current(), expected);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(password.current(), "three");
        // Nothing writes to it: opening it would block.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(password.current(), "three");
    }

    #[test]
    fn only_the_login_is_masked() {
        for (url, masked) in [
            ("redis://me:p@ss@host:1/2", "redis://*******@host:1/2"),
            ("redis://host/1", "redis://host/1"),
            ("unix:///s?pass=abc&db=1", "unix:///s?pass=***&db=1"),
            ("me:secret@host", "*********@host"),
        ] {
            let mut bytes = url.as_bytes().to_vec();
            mask(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), masked);
        }
    }
}
