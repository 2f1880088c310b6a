//! Passwords, and files that may be replaced while they are in use. Nothing else here reads files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io, path};

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
    pub(super) fn accepted(&self) {
        self.was_accepted.store(true, Ordering::Relaxed);
    }

    /// Whether a refusal may pass: the password was right, but its file and a server cannot change
    /// at the same moment.
    pub(super) fn may_be_changing(&self) -> bool {
        self.file.is_some() && self.was_accepted.load(Ordering::Relaxed)
    }

    /// The password at this moment. If its file cannot be read or is empty, the last one.
    pub(super) fn current(&self) -> String {
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
pub(super) fn read_again(path: &Path) -> Option<Vec<u8>> {
    let is_descriptor = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|root| path.starts_with(root));
    let is_file = !is_descriptor && fs::metadata(path).is_ok_and(|about| about.is_file());
    if is_file { fs::read(path).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
