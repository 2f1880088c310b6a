//! Is there a terminal to share with the command?

use std::fs::File;

/// Whether this process has a controlling terminal. Then ^C, ^Z and the shell's job control act on our
/// process group, and the command belongs into it; without one (cron, CI, a service) the command gets a
/// group of its own.
pub fn is_there() -> bool {
    File::options().read(true).write(true).open("/dev/tty").is_ok()
}
