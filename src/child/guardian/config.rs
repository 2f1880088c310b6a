//! The guardian's settings and descriptors, prepared before it is forked.

use std::ffi::OsString;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

use crate::child::attach::AttachPoint;
use crate::child::forwarding::WITNESSED;
use crate::child::process_tree::ProcView;
use crate::child::signal_state::{SignalState, is_ignored};
use crate::child::spawn::ProcessGroup;

/// How to run the command and how to stop it.
pub(crate) struct GuardianConfig {
    pub argv: Vec<OsString>,
    pub group: ProcessGroup,
    pub stop: StopPolicy,
    pub wait_for: WaitFor,
    pub signal_state: SignalState,
    /// The files of redlock's locks. The guardian keeps them open, so that the locks outlive
    /// redlock.
    pub lock_files: Vec<Arc<File>>,
    /// Where runs inside the command attach, if possible.
    pub attach_point: Option<AttachPoint>,
    pub proc_view: ProcView,
    /// Releases the lock if redlock dies.
    pub release_orphan: Option<OnDeath>,
}

/// Called in the guardian after redlock has died and the tree is gone, with the grant (`None`
/// before the command to start) and whether the command was started.
pub(crate) type OnDeath = Box<dyn FnOnce(Option<&[u8]>, bool)>;

/// The descriptors that the guardian needs, opened before it is forked.
pub(in crate::child) struct GuardianFds {
    pub(super) signals: SignalFd,
    pub(super) timer: TimerFd,
}

impl GuardianFds {
    pub(in crate::child) fn open() -> nix::Result<Self> {
        // Signals that were ignored when redlock was started stay ignored: blocked, they would be
        // delivered.
        let witnessed = WITNESSED.into_iter().filter(|&signal| !is_ignored(signal));
        let signals: SigSet = witnessed.chain([Signal::SIGCHLD]).collect();
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self {
            signals: SignalFd::with_flags(&signals, flags)?,
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StopPolicy {
    pub signal: Signal,
    /// Between that signal and SIGKILL.
    pub grace: Duration,
}

/// When the command counts as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    Command,
    /// When the last descendant has exited. As with flock, a process that has the lock file open
    /// has the lock.
    Tree,
}
