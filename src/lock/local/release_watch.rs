//! Waiting until another process releases its byte. Each wait has its own thread: a wait for a file
//! lock has no timeout, cannot be polled, and waits for one lock only.
//!
//! The thread requests a read lock on the other process's byte and drops it at once, so no other
//! process sees it or waits for it. Threads that still wait when the watch is dropped are
//! interrupted, and end. A process that can start no thread looks each second.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::pthread::{Pthread, pthread_kill};
use nix::sys::signal::Signal;

use super::byte_map::byte;
use super::ofd_lock::{LockKind, OfdLocks};
use crate::clock::BootTime;
use crate::lock::wait::{Wait, wait};

/// How often to look if the kernel does not notify us: no thread can be started, or the user has used
/// all inotify instances.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Stack size of a thread that makes one system call.
const STACK: usize = 64 * 1024;

/// Interrupts a thread's system call, if the process has a handler; otherwise it is ignored.
pub(super) const INTERRUPT: Signal = Signal::SIGURG;
/// An interrupt may arrive just before the system call starts to sleep, so it is repeated.
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
    /// No thread could be started for a byte.
    lacks_threads: bool,
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
            lacks_threads: false,
            over: Arc::default(),
            threads: Vec::new(),
        })
    }

    /// Wake when the process that has locked this byte releases it. If no thread can be started for
    /// that, [`ReleaseWatch::next_look`] says when to look.
    pub(super) fn watch(&mut self, offset: u64) {
        if self.watched.contains(&offset) {
            return;
        }
        let (locks, over) = (self.locks.clone(), Arc::clone(&self.over));
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        self.threads.retain(|thread| !thread.is_finished());
        let wait = move || {
            let released = locks.lock_unless(byte(offset), LockKind::Read, || over.load(Ordering::Relaxed));
            if released.is_ok() {
                locks.unlock(byte(offset));
            }
            // It has no receiver once the watch is dropped.
            let _ = sender.send((offset, released));
            let _ = (&*waker).write(&[1]);
        };
        match thread::Builder::new().name("wait".into()).stack_size(STACK).spawn(wait) {
            Ok(thread) => {
                self.threads.push(thread);
                self.watched.insert(offset);
            }
            Err(_) => self.lacks_threads = true,
        }
    }

    /// When to look at the bytes, and to watch them again, if some of them have no thread.
    pub(super) fn next_look(&mut self) -> Option<BootTime> {
        std::mem::take(&mut self.lacks_threads).then(|| BootTime::now() + LOOK_INTERVAL)
    }

    /// Sleeps until a watched byte may have been released, or until this moment.
    pub(super) fn wait(&mut self, until: BootTime) -> io::Result<()> {
        let until = self.next_look().map_or(until, |look| look.min(until));
        match wait(&[(self.wake_fd(), PollFlags::POLLIN)], until, None) {
            Wait::Ready => self.take_releases(),
            Wait::Over | Wait::Cancelled(_) => Ok(()),
        }
    }

    /// Whether this byte is released before this moment.
    pub(super) fn wait_for_release(&mut self, offset: u64, until: BootTime) -> io::Result<bool> {
        while self.locks.writer_in(byte(offset))?.is_some() {
            if until.has_passed() {
                return Ok(false);
            }
            self.watch(offset);
            self.wait(until)?;
        }
        Ok(true)
    }

    /// Readable after a watched byte was released.
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
                // Not joined yet, so the handle is valid. It is a number in the standard library
                // and a pointer in musl.
                let _ = pthread_kill(thread.as_pthread_t() as Pthread, INTERRUPT);
            }
            thread::sleep(INTERRUPT_INTERVAL);
        }
    }
}
