//! Waiting until somebody has gone. Threads sleep for us, as the kernel would not wake us for a signal, or for the
//! end of our patience.
//!
//! A sleeper asks for a read lock on the other one's byte and gives it back at once: nobody can see it, and nobody
//! waits for it. So one that sleeps on after the wait is over disturbs nobody.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::layout::byte;
use super::ranges::{Kind, Ranges};

/// For one system call.
const STACK: usize = 64 * 1024;

#[derive(Debug)]
pub struct Sleepers {
    ranges: Ranges,
    bell: PipeReader,
    ring: Arc<PipeWriter>,
    told: Receiver<(u64, io::Result<()>)>,
    tell: Sender<(u64, io::Result<()>)>,
    watched: BTreeSet<u64>,
}

impl Sleepers {
    pub fn new(ranges: &Ranges) -> io::Result<Self> {
        let (bell, ring) = io::pipe()?;
        let (tell, told) = channel();
        let (ranges, ring) = (ranges.clone(), Arc::new(ring));
        Ok(Self { ranges, bell, ring, told, tell, watched: BTreeSet::new() })
    }

    /// Ring when the one whose byte this is has gone.
    pub fn watch(&mut self, place: u64) -> io::Result<()> {
        if !self.watched.insert(place) {
            return Ok(());
        }
        let (ranges, tell, ring) = (self.ranges.clone(), self.tell.clone(), Arc::clone(&self.ring));
        thread::Builder::new().name("wait".into()).stack_size(STACK).spawn(move || {
            let gone = ranges.lock(byte(place), Kind::Read);
            if gone.is_ok() {
                ranges.unlock(byte(place));
            }
            // Nobody listens any more when the wait is over.
            let _ = tell.send((place, gone));
            let _ = (&*ring).write(&[1]);
        })?;
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
