//! The program's entry, in place of the standard library's, which reads /proc/self/maps, where our stack is, to be able to
//! report a stack overflow: a twentieth of `flock f true`. What else it does before `main` is done here.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;

use super::signal_state::{ignore_sigpipe, remember_closed_stdout};

/// Makes this function, which is called with the program's arguments and does not return, the program's entry.
macro_rules! entry {
    ($launch:path) => {
        // SAFETY: the C library calls it, once, and no other function of the program has this name.
        #[cfg(not(any(test, fuzzing)))]
        #[unsafe(no_mangle)]
        extern "C" fn main(
            count: std::ffi::c_int,
            arguments: *const *const std::ffi::c_char,
        ) -> std::ffi::c_int {
            // SAFETY: they come from the C library.
            $launch(&unsafe { $crate::child::entry::prepare(count, arguments) })
        }
    };
}
pub(crate) use entry;

/// What must be done before anything else; returns the program's arguments.
///
/// # Safety
///
/// To be called with the arguments of C's `main`.
#[cfg_attr(any(test, fuzzing), allow(dead_code, reason = "they have entries of their own"))]
pub(crate) unsafe fn prepare(count: c_int, arguments: *const *const c_char) -> Vec<OsString> {
    ignore_sigpipe();
    open_standard_streams();
    let count = usize::try_from(count).unwrap_or_default();
    let argument = |at| {
        // SAFETY: there are `count` pointers to texts that end with a zero byte and are never freed.
        let text = unsafe { CStr::from_ptr(*arguments.add(at)) };
        OsStr::from_bytes(text.to_bytes()).to_os_string()
    };
    (0..count).map(argument).collect()
}

/// If one of them is closed, the next file or socket that is opened would be taken for it.
fn open_standard_streams() {
    // SAFETY: poll() tells of a descriptor that is closed; nothing else is done with them.
    let streams = [0, 1, 2].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut streams = streams.map(|fd| PollFd::new(fd, PollFlags::empty()));
    if poll(&mut streams, PollTimeout::ZERO).is_ok_and(|ready| ready == 0) {
        return;
    }
    for (number, stream) in streams.into_iter().enumerate() {
        let is_closed = stream.revents().is_some_and(|events| events.contains(PollFlags::POLLNVAL));
        // The lowest number that is free is this one. Without O_CLOEXEC: the command is to have it, too.
        if is_closed && let Ok(null) = open("/dev/null", OFlag::O_RDWR, Mode::empty()) {
            let _ = null.into_raw_fd();
            if number == 1 {
                remember_closed_stdout();
            }
        }
    }
}
