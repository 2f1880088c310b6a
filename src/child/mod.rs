//! The command and its descendants: start, signal, stop.
//!
//! The only module with `unsafe`. It handles processes, signals and the lease's deadline, and knows
//! nothing of servers, queues or messages for people.
//!
//!     redlock  --commands-->  guardian  --parent of-->  command -> ...
//!              <--events----
//!
//! guardian/mod.rs describes when the tree is stopped, and by which process.

/// The entry for fuzz/, with access to this module's private items.
#[cfg(fuzzing)]
#[path = "../../fuzz/src/child.rs"]
pub(crate) mod fuzz;

mod attach;
mod channel;
mod detach;
mod forwarding;
mod guardian;
mod hook;
mod host;
mod lock_holder;
mod messages;
mod outer_keeper;
mod pidfd;
mod proc_entry;
mod process_tree;
mod signal_state;
pub(crate) mod signals;
mod spawn;
pub(crate) mod terminal;
mod watched;

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork};

use crate::clock::BootTime;
use channel::Channel;
use guardian::{Guardian, GuardianFds};
use messages::GuardianCommand;
use proc_entry::user_of;
use process_tree::{Killed, ProcessTree, Reaped, reap};

pub(crate) use attach::{AttachPoint, Attachment};
pub(crate) use detach::{FromWorker, Front, FrontLink, Printed, Side, restore_default_signals, split};
pub(crate) use guardian::{GuardianConfig, StopPolicy, WaitFor};
pub(crate) use hook::HookRunner;
pub(crate) use host::{LONG_COMMAND, LONG_WAIT, forget_code, has_pidfd, has_subreaper, local_time};
pub(crate) use lock_holder::{AskedHolder, LockedByte, ask_lock_holder, has_locked, with_open_file};
pub(crate) use messages::{Environment, GuardianEvent, Limits};
pub(crate) use outer_keeper::published_above;
pub(crate) use proc_entry::variable_of;
pub(crate) use process_tree::ProcView;
pub(crate) use signal_state::{SignalState, stdout_was_closed};
pub(crate) use spawn::ProcessGroup;
pub(crate) use watched::WatchedProcess;

/// How long the guardian may take to read the command to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// For [`look_after_children`], which has no other reference to the guardian.
static GUARDIAN: OnceLock<GuardianHandle> = OnceLock::new();

static COMMAND_WAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Sends commands to the guardian; every thread may have one.
#[derive(Clone, Debug)]
pub(crate) struct GuardianHandle {
    channel: Arc<Channel>,
    process: Arc<GuardianProcess>,
}

#[derive(Debug)]
struct GuardianProcess {
    pid: Pid,
    /// Once it is reaped its process ID may belong to another process.
    is_reaped: AtomicBool,
}

impl GuardianHandle {
    /// The command must be gone before this moment.
    pub(crate) fn set_deadline(&self, moment: BootTime) {
        self.send(&GuardianCommand::Deadline(moment));
    }

    /// Forward a signal to the command: to its whole tree if it is one that ends or stops.
    pub(crate) fn forward(&self, signal: Signal) {
        self.send(&GuardianCommand::Forward(signal));
    }

    /// Forward a signal that the terminal has sent to this process group, unless the command is in it.
    pub(crate) fn forward_typed(&self, signal: Signal) {
        self.send(&GuardianCommand::Typed(signal));
    }

    /// The lock is lost: stop the tree, gently first.
    pub(crate) fn stop_tree(&self) {
        self.send(&GuardianCommand::Stop);
    }

    pub(crate) fn kill_tree(&self) {
        self.send(&GuardianCommand::Kill);
    }

    /// The command's parent-death signal then kills the command, and [`GuardianEvent::Vanished`]
    /// follows.
    pub(crate) fn kill_guardian(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        if !self.process.is_reaped.load(Ordering::Acquire) {
            let _ = kill(self.process.pid, signal);
        }
    }

    fn wait_for_exit(&self) {
        if !self.process.is_reaped.swap(true, Ordering::AcqRel) {
            while waitpid(self.process.pid, None) == Err(Errno::EINTR) {}
        }
    }

    fn send(&self, command: &GuardianCommand) {
        // A dead guardian is noticed where its events are read.
        let _ = self.channel.send(&command.to_bytes());
    }
}

/// Everything the guardian needs, allocated before the first request: afterwards only the fork can
/// fail.
pub(crate) struct Preparation {
    ours: Channel,
    theirs: Channel,
    fds: GuardianFds,
}

impl Preparation {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        // If the guardian itself is killed, this process inherits its descendants and must stop
        // them.
        set_child_subreaper(true)?;
        Ok(Self { ours, theirs, fds: GuardianFds::open()? })
    }
}

/// redlock's side of the supervision.
pub(crate) struct Supervisor {
    guardian: GuardianHandle,
    tree: ProcessTree,
    /// What runs inside the command need to attach, if they can.
    attach_id: Option<String>,
}

impl Supervisor {
    /// Fork the guardian. The process must have only one thread.
    pub(crate) fn start(preparation: Preparation, config: GuardianConfig) -> io::Result<Self> {
        let Preparation { ours, theirs, fds } = preparation;
        let tree = ProcessTree::beside_strangers(config.proc_view);
        // SAFETY: no thread has been started yet, so the new process may run any code.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop(ours);
                match Guardian::new(&theirs, fds, config) {
                    Ok(guardian) => guardian.run(),
                    Err(error) => drop(theirs.send(&GuardianEvent::NotStarted(error as i32).to_bytes())),
                }
                end_guardian()
            }
            ForkResult::Parent { child } => {
                let process = GuardianProcess { pid: child, is_reaped: AtomicBool::new(false) };
                let guardian = GuardianHandle { channel: Arc::new(ours), process: Arc::new(process) };
                let _ = GUARDIAN.set(guardian.clone());
                let attach_id = config.attach_point.as_ref().and_then(|point| point.id(child));
                Ok(Self { guardian, tree, attach_id })
            }
        }
    }

    pub(crate) fn attach_id(&self) -> Option<&str> {
        self.attach_id.as_deref()
    }

    pub(crate) fn guardian(&self) -> &GuardianHandle {
        &self.guardian
    }

    /// Start the command, with these variables added to its environment. `grant` is for
    /// [`GuardianConfig::release_orphan`].
    pub(crate) fn start_command(
        &mut self,
        environment: Environment,
        limits: Limits,
        grant: Vec<u8>,
    ) -> io::Result<()> {
        self.tree.set_mark(&environment);
        COMMAND_WAS_STARTED.store(true, Ordering::Relaxed);
        let start = GuardianCommand::Start { environment, limits, grant };
        let give_up_at = BootTime::now() + START_TIMEOUT;
        self.guardian.channel.send_until(&start.to_bytes(), Some(give_up_at))?;
        detach_stdin_and_stdout();
        Ok(())
    }

    /// Readable when an event has arrived.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.guardian.channel.as_fd()
    }

    /// Receive the next event; blocks.
    pub(crate) fn next_event(&self) -> GuardianEvent {
        self.guardian.channel.receive_event()
    }

    /// The guardian is gone: kill the command's tree in its place. Returns when none of it is left.
    /// Helpers are not spared beyond `spared_until`. `forbidden` is called, perhaps again, with the
    /// processes that cannot be killed, and their users.
    pub(crate) fn kill_what_is_left(
        &self,
        spared_until: Option<BootTime>,
        mut forbidden: impl FnMut(Pid, Option<u32>),
    ) {
        while let Killed::AllButForbidden(left) = self.tree.kill(spared_until, |pid, _| note_reaped(pid)) {
            for process in left {
                forbidden(process.pid, user_of(process.pid));
            }
            wait_for_a_child();
        }
    }

    /// After the lock was released, or was not taken.
    pub(crate) fn shut_down(self) {
        self.guardian.send(&GuardianCommand::Done);
        self.guardian.channel.shut_down(Shutdown::Both);
        // A stopped guardian would never exit.
        self.guardian.signal(Signal::SIGCONT);
        self.guardian.wait_for_exit();
    }
}

/// Without a program's usual clean-up: the process is a copy, and everything in it belongs to
/// redlock.
fn end_guardian() -> ! {
    // SAFETY: _exit only ends the process.
    unsafe { nix::libc::_exit(0) }
}

/// Call after SIGCHLD. Reaps every child that has exited (the first process of a container inherits
/// others' children) and continues a stopped guardian, which could not do its job.
pub(crate) fn look_after_children() {
    loop {
        match reap() {
            Reaped::Ended(pid, _) => note_reaped(pid),
            Reaped::Paused(pid, _) => {
                if let Some(guardian) = GUARDIAN.get().filter(|guardian| guardian.process.pid == pid) {
                    guardian.signal(Signal::SIGCONT);
                }
            }
            Reaped::Continued(_) => {}
            Reaped::NothingNew | Reaped::NoChildren => return,
        }
    }
}

/// Returns when a child has exited, and leaves it to be reaped.
fn wait_for_a_child() {
    while waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
}

fn note_reaped(pid: Pid) {
    if let Some(guardian) = GUARDIAN.get().filter(|guardian| guardian.process.pid == pid) {
        guardian.process.is_reaped.store(true, Ordering::Release);
    }
}

/// Whether the guardian was asked to start the command.
pub(crate) fn command_was_started() -> bool {
    COMMAND_WAS_STARTED.load(Ordering::Relaxed)
}

/// They belong to the command: the process at the other end must see when the command closes them.
fn detach_stdin_and_stdout() {
    if let Ok(null) = host::nowhere() {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}
