//! What the system would make us wait for, without waiting: a thread waits, and its answer is polled for like
//! everything else.

use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

#[derive(Debug)]
pub struct Later<T> {
    bell: PipeReader,
    answer: Receiver<io::Result<T>>,
}

impl<T: Send + 'static> Later<T> {
    pub fn start(name: &str, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<Self> {
        let (bell, mut ring) = io::pipe()?;
        let (tell, answer) = sync_channel(1);
        thread::Builder::new().name(name.into()).spawn(move || {
            // Nobody listens any more only when the program is about to end.
            let _ = tell.send(work());
            let _ = ring.write(&[1]);
        })?;
        Ok(Self { bell, answer })
    }

    /// Readable when the answer is there.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn answer(&self) -> Option<io::Result<T>> {
        self.answer.try_recv().ok()
    }
}
