//! `redlock break`: take a lock away from its holders, and report the result.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::time::Duration;

use super::backend::{announce, open_breaker};
use super::{exit_code, identity, print};
use crate::child::local_time;
use crate::clock::BootTime;
use crate::exit::{self, Exit, Failure};
use crate::lock::{self, BackendError, BreakMode, Breaker, Done, Freed, Holder, HolderKind, Reason};
use crate::report::{self, BreakReport, SILENT_WAIT, quoted};
use crate::settings::BreakSettings;

/// How long to wait for a holder without a lease, by default.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lease may end a little later than its server said.
const SLACK: Duration = Duration::from_secs(1);

/// A holder that was notified, and when its lease ends.
struct NotifiedHolder {
    held: Holder,
    ends_at: Option<BootTime>,
}

/// What became of the holders that were notified.
struct Followed {
    /// The holders that are gone, and how long that took.
    gone: Vec<(NotifiedHolder, Duration)>,
    left: Vec<NotifiedHolder>,
}

pub(super) fn run(settings: &BreakSettings) -> anyhow::Result<Exit> {
    announce(&settings.location, &format!("breaking {}", quoted(&[&settings.key])));
    let report = BreakReport::new(&settings.key, local_time);
    let failed = |error: BackendError| Failure::new(exit_code(error.fault()), report.cannot_break(&error));
    let client = identity::describe(&[], "");
    let mut breaker =
        open_breaker(&settings.location, &settings.key, client, Reason::Broken).map_err(failed)?;
    let holders = breaker.holders().map_err(failed)?;
    let meant = choose(&holders, settings, &report)?;
    if let (true, Some(done)) = (holders.is_empty(), breaker.done()) {
        return forget(&mut *breaker, &done, settings, &report);
    }
    if meant.is_empty() {
        return print(&format!("{}\n", report.is_free(settings.slot, &holders)));
    }
    let is_foreign = |held: &Holder| held.kind == HolderKind::Foreign;
    let may_delete = settings.how == BreakMode::Immediate && breaker.frees_at_once();
    if !may_delete && meant.iter().any(is_foreign) {
        return Err(Failure::new(exit::HELD, report.cannot_be_asked(&meant, breaker.frees_at_once())).into());
    }
    let meant = if settings.yes { meant } else { confirm(&mut *breaker, &meant, settings, &report)? };
    if meant.is_empty() {
        return Ok(Exit::Code(0));
    }
    let started = BootTime::now();
    let lock::Notified { unreachable, freed } = breaker.notify(&meant, settings.how).map_err(failed)?;
    let is_unreachable = |held: &Holder| unreachable.iter().any(|unreachable| unreachable.id == held.id);
    let (left_alone, meant): (Vec<Holder>, Vec<Holder>) = meant.into_iter().partition(is_unreachable);
    if let (Some(first), true) = (unreachable.first(), meant.is_empty()) {
        return Err(failed(first.error.clone()).into());
    }
    for held in &left_alone {
        if let Some(unreachable) = unreachable.iter().find(|unreachable| unreachable.id == held.id) {
            report::print(&report.cannot_notify(held, &unreachable.error));
        }
    }
    match freed {
        Freed::Yes => return print(&format!("{}\n", report.freed(&meant))),
        Freed::Unknown(error) => {
            return Err(Failure::new(exit_code(error.fault()), report.may_be_freed(&error)).into());
        }
        Freed::OnlyNotified(error) => report::print(&report.not_freed_at_once(&error)),
        Freed::No => {}
    }
    let Followed { gone, left } = follow(&mut *breaker, meant, started, settings, &report);
    for (notified, after) in &gone {
        let is_expired = notified.ends_at.is_some_and(|ends_at| started + *after >= ends_at);
        print(&format!("{}\n", report.broke(&notified.held, *after, is_expired)))?;
    }
    for notified in &left {
        let ends_in = notified.ends_at.map(BootTime::remaining);
        report::print(&report.still_holds(
            &notified.held,
            started.elapsed(),
            ends_in,
            breaker.frees_at_once(),
        ));
    }
    Ok(Exit::Code(match unreachable.first() {
        Some(unreachable) => exit_code(unreachable.error.fault()),
        None if left.is_empty() => 0,
        None => exit::HELD,
    }))
}

/// The lock is free, but it counts as done.
fn forget(
    breaker: &mut dyn Breaker,
    done: &Done,
    settings: &BreakSettings,
    report: &BreakReport,
) -> anyhow::Result<Exit> {
    if !settings.yes {
        let shown = report.would_forget(done);
        if !is_on_terminal() {
            print(&format!("{shown}\n"))?;
            return Err(Failure::new(exit::HELD, report.needs_yes()).into());
        }
        report::print_text(&format!("{shown}\n{}", report.question_to_forget()));
        if !is_answered_yes() {
            return Err(Failure::new(exit::HELD, report.nothing_changed()).into());
        }
    }
    breaker
        .forget_done()
        .map_err(|error| Failure::new(exit_code(error.fault()), report.cannot_forget(&error)))?;
    print(&format!("{}\n", report.forgot(done)))
}

/// Show the holders and ask for confirmation on a terminal. Returns the holders that are still
/// there.
fn confirm(
    breaker: &mut dyn Breaker,
    shown: &[Holder],
    settings: &BreakSettings,
    report: &BreakReport,
) -> anyhow::Result<Vec<Holder>> {
    if !is_on_terminal() {
        print(&format!("{}\n", report.holders(shown)))?;
        return Err(Failure::new(exit::HELD, report.needs_yes()).into());
    }
    let question = report.question(shown, settings.how, breaker.frees_at_once());
    report::print_text(&format!("{}\n{question}", report.holders(shown)));
    if !is_answered_yes() {
        return Err(Failure::new(exit::HELD, report.nothing_changed()).into());
    }
    // The user may take minutes. New holders were not part of the question.
    let mut holders = breaker
        .holders()
        .map_err(|error| Failure::new(exit_code(error.fault()), report.cannot_break(&error)))?;
    for ended in shown.iter().filter(|shown| !holders.iter().any(|held| is_same(shown, held, settings))) {
        print(&format!("{}\n", report.ended_meanwhile(ended)))?;
    }
    holders.retain(|held| shown.iter().any(|shown| is_same(shown, held, settings)));
    Ok(holders)
}

/// The holders to break. Empty if the lock, or the slot, is free.
fn choose(
    holders: &[Holder],
    settings: &BreakSettings,
    report: &BreakReport,
) -> Result<Vec<Holder>, Failure> {
    if let Some(number) = settings.slot
        && holders.iter().any(|held| held.slots().is_none_or(|slots| number >= slots))
    {
        return Err(Failure::new(exit::UNFIT, report.has_no_such_slot(number, holders)));
    }
    let is_meant = |held: &Holder| {
        settings.token.as_ref().is_none_or(|token| held.token.as_ref() == Some(token))
            && settings.slot.is_none_or(|number| held.slot == Some(number))
    };
    let meant: Vec<Holder> = holders.iter().filter(|held| is_meant(held)).cloned().collect();
    if settings.token.is_some() && meant.is_empty() {
        return Err(Failure::new(exit::LOST, report.not_held_by_token(holders)));
    }
    Ok(meant)
}

fn is_on_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Read from the terminal itself: stdin may be something else.
fn is_answered_yes() -> bool {
    let mut answer = String::new();
    let read = File::open("/dev/tty").and_then(|terminal| BufReader::new(terminal).read_line(&mut answer));
    // ^D does not end the line of the question.
    if !answer.ends_with('\n') {
        report::print_text("\n");
    }
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Wait until these holders are gone or their leases must have ended.
fn follow(
    breaker: &mut dyn Breaker,
    meant: Vec<Holder>,
    started: BootTime,
    settings: &BreakSettings,
    report: &BreakReport,
) -> Followed {
    let ends_at = |held: &Holder| held.expires_in.map(|left| BootTime::now() + left);
    let mut left: Vec<NotifiedHolder> =
        meant.into_iter().map(|held| NotifiedHolder { ends_at: ends_at(&held), held }).collect();
    let (mut gone, mut is_mentioned, mut is_last_lease) = (Vec::new(), false, false);
    loop {
        // Some holders may be gone by now.
        let holders = breaker.holders();
        if let Ok(holders) = &holders {
            // It may have renewed before it was notified; it cannot renew after that.
            if !std::mem::replace(&mut is_last_lease, true) {
                for notified in &mut left {
                    let now = holders.iter().find(|held| is_same(&notified.held, held, settings));
                    notified.ends_at = now.map_or(notified.ends_at, ends_at);
                }
            }
            let is_there = |notified: &NotifiedHolder| {
                holders.iter().any(|held| is_same(&notified.held, held, settings))
            };
            let (stay, leave): (Vec<NotifiedHolder>, Vec<NotifiedHolder>) =
                left.into_iter().partition(is_there);
            gone.extend(leave.into_iter().map(|notified| (notified, started.elapsed())));
            left = stay;
        }
        let ends = left.iter().map(|notified| notified.ends_at.unwrap_or(started + PATIENCE)).max();
        let give_up_at = match settings.wait {
            Some(wait) => started + wait,
            None => ends.unwrap_or(started) + SLACK,
        };
        if left.is_empty() || give_up_at.has_passed() {
            return Followed { gone, left };
        }
        if (started + SILENT_WAIT).has_passed() && !std::mem::replace(&mut is_mentioned, true) {
            for notified in &left {
                report::print(&report.waiting_for(&notified.held, notified.ends_at.map(BootTime::remaining)));
            }
        }
        // Servers that fail now may come back, and the mark on the claim stays.
        let again: Vec<Holder> = holders
            .into_iter()
            .flatten()
            .filter(|held| left.iter().any(|notified| is_same(&notified.held, held, settings)))
            .collect();
        let _ = breaker.notify(&again, settings.how);
        let next_end =
            left.iter().filter_map(|notified| notified.ends_at).filter(|end| !end.has_passed()).min();
        let until = next_end.map_or(give_up_at, |end| end.min(give_up_at));
        breaker.wait(until + Duration::from_millis(1));
    }
}

/// The same holder: with --token the same grant; otherwise the same run, which may have retried
/// after a lost reply.
fn is_same(notified: &Holder, held: &Holder, settings: &BreakSettings) -> bool {
    let run = |held: &Holder| held.id.split('.').next().map(str::to_owned);
    notified.id == held.id || (settings.token.is_none() && run(notified) == run(held))
}
