//! Waiting until somebody has gone. Threads sleep for us, as the kernel would not wake us for a signal, or for the
//! end of our patience, and knows no "one of these".
//!
//! A sleeper asks for a read lock on the other one's byte and gives it back at once: nobody can see it, and nobody
//! waits for it. Those that still sleep when the wait is over are nudged, and end.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::pthread::pthread_kill;
use nix::sys::signal::Signal;

use super::layout::byte;
use super::ranges::{Kind, Ranges};

/// For one system call.
const STACK: usize = 64 * 1024;

/// Ends a sleeper's system call, if somebody has seen to it that it does; otherwise nobody notices it.
pub const NUDGE: Signal = Signal::SIGURG;
/// A nudge may come just before the sleep: so often it is repeated, with so much time between.
const NUDGES: u32 = 50;
const BETWEEN_NUDGES: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Sleepers {
    ranges: Ranges,
    bell: PipeReader,
    ring: Arc<PipeWriter>,
    told: Receiver<(u64, io::Result<()>)>,
    tell: Sender<(u64, io::Result<()>)>,
    watched: BTreeSet<u64>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sleepers {
    pub fn new(ranges: &Ranges) -> io::Result<Self> {
        let (bell, ring) = io::pipe()?;
        let (tell, told) = channel();
        Ok(Self {
            ranges: ranges.clone(),
            bell,
            ring: Arc::new(ring),
            told,
            tell,
            watched: BTreeSet::new(),
            over: Arc::default(),
            threads: Vec::new(),
        })
    }

    /// Ring when the one whose byte this is has gone.
    pub fn watch(&mut self, place: u64) -> io::Result<()> {
        if !self.watched.insert(place) {
            return Ok(());
        }
        let (ranges, over) = (self.ranges.clone(), Arc::clone(&self.over));
        let (tell, ring) = (self.tell.clone(), Arc::clone(&self.ring));
        self.threads.retain(|thread| !thread.is_finished());
        let sleep = move || {
            let gone = ranges.lock_unless(byte(place), Kind::Read, || over.load(Ordering::Relaxed));
            if gone.is_ok() {
                ranges.unlock(byte(place));
            }
            // Nobody listens any more when the wait is over.
            let _ = tell.send((place, gone));
            let _ = (&*ring).write(&[1]);
        };
        self.threads.push(thread::Builder::new().name("wait".into()).stack_size(STACK).spawn(sleep)?);
        Ok(())
    }

    /// Readable when somebody has gone.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// After the bell has rung.
    pub fn hear(&mut self) -> io::Result<()> {
        let _ = self.bell.read(&mut [0; 64])?;
        while let Ok((place, gone)) = self.told.try_recv() {
            self.watched.remove(&place);
            gone?;
        }
        Ok(())
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        // Whoever has rung is about to end.
        if self.watched.is_empty() {
            return;
        }
        self.over.store(true, Ordering::Relaxed);
        for _ in 0..NUDGES {
            self.threads.retain(|thread| !thread.is_finished());
            if self.threads.is_empty() {
                return;
            }
            for thread in &self.threads {
                // Not joined yet, so its number is still its own.
                let _ = pthread_kill(thread.as_pthread_t(), NUDGE);
            }
            thread::sleep(BETWEEN_NUDGES);
        }
    }
}
