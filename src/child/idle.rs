//! A process that sleeps for hours needs little of its program.

use std::time::Duration;

use nix::libc::{MADV_DONTNEED, c_void, madvise};

/// A command that takes longer than this is guarded with less memory. Most end before, and reading the program in again
/// takes a tenth of the time of a short one.
pub(crate) const LONG_COMMAND: Duration = Duration::from_millis(200);

/// A wait that takes longer than this goes on with less memory. Not before: a lock that changes hands quickly would wait
/// for the next holder's code to be read in again.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(2);

// The linker's: where the program begins, and where its code ends. What is written to comes behind that.
unsafe extern "C" {
    static __executable_start: u8;
    static etext: u8;
}

/// Code and constants leave this process's memory until they are used again. The kernel has them from the file, and
/// other processes may have them as well.
pub(crate) fn forget_code() {
    // SAFETY: between the two addresses nothing is ever written, so what is read again is what was there. The first is that
    // of the file's first page; a length that ends within a page is rounded up to it, and that page is code.
    unsafe {
        let start = &raw const __executable_start;
        let length = (&raw const etext as usize) - (start as usize);
        madvise(start.cast_mut().cast::<c_void>(), length, MADV_DONTNEED);
    }
}
