//! What the guardian does about a sleep that may be long: it tells `ps` what it is, and then sleeps with less memory. Neither
//! before the command is started, if that is soon: the command would have to wait for it.
//!
//!     Awake  --20 ms-->  Titled  --2 s-->  Asleep        waits for the command's start
//!                        Running --200 ms--> Asleep      the command runs

use std::time::Duration;

use nix::poll::PollTimeout;
use nix::unistd::Pid;

use crate::arguments;
use crate::child::idle::{LONG_COMMAND, LONG_WAIT, forget_code};

/// How long the guardian waits for the command's start before it tells `ps` what it is.
const TITLE_AFTER: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The command is about to be started.
    Awake,
    /// The command is waited for; `ps` shows what this process is.
    Titled,
    /// The command runs.
    Running,
    /// It sleeps without its code.
    Asleep,
}

impl Rest {
    /// How long to sleep; to be called just before.
    pub(super) fn timeout(self) -> PollTimeout {
        match self {
            Self::Awake => millis(TITLE_AFTER),
            Self::Titled => millis(LONG_WAIT),
            Self::Running => millis(LONG_COMMAND),
            Self::Asleep => {
                forget_code();
                PollTimeout::NONE
            }
        }
    }

    /// Nothing has happened for that long.
    pub(super) fn deepen(&mut self, redlock: Pid) {
        match self {
            Self::Awake => {
                show_title(redlock);
                *self = Self::Titled;
            }
            Self::Titled | Self::Running | Self::Asleep => *self = Self::Asleep,
        }
    }

    /// The command was started.
    pub(super) fn command_runs(&mut self, redlock: Pid) {
        if *self == Self::Awake {
            show_title(redlock);
        }
        *self = Self::Running;
    }
}

fn show_title(redlock: Pid) {
    // Where it cannot be done (a hardened /proc) it looks like a second redlock.
    let _ = arguments::overwrite(|bytes| write_title(bytes, redlock));
}

fn millis(duration: Duration) -> PollTimeout {
    PollTimeout::try_from(duration).unwrap_or(PollTimeout::MAX)
}

/// As much of what the guardian is as its argument list has room for.
fn write_title(arguments: &mut [u8], redlock: Pid) {
    let titles = [format!("redlock: guardian of pid {redlock}"), format!("guardian of {redlock}")];
    let room = arguments.len().saturating_sub(1);
    let title = titles.iter().find(|title| title.len() <= room).unwrap_or(&titles[1]);
    arguments.fill(0);
    let length = title.len().min(room);
    arguments[..length].copy_from_slice(&title.as_bytes()[..length]);
}
