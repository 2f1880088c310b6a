//! Signals to the command and its descendants.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};

use super::{Guardian, GuardianState, StopPolicy};
use crate::child::messages::GuardianEvent;
use crate::child::proc_entry::{Process, user_of};
use crate::child::process_tree::{Killed, Scope, is_forbidden};
use crate::child::signals::{is_job, undo_stop};
use crate::child::spawn::ProcessGroup;
use crate::clock::BootTime;

impl Guardian<'_> {
    /// Stop the tree, gently first.
    pub(super) fn stop(&mut self) {
        match self.state {
            GuardianState::Idle | GuardianState::Stopping { .. } => return,
            GuardianState::Running => {}
        }
        let StopPolicy { signal, grace } = self.config.stop;
        let mut kill_at = BootTime::now() + grace;
        if let Some(deadline) = self.limits.deadline {
            kill_at = kill_at.min(deadline.minus(self.limits.margin));
        }
        self.state = GuardianState::Stopping { kill_at: Some(kill_at) };
        self.signal_tree(signal);
        // A stopped process does not handle the signal before it is continued.
        self.signal_tree(Signal::SIGCONT);
    }

    /// Whether the command receives what the terminal sends to redlock. It may have left the group,
    /// as timeout(1) does.
    pub(super) fn is_in_redlocks_group(&self) -> bool {
        self.living_command().is_none_or(|command| getpgid(Some(command)) == getpgid(Some(self.redlock_pid)))
    }

    /// The command was stopped, which matters only on a terminal.
    pub(super) fn on_pause(&self, command: Pid, signal: i32) {
        match self.config.group {
            ProcessGroup::Join(group) if is_job(group) => self.send(GuardianEvent::Paused(command)),
            ProcessGroup::Join(group) if signal == Signal::SIGTSTP as i32 => undo_stop(group),
            ProcessGroup::Own | ProcessGroup::Join(_) => {}
        }
    }

    /// The command was continued. If not by the shell, which continues the whole job, redlock is
    /// still stopped.
    pub(super) fn on_continue(&self) {
        let ProcessGroup::Join(group) = self.config.group else { return };
        if is_job(group)
            && matches!(self.state, GuardianState::Running)
            && self.config.proc_view.is_stopped(self.redlock_pid)
        {
            self.signal_redlock(Signal::SIGCONT);
        }
    }

    /// SIGKILL the whole tree, helpers last; returns when none of it is left that can be killed.
    pub(super) fn kill(&mut self) -> Killed {
        self.state = GuardianState::Stopping { kill_at: None };
        self.signal_tree(Signal::SIGKILL);
        let killed = self.tree.kill(self.spared_until(), |pid, exit| {
            if let Some(command) = self.command.as_mut().filter(|command| command.pid == pid) {
                command.exit = Some(exit);
            }
        });
        if let Killed::AllButForbidden(left) = &killed {
            self.report_forbidden(left);
        }
        killed
    }

    /// Most of the margin is left for the helpers that must be killed.
    fn spared_until(&self) -> Option<BootTime> {
        self.limits.deadline.map(|deadline| deadline.minus(self.limits.margin * 3 / 4))
    }

    /// Report each process of another user once.
    fn report_forbidden(&mut self, processes: &[Process]) {
        let pids = processes.iter().map(|process| process.pid).chain(self.living_command());
        for pid in pids.filter(|pid| is_forbidden(*pid)) {
            if !self.forbidden.contains(&pid) {
                self.forbidden.push(pid);
                self.send(GuardianEvent::Forbidden { pid, user: user_of(pid) });
            }
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(super) fn forward(&mut self, signal: Signal) {
        match signal {
            // For the command alone: the signal would kill processes that do not handle it.
            Signal::SIGUSR1 | Signal::SIGUSR2 | Signal::SIGWINCH => {
                if let Some(command) = self.living_command() {
                    let _ = kill(command, signal);
                }
            }
            _ => self.signal_tree(signal),
        }
    }

    /// The command or its group is signalled first, which works even without /proc.
    fn signal_tree(&mut self, signal: Signal) {
        // Listed before the first signal, so that processes started by handlers to clean up are
        // spared.
        let processes = self.tree.processes(Scope::WithoutHelpers);
        let command = self.living_command();
        let group = command.filter(|_| self.config.group == ProcessGroup::Own);
        let _ = match (group, command) {
            (Some(group), _) => killpg(group, signal),
            (None, Some(command)) => kill(command, signal),
            (None, None) => Ok(()),
        };
        for process in &processes {
            if Some(process.pid) != command && (group.is_none() || Some(process.group) != group) {
                process.signal(signal);
            }
        }
        // Within a session every process may be continued.
        if signal != Signal::SIGCONT {
            self.report_forbidden(&processes);
        }
    }
}
