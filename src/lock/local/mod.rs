//! The lock on this host: no server, no lease. The kernel frees what a dead process held.
//!
//! Whoever waits or holds shows it by a lock on a byte of his own in the lock file (layout.rs). Who may go in is
//! decided from these under one short lock (turn.rs), never from what the file says; whoever may not sleeps until
//! one who is in the way has gone (sleepers.rs), and looks again.

mod asked;
mod busy;
mod contents;
mod counter;
mod file;
mod kept;
mod layout;
mod ranges;
mod record;
mod sleepers;
#[cfg(test)]
mod tests;
mod turn;

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::PollFlags;

use asked::Asked;
use busy::busy;
use file::LockFile;
pub use file::{Mount, default_folder};
use kept::Kept;
use layout::{TICKETS_END, byte};
use record::Record;
pub use sleepers::NUDGE;
use sleepers::Sleepers;
use turn::{Obstacles, Standing, Taken, Turn};

use super::wait::{Wait, wait};
use super::{
    BootTime, Claim, Error, Extended, Fault, Grant, Held, Lock, Mode, Names, NodeError, Observer, OnHost,
    Patience, Released, Request, WaiterId,
};

pub struct HostLock {
    /// One for each key, in the order given.
    files: Vec<LockFile>,
    /// The order in which all who want several of them take them: so none waits for one who waits for it.
    order: Vec<usize>,
    claim: Claim,
    /// What we have noted to stay taken, and for how long after the grant.
    kept: Option<(Duration, Vec<Kept>)>,
}

impl HostLock {
    /// Open, or make, the lock files. Before the guardian is forked: it must hold the lock as well, so that a
    /// killed redlock does not free it under a living command.
    pub fn open(folder: &Path, names: &[Names]) -> Result<Self, NodeError> {
        let files =
            names.iter().map(|names| LockFile::open(folder, &names.lock)).collect::<Result<_, _>>()?;
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&key| &names[key].lock);
        Ok(Self { files, order, claim: Claim { waiter: WaiterId::random(), attempt: 0 }, kept: None })
    }

    /// How the folder is mounted: the kernel's locks do not reach over a network.
    pub fn mount(&self) -> Mount {
        self.files[0].mount()
    }

    fn take_all(&mut self, asking: &mut Asking<'_>) -> Result<Vec<Taken>, Error> {
        if self.is_below_ancestor(asking)? {
            return Err(Error::Nested);
        }
        let mut taken = vec![None; self.files.len()];
        for &key in &self.order {
            taken[key] = Some(self.take(key, asking)?);
        }
        Ok(taken.into_iter().flatten().collect())
    }

    fn take(&self, key: usize, asking: &mut Asking<'_>) -> Result<Taken, Error> {
        let (file, asked) = (&self.files[key], asking.asked);
        let mut waiting: Option<(u64, Sleepers)> = None;
        loop {
            let ticket = waiting.as_ref().map(|(ticket, _)| *ticket);
            let mut turn = Turn::begin(file, Some(&mut *asking.observer))?;
            let obstacles = match turn.look(&asked, ticket).map_err(Error::Node)? {
                Standing::Free(slot) => {
                    let record = self.record(asking.request);
                    return turn.go_in(&asked, ticket, slot, &record).map_err(Error::Node);
                }
                Standing::Blocked(obstacles) => obstacles,
            };
            if let Some((ticket, sleepers)) = &mut waiting {
                drop(turn);
                asking.sleep(file, key, *ticket, sleepers, &obstacles)?;
                continue;
            }
            if is_held_above(file, &asked, asking.request) {
                return Err(Error::Nested);
            }
            // Whoever does not wait must not stand in anybody's way.
            if asking.request.patience == Patience::None {
                drop(turn);
                return Err(Error::Held(Box::new(busy(file, key, &asked, None))));
            }
            let ticket = turn.queue(&asked).map_err(Error::Node)?;
            drop(turn);
            let sleepers = Sleepers::new(file.ranges()).map_err(|e| broken(file, &e))?;
            asking.tell(file, key, ticket);
            let (ticket, sleepers) = waiting.insert((ticket, sleepers));
            asking.sleep(file, key, *ticket, sleepers, &obstacles)?;
        }
    }

    /// Would one of the keys have to wait for a run that we run under? Asked of all before the first is waited for.
    fn is_below_ancestor(&self, asking: &mut Asking<'_>) -> Result<bool, Error> {
        let (asked, request) = (asking.asked, asking.request);
        for file in self.files.iter().filter(|file| is_held_above(file, &asked, request)) {
            let turn = Turn::begin(file, Some(&mut *asking.observer))?;
            if let Standing::Blocked(_) = turn.look(&asked, None).map_err(Error::Node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn record(&self, request: &Request) -> Record {
        Record { claim: self.claim.to_string(), since: BootTime::now(), who: request.who.clone() }
    }

    /// From the grant on, also if we are killed.
    fn keep(
        &mut self,
        asked: &Asked,
        taken: &[Taken],
        from: BootTime,
        min_hold: Duration,
    ) -> Result<(), Error> {
        let until = from + min_hold;
        let what = |taken: &Taken| Kept { what: asked.keeps(taken.slot), until, ticket: taken.ticket };
        self.kept = Some((min_hold, taken.iter().map(what).collect()));
        self.note(until).inspect_err(|_| drop(self.note(from)))
    }

    /// It was noted for another time than it is now to stay taken.
    fn keep_otherwise(&mut self, from: BootTime, min_hold: Duration) -> Result<(), Error> {
        match &self.kept {
            Some((noted, _)) if *noted != min_hold => self.note(from + min_hold),
            _ => Ok(()),
        }
    }

    fn note(&self, until: BootTime) -> Result<(), Error> {
        let kept = self.kept.iter().flat_map(|(_, kept)| kept);
        for (file, kept) in self.files.iter().zip(kept) {
            Turn::begin(file, None)?.keep(Kept { until, ..*kept }).map_err(Error::Node)?;
        }
        Ok(())
    }

    fn unlock_all(&self) {
        self.files.iter().for_each(|file| file.ranges().unlock_all());
    }

    fn held_as(&self, key: usize, taken: &Taken) -> Held {
        let (device, inode) = self.files[key].identity();
        Held { claim: self.claim, on_host: Some(OnHost { device, inode, ticket: taken.ticket }) }
    }
}

/// Is a run that we run under still a holder? By its ticket, as the kernel knows it: what stands in the file
/// may have been overwritten since.
fn is_held_above(file: &LockFile, asked: &Asked, request: &Request) -> bool {
    let (device, inode) = file.identity();
    let tickets = request.ancestors.iter().filter_map(|held| held.on_host.as_ref());
    let mut tickets =
        tickets.filter(|held| (held.device, held.inode) == (device, inode) && held.ticket < TICKETS_END);
    tickets.any(|OnHost { ticket, .. }| {
        let marks = [asked.family.owners(), asked.family.sharers()].map(|marks| marks.start + ticket);
        marks.iter().any(|mark| matches!(file.ranges().present_in(byte(*mark)), Ok(Some(_))))
    })
}

fn broken(file: &LockFile, error: &std::io::Error) -> Error {
    Error::Node(file.error(Fault::Unavailable, error))
}

/// One request, its patience, and who is told of it.
struct Asking<'a> {
    asked: Asked,
    request: &'a Request,
    started: BootTime,
    observer: &'a mut dyn Observer,
}

impl Asking<'_> {
    /// Until there is a reason to look again.
    fn sleep(
        &mut self,
        file: &LockFile,
        key: usize,
        ticket: u64,
        sleepers: &mut Sleepers,
        obstacles: &Obstacles,
    ) -> Result<(), Error> {
        for place in &obstacles.places {
            sleepers.watch(*place).map_err(|e| broken(file, &e))?;
        }
        let give_up = self.request.patience.ends(self.started);
        loop {
            let word = BootTime::now() + self.observer.next_word(self.started.elapsed());
            if give_up.is_some_and(BootTime::has_passed) {
                return Err(Error::Held(Box::new(busy(file, key, &self.asked, Some(ticket)))));
            }
            let until = [give_up, obstacles.until].into_iter().flatten().fold(word, BootTime::min);
            match wait(&[(sleepers.bell(), PollFlags::POLLIN)], until, Some(&mut *self.observer)) {
                Wait::Ready => return sleepers.hear().map_err(|e| broken(file, &e)),
                Wait::Cancelled => return Err(Error::Cancelled),
                Wait::Over if obstacles.until.is_some_and(BootTime::has_passed) => return Ok(()),
                Wait::Over if word.has_passed() => self.tell(file, key, ticket),
                Wait::Over => {}
            }
        }
    }

    fn tell(&mut self, file: &LockFile, key: usize, ticket: u64) {
        let busy = busy(file, key, &self.asked, Some(ticket));
        self.observer.waiting(&busy, self.started.elapsed());
    }
}

impl Lock for HostLock {
    /// The kernel answers at once.
    fn begin(&mut self, _request: &Request) {}

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let asked = Asked::of(request);
        self.claim.attempt += 1;
        self.kept = None;
        let mut asking = Asking { asked, request, started, observer };
        // Whoever gives up is out of the way at once.
        let taken = self.take_all(&mut asking).inspect_err(|_| self.unlock_all())?;
        let now = BootTime::now();
        if !request.min_hold.is_zero() {
            self.keep(&asked, &taken, now, request.min_hold).inspect_err(|_| self.unlock_all())?;
        }
        let slots: Vec<u32> = taken.iter().map(|taken| taken.slot).collect();
        Ok(Grant {
            claim: self.claim,
            held_as: taken.iter().enumerate().map(|(key, taken)| self.held_as(key, taken)).collect(),
            fences: taken.iter().map(|taken| taken.fence).collect(),
            slots: if matches!(request.mode, Mode::Slot { .. }) { slots } else { Vec::new() },
            lease: None,
            taken_at: now,
            waited: now.since(started),
        })
    }

    /// There is no lease to renew.
    fn extend(&mut self, grant: &Grant) -> Extended {
        grant.lease.map_or_else(
            || Extended::Unknown(self.files[0].error_text(Fault::Unfit, "a lock on this host has no lease")),
            Extended::Until,
        )
    }

    fn release(&mut self, grant: &Grant, min_hold: Duration) -> Released {
        let noted = self.keep_otherwise(grant.taken_at, min_hold);
        self.unlock_all();
        match noted {
            Err(Error::Node(error)) => Released::Unknown(error),
            _ => Released::Done,
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.files.iter().map(|file| file.ranges().as_raw_fd()).collect()
    }
}
