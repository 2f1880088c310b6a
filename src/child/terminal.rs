//! The terminal that redlock shares with the command.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::unistd::getpgrp;

/// Whether this process has a controlling terminal. Then ^C, ^Z and the shell's job control act on
/// this process group, and the command belongs in it. Without one (cron, CI, a service) the command
/// gets its own group. In a PID namespace that was made inside the terminal's job, this process
/// group has no number (0), so that the command cannot join it either.
pub(crate) fn has_controlling_terminal() -> bool {
    getpgrp().as_raw() != 0 && File::options().read(true).write(true).open("/dev/tty").is_ok()
}

/// If a stream is not a terminal, or its width is unknown.
pub(crate) const USUAL_WIDTH: usize = 80;

/// The number of columns of this stream's terminal.
pub(crate) fn width(stream: &impl AsRawFd) -> Option<usize> {
    size(stream).map(|(_, columns)| columns)
}

/// Lines and columns of this stream's terminal.
pub(crate) fn size(stream: &impl AsRawFd) -> Option<(usize, usize)> {
    let mut size = MaybeUninit::<libc::winsize>::uninit();
    // SAFETY: TIOCGWINSZ fills in a winsize, for which `size` has room; it is read only if the call
    // succeeded.
    let size = unsafe {
        (libc::ioctl(stream.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) == 0)
            .then(|| size.assume_init())
    };
    size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col))).filter(|&(_, columns)| columns > 0)
}
