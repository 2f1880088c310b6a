//! The lock on this host: no server, no lease. The kernel frees what a dead process held.
//!
//! Whoever comes draws a ticket `t` and locks byte `t` of the lock file, then asks for all bytes before
//! it. That is granted when everyone who came earlier, and is in the way, has gone: strict FIFO, with
//! neighbouring readers together if both locks are read locks. A holder so has the bytes `0..=t`, a
//! waiter only byte `t`; who is who is read from the kernel, never from what the file says.

mod file;
mod ranges;

use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::PollFlags;

use file::{LockFile, Record};
pub use file::{Mount, default_folder};
use ranges::Kind;

use super::later::Later;
use super::wait::{Wait, wait};
use super::{
    BootTime, Busy, Claim, Error, Extended, Fault, Grant, Held, Lock, Mode, Names, NodeError, Observer,
    OnHost, Patience, Released, Request, WaiterId,
};

pub struct HostLock {
    file: LockFile,
    claim: Claim,
}

impl HostLock {
    /// Open, or make, the lock file. Before the guardian is forked: it must hold the lock as well, so that a
    /// killed redlock does not free it under a living command.
    pub fn open(folder: &Path, names: &[Names]) -> Result<Self, NodeError> {
        let file = LockFile::open(folder, &names[0].lock)?;
        Ok(Self { file, claim: Claim { waiter: WaiterId::random(), attempt: 1 } })
    }

    /// How the folder is mounted: the kernel's locks do not reach over a network.
    pub fn mount(&self) -> Mount {
        self.file.mount()
    }

    fn try_once(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Attempt, Error> {
        let kind = kind_of(&request.mode);
        let mut turn = self.file.enter(observer)?;
        let ticket = turn.draw_ticket(kind).map_err(Error::Node)?;
        if turn.try_all_before(ticket, kind).map_err(Error::Node)? {
            let fence = turn.sign(ticket, &self.record(request)).map_err(Error::Node)?;
            return Ok(Attempt::Granted(ticket, fence));
        }
        // Whoever does not wait must not stand in anybody's way.
        if request.patience == Patience::None {
            self.file.ranges().unlock(ticket..ticket + 1);
        }
        Ok(Attempt::MustWait(ticket))
    }

    fn record(&self, request: &Request) -> Record {
        Record { claim: self.claim.to_string(), since: BootTime::now(), who: request.who.clone() }
    }

    /// Sleep until every earlier one who is in the way has gone. A thread sleeps for us, as the kernel
    /// would not wake us for a signal, or for the end of our patience.
    fn wait_for_turn(
        &self,
        ticket: u64,
        request: &Request,
        started: BootTime,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let give_up = request.patience.ends(started);
        let answer = self.ask_the_kernel(ticket, kind_of(&request.mode)).map_err(Error::Node)?;
        loop {
            let waited = BootTime::now().since(started);
            let mut until = BootTime::now() + observer.next_word(waited);
            if let Some(give_up) = give_up {
                if give_up.has_passed() {
                    return Err(Error::Held(Box::new(self.busy(ticket))));
                }
                until = until.min(give_up);
            }
            match wait(&[(answer.bell(), PollFlags::POLLIN)], until, Some(observer)) {
                Wait::Ready => {
                    let gone = || Err(std::io::ErrorKind::BrokenPipe.into());
                    let answer = answer.answer().unwrap_or_else(gone);
                    return answer.map_err(|e| Error::Node(self.file.error(Fault::Unavailable, &e)));
                }
                Wait::Cancelled => return Err(Error::Cancelled),
                Wait::Over if until.has_passed() => {
                    observer.waiting(&self.busy(ticket), BootTime::now().since(started));
                }
                Wait::Over => {}
            }
        }
    }

    /// For all bytes before the ticket.
    fn ask_the_kernel(&self, ticket: u64, kind: Kind) -> Result<Later<()>, NodeError> {
        let ranges =
            self.file.ranges().clone_handle().map_err(|e| self.file.error(Fault::Unavailable, &e))?;
        Later::start("wait", move || ranges.lock(0..ticket, kind))
            .map_err(|e| self.file.error(Fault::Unavailable, &e))
    }

    /// Who is before us, as the kernel has it.
    fn busy(&self, ticket: u64) -> Busy {
        let before_us = self.file.ranges().locked_in(0..ticket).unwrap_or_default();
        let (holders, waiters): (Vec<_>, Vec<_>) = before_us.into_iter().partition(|range| range.start == 0);
        let record = holders.iter().find_map(|held| self.file.record(held.end - 1));
        Busy {
            place: Some(waiters.len()),
            holder: record.as_ref().map(|record| record.claim.clone().into_bytes()),
            held_for: record.as_ref().map(|record| BootTime::now().since(record.since)),
            who: record.map(|record| record.who),
            ..Busy::default()
        }
    }

    /// Is a run that we run under still a holder? By its ticket, as the kernel knows it: what stands in the file
    /// may have been overwritten since.
    fn is_nested(&self, request: &Request) -> bool {
        let (device, inode) = self.file.identity();
        let tickets = request.ancestors.iter().filter_map(|held| held.on_host.as_ref());
        let mut tickets = tickets.filter(|held| (held.device, held.inode) == (device, inode));
        tickets.any(|OnHost { ticket, .. }| {
            let locked = self.file.ranges().any_locked_in(*ticket..ticket + 1).ok().flatten();
            locked.is_some_and(|locked| locked == (0..ticket + 1))
        })
    }
}

enum Attempt {
    /// With the ticket and the fencing token.
    Granted(u64, u64),
    MustWait(u64),
}

fn kind_of(mode: &Mode) -> Kind {
    match mode {
        Mode::Exclusive | Mode::Slot { .. } => Kind::Write,
        Mode::Shared { .. } => Kind::Read,
    }
}

impl Lock for HostLock {
    /// The kernel answers at once.
    fn begin(&mut self, _request: &Request) {}

    fn acquire(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Grant, Error> {
        let started = BootTime::now();
        let (ticket, fence) = match self.try_once(request, observer)? {
            Attempt::Granted(ticket, fence) => (ticket, fence),
            Attempt::MustWait(ticket) => {
                let outcome = if self.is_nested(request) {
                    Err(Error::Nested)
                } else if request.patience == Patience::None {
                    Err(Error::Held(Box::new(Busy { place: None, ..self.busy(ticket) })))
                } else {
                    observer.waiting(&self.busy(ticket), Duration::ZERO);
                    self.wait_for_turn(ticket, request, started, observer)
                };
                // Whoever gives up is out of the way at once.
                outcome.inspect_err(|_| self.file.ranges().unlock_all())?;
                let mut turn = self.file.enter(observer)?;
                (ticket, turn.sign(ticket, &self.record(request)).map_err(Error::Node)?)
            }
        };
        let (device, inode) = self.file.identity();
        let held_as = Held { claim: self.claim, on_host: Some(OnHost { device, inode, ticket }) };
        let now = BootTime::now();
        Ok(Grant {
            claim: self.claim,
            held_as: vec![held_as],
            fences: vec![fence],
            slots: Vec::new(),
            lease: None,
            taken_at: now,
            waited: now.since(started),
        })
    }

    /// There is no lease to renew.
    fn extend(&mut self, grant: &Grant) -> Extended {
        grant.lease.map_or_else(
            || Extended::Unknown(self.file.error_text(Fault::Unfit, "a lock on this host has no lease")),
            Extended::Until,
        )
    }

    fn release(&mut self, _grant: &Grant, _min_hold: Duration) -> Released {
        self.file.ranges().unlock_all();
        Released::Done
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.file.ranges().as_raw_fd()]
    }
}
