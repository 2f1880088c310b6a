//! The wall clock as it is set where we run.

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

/// Year, month, day, hour, minute and second by the local time zone.
pub(crate) fn local_time(moment: SystemTime) -> Option<[i32; 6]> {
    let seconds = moment.duration_since(UNIX_EPOCH).ok()?.as_secs().try_into().ok()?;
    let mut fields = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call; the result is read only if the call says that it filled it in. It
    // reads TZ, which no thread of ours ever changes.
    let fields = unsafe {
        let filled = libc::localtime_r(&raw const seconds, fields.as_mut_ptr());
        (!filled.is_null()).then(|| fields.assume_init())
    }?;
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = fields;
    Some([tm_year + 1900, tm_mon + 1, tm_mday, tm_hour, tm_min, tm_sec])
}
