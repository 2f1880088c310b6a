//! A blocking call on a thread of its own; its result is polled for like everything else.

use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use crate::memory;

#[derive(Debug)]
pub(super) struct Background<T> {
    wake_fd: PipeReader,
    result: Receiver<io::Result<T>>,
}

impl<T: Send + 'static> Background<T> {
    pub(super) fn start(
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        memory::suffices_for_thread()?;
        let (wake_fd, mut waker) = io::pipe()?;
        let (sender, result) = sync_channel(1);
        thread::Builder::new().name(name.into()).spawn(move || {
            // The receiver is gone only when the program is about to end.
            let _ = sender.send(work());
            let _ = waker.write(&[1]);
        })?;
        Ok(Self { wake_fd, result })
    }

    /// Readable when the result is there.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    pub(super) fn result(&self) -> Option<io::Result<T>> {
        self.result.try_recv().ok()
    }
}
