//! What the kernel of this host offers to stop a command's tree.

use nix::sys::prctl::{get_child_subreaper, set_child_subreaper};
use nix::unistd::getpid;

use super::pidfd::PidFd;

/// Whether a process can adopt the orphans of its descendants.
pub(crate) fn has_subreaper() -> bool {
    let was = get_child_subreaper().unwrap_or(false);
    let can = set_child_subreaper(true).is_ok();
    let _ = set_child_subreaper(was);
    can
}

/// Whether a signal can be sent to a process instead of a number.
pub(crate) fn has_pidfd() -> bool {
    PidFd::open(getpid()).is_ok()
}
