//! The output of a process, collected while it runs.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::PATIENCE;

/// A stream, collected by a thread.
pub struct Lines {
    stream: Arc<File>,
    shared: Arc<(Mutex<Collected>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Collected {
    bytes: Vec<u8>,
    ended: bool,
}

impl Collected {
    /// All complete lines.
    fn lines(&self) -> String {
        let last = self.bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = if self.ended { self.bytes.len() } else { last.map_or(0, |end| end + 1) };
        String::from_utf8_lossy(&self.bytes[..whole]).into_owned()
    }
}

impl Lines {
    pub fn of(stream: impl Into<OwnedFd>) -> Lines {
        let stream = Arc::new(File::from(stream.into()));
        let shared = Arc::new((Mutex::new(Collected::default()), Condvar::new()));
        let (source, theirs) = (Arc::clone(&stream), Arc::clone(&shared));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            loop {
                if !has_more(&source, PollTimeout::NONE) {
                    continue; // interrupted
                }
                // Under the lock, so that a thread that has it sees all bytes read so far.
                let mut collected = theirs.0.lock().expect("the lines");
                let read = (&*source).read(&mut buffer).unwrap_or(0);
                collected.bytes.extend(&buffer[..read]);
                collected.ended = read == 0;
                theirs.1.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Lines { stream, shared, reader: Some(reader) }
    }

    pub fn text(&self) -> String {
        self.shared.0.lock().expect("the lines").lines()
    }

    pub fn wait_for(&self, text: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut collected = self.shared.0.lock().expect("the lines");
        loop {
            if let Some(line) = collected.lines().lines().find(|line| line.contains(text)) {
                return Some(line.to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || collected.ended {
                return None;
            }
            collected = self.shared.1.wait_timeout(collected, left).expect("the lines").0;
        }
    }

    /// The whole stream; if other processes keep it open, what arrives within half a second. On a
    /// busy machine the reading thread may be late, so bytes that are already readable are waited
    /// for.
    pub fn finish(&mut self) -> Vec<u8> {
        let start = Instant::now();
        let mut collected = self.shared.0.lock().expect("the lines");
        while !collected.ended {
            let patience =
                if has_more(&self.stream, PollTimeout::ZERO) { PATIENCE } else { Duration::from_millis(500) };
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            let pause = left.min(Duration::from_millis(500));
            collected = self.shared.1.wait_timeout(collected, pause).expect("the lines").0;
        }
        let bytes = collected.bytes.clone();
        let ended = collected.ended;
        drop(collected);
        if let (true, Some(reader)) = (ended, self.reader.take()) {
            let _ = reader.join();
        }
        bytes
    }
}

/// Whether the stream is readable or at its end.
fn has_more(stream: &File, timeout: PollTimeout) -> bool {
    poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], timeout).is_ok_and(|ready| ready > 0)
}
