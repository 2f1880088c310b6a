//! Waiting until another process has released its byte. Threads wait for us, as a process that waits for a file
//! lock hears no signal and no timeout, and the kernel knows no "one of these".
//!
//! A thread asks for a read lock on the other process's byte and drops it at once: no other process sees it or
//! waits for it. Threads that are still waiting when the wait is over are interrupted, and end.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill};
use nix::sys::signal::Signal;

use super::byte_map::byte;
use super::ofd_lock::{Kind, OfdLocks};

/// Stack for a thread that makes one system call.
const STACK: usize = 64 * 1024;

/// Ends a waiting thread's system call, if the process has a handler for it; without one it is ignored.
pub(super) const INTERRUPT: Signal = Signal::SIGURG;
/// An interrupt may come just before the sleep: so often it is repeated, with so much time between.
const INTERRUPTS: u32 = 50;
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct ReleaseWatch {
    locks: OfdLocks,
    wake_fd: PipeReader,
    waker: Arc<PipeWriter>,
    released: Receiver<(u64, io::Result<()>)>,
    sender: Sender<(u64, io::Result<()>)>,
    watched: BTreeSet<u64>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ReleaseWatch {
    pub(super) fn new(locks: &OfdLocks) -> io::Result<Self> {
        let (wake_fd, waker) = io::pipe()?;
        let (sender, released) = channel();
        Ok(Self {
            locks: locks.clone(),
            wake_fd,
            waker: Arc::new(waker),
            released,
            sender,
            watched: BTreeSet::new(),
            over: Arc::default(),
            threads: Vec::new(),
        })
    }

    /// Wake when the process that has locked this byte has released it.
    pub(super) fn watch(&mut self, offset: u64) -> io::Result<()> {
        if !self.watched.insert(offset) {
            return Ok(());
        }
        let (locks, over) = (self.locks.clone(), Arc::clone(&self.over));
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        self.threads.retain(|thread| !thread.is_finished());
        let wait = move || {
            let released = locks.lock_unless(byte(offset), Kind::Read, || over.load(Ordering::Relaxed));
            if released.is_ok() {
                locks.unlock(byte(offset));
            }
            // The receiver is gone when the wait is over.
            let _ = sender.send((offset, released));
            let _ = (&*waker).write(&[1]);
        };
        self.threads.push(thread::Builder::new().name("wait".into()).stack_size(STACK).spawn(wait)?);
        Ok(())
    }

    /// Readable when a watched byte was released.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// To be called when [`ReleaseWatch::wake_fd`] is readable.
    pub(super) fn take_releases(&mut self) -> io::Result<()> {
        let _ = self.wake_fd.read(&mut [0; 64])?;
        while let Ok((offset, released)) = self.released.try_recv() {
            self.watched.remove(&offset);
            released?;
        }
        Ok(())
    }
}

impl Drop for ReleaseWatch {
    fn drop(&mut self) {
        // A thread that has reported is about to end.
        if self.watched.is_empty() {
            return;
        }
        self.over.store(true, Ordering::Relaxed);
        for _ in 0..INTERRUPTS {
            self.threads.retain(|thread| !thread.is_finished());
            if self.threads.is_empty() {
                return;
            }
            for thread in &self.threads {
                // Not joined yet, so its handle is still its own. The standard library has it as a number, musl
                // as a pointer.
                let _ = pthread_kill(thread.as_pthread_t() as Pthread, INTERRUPT);
            }
            thread::sleep(INTERRUPT_INTERVAL);
        }
    }
}
