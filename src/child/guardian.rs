//! The guardian: a process of its own between redlock and the command.
//!
//! It starts the command, is the subreaper of all that comes from it, knows the lease's deadline, and
//! is the only one who stops the tree: because redlock orders it, because the deadline is near and no
//! new one came (redlock is stopped, or cannot reach the servers), or because redlock is gone. Forked
//! at the start, while redlock has one thread, so it may run any code; it has one thread itself, to
//! which the command's parent-death signal is tied.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, dup2_stderr, setpgid};

use super::inherited::Inherited;
use super::spawn::{Group, spawn};
use super::tree::{self, Reaped};
use super::words::{Ending, Environment, Notice, Order, Until, send};
use crate::lock::BootTime;

/// Not "redlock", so that `killall -9 redlock` leaves someone to stop the command.
const NAME: &std::ffi::CStr = c"lock-guardian";

/// How to run the command and how to stop it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub argv: Vec<OsString>,
    pub group: Group,
    pub stop: Stop,
    pub ends: Ends,
    pub inherited: Inherited,
    /// Open files whose locks are redlock's: the guardian has them open, too.
    pub lock_files: Vec<RawFd>,
    /// Descriptors for the command to inherit, which would be closed for it otherwise.
    pub keep_open: Vec<RawFd>,
}

#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub signal: Signal,
    /// Between that signal and SIGKILL.
    pub grace: Duration,
    /// Before the deadline, for the killed tree to be gone.
    pub margin: Duration,
}

/// When the command counts as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    WithTheCommand,
    WithItsLastDescendant,
}

/// How far the tree is on its way out.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    Stopping { kill_at: BootTime },
}

pub struct Guardian {
    redlock: UnixStream,
    plan: Plan,
    children: SignalFd,
    timer: TimerFd,
    until: Until,
    command: Option<Pid>,
    ending: Option<Ending>,
    phase: Phase,
    /// The command is being stopped because it has had its time.
    time_up: bool,
}

impl Guardian {
    pub fn new(redlock: UnixStream, plan: Plan) -> nix::Result<Self> {
        // Nothing that is meant for redlock or typed at the terminal concerns the guardian.
        SigSet::all().thread_set_mask()?;
        setpgid(Pid::from_raw(0), Pid::from_raw(0)).ok();
        set_name(NAME).ok();
        set_child_subreaper(true)?;
        Ok(Self {
            redlock,
            plan,
            children: SignalFd::with_flags(
                &SigSet::from(Signal::SIGCHLD),
                SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC,
            )?,
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?,
            until: Until::default(),
            command: None,
            ending: None,
            phase: Phase::Running,
            time_up: false,
        })
    }

    /// Returns when there is nothing left to guard.
    pub fn watch(mut self) {
        loop {
            self.set_timer();
            let (ordered, child_changed) = self.sleep();
            if ordered {
                match Order::receive(&self.redlock) {
                    Ok(order) => self.obey(order),
                    // redlock was killed: nobody keeps the lease, nobody waits for the command.
                    Err(_) => return self.kill(),
                }
            }
            if child_changed {
                while let Ok(Some(_)) = self.children.read_signal() {}
            }
            // Whoever has ended was not stopped by the clock, however late we come to look at it.
            if self.command.is_some() && self.has_ended() {
                return;
            }
            self.look_at_the_clock();
        }
    }

    fn sleep(&self) -> (bool, bool) {
        let mut fds = [self.redlock.as_fd(), self.children.as_fd(), self.timer.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // Every signal is blocked, so only a broken system could make this fail: try again.
        let _ = poll(&mut fds, PollTimeout::NONE);
        let [ordered, child_changed, _] = fds.map(|fd| fd.any().unwrap_or(false));
        (ordered, child_changed)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start { environment, until } => {
                self.until = until;
                // The machine may have been paused since the lock was granted.
                if until.deadline.is_some_and(|deadline| deadline.minus(self.plan.stop.margin).has_passed()) {
                    self.tell(Notice::TooLate);
                } else {
                    self.start(&environment);
                }
            }
            Order::Pass(signal) => self.pass(signal),
            Order::Deadline(moment) => self.until.deadline = Some(moment),
            Order::Stop => self.stop(),
            Order::Kill => self.kill(),
        }
    }

    fn start(&mut self, environment: &Environment) {
        let Plan { argv, group, keep_open, inherited, .. } = &self.plan;
        match spawn(argv, environment, *group, keep_open, *inherited) {
            Ok(pid) => {
                self.command = Some(pid);
                let_go_of_stdio();
            }
            Err(error) => self.tell(Notice::NotStarted(error as i32)),
        }
    }

    /// Collect who has died. True when that was the end, and redlock has been told.
    fn has_ended(&mut self) -> bool {
        let everybody_gone = loop {
            match tree::reap() {
                Reaped::Ended(pid, ending) => self.note(pid, ending),
                // Off a terminal nobody wants to know.
                Reaped::Paused(pid) if Some(pid) == self.command && self.plan.group != Group::Own => {
                    self.tell(Notice::Paused(pid));
                }
                Reaped::Paused(_) => {}
                Reaped::NothingNew => break false,
                Reaped::NobodyLeft => break true,
            }
        };
        let enough = match (self.phase, self.plan.ends) {
            (Phase::Running, Ends::WithTheCommand) => true,
            (Phase::Running, Ends::WithItsLastDescendant) | (Phase::Stopping { .. }, _) => everybody_gone,
        };
        if let (Some(ending), true) = (self.ending, enough) {
            // redlock may be stopped; a lock without a lease would stay until somebody continues it.
            if self.time_up {
                self.plan.lock_files.iter().for_each(|&file| unlock(file));
            }
            // The one word that must arrive; with the tree gone there is nothing left to be late for.
            let _ = (&self.redlock).write_all(&Notice::Ended(ending).to_bytes());
            return true;
        }
        false
    }

    fn note(&mut self, pid: Pid, ending: Ending) {
        if Some(pid) == self.command {
            self.ending = Some(ending);
        }
    }

    /// When the next thing is due, if nobody says otherwise until then.
    fn next_moment(&self) -> Option<BootTime> {
        self.command?;
        match self.phase {
            Phase::Running => [self.overdue_at(), self.until.end].into_iter().flatten().min(),
            Phase::Stopping { kill_at } => Some(kill_at),
        }
    }

    /// When to begin to stop a command whose lease is not renewed.
    fn overdue_at(&self) -> Option<BootTime> {
        let Stop { grace, margin, .. } = self.plan.stop;
        self.until.deadline.map(|deadline| deadline.minus(grace.max(margin)))
    }

    /// On the boot-time clock: after a suspend it has rung by the time anything else runs.
    fn set_timer(&self) {
        let armed = match self.next_moment() {
            // Zero would disarm it.
            Some(moment) => {
                let left = moment.remaining().max(Duration::from_nanos(1));
                self.timer.set(Expiration::OneShot(left.into()), TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
        // The values above are valid, and there is nothing better to do than to go on.
        let _ = armed;
    }

    fn look_at_the_clock(&mut self) {
        if !self.next_moment().is_some_and(BootTime::has_passed) {
            return;
        }
        match self.phase {
            Phase::Running => {
                self.time_up = !self.overdue_at().is_some_and(BootTime::has_passed);
                self.tell(if self.time_up { Notice::TimeUp } else { Notice::Overdue });
                self.stop();
            }
            Phase::Stopping { .. } => self.kill(),
        }
    }

    fn stop(&mut self) {
        if matches!(self.phase, Phase::Stopping { .. }) || self.command.is_none() {
            return;
        }
        let Stop { signal, grace, margin } = self.plan.stop;
        let mut kill_at = BootTime::now() + grace;
        if let Some(deadline) = self.until.deadline {
            kill_at = kill_at.min(deadline.minus(margin));
        }
        self.phase = Phase::Stopping { kill_at };
        self.signal_tree(signal);
        // Whoever is stopped hears nothing until continued.
        self.signal_tree(Signal::SIGCONT);
    }

    /// SIGKILL to everything; returns when nothing is left.
    fn kill(&mut self) {
        self.phase = Phase::Stopping { kill_at: BootTime::now() };
        self.signal_tree(Signal::SIGKILL);
        let command = self.command;
        let mut last = self.ending;
        tree::extinguish(|pid, ending| {
            if Some(pid) == command {
                last = Some(ending);
            }
        });
        self.ending = last;
    }

    /// The command, until it is reaped: then its number may be somebody else's.
    fn living_command(&self) -> Option<Pid> {
        self.command.filter(|_| self.ending.is_none())
    }

    fn pass(&self, signal: Signal) {
        match signal {
            // A private word between its sender and the command; it would kill helpers that never heard of it.
            Signal::SIGUSR1 | Signal::SIGUSR2 | Signal::SIGWINCH => {
                if let Some(command) = self.living_command() {
                    let _ = kill(command, signal);
                }
            }
            _ => self.signal_tree(signal),
        }
    }

    /// The command, or its group, first: that works without /proc, too.
    fn signal_tree(&self, signal: Signal) {
        let command = self.living_command();
        let group = command.filter(|_| self.plan.group == Group::Own);
        let _ = match (group, command) {
            (Some(group), _) => killpg(group, signal),
            (None, Some(command)) => kill(command, signal),
            (None, None) => Ok(()),
        };
        for process in tree::descendants() {
            if Some(process.pid) != command && Some(process.group) != group {
                let _ = kill(process.pid, signal);
            }
        }
    }

    fn tell(&self, notice: Notice) {
        // If redlock is gone we learn it from the socket, in the loop.
        let _ = send(&notice.to_bytes(), &self.redlock);
    }
}

/// Give back every lock on this open file.
fn unlock(file: RawFd) {
    // SAFETY: all zeros is a valid flock; with a length of zero it means the whole file.
    let mut everything: libc::flock = unsafe { std::mem::zeroed() };
    everything.l_type = libc::F_UNLCK as libc::c_short;
    // SAFETY: the call only reads `everything`, which is valid for it; a descriptor that is none is an error.
    unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &everything) };
}

/// The command's pipes must close when the command closes them, not when its guardian ends.
fn let_go_of_stdio() {
    super::let_go_of_stdin_and_stdout();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stderr(&null);
    }
}
