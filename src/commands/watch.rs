//! While the command runs: one loop over signals, the guardian's notices and the keeper's news.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::child::signals::{Arrived, Signals, stop_self};
use crate::child::{self, Ending, Notice, Supervisor};
use crate::cli::OnLost;
use crate::exit::{self, Exit, Failure};
use crate::keeper::{Keeper, News};
use crate::lock::BootTime;
use crate::report::{Cause, Report};
use crate::settings::RunSettings;

/// `timeout` tells its child to end, and then the child's whole group: that is one wish, not two.
const SAME_BREATH: Duration = Duration::from_millis(200);

/// Before the threads that a command of a few milliseconds does not need.
const BREATH: Duration = Duration::from_millis(10);

pub struct Watch<'a> {
    settings: &'a RunSettings,
    on_terminal: bool,
    supervisor: &'a Supervisor,
    keeper: Keeper,
    signals: &'a mut Signals,
    report: &'a mut Report,
    /// When a process first told us to end.
    told_to_end_at: Option<BootTime>,
    lost: bool,
    /// --max-hold was over, and the command is being stopped.
    time_up: bool,
    /// Not at once: most commands have ended before anyone could interrupt them.
    take_interrupts_at: Option<BootTime>,
    /// The lease's deadline, as far as we have heard.
    must_be_gone_by: Option<BootTime>,
}

impl<'a> Watch<'a> {
    pub fn new(
        settings: &'a RunSettings,
        on_terminal: bool,
        supervisor: &'a Supervisor,
        keeper: Keeper,
        signals: &'a mut Signals,
        report: &'a mut Report,
    ) -> Self {
        let take_interrupts_at = Some(BootTime::now() + BREATH);
        let must_be_gone_by = keeper.deadline().filter(|_| settings.on_lost == OnLost::Stop);
        Self {
            settings,
            on_terminal,
            supervisor,
            keeper,
            signals,
            report,
            told_to_end_at: None,
            lost: false,
            time_up: false,
            take_interrupts_at,
            must_be_gone_by,
        }
    }

    pub fn until_the_command_has_ended(&mut self) -> Result<Exit, Failure> {
        loop {
            let (signalled, noticed, news) = self.sleep();
            if noticed && let Some(ended) = self.heed(self.supervisor.notice()) {
                return ended;
            }
            if self.take_interrupts_at.take_if(|moment| moment.has_passed()).is_some() {
                self.signals.take_interrupts();
            }
            if self.keeper.due().is_some_and(BootTime::has_passed)
                && let Err(error) = self.keeper.start()
            {
                self.report.cannot_start_keeper(&error);
            }
            // News of a renewal before the clock: we may have been held up, and the lease not.
            if news {
                self.keeper.news().into_iter().for_each(|news| self.hear(news));
            }
            if !noticed && self.last_resort().is_some_and(BootTime::has_passed) {
                self.must_be_gone_by = None;
                self.supervisor.orders().kill_guardian();
                self.lose(Cause::Overdue);
            }
            if signalled {
                while let Some(arrived) = self.signals.next() {
                    self.pass_on(arrived);
                }
            }
        }
    }

    /// The keeper, and whether we had the command stopped and have said why.
    pub fn finish(self) -> (Keeper, bool) {
        (self.keeper, self.lost || self.time_up)
    }

    fn sleep(&self) -> (bool, bool, bool) {
        let next =
            [self.keeper.due(), self.take_interrupts_at, self.last_resort()].into_iter().flatten().min();
        let bells = self.signals.bells();
        let mut fds: Vec<PollFd<'_>> = [self.supervisor.bell(), self.keeper.bell()]
            .into_iter()
            .chain(bells.iter().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // A failed poll is an interrupted one: nothing is marked, and we come back.
        let _ = poll(&mut fds, next.map_or(PollTimeout::NONE, BootTime::poll_timeout));
        let rung: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        (rung[2..].contains(&true), rung[0], rung[1])
    }

    /// When it is too late for the guardian, which must be stopped itself: if it dies, the command dies with it.
    fn last_resort(&self) -> Option<BootTime> {
        self.must_be_gone_by.map(|moment| moment.minus(self.settings.margin() / 2))
    }

    /// `Some` when the command has ended, or never began.
    fn heed(&mut self, notice: Notice) -> Option<Result<Exit, Failure>> {
        match notice {
            Notice::Paused(command) => {
                // The shell waits for us, not for the command: only if we stop as well does it take over.
                // Unless somebody has continued us both in the meantime.
                if self.on_terminal && child::is_stopped(command) {
                    stop_self();
                }
            }
            Notice::Overdue => self.lose(Cause::Overdue),
            Notice::TimeUp => {
                self.time_up = true;
                self.report.max_hold_over(self.settings.max_hold.unwrap_or_default());
            }
            Notice::Ended(ending) => return Some(Ok(self.exit(ending))),
            Notice::TooLate => {
                self.lose(Cause::Overdue);
                return Some(Ok(Exit::Code(exit::LOST)));
            }
            Notice::NotStarted(errno) => return Some(Err(not_started(&self.settings.argv[0], errno))),
            Notice::Vanished => {
                child::stop_what_is_left();
                if self.lost && self.settings.on_lost == OnLost::Stop {
                    return Some(Ok(Exit::Code(exit::LOST)));
                }
                let message = "the guardian process was killed; the command was stopped";
                return Some(Err(Failure::new(exit::INTERNAL, message)));
            }
        }
        None
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Refreshed(grant) => {
                if self.must_be_gone_by.is_some() {
                    self.must_be_gone_by = grant.lease.map(|lease| lease.deadline());
                }
                self.report.refreshed(&grant);
            }
            News::Trouble(error, lease) => {
                let left = lease.map_or(Duration::MAX, |lease| lease.deadline().remaining());
                self.report.cannot_refresh(&error, left);
            }
            News::Overdue => self.stop_for(Cause::Overdue),
            News::Lost(loss) => self.stop_for(Cause::Told(loss)),
        }
    }

    /// The order first: words may have to wait for whoever reads them.
    fn stop_for(&mut self, cause: Cause) {
        if self.settings.on_lost == OnLost::Stop {
            self.supervisor.orders().stop();
        }
        self.lose(cause);
    }

    fn lose(&mut self, cause: Cause) {
        if !self.lost {
            self.lost = true;
            self.report.lost(
                cause,
                match self.settings.on_lost {
                    OnLost::Stop => "stopping the command",
                    OnLost::Warn => "the command runs on without it",
                },
            );
        }
    }

    fn pass_on(&mut self, Arrived { signal, typed, by_our_group }: Arrived) {
        let orders = self.supervisor.orders();
        // What was typed the command has got by itself, and what it makes of it is its own business.
        if typed {
            return;
        }
        let ends = matches!(signal, Signal::SIGINT | Signal::SIGTERM);
        match self.told_to_end_at {
            Some(first) if ends && (!by_our_group || (first + SAME_BREATH).has_passed()) => orders.kill(),
            Some(_) => orders.pass(signal),
            None => {
                self.told_to_end_at = ends.then(BootTime::now);
                orders.pass(signal);
            }
        }
    }

    fn exit(&self, ending: Ending) -> Exit {
        match ending {
            _ if self.lost && self.settings.on_lost == OnLost::Stop => Exit::Code(exit::LOST),
            _ if self.time_up => Exit::Code(exit::TIME_UP),
            // Wait statuses have eight bits for it.
            Ending::Code(code) => Exit::Code(code as u8),
            Ending::Signal(number) => Exit::Signal(number),
        }
    }
}

/// 127 if there is no such command; 126 if there is, but it cannot be run. A script whose interpreter is
/// missing gives the same error as a missing script.
fn not_started(program: &OsStr, errno: i32) -> Failure {
    let why = Errno::from_raw(errno);
    let name = program.to_string_lossy();
    match why {
        Errno::ENOENT if is_there(program) => Failure::new(
            exit::CANNOT_EXECUTE,
            format!("{name}: cannot execute: its interpreter was not found"),
        ),
        // EACCES: a folder in PATH that we may not look into.
        Errno::ENOENT | Errno::EACCES if !is_there(program) => {
            Failure::new(exit::NOT_FOUND, format!("{name}: command not found"))
        }
        why => Failure::new(exit::CANNOT_EXECUTE, format!("{name}: cannot execute: {}", why.desc())),
    }
}

fn is_there(program: &OsStr) -> bool {
    if program.is_empty() {
        return false;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}
