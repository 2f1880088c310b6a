//! Alone with the lock file: see who is in the way, queue, go in.
//!
//! Nobody comes while we look, though anyone may go: who is there only becomes fewer.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use super::asked::{Asked, Want};
use super::contents::Header;
use super::file::LockFile;
use super::kept::{ENTRIES, Kept, What};
use super::layout::{EVERYBODY, Family, Lane, TICKETS_END, byte};
use super::ranges::{Kind, Ranges};
use super::record::Record;
use crate::lock::{BootTime, Error, Fault, NodeError, Observer};

/// A year. Tokens are milliseconds, and more than one in each is not granted for long.
const FAR_FUTURE_MS: u64 = 365 * 24 * 3600 * 1000;

/// What keeps us out: go on when one of these bytes is free again, or this moment has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    pub places: Vec<u64>,
    pub until: Option<BootTime>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is in the way of this slot, if it is slots that were asked for.
    Free(u32),
    Blocked(Obstacles),
}

/// What a holder has.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub ticket: u64,
    pub fence: u64,
    pub slot: u32,
}

pub struct Turn<'a> {
    file: &'a LockFile,
    header: Header,
    /// What stays taken by itself.
    kept: Vec<Kept>,
    /// Nobody else holds or waits.
    alone: bool,
}

impl<'a> Turn<'a> {
    pub fn begin(file: &'a LockFile, observer: Option<&mut (dyn Observer + '_)>) -> Result<Self, Error> {
        file.counter().enter(file, observer)?;
        // From here on it is given back by dropping.
        let mut turn = Self { file, header: Header::default(), kept: Vec::new(), alone: false };
        if file.is_deleted().map_err(|e| Error::Node(turn.broken(&e)))? {
            let text = "was deleted while in use; try again";
            return Err(Error::Node(file.error_text(Fault::Unavailable, text)));
        }
        turn.header = file.header();
        turn.kept = file.kept(&turn.header);
        let others = file.ranges().present_in(EVERYBODY).map_err(|e| Error::Node(turn.broken(&e)))?;
        turn.alone = others.is_none();
        Ok(turn)
    }

    fn ranges(&self) -> &Ranges {
        self.file.ranges()
    }

    fn broken(&self, error: &io::Error) -> NodeError {
        self.file.error(Fault::Unavailable, error)
    }

    /// May we go in? The ticket is ours, if we have queued.
    pub fn look(&self, asked: &Asked, ticket: Option<u64>) -> Result<Standing, NodeError> {
        if self.alone && self.kept.is_empty() {
            return Ok(Standing::Free(0));
        }
        let fail = |e: io::Error| self.broken(&e);
        if ticket.is_none() {
            self.must_agree(asked.family)?;
        }
        let waits_its_turn = !self.may_join(asked).map_err(fail)?;
        if waits_its_turn && let Some(place) = self.before(asked, ticket).map_err(fail)? {
            return Ok(Standing::Blocked(Obstacles { places: vec![place], until: None }));
        }
        match asked.want {
            Want::Slot => self.look_for_slot(asked.family),
            _ => self.look_for_holder(asked).map_err(fail),
        }
    }

    /// Whoever uses the key in another way must be gone first, waiters too; that may be never, so it is an error.
    fn must_agree(&self, family: Family) -> Result<(), NodeError> {
        let present = |range| self.ranges().present_in(range).map_err(|e| self.broken(&e));
        let mut other = self.kept.iter().map(|kept| kept.what.family()).find(|other| *other != family);
        for range in family.others() {
            if let Some(place) = present(range)? {
                other = Some(Family::at(place));
            }
        }
        let Some(other) = other else { return Ok(()) };
        let used = match other {
            Family::PLAIN => "without --slots (which is the same as --slots 1)".into(),
            other => format!("with --slots {}", other.slots()),
        };
        let text = format!("is in use {used}: all who use a key must agree on that");
        Err(self.file.error_text(Fault::Unfit, &text))
    }

    /// Readers who prefer readers go in to those of their group.
    fn may_join(&self, asked: &Asked) -> io::Result<bool> {
        let Want::Group(group) = asked.want else { return Ok(false) };
        let is_kept = || self.kept.iter().any(|kept| kept.what == What::Group(group));
        Ok(asked.joins && (self.holds_together(asked)? || is_kept()))
    }

    /// Others of our group are in.
    fn holds_together(&self, asked: &Asked) -> io::Result<bool> {
        let Want::Group(group) = asked.want else { return Ok(false) };
        Ok(self.ranges().in_the_way(byte(group.place()), Kind::Write)?.is_some())
    }

    /// Of those who go in before us, the one to wait for: the next in front of us, so that each who goes wakes
    /// one. Only who may join those inside must look whenever somebody may have gone in: that is the first.
    fn before(&self, asked: &Asked, ticket: Option<u64>) -> io::Result<Option<u64>> {
        let lane = asked.family.lane(asked.lane);
        let earlier = lane.start..ticket.map_or(lane.end, |ticket| lane.start + ticket);
        let before = if asked.joins {
            self.ranges().first_present_in(earlier)?
        } else {
            self.ranges().last_present_in(earlier)?
        };
        match before {
            None if asked.lane == Lane::Fair => self.ranges().present_in(asked.family.lane(Lane::Preferred)),
            before => Ok(before),
        }
    }

    fn look_for_holder(&self, asked: &Asked) -> io::Result<Standing> {
        // In this order: if none of our group is there now, whoever we find afterwards is of another.
        let in_the_way =
            if self.holds_together(asked)? { asked.family.owners() } else { asked.family.holders() };
        if let Some(place) = self.ranges().present_in(in_the_way)? {
            return Ok(Standing::Blocked(Obstacles { places: vec![place], until: None }));
        }
        let others = self.kept.iter().filter(|kept| kept.what != asked.keeps(0) || asked.want == Want::Alone);
        Ok(match others.map(|kept| kept.until).max() {
            None => Standing::Free(0),
            until => Standing::Blocked(Obstacles { places: Vec::new(), until }),
        })
    }

    fn look_for_slot(&self, family: Family) -> Result<Standing, NodeError> {
        let present = |range| self.ranges().all_present_in(range).map_err(|e| self.broken(&e));
        // As many times as somebody may have gone while we looked.
        for _ in 0..=family.slots() {
            let taken = present(family.all_slots())?;
            let is_kept = |number| self.kept.iter().any(|kept| kept.what == What::Slot(family, number));
            let is_free =
                |number: &u32| taken.binary_search(&family.slot(*number)).is_err() && !is_kept(*number);
            if let Some(number) = (0..family.slots()).find(is_free) {
                return Ok(Standing::Free(number));
            }
            let places = present(family.owners())?;
            if places.len() >= taken.len() {
                let until = self.kept.iter().map(|kept| kept.until).min();
                return Ok(Standing::Blocked(Obstacles { places, until }));
            }
        }
        Err(self.not_redlock())
    }

    fn not_redlock(&self) -> NodeError {
        self.file.error_text(Fault::Unavailable, "somebody locks it who is not redlock")
    }

    /// Stand at the end of the queue. Returns our ticket.
    pub fn queue(&mut self, asked: &Asked) -> Result<u64, NodeError> {
        let ticket = self.draw(asked.family)?;
        self.mark(asked.family.ticket(asked.lane, ticket), Kind::Write)?;
        self.file.write_header(&self.header).map_err(|e| self.broken(&e))?;
        Ok(ticket)
    }

    /// A ticket larger than all that are in use. The file's word is not enough: it may have been truncated under
    /// us.
    fn draw(&mut self, family: Family) -> Result<u64, NodeError> {
        let mut ticket = self.header.next_ticket;
        if ticket == 0 || ticket >= TICKETS_END / 2 {
            ticket = 1;
        }
        let lanes = [Lane::Preferred, Lane::Fair].map(|lane| family.lane(lane));
        for range in lanes.into_iter().chain([family.owners(), family.sharers()]).filter(|_| !self.alone) {
            let in_use = |ticket| self.ranges().in_the_way(range.start + ticket..range.end, Kind::Write);
            while let Some(locked) = in_use(ticket).map_err(|e| self.broken(&e))? {
                ticket = locked.end - range.start;
            }
        }
        self.header.next_ticket = ticket + 1;
        if ticket < TICKETS_END { Ok(ticket) } else { Err(self.not_redlock()) }
    }

    fn mark(&self, place: u64, kind: Kind) -> Result<(), NodeError> {
        match self.ranges().try_lock(byte(place), kind) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.not_redlock()),
            Err(e) => Err(self.broken(&e)),
        }
    }

    /// Nothing is in the way: be a holder from now on, and no longer a waiter.
    pub fn go_in(
        &mut self,
        asked: &Asked,
        queued: Option<u64>,
        slot: u32,
        record: &Record,
    ) -> Result<Taken, NodeError> {
        let family = asked.family;
        let ticket = match queued {
            Some(ticket) => ticket,
            None => self.draw(family)?,
        };
        match asked.want {
            Want::Alone => self.mark(family.owners().start + ticket, Kind::Write)?,
            Want::Group(group) => {
                self.mark(family.sharers().start + ticket, Kind::Write)?;
                self.mark(group.place(), Kind::Read)?;
            }
            Want::Slot => {
                self.mark(family.owners().start + ticket, Kind::Write)?;
                self.mark(family.slot(slot), Kind::Write)?;
            }
        }
        let fence = self.next_fence();
        let Header { next_ticket, kept_until, kept, .. } = self.header;
        // What is over need not be looked at again.
        let (kept_until, kept) = if self.kept.is_empty() { (0, 0) } else { (kept_until, kept) };
        self.header = Header { next_ticket, last_fence: fence, kept_until, kept };
        let written = self.file.write_header(&self.header);
        let is_there = |other| !self.alone && other != 0 && other < TICKETS_END && self.holds(family, other);
        written
            .and_then(|()| self.file.write_record(ticket, record, is_there))
            .map_err(|e| self.broken(&e))?;
        if let Some(ticket) = queued {
            self.ranges().unlock(byte(family.ticket(asked.lane, ticket)));
        }
        Ok(Taken { ticket, fence, slot })
    }

    /// Is somebody else with this ticket inside? A look that fails is as good as a yes.
    fn holds(&self, family: Family, ticket: u64) -> bool {
        let marks = [family.owners(), family.sharers()].map(|marks| byte(marks.start + ticket));
        marks.into_iter().any(|mark| !matches!(self.ranges().present_in(mark), Ok(None)))
    }

    fn next_fence(&self) -> u64 {
        let last = self.header.last_fence;
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = u64::try_from(millis).unwrap_or(u64::MAX);
        // A token from the far future is somebody's scribble.
        if last > now.saturating_add(FAR_FUTURE_MS) { now } else { now.max(last + 1) }
    }

    /// Let it stay taken until then, or no longer if that has passed.
    pub fn keep(&mut self, mut kept: Kept) -> Result<(), NodeError> {
        let entries = self.file.kept_entries(&self.header);
        let mine = entries.iter().position(|old| old.is_some_and(|old| old.ticket == kept.ticket));
        let free = || entries.iter().position(Option::is_none);
        let more = || (entries.len() < ENTRIES).then_some(entries.len());
        let entry = match mine {
            Some(entry) => entry,
            None if kept.until.has_passed() => return Ok(()),
            None => free().or_else(more).unwrap_or_else(|| {
                // So many can only be readers: two of them share an entry, which nobody can take back.
                let shared = entries[0].map_or(kept.until, |old| old.until.max(kept.until));
                kept = Kept { until: shared, ticket: 0, ..kept };
                0
            }),
        };
        let others = entries.iter().enumerate().filter(|(place, _)| *place != entry);
        let others = others.filter_map(|(_, old)| Some(old.as_ref()?.until.as_nanos())).max().unwrap_or(0);
        self.header.kept = entries.len().max(entry + 1) as u64;
        self.header.kept_until = others.max(kept.until.as_nanos());
        let written = self.file.write_kept(entry, &kept);
        written.and_then(|()| self.file.write_header(&self.header)).map_err(|e| self.broken(&e))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.file.counter().leave(self.file);
    }
}
