//! What the kernel and the C library offer on this host.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc::{self, MADV_DONTNEED, c_void, madvise};
use nix::sys::prctl::{get_child_subreaper, set_child_subreaper};
use nix::unistd::getpid;

use super::pidfd::PidFd;

/// A file for streams that must lead nowhere. Without /dev/null the root directory serves: reading and
/// writing fail.
pub(super) fn nowhere() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null").or_else(|_| File::open("/"))
}

/// Whether a process can adopt the orphans of its descendants.
pub(crate) fn has_subreaper() -> bool {
    let was = get_child_subreaper().unwrap_or(false);
    let can = set_child_subreaper(true).is_ok();
    let _ = set_child_subreaper(was);
    can
}

/// Whether signals can be sent to a process instead of a process ID.
pub(crate) fn has_pidfd() -> bool {
    PidFd::open(getpid()).is_ok()
}

/// Year, month, day, hour, minute and second in the local time zone.
pub(crate) fn local_time(moment: SystemTime) -> Option<[i32; 6]> {
    let seconds = moment.duration_since(UNIX_EPOCH).ok()?.as_secs().try_into().ok()?;
    let mut fields = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call, and the result is read only if the call filled
    // it in. It reads TZ, which no thread of ours changes.
    let fields = unsafe {
        let filled = libc::localtime_r(&raw const seconds, fields.as_mut_ptr());
        (!filled.is_null()).then(|| fields.assume_init())
    }?;
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = fields;
    Some([tm_year.checked_add(1900)?, tm_mon + 1, tm_mday, tm_hour, tm_min, tm_sec])
}

/// A command that runs longer than this is guarded with less memory. Most end before, and reading
/// the program's code in again takes a tenth of a short command's time.
pub(crate) const LONG_COMMAND: Duration = Duration::from_millis(200);

/// A wait that lasts longer than this continues with less memory. A lock that changes hands quickly
/// must not wait until the next holder's code is read in again. The first wait line has been printed
/// by then: the threads that print it load code, too.
pub(crate) const LONG_WAIT: Duration = Duration::from_millis(2200);

// Defined by the linker: the start of the program and the end of its code. Writable data follows
// the code.
unsafe extern "C" {
    static __executable_start: u8;
    static etext: u8;
}

/// Drop code and constants from this process's memory until they are used again. The kernel reads
/// them from the file, and other processes may share them.
pub(crate) fn forget_code() {
    // SAFETY: nothing between the two addresses is ever written, so the same bytes are read again.
    // The first address is that of a page; the length is rounded up to a page, and the last page is
    // code.
    unsafe {
        let start = &raw const __executable_start;
        let length = (&raw const etext as usize) - (start as usize);
        madvise(start.cast_mut().cast::<c_void>(), length, MADV_DONTNEED);
    }
}
