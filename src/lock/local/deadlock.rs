//! What a waiter that holds locks on this host reads, to find out whether it waits for itself.
//!
//! Any user of the directory can write into a lock file. So the kernel's locks show who waits and who
//! holds; and what a waiter holds through the runs that it runs under is read from its environment, if
//! our own user has started it. Other waiters hold nothing, as far as we know, even for root.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::break_request::{HolderProcesses, HostHolder};
use super::byte_map::UsageMode;
use super::file_name;
use super::lock_file::LockFile;
use super::view::{Participant, Present, described};
use crate::clock::BootTime;
use crate::lock::claim::HostTicket;
use crate::lock::deadlock::{DeadlockSearch, LockNow, WaiterNow};
use crate::lock::{AncestorLock, Claim, Renewal, lock_name};

/// Where the other locks are, and who uses them.
pub(crate) struct Surroundings {
    pub directory: PathBuf,
    pub prefix: String,
    /// The user's keys, in the order of the files.
    pub keys: Vec<Vec<u8>>,
    pub processes: Box<dyn HolderProcesses + Send>,
}

impl Surroundings {
    /// For a waiter for one of the files. `tickets`: its own, also those of files that it has entered.
    /// `None` if it holds nothing.
    pub(super) fn search(
        &self,
        (files, tickets): (&[LockFile], &[Option<u64>]),
        key: usize,
        claim: Claim,
        ancestors: &[AncestorLock],
    ) -> Option<DeadlockSearch> {
        let entered = (0..files.len()).filter(|other| *other != key).filter_map(|other| {
            let host_ticket = Some(ticket_of(&files[other], tickets[other]?));
            Some(AncestorLock { claim, host_ticket, keys: vec![self.keys[other].clone()], attach_id: None })
        });
        let held: Vec<AncestorLock> = entered.chain(ancestors.iter().cloned()).collect();
        let us = waiter_id(&files[key], tickets[key]?);
        DeadlockSearch::new(us, &held, vec![self.keys[key].clone()])
    }

    pub(super) fn read(&self, keys: &[Vec<u8>]) -> Vec<LockNow> {
        keys.iter().filter_map(|key| self.lock_now(key)).collect()
    }

    fn lock_now(&self, key: &[u8]) -> Option<LockNow> {
        let name = file_name::encode(&lock_name(&self.prefix, key));
        let file = LockFile::open_to_look(&self.directory, OsStr::new(&name)).ok()??;
        let present = Present::look(&file).ok()?;
        let holders = present.holders.iter().filter_map(|holder| {
            let shown = described(&file, holder.ticket, holder.usage);
            let ends = shown.info.renewal.ends_by_itself(shown.expires_in);
            (!ends).then(|| ((grant_of(&file, holder.ticket), shown.info), shown.mode))
        });
        let (holders, modes): (Vec<_>, Vec<_>) = holders.unzip();
        let waiters = present.waiters.iter().map(|waiter| self.waiter_now(&file, key, waiter, &present));
        Some(LockNow {
            key: key.to_vec(),
            mode: modes.into_iter().next().unwrap_or_default(),
            holders,
            waiters: waiters.collect(),
        })
    }

    fn waiter_now(&self, file: &LockFile, key: &[u8], waiter: &Participant, present: &Present) -> WaiterNow {
        let record = file.waiter_record(waiter.ticket);
        let is_at = |participant: &Participant, pid: i32| {
            self.processes.holds(pid, &HostHolder::new(file, participant.offset, Some(pid)))
        };
        // A keeper waits for the process that it will watch.
        let named = record.as_ref().map(|record| (record.info.pid.parse().ok(), record.info.renewal));
        let pids = named.map(|(pid, renewal)| match renewal {
            Renewal::Keeper(keeper) => [pid, i32::try_from(keeper).ok()],
            Renewal::Run | Renewal::Nobody => [pid, None],
        });
        let pid = pids.into_iter().flatten().flatten().find(|pid| is_at(waiter, *pid));
        let mut held = pid.map(|pid| self.processes.held(pid)).unwrap_or_default();
        // It has taken some of several keys.
        let own = present.holders.iter().filter(|holder| pid.is_some_and(|pid| is_at(holder, pid)));
        held.extend(own.filter_map(|holder| {
            let claim = record.as_ref()?.claim.parse().ok()?;
            let host_ticket = Some(ticket_of(file, holder.ticket));
            Some(AncestorLock { claim, host_ticket, keys: vec![key.to_vec()], attach_id: None })
        }));
        // The number of slots follows from the byte that is locked.
        let mode = match &record {
            Some(record) if waiter.usage == UsageMode::PLAIN => record.mode.clone(),
            Some(_) | None => waiter.usage.mode(),
        };
        WaiterNow {
            id: waiter_id(file, waiter.ticket),
            stamp: record.as_ref().map_or(0, |record| i64::try_from(record.since.as_nanos()).unwrap_or(0)),
            mode,
            held,
            // The kernel's lock is the sign of life.
            alive: i64::try_from(BootTime::now().as_nanos()).unwrap_or(0),
        }
    }
}

fn ticket_of(file: &LockFile, ticket: u64) -> HostTicket {
    let (device, inode) = file.identity();
    HostTicket { device, inode, ticket, fence: 0, slot: 0 }
}

fn grant_of(file: &LockFile, ticket: u64) -> String {
    ticket_of(file, ticket).name()
}

/// A ticket is a waiter's on one file; it keeps the number when it enters.
fn waiter_id(file: &LockFile, ticket: u64) -> String {
    format!("waiter {}", grant_of(file, ticket))
}
