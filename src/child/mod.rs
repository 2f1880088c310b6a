//! The command and its descendants: started, signalled, stopped, never left alone.
//!
//! The only room with `unsafe`. It knows processes, signals and the lease's deadline; nothing of
//! servers, queues or sentences for people.
//!
//!     redlock  --commands-->  guardian  --parent of-->  command -> ...
//!              <--events----
//!
//! See guardian.rs for when the tree is stopped, and by which process.

/// The way in for fuzz/, which sees what this room sees.
#[cfg(fuzzing)]
#[path = "../../fuzz/src/child.rs"]
pub(crate) mod fuzz;

mod attach;
mod guardian;
mod local_time;
mod messages;
mod process_tree;
mod signal_state;
pub(crate) mod signals;
mod spawn;
pub(crate) mod terminal;

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork};

use crate::clock::BootTime;
use messages::{Channel, GuardianCommand};

pub(crate) use attach::{AttachPoint, Attachment};
pub(crate) use guardian::{GuardianConfig, StopPolicy, WaitFor};
pub(crate) use local_time::local_time;
pub(crate) use messages::{Environment, ExitReason, GuardianEvent, Limits};
pub(crate) use process_tree::is_stopped;
pub(crate) use signal_state::SignalState;
pub(crate) use spawn::ProcessGroup;

/// For the panic hook, which has no other way to the guardian.
static EMERGENCY: OnceLock<GuardianHandle> = OnceLock::new();

/// Sends commands to the guardian; every thread may have one.
#[derive(Clone, Debug)]
pub(crate) struct GuardianHandle {
    channel: Arc<Channel>,
    pid: Pid,
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

    /// The lock is lost: stop the tree, gently first.
    pub(crate) fn stop_tree(&self) {
        self.send(&GuardianCommand::Stop);
    }

    pub(crate) fn kill_tree(&self) {
        self.send(&GuardianCommand::Kill);
    }

    /// The command's parent-death signal then ends it, and [`GuardianEvent::Vanished`] follows.
    pub(crate) fn kill_guardian(&self) {
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    fn wait_for_exit(&self) {
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }

    fn send(&self, command: &GuardianCommand) {
        // A guardian that is gone is noticed where its events are read.
        let _ = self.channel.send(&command.to_bytes());
    }
}

/// redlock's side of the supervision.
pub(crate) struct Supervisor {
    guardian: GuardianHandle,
}

impl Supervisor {
    /// Fork the guardian. While the program has one thread only.
    pub(crate) fn start(config: GuardianConfig) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        // If the guardian itself is killed, its descendants become ours to stop.
        set_child_subreaper(true)?;
        // SAFETY: no thread has been started yet, so the new process may go on like any other.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop(ours);
                let result = guardian::Guardian::new(theirs, config).map(guardian::Guardian::run);
                std::process::exit(i32::from(result.is_err()))
            }
            ForkResult::Parent { child } => {
                let guardian = GuardianHandle { channel: Arc::new(ours), pid: child };
                let _ = EMERGENCY.set(guardian.clone());
                Ok(Self { guardian })
            }
        }
    }

    pub(crate) fn guardian(&self) -> &GuardianHandle {
        &self.guardian
    }

    /// Start the command, with these variables added to its environment.
    pub(crate) fn start_command(&self, environment: Environment, limits: Limits) -> io::Result<()> {
        let start = GuardianCommand::Start { environment, limits };
        self.guardian.channel.send_waiting(&start.to_bytes())?;
        detach_stdin_and_stdout();
        Ok(())
    }

    /// Readable when there is an event.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.guardian.channel.as_fd()
    }

    /// The next event; blocks until there is one.
    pub(crate) fn next_event(&self) -> GuardianEvent {
        self.guardian.channel.receive_event()
    }

    /// After the last event, or to give up before the command was started.
    pub(crate) fn shut_down(self) {
        self.guardian.channel.shut_down(Shutdown::Both);
        self.guardian.wait_for_exit();
    }
}

/// The guardian is gone: kill the command's tree in its place. Returns when nothing of it is left.
pub(crate) fn kill_what_is_left() {
    process_tree::kill_tree(|_, _| {});
}

/// From the panic hook: have the tree killed, and return when it is. False if there was none.
pub(crate) fn stop_in_emergency() -> bool {
    if let Some(guardian) = EMERGENCY.get() {
        guardian.kill_tree();
        guardian.channel.shut_down(Shutdown::Write);
        guardian.wait_for_exit();
    }
    EMERGENCY.get().is_some()
}

/// They are the command's: the process at the other end must see it close them.
fn detach_stdin_and_stdout() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}
