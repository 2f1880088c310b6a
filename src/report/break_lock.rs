//! The messages of `redlock break`.

use std::time::Duration;

use super::format::{LocalTime, after_comma, another_program, holder, holder_line, quoted};
use super::problem::backend_error;
use super::text::sanitize;
use crate::duration::{format, format_seconds};
use crate::lock::{BackendError, BreakMode, Done, Holder, HolderKind, Renewal};

/// The messages about one lock.
pub(crate) struct BreakReport {
    key: String,
    local_time: LocalTime,
}

impl BreakReport {
    pub(crate) fn new(key: &[u8], local_time: LocalTime) -> Self {
        Self { key: quoted(&[key]), local_time }
    }

    pub(crate) fn cannot_break(&self, error: &BackendError) -> String {
        format!("cannot break {}: {}; nothing was broken", self.key, backend_error(error))
    }

    /// With --now.
    pub(crate) fn may_be_freed(&self, error: &BackendError) -> String {
        let error = backend_error(error);
        format!("cannot break {}: {error}; some servers may have freed it: see redlock status", self.key)
    }

    /// --now has failed; the lock is broken as without it.
    pub(crate) fn not_freed_at_once(&self, error: &BackendError) -> String {
        format!("{} could not be freed at once: {}; its holder was notified", self.key, backend_error(error))
    }

    /// `holders`: of other slots.
    pub(crate) fn is_free(&self, slot: Option<u32>, holders: &[Holder]) -> String {
        match (slot, holders.iter().find_map(Holder::slots)) {
            (Some(number), Some(slots)) => {
                let held = holders.len();
                format!("slot {number} of {} is free: {held} of its {slots} slots are held", self.key)
            }
            // The number of slots is known only while the lock is held.
            (Some(_) | None, _) => format!("{} is free", self.key),
        }
    }

    /// The lock is free; only the mark of --once was deleted.
    pub(crate) fn forgot(&self, done: &Done) -> String {
        let (ago, by) = (format_seconds(done.ago), holder(&done.by));
        format!(
            "{} is free; forgot that it was done {ago} ago by {by}: the next run with --once runs",
            self.key
        )
    }

    pub(crate) fn would_forget(&self, done: &Done) -> String {
        format!("{} is free, and was done {} ago by {}", self.key, format_seconds(done.ago), holder(&done.by))
    }

    pub(crate) fn question_to_forget(&self) -> String {
        format!("Forget that {} was done? [y/N] ", self.key)
    }

    pub(crate) fn cannot_forget(&self, error: &BackendError) -> String {
        format!(
            "{} may still count as done: {}; the mark could not be deleted everywhere",
            self.key,
            backend_error(error)
        )
    }

    /// A line for each holder.
    pub(crate) fn holders(&self, holders: &[Holder]) -> String {
        lines(holders, |held| format!("{} is {}", self.lock(held), self.held(held)))
    }

    fn lock(&self, held: &Holder) -> String {
        match held.slot {
            Some(number) => format!("slot {number} of {}", self.key),
            None => self.key.clone(),
        }
    }

    fn held(&self, held: &Holder) -> String {
        match (held.kind, held.expires_in) {
            (HolderKind::Run, _) => {
                let line = holder_line(held, false, self.local_time);
                format!("held by {line}, token {}{}", held.id, after_comma(&held.info.job_url))
            }
            (HolderKind::Reservation, Some(left)) => {
                format!(
                    "kept by --min-hold of {}, free again in {}",
                    holder(&held.info),
                    format_seconds(left)
                )
            }
            (HolderKind::Reservation, None) => format!("kept by --min-hold of {}", holder(&held.info)),
            (HolderKind::Foreign, expires_in) => another_program(&held.info.pid, expires_in, false),
        }
    }

    pub(crate) fn needs_yes(&self) -> String {
        format!("{} was not broken: pass --yes (no terminal to ask on)", self.key)
    }

    /// `frees`: whether --now frees the lock, or kills the command.
    pub(crate) fn question(&self, holders: &[Holder], how: BreakMode, frees: bool) -> String {
        let runs = holders.iter().filter(|held| runs_a_command(held)).count();
        let is_kept = |held: &Holder| held.kind == HolderKind::Run && !runs_a_command(held);
        let consequence = match (runs, how) {
            (0, _) if holders.iter().any(is_kept) => "The job that acquired it will not be stopped.",
            (0, _) => "The lock will be free.",
            (1, BreakMode::Gentle) => "Its command will be stopped.",
            (_, BreakMode::Gentle) => "Their commands will be stopped.",
            (1, BreakMode::Immediate) if !frees => "Its command will be killed.",
            (_, BreakMode::Immediate) if !frees => "Their commands will be killed.",
            (1, BreakMode::Immediate) => "Its command may overlap with the next run.",
            (_, BreakMode::Immediate) => "Their commands may overlap with the next run.",
        };
        format!("{consequence} Break {}? [y/N] ", self.key)
    }

    pub(crate) fn nothing_changed(&self) -> String {
        format!("{} was not broken", self.key)
    }

    /// Another program holds the lock. `frees`: whether --now deletes its lock.
    pub(crate) fn cannot_be_asked(&self, holders: &[Holder], frees: bool) -> String {
        let advice =
            if frees { "--now deletes its lock anyway" } else { "the lock is held until that program ends" };
        format!("{}, which cannot be asked to release it: {advice}", self.holders(holders))
    }

    /// The holder has released the lock while the question was open.
    pub(crate) fn ended_meanwhile(&self, held: &Holder) -> String {
        let who = if held.kind == HolderKind::Foreign { "that program".into() } else { holder(&held.info) };
        format!("{} is no longer held by {who}: nothing was broken", self.lock(held))
    }

    /// Other holders could be notified.
    pub(crate) fn cannot_notify(&self, held: &Holder, error: &BackendError) -> String {
        format!("{} stays held by {}: {}", self.lock(held), holder(&held.info), backend_error(error))
    }

    pub(crate) fn has_no_such_slot(&self, number: u32, holders: &[Holder]) -> String {
        match holders.iter().find_map(Holder::slots) {
            Some(slots) => format!("--slot {number}: {} has {slots} slots (0 to {})", self.key, slots - 1),
            None => format!("--slot {number}: {} is held without slots", self.key),
        }
    }

    pub(crate) fn not_held_by_token(&self, holders: &[Holder]) -> String {
        let now = if holders.is_empty() { self.is_free(None, &[]) } else { self.holders(holders) };
        format!("this token does not hold {}: nothing was broken; {now}", self.key)
    }

    /// The holder no longer has the lock.
    pub(crate) fn broke(&self, held: &Holder, after: Duration, is_expired: bool) -> String {
        let after = format(after);
        let time = held.held_for.map(|time| format!(", held for {}", format_seconds(time)));
        let run = format!("{}{}", self.taken("broke", held), time.unwrap_or_default());
        match (held.kind, is_expired) {
            (HolderKind::Reservation | HolderKind::Foreign, _) => self.taken("broke", held),
            (HolderKind::Run, true) => {
                format!(
                    "{run}; its lease expired after {after}: it did not respond, or lets its command \
                     continue (--on-lost warn)"
                )
            }
            (HolderKind::Run, false) if runs_a_command(held) => {
                format!("{run}; its command was stopped after {after}")
            }
            (HolderKind::Run, false) => format!("{run}, after {after}; warning: {}", overlap(held)),
        }
    }

    /// The holder was notified, and has not released the lock yet.
    pub(crate) fn waiting_for(&self, held: &Holder, ends_in: Option<Duration>) -> String {
        let until = ends_in.map(|left| format!("; its lease ends in at most {}", format_seconds(left)));
        format!(
            "waiting for {} to release {}{}",
            holder(&held.info),
            self.lock(held),
            until.unwrap_or_default()
        )
    }

    /// The wait for the holder is over. `ends_in`: `None` if the lock never expires. `frees`:
    /// whether --now frees the lock, or kills the command.
    pub(crate) fn still_holds(
        &self,
        held: &Holder,
        waited: Duration,
        ends_in: Option<Duration>,
        frees: bool,
    ) -> String {
        let (lock, who, waited) = (self.lock(held), holder(&held.info), format_seconds(waited));
        let then = match ends_in {
            Some(left) => format!("its lease ends in at most {}", format_seconds(left)),
            None if frees => "it never expires: if its run is dead, --now frees it".to_owned(),
            None => "--now kills its command".to_owned(),
        };
        format!("{who} has not released {lock} within {waited}; {then}")
    }

    /// With --now: the lock was freed without waiting for its holders.
    pub(crate) fn freed(&self, holders: &[Holder]) -> String {
        lines(holders, |held| {
            let taken = self.taken("freed", held);
            match (held.kind, held.expires_in) {
                (HolderKind::Reservation, _) => taken,
                (HolderKind::Foreign, _) => {
                    format!("{taken}; warning: it may continue as if it held the lock")
                }
                (HolderKind::Run, Some(left)) if runs_a_command(held) => {
                    format!("{taken}; warning: {} for up to {}", overlap(held), format_seconds(left))
                }
                (HolderKind::Run, None) if runs_a_command(held) => {
                    format!("{taken}; warning: {} until it is notified", overlap(held))
                }
                (HolderKind::Run, _) => format!("{taken}; warning: {}", overlap(held)),
            }
        })
    }

    /// "broke "k": taken from root@web1 pid 42 (rsync)"
    fn taken(&self, verb: &str, held: &Holder) -> String {
        let lock = self.lock(held);
        match held.kind {
            HolderKind::Run => format!("{verb} {lock}: taken from {}", holder(&held.info)),
            HolderKind::Reservation => {
                format!("{verb} {lock}: no longer kept by --min-hold of {}", holder(&held.info))
            }
            HolderKind::Foreign => format!("{verb} {lock}: taken from another program"),
        }
    }
}

fn lines(holders: &[Holder], line: impl Fn(&Holder) -> String) -> String {
    holders.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// `redlock acquire` starts no command.
fn runs_a_command(held: &Holder) -> bool {
    held.kind == HolderKind::Run && held.info.renewal == Renewal::Run
}

fn overlap(held: &Holder) -> String {
    let what = match held.info.renewal {
        Renewal::Run => "its command".into(),
        Renewal::Keeper(_) if !held.info.pid.is_empty() => {
            format!("pid {}", sanitize(&held.info.pid))
        }
        Renewal::Keeper(_) | Renewal::Nobody => "the job that acquired it".into(),
    };
    format!("{what} may overlap with the next run")
}
