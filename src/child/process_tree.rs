//! The process tree below this process, as /proc shows it.
//!
//! Both redlock and its guardian are child subreapers: a descendant whose parent has died becomes
//! their child, whatever group or session it has moved to. So the tree is gone when this process
//! has no child left.
//!
//! Only the tree is read, from parents to children, so the cost depends on the tree and not on the
//! host.

use std::collections::HashSet;
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpid};

use super::messages::Environment;
use super::pidfd::PidFd;
use super::proc_entry::{Process, all_processes, carries, children, lists_children};
use crate::clock::BootTime;
use crate::exit::Exit;

/// The first and the longest pause between two rounds of SIGKILL, which catch processes forked
/// meanwhile.
const ROUND: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// How long helpers may take to release their locks and to run their hooks before they are killed as
/// well. A release on a server takes several round trips.
const SPARED: Duration = Duration::from_millis(500);

/// If there are children, but none was seen in this many rounds, /proc hides them (hidepid).
const MOST_UNSEEN: u32 = 6;

/// Which descendants are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Everything,
    /// Without the guardians of other runs and everything below them, which they stop themselves,
    /// without keepers, which keep their locks until the processes that they watch have exited, and
    /// without hook runners and their hooks.
    WithoutHelpers,
}

/// Whether /proc shows this process's PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcView {
    Ours,
    /// It is not mounted, or belongs to another PID namespace, where the same IDs are other
    /// processes.
    Unusable,
}

impl ProcView {
    pub(crate) fn check() -> Self {
        if Process::is_us("self") { Self::Ours } else { Self::Unusable }
    }

    /// Whether the process with this ID is stopped.
    pub(crate) fn is_stopped(self, pid: Pid) -> bool {
        match self {
            Self::Ours => Process::read(pid).is_some_and(|process| process.is_stopped()),
            // The guardian reported it, and there is no way to check.
            Self::Unusable => true,
        }
    }
}

/// One system call, as most runs have no children at the start.
fn has_children() -> bool {
    let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, any) != Err(Errno::ECHILD)
}

/// What is left of a tree that was killed.
pub(super) enum Killed {
    All,
    /// Without /proc it is not certain that none is left.
    AllThatIsSeen,
    /// Processes of other users live, which we may not signal: those that /proc shows.
    AllButForbidden(Vec<Process>),
}

/// The processes below this one that belong to the command.
pub(super) struct ProcessTree {
    view: ProcView,
    /// Children that may belong to others, if there are any.
    strangers: Option<Strangers>,
}

/// Children that this process did not start: those of the shell that called exec for it, and, for
/// the first process of a PID namespace, all orphans.
struct Strangers {
    /// The children that existed before the command.
    known: Vec<Process>,
    /// The variables that the command and its descendants have in their environment.
    mark: Environment,
}

impl ProcessTree {
    /// For a process that starts nothing but the command.
    pub(super) fn new(view: ProcView) -> Self {
        Self { view, strangers: None }
    }

    /// For a process that may have other children. Call before the first child is started.
    pub(super) fn beside_strangers(view: ProcView) -> Self {
        let known: Vec<Process> = match view {
            ProcView::Ours if has_children() => {
                children(getpid()).into_iter().filter_map(Process::read).collect()
            }
            ProcView::Ours | ProcView::Unusable => Vec::new(),
        };
        let may_have_strangers = !known.is_empty() || getpid() == Pid::from_raw(1);
        Self { view, strangers: may_have_strangers.then_some(Strangers { known, mark: Vec::new() }) }
    }

    /// The command is started with these variables.
    pub(super) fn set_mark(&mut self, environment: &Environment) {
        if let Some(strangers) = &mut self.strangers {
            strangers.mark.clone_from(environment);
        }
    }

    /// Every living process in the tree.
    pub(super) fn processes(&self, scope: Scope) -> Vec<Process> {
        let mut found = self.walk(scope);
        // A list of children may skip one if another is removed while it is read.
        let seen: HashSet<_> = found.iter().map(|process| process.pid).collect();
        found.extend(self.walk(scope).into_iter().filter(|process| !seen.contains(&process.pid)));
        found
    }

    fn walk(&self, scope: Scope) -> Vec<Process> {
        if self.view == ProcView::Unusable {
            return Vec::new();
        }
        if lists_children(getpid()) {
            return self
                .walk_with(scope, |parent| children(parent).into_iter().filter_map(Process::read).collect());
        }
        let all = all_processes();
        self.walk_with(scope, |parent| {
            all.iter().filter(|process| process.parent == parent).copied().collect()
        })
    }

    /// `children` returns the children of a process.
    fn walk_with(&self, scope: Scope, children: impl Fn(Pid) -> Vec<Process>) -> Vec<Process> {
        let us = getpid();
        let (mut found, mut known, mut parents) = (Vec::new(), HashSet::from([us]), vec![us]);
        while let Some(parent) = parents.pop() {
            for process in children(parent) {
                // Its ID may belong to another process by now. If its parent has died, it is a
                // child of this process or of a subreaper in between.
                let is_below_us = known.contains(&process.parent);
                let is_ours = parent != us || self.is_ours(&process);
                if is_below_us && is_ours && scope.includes(&process) && known.insert(process.pid) {
                    parents.push(process.pid);
                    found.push(process);
                }
            }
        }
        found.retain(|process| !process.is_dead());
        found
    }

    /// Whether a child of this process belongs to the command.
    fn is_ours(&self, child: &Process) -> bool {
        self.strangers.as_ref().is_none_or(|Strangers { known, mark }| {
            !known.iter().any(|stranger| stranger.is_same(child)) && carries(child.pid, mark)
        })
    }

    /// SIGKILL the whole tree, until none of it is left that can be killed. Helpers and everything
    /// below them get [`SPARED`], but not beyond `spared_until`: a killed helper releases no lock.
    /// `ended` is called for each child that was reaped.
    pub(super) fn kill(&self, spared_until: Option<BootTime>, mut ended: impl FnMut(Pid, Exit)) -> Killed {
        let latest = BootTime::now() + SPARED;
        let spared_until = spared_until.map_or(latest, |moment| moment.min(latest));
        // Only visible processes can be killed, and only the command's are waited for.
        let ends_when_unseen = self.strangers.is_some() || self.view == ProcView::Unusable;
        let (mut pause, longest) = ROUND;
        let (mut rounds_unseen, mut rounds_stuck) = (0, 0);
        loop {
            let mut processes = self.walk(Scope::Everything);
            let are_spared = !spared_until.has_passed() && processes.iter().any(Process::is_helper);
            if are_spared {
                processes = self.walk(Scope::WithoutHelpers);
            }
            for process in &processes {
                process.signal(Signal::SIGKILL);
            }
            loop {
                match reap() {
                    Reaped::Ended(pid, exit) => ended(pid, exit),
                    Reaped::Paused(..) | Reaped::Continued(_) => {}
                    Reaped::NothingNew => break,
                    Reaped::NoChildren => return Killed::All,
                }
            }
            if are_spared {
                sleep(pause.min(spared_until.remaining()));
                pause = (pause * 2).min(longest);
                continue;
            }
            let is_stuck = !processes.is_empty() && processes.iter().all(|process| is_forbidden(process.pid));
            rounds_stuck = if is_stuck { rounds_stuck + 1 } else { 0 };
            if rounds_stuck > 1 {
                return Killed::AllButForbidden(processes);
            }
            rounds_unseen = if processes.is_empty() { rounds_unseen + 1 } else { 0 };
            if rounds_unseen > MOST_UNSEEN && !ends_when_unseen {
                return Killed::AllButForbidden(processes);
            }
            if ends_when_unseen && rounds_unseen > 1 {
                return if self.view == ProcView::Ours { Killed::All } else { Killed::AllThatIsSeen };
            }
            sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}

impl Scope {
    fn includes(self, process: &Process) -> bool {
        self == Self::Everything || !process.is_helper()
    }
}

impl Process {
    /// Signal it if it is still the process that was found.
    pub(super) fn signal(&self, signal: Signal) {
        let is_still_there = || Process::read(self.pid).is_some_and(|process| process.is_same(self));
        match PidFd::open(self.pid) {
            Ok(process) if is_still_there() => drop(process.send(signal)),
            Ok(_) | Err(Errno::ESRCH) => {}
            // An old kernel, a seccomp filter, no free descriptor: by ID, right after the check.
            Err(_) if is_still_there() => drop(kill(self.pid, signal)),
            Err(_) => {}
        }
    }
}

/// Whether a process belongs to another user, so that we may not signal it.
pub(super) fn is_forbidden(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::EPERM)
}

/// A change of this process's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    Ended(Pid, Exit),
    /// Stopped, by the signal with this number.
    Paused(Pid, i32),
    Continued(Pid),
    /// There are children, but none has changed.
    NothingNew,
    NoChildren,
}

const CHANGES: libc::c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;

/// Never blocks. nix's waitpid cannot express a death by a real-time signal.
pub(super) fn reap() -> Reaped {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the call, which writes only to it.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, CHANGES) };
        return match pid {
            0 => Reaped::NothingNew,
            -1 if Errno::last() == Errno::EINTR => continue,
            -1 => Reaped::NoChildren,
            pid if libc::WIFSTOPPED(status) => Reaped::Paused(Pid::from_raw(pid), libc::WSTOPSIG(status)),
            pid if libc::WIFCONTINUED(status) => Reaped::Continued(Pid::from_raw(pid)),
            pid if libc::WIFSIGNALED(status) => {
                Reaped::Ended(Pid::from_raw(pid), Exit::Signal(libc::WTERMSIG(status)))
            }
            pid => {
                let code =
                    u8::try_from(libc::WEXITSTATUS(status)).expect("wait statuses have eight bits for it");
                Reaped::Ended(Pid::from_raw(pid), Exit::Code(code))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_with_and_without_lists_of_children() {
        let tree = ProcessTree::new(ProcView::check());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let is_found = || {
            let searched = tree.walk_with(Scope::WithoutHelpers, |parent| {
                all_processes().into_iter().filter(|process| process.parent == parent).collect()
            });
            [tree.walk(Scope::WithoutHelpers), searched]
                .map(|found| found.iter().any(|process| process.pid == pid))
        };
        assert_eq!(is_found(), [true, true]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(is_found(), [false, false]);
    }
}
