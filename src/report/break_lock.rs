//! What `redlock break` says.

use std::time::Duration;

use super::format::{LocalTime, holder, quoted, sanitize, since_moment};
use super::problem::backend_error;
use crate::duration::{format, format_seconds};
use crate::lock::{BackendError, BreakMode, Holder, HolderInfo, HolderKind, Renewal};

/// The sentences about one lock.
pub(crate) struct BreakReport {
    key: String,
    local_time: LocalTime,
}

impl BreakReport {
    pub(crate) fn new(key: &[u8], local_time: LocalTime) -> Self {
        Self { key: quoted(&[sanitize(key)]), local_time }
    }

    pub(crate) fn cannot_break(&self, error: &BackendError) -> String {
        format!("cannot break {}: {}; nothing was broken", self.key, backend_error(error))
    }

    /// With --now.
    pub(crate) fn may_be_freed(&self, error: &BackendError) -> String {
        let error = backend_error(error);
        format!("cannot break {}: {error}; some servers may have freed it: see redlock status", self.key)
    }

    /// With --now: it is broken as without.
    pub(crate) fn not_freed_at_once(&self, error: &BackendError) -> String {
        format!("{} could not be freed at once: {}; its holder was told", self.key, backend_error(error))
    }

    pub(crate) fn only_on_this_host(&self) -> String {
        format!(
            "warning: no server configured: this is about {} on this host only (give --redis URL or set REDLOCK_REDIS; \
             --local silences this)",
            self.key
        )
    }

    /// `holders`: of other slots.
    pub(crate) fn is_free(&self, slot: Option<u32>, holders: &[Holder]) -> String {
        match (slot, holders.iter().find_map(Holder::slots)) {
            (Some(number), Some(slots)) => {
                let held = holders.len();
                format!("slot {number} of {} is free: {held} of its {slots} slots are held", self.key)
            }
            // How many slots it has is known only while it is held.
            (Some(_) | None, _) => format!("{} is free", self.key),
        }
    }

    /// Who would be hit: a line for each.
    pub(crate) fn holders(&self, holders: &[Holder]) -> String {
        let line = |held: &Holder| format!("{} is {}", self.lock(held), self.held(held));
        holders.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn lock(&self, held: &Holder) -> String {
        match held.slot {
            Some(number) => format!("slot {number} of {}", self.key),
            None => self.key.clone(),
        }
    }

    fn held(&self, held: &Holder) -> String {
        let since = since_moment(held.held_for, self.local_time);
        let expires = match held.expires_in {
            Some(left) => format!(", expires in {}", format_seconds(left)),
            None => String::new(),
        };
        let job_url = if held.info.job_url.is_empty() {
            String::new()
        } else {
            format!(", {}", sanitize(held.info.job_url.as_bytes()))
        };
        let broken =
            held.broken_by.as_ref().map_or_else(String::new, |by| format!(", being broken by {}", who(by)));
        match held.kind {
            HolderKind::Run => {
                format!("held by {}{since}{expires}{broken}, token {}{job_url}", who(&held.info), held.id)
            }
            HolderKind::Reservation => {
                format!("kept by --min-hold of {}, which has ended{expires}", who(&held.info))
            }
            HolderKind::Foreign if !held.info.pid.is_empty() => {
                format!("locked by another program, pid {}", sanitize(held.info.pid.as_bytes()))
            }
            HolderKind::Foreign => format!("held by another program{expires}"),
        }
    }

    pub(crate) fn needs_yes(&self) -> String {
        format!("{} was not broken: that needs --yes where there is no terminal to ask on", self.key)
    }

    /// `frees`: whether --now frees the lock, or kills the command.
    pub(crate) fn question(&self, holders: &[Holder], how: BreakMode, frees: bool) -> String {
        let runs = holders.iter().filter(|held| runs_a_command(held)).count();
        let is_kept = |held: &Holder| held.kind == HolderKind::Run && !runs_a_command(held);
        let consequence = match (runs, how) {
            (0, _) if holders.iter().any(is_kept) => "What it was acquired for is not stopped.",
            (0, _) => "The lock is free then.",
            (1, BreakMode::Gentle) => "Its command will be stopped.",
            (_, BreakMode::Gentle) => "Their commands will be stopped.",
            (1, BreakMode::Immediate) if !frees => "Its command will be killed.",
            (_, BreakMode::Immediate) if !frees => "Their commands will be killed.",
            (1, BreakMode::Immediate) => "Its command may run beside the next one.",
            (_, BreakMode::Immediate) => "Their commands may run beside the next one.",
        };
        format!("{consequence} Break {}? [y/N] ", self.key)
    }

    pub(crate) fn nothing_changed(&self) -> String {
        format!("{} was not broken", self.key)
    }

    /// `frees`: whether --now deletes the lock of another program.
    pub(crate) fn cannot_be_told(&self, holders: &[Holder], frees: bool) -> String {
        let advice = if frees {
            "--now deletes its lock, whatever that program does"
        } else {
            "only its end frees the lock"
        };
        format!("{}, which cannot be told: {advice}", self.holders(holders))
    }

    /// While the question was open.
    pub(crate) fn ended_meanwhile(&self, held: &Holder) -> String {
        let who = if held.kind == HolderKind::Foreign { "that program".into() } else { who(&held.info) };
        format!("{} is no longer held by {who}: nothing was broken", self.lock(held))
    }

    /// Others were.
    pub(crate) fn cannot_tell(&self, held: &Holder, error: &BackendError) -> String {
        format!("{} stays held by {}: {}", self.lock(held), who(&held.info), backend_error(error))
    }

    pub(crate) fn has_no_such_slot(&self, number: u32, holders: &[Holder]) -> String {
        match holders.iter().find_map(Holder::slots) {
            Some(slots) => format!("--slot {number}: {} has {slots} slots (0 to {})", self.key, slots - 1),
            None => format!("--slot {number}: {} is held without slots", self.key),
        }
    }

    pub(crate) fn not_held_by_token(&self, holders: &[Holder]) -> String {
        let now = if holders.is_empty() { self.is_free(None, &[]) } else { self.holders(holders) };
        format!("that grant does not hold {} (any more), and nothing was broken; {now}", self.key)
    }

    /// The holder no longer has the lock.
    pub(crate) fn broke(&self, held: &Holder, after: Duration, is_expired: bool) -> String {
        let (lock, who, after) = (self.lock(held), who(&held.info), format(after));
        let held_for =
            held.held_for.map_or_else(String::new, |time| format!(", held for {}", format_seconds(time)));
        match (held.kind, is_expired) {
            (HolderKind::Run, false) if runs_a_command(held) => {
                format!("broke {lock}: taken from {who}{held_for}; its command was stopped, after {after}")
            }
            (HolderKind::Run, false) => {
                format!("broke {lock}: taken from {who}{held_for}, after {after}; warning: {}", goes_on(held))
            }
            (HolderKind::Run, true) => {
                format!(
                    "broke {lock}: taken from {who}{held_for}; it did not answer, and its lease was over after {after}"
                )
            }
            (HolderKind::Reservation, _) => format!("broke {lock}: no longer kept by --min-hold of {who}"),
            (HolderKind::Foreign, _) => format!("broke {lock}: taken from another program"),
        }
    }

    /// It was told, and that is waited for.
    pub(crate) fn waiting_for(&self, held: &Holder, ends_in: Option<Duration>) -> String {
        let until = ends_in.map_or_else(String::new, |left| {
            format!(", or its lease to end, in {} at the latest", format_seconds(left))
        });
        format!("waiting for {} to give {} back{until}", who(&held.info), self.lock(held))
    }

    /// It was told, and has not given the lock back. `ends_in`: `None` if it never expires.
    /// `frees`: whether --now frees the lock, or kills the command.
    pub(crate) fn still_holds(
        &self,
        held: &Holder,
        waited: Duration,
        ends_in: Option<Duration>,
        frees: bool,
    ) -> String {
        let (lock, who, waited) = (self.lock(held), who(&held.info), format_seconds(waited));
        let then = match ends_in {
            Some(left) => format!("it ends with its lease in {} at the latest", format_seconds(left)),
            None if frees => "it never expires: if its run is dead, --now frees it".to_owned(),
            None => "--now kills its command".to_owned(),
        };
        format!("told {who} to give {lock} back, which it has not done within {waited}; {then}")
    }

    /// At once, whatever the holders do.
    pub(crate) fn freed(&self, holders: &[Holder]) -> String {
        let line = |held: &Holder| {
            let (lock, who) = (self.lock(held), who(&held.info));
            match (held.kind, held.expires_in) {
                (HolderKind::Run, _) if !runs_a_command(held) => {
                    format!("freed {lock}: taken from {who}; warning: {}", goes_on(held))
                }
                (HolderKind::Run, Some(left)) => format!(
                    "freed {lock}: taken from {who}; warning: its command may run beside the next one, for up to {}",
                    format_seconds(left)
                ),
                (HolderKind::Run, None) => format!(
                    "freed {lock}: taken from {who}; warning: its command may run beside the next one, until it is told"
                ),
                (HolderKind::Reservation, _) => {
                    format!("freed {lock}: no longer kept by --min-hold of {who}")
                }
                (HolderKind::Foreign, _) => {
                    format!(
                        "freed {lock}: taken from another program; warning: it may go on as if it held it"
                    )
                }
            }
        };
        holders.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Not for `redlock acquire`, which starts none.
fn runs_a_command(held: &Holder) -> bool {
    held.kind == HolderKind::Run && held.info.renewal == Renewal::Run
}

/// What becomes of that for which `redlock acquire` took the lock.
fn goes_on(held: &Holder) -> String {
    match held.info.renewal {
        Renewal::Keeper(_) if !held.info.pid.is_empty() => {
            format!("pid {} may go on beside the next one", sanitize(held.info.pid.as_bytes()))
        }
        Renewal::Keeper(_) | Renewal::Nobody | Renewal::Run => {
            "what it was acquired for may go on beside the next one".into()
        }
    }
}

/// Harmless on a terminal, whatever the holder has told.
fn who(info: &HolderInfo) -> String {
    sanitize(holder(info).as_bytes())
}
