//! The guardian: a separate process between redlock and the command.
//!
//! It starts the command, is the subreaper of its descendants, knows the lease's deadline, and is
//! the only process that stops the tree: when redlock says so, when the deadline is near and was
//! not moved (redlock is stopped, or cannot reach the servers), or when redlock has died. It lives
//! until redlock has released the lock. If redlock dies before that, the guardian releases the lock
//! once the tree is gone.
//!
//! It is forked while redlock has one thread, so it may run any code. It has one thread itself, to
//! which the command's parent-death signal is tied. If it is stopped, redlock continues it.

mod config;
mod signalling;

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::timerfd::{Expiration, TimerSetTimeFlags};
use nix::unistd::{Pid, alarm, dup2_stderr, getppid, setpgid};

use super::attach::AttachPoint;
use super::channel::Channel;
use super::forwarding::{Due, Forwarding, WITNESSED};
use super::host::{LONG_COMMAND, forget_code, nowhere};
use super::messages::{Environment, GuardianCommand, GuardianEvent, Limits};
use super::process_tree::{Killed, ProcessTree, Reaped, reap};
use super::signal_state::set_default;
use super::spawn::{Prepared, spawn};
use crate::arguments;
use crate::clock::BootTime;
use crate::exit::Exit;
use crate::poll::Poll;

pub(super) use config::GuardianFds;
pub(crate) use config::{GuardianConfig, StopPolicy, WaitFor};

/// Not "redlock", so that `killall -9 redlock` leaves a process that stops the command. The
/// guardian of an outer run recognizes it by this name.
pub(super) const NAME: &std::ffi::CStr = c"lock-guardian";

/// How long the guardian tries to release the lock of a dead redlock.
const RELEASE_SECONDS: u32 = 5;

#[derive(Clone, Copy, Debug)]
enum GuardianState {
    /// The command has not been started.
    Idle,
    Running,
    /// The tree was sent the stop signal.
    Stopping {
        /// `None` once it was killed, if processes are left that belong to other users.
        kill_at: Option<BootTime>,
    },
}

/// The command, once it has been started.
#[derive(Clone, Copy, Debug)]
struct Child {
    pid: Pid,
    /// Set when it is reaped. After that its process ID may belong to another process.
    exit: Option<Exit>,
}

pub(super) struct Guardian<'a> {
    redlock: &'a Channel,
    redlock_pid: Pid,
    config: GuardianConfig,
    fds: GuardianFds,
    prepared: Result<Prepared, Errno>,
    tree: ProcessTree,
    forwarding: Forwarding,
    limits: Limits,
    /// When to start stopping a command whose lease is not renewed.
    overdue_at: Option<BootTime>,
    /// Opaque; known from [`GuardianCommand::Start`] on.
    grant: Option<Vec<u8>>,
    state: GuardianState,
    command: Option<Child>,
    /// No descendant is left, according to the last reaping.
    tree_is_gone: bool,
    /// Processes of other users in the tree, which were reported.
    forbidden: Vec<Pid>,
    /// The command is being stopped because its time is up.
    time_up: bool,
    /// Nothing has happened for a while: prepared for a long sleep.
    is_resting: bool,
}

impl<'a> Guardian<'a> {
    pub(super) fn new(redlock: &'a Channel, fds: GuardianFds, config: GuardianConfig) -> nix::Result<Self> {
        // No signal acts on the guardian, and those typed at the terminal do not even reach it.
        SigSet::all().thread_set_mask()?;
        setpgid(Pid::from_raw(0), Pid::from_raw(0)).ok();
        set_name(NAME).ok();
        set_child_subreaper(true)?;
        let redlock_pid = getppid();
        Ok(Self {
            redlock,
            redlock_pid,
            tree: ProcessTree::new(config.proc_view),
            prepared: Prepared::new(&config.argv),
            config,
            fds,
            forwarding: Forwarding::default(),
            limits: Limits::default(),
            overdue_at: None,
            grant: None,
            state: GuardianState::Idle,
            command: None,
            tree_is_gone: false,
            forbidden: Vec::new(),
            time_up: false,
            is_resting: false,
        })
    }

    /// Returns when there is nothing left to guard.
    pub(super) fn run(mut self) {
        loop {
            self.set_timer();
            if self.wait_for_command() {
                match self.redlock.receive_command() {
                    // The command was not started, or could not be.
                    Ok(Some(GuardianCommand::Done)) => return,
                    Ok(Some(command)) => self.on_command(command),
                    Ok(None) => return self.on_death(),
                    Err(error) => {
                        if self.command.is_none() {
                            let errno = error.raw_os_error().unwrap_or(libc::EIO);
                            self.send(GuardianEvent::NotStarted(errno));
                        }
                        self.kill();
                        return;
                    }
                }
            }
            // Before the deadline is checked: a command that has exited was not stopped by it.
            self.reap();
            self.update_attached();
            if let Some(exit) = self.outcome() {
                return self.finish(exit);
            }
            self.check_deadline();
            self.send_due_signals();
        }
    }

    /// Sleep until a command comes (true), a child changes or the timer expires.
    fn wait_for_command(&mut self) -> bool {
        #[derive(Clone, Copy, PartialEq)]
        enum PollSource {
            Redlock,
            Signals,
            Other,
        }
        let rests_at = (!self.is_resting).then(|| BootTime::now() + LONG_COMMAND);
        let mut poll = Poll::new();
        poll.readable(self.redlock.as_fd(), PollSource::Redlock);
        poll.readable(self.fds.signals.as_fd(), PollSource::Signals);
        poll.readable(self.fds.timer.as_fd(), PollSource::Other);
        if let Some(attached) = self.config.attach_point.as_ref().and_then(AttachPoint::wake_fd) {
            poll.readable(attached, PollSource::Other);
        }
        poll.until(rests_at);
        if self.is_resting {
            forget_code();
        }
        let ready = poll.wait();
        if ready.contains(&PollSource::Signals) {
            self.read_signals();
        }
        if rests_at.is_some_and(BootTime::has_passed) {
            self.rest();
        }
        ready.contains(&PollSource::Redlock)
    }

    /// Prepare for a long sleep. A short command must not wait for this.
    fn rest(&mut self) {
        self.is_resting = true;
        // Without "redlock": a signal from `pkill -f redlock` must not count as one that the command
        // has received, too. On failure (a hardened /proc) the guardian looks like a second redlock.
        let _ = arguments::set_title(format!("lock-guardian of pid {}", self.redlock_pid).as_bytes());
    }

    /// SIGCHLD only wakes the loop, which then reaps.
    fn read_signals(&mut self) {
        while let Ok(Some(info)) = self.fds.signals.read_signal() {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok());
            if let Some(signal) = signal.filter(|signal| WITNESSED.contains(signal)) {
                self.forwarding.witness(signal, BootTime::now());
            }
        }
    }

    fn on_command(&mut self, command: GuardianCommand) {
        match command {
            GuardianCommand::Start { environment, limits, grant } => {
                (self.limits, self.grant) = (limits, Some(grant));
                self.set_deadline(limits.deadline);
                // The machine may have been suspended since the lock was granted.
                if limits.deadline.is_some_and(|deadline| deadline.minus(limits.margin).has_passed()) {
                    self.send(GuardianEvent::TooLate);
                } else {
                    self.start(&environment);
                }
            }
            GuardianCommand::Typed(_) if self.is_in_redlocks_group() => {}
            GuardianCommand::Forward(signal) | GuardianCommand::Typed(signal) => {
                self.forwarding.order(signal, BootTime::now());
            }
            GuardianCommand::Deadline(moment) => self.set_deadline(Some(moment)),
            GuardianCommand::Stop => self.stop(),
            GuardianCommand::Kill => drop(self.kill()),
            // Handled where it is received.
            GuardianCommand::Done => {}
        }
    }

    fn start(&mut self, environment: &Environment) {
        let GuardianConfig { group, wait_for, signal_state, lock_files, .. } = &self.config;
        let keep_open: &[Arc<File>] = match wait_for {
            WaitFor::Command => &[],
            WaitFor::Tree => lock_files,
        };
        let prepared = self.prepared.as_mut().map_err(|error| *error);
        let started =
            prepared.and_then(|prepared| spawn(prepared, environment, *group, keep_open, *signal_state));
        match started {
            Ok(pid) => {
                self.command = Some(Child { pid, exit: None });
                self.state = GuardianState::Running;
                detach_stdio();
                self.is_resting = false;
            }
            Err(error) => self.send(GuardianEvent::NotStarted(error as i32)),
        }
    }

    /// Collect children that have exited.
    fn reap(&mut self) {
        let Some(mut command) = self.command else { return };
        self.tree_is_gone = loop {
            match reap() {
                Reaped::Ended(pid, exit) if pid == command.pid => {
                    command.exit = Some(exit);
                }
                Reaped::Paused(pid, signal) if pid == command.pid => self.on_pause(pid, signal),
                Reaped::Continued(pid) if pid == command.pid => self.on_continue(),
                Reaped::Ended(..) | Reaped::Paused(..) | Reaped::Continued(_) => {}
                Reaped::NothingNew => break false,
                Reaped::NoChildren => break true,
            }
        };
        self.command = Some(command);
    }

    /// Runs attach until the command has exited or is being stopped. Those that have attached are
    /// waited for, unless they are being stopped as well.
    fn update_attached(&mut self) {
        let is_over = match self.state {
            GuardianState::Idle => false,
            GuardianState::Running => {
                self.living_command().is_none()
                    && self.config.attach_point.as_mut().is_some_and(AttachPoint::close)
            }
            GuardianState::Stopping { .. } => true,
        };
        if is_over {
            self.config.attach_point = None;
        }
    }

    /// The command's exit, once there is nothing left to wait for.
    fn outcome(&self) -> Option<Exit> {
        let exit = self.command?.exit?;
        let is_over = match (self.state, self.config.wait_for) {
            (GuardianState::Running, WaitFor::Command) => self.config.attach_point.is_none(),
            (GuardianState::Idle | GuardianState::Running | GuardianState::Stopping { .. }, _) => {
                self.tree_is_gone
            }
        };
        is_over.then_some(exit)
    }

    fn finish(self, exit: Exit) {
        // If redlock is stopped, a lock without a lease would stay taken until it is continued.
        if self.time_up {
            self.config.lock_files.iter().for_each(|file| unlock(file));
            // Only redlock can release a lock on a server.
            self.signal_redlock(Signal::SIGCONT);
        }
        // This message must arrive, even if redlock is stopped. With the tree gone nothing is urgent
        // any more.
        let _ = self.redlock.send_until(&GuardianEvent::Ended(exit).to_bytes(), None);
        // redlock releases the lock now.
        loop {
            match self.redlock.receive_command() {
                Ok(Some(GuardianCommand::Done)) | Err(_) => return,
                Ok(Some(_)) => {}
                Ok(None) => return self.release_orphan(),
            }
        }
    }

    /// redlock has died: nothing renews the lease, and nothing waits for the command.
    fn on_death(mut self) {
        loop {
            match self.kill() {
                Killed::All => return self.release_orphan(),
                Killed::AllThatIsSeen => return,
                // Another run must not start beside them.
                Killed::AllButForbidden(_) => {
                    let mut poll = Poll::new();
                    poll.readable(self.fds.signals.as_fd(), ());
                    poll.wait();
                    self.read_signals();
                }
            }
        }
    }

    /// Release the lock in place of a dead redlock. The process ends even if that hangs.
    fn release_orphan(self) {
        let Some(release) = self.config.release_orphan else { return };
        // A process that reads redlock's output must not wait for the guardian.
        detach_stdio();
        set_default(Signal::SIGALRM);
        let _ = SigSet::from(Signal::SIGALRM).thread_unblock();
        alarm::set(RELEASE_SECONDS);
        release(self.grant.as_deref(), self.command.is_some());
    }

    /// When to wake up if no command comes.
    fn wake_up_at(&self) -> Option<BootTime> {
        [self.next_moment(), self.forwarding.next_moment()].into_iter().flatten().min()
    }

    /// When the state changes by itself.
    fn next_moment(&self) -> Option<BootTime> {
        match self.state {
            GuardianState::Idle => None,
            GuardianState::Running => [self.overdue_at, self.limits.end].into_iter().flatten().min(),
            GuardianState::Stopping { kill_at } => kill_at,
        }
    }

    fn set_deadline(&mut self, deadline: Option<BootTime>) {
        self.limits.deadline = deadline;
        // The lease of another process's lock may be shorter than our own would be.
        let grace =
            |deadline: BootTime| self.config.stop.grace.min(deadline.remaining() / 2).max(self.limits.margin);
        self.overdue_at = deadline.map(|deadline| deadline.minus(grace(deadline)));
    }

    /// The timer runs on the boot-time clock: after a suspend it has expired before anything else
    /// runs.
    fn set_timer(&self) {
        let result = match self.wake_up_at() {
            // Zero would disarm the timer.
            Some(moment) => {
                let left = moment.remaining().max(Duration::from_nanos(1));
                self.fds.timer.set(Expiration::OneShot(left.into()), TimerSetTimeFlags::empty())
            }
            None => self.fds.timer.unset(),
        };
        // The values are valid, and there is no better reaction to an error than to continue.
        let _ = result;
    }

    fn check_deadline(&mut self) {
        let is_time = self.next_moment().is_some_and(BootTime::has_passed);
        match self.state {
            GuardianState::Idle => {}
            // Processes of other users are left, and may have started others that can be killed.
            GuardianState::Stopping { kill_at: None } => drop(self.kill()),
            GuardianState::Running | GuardianState::Stopping { .. } if !is_time => {}
            GuardianState::Running => {
                self.time_up = !self.overdue_at.is_some_and(BootTime::has_passed);
                self.send(if self.time_up { GuardianEvent::TimeUp } else { GuardianEvent::Overdue });
                self.stop();
            }
            GuardianState::Stopping { kill_at: Some(_) } => drop(self.kill()),
        }
    }

    fn living_command(&self) -> Option<Pid> {
        self.command.filter(|command| command.exit.is_none()).map(|command| command.pid)
    }

    fn send_due_signals(&mut self) {
        for due in self.forwarding.due(BootTime::now()) {
            match due {
                Due::Forward(signal) => self.forward(signal),
                Due::PassUp(signal) => self.signal_redlock(signal),
            }
        }
    }

    /// As long as redlock is the parent, its process ID cannot belong to another process.
    fn signal_redlock(&self, signal: Signal) {
        if getppid() == self.redlock_pid {
            let _ = kill(self.redlock_pid, signal);
        }
    }

    fn send(&self, event: GuardianEvent) {
        // The loop learns from the socket that redlock is gone.
        let _ = self.redlock.send(&event.to_bytes());
    }
}

/// Release every lock on this open file.
#[allow(clippy::cast_possible_truncation, reason = "the constants of flock are small")]
fn unlock(file: &File) {
    let everything = libc::flock {
        l_type: libc::F_UNLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // Unlocking a whole file needs no memory, so it cannot fail.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&everything));
}

/// The command's pipes must close when the command closes them, not when its guardian exits.
fn detach_stdio() {
    super::detach_stdin_and_stdout();
    if let Ok(null) = nowhere() {
        let _ = dup2_stderr(&null);
    }
}
