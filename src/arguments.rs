//! Our own argument list, as `ps` and everyone on the host sees it. What the kernel shows is our own memory.

use std::fs::{File, read_to_string};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Change the list in place; its length stays.
pub(crate) fn overwrite(change: impl FnOnce(&mut [u8])) -> io::Result<()> {
    let range = range()?;
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let length = usize::try_from(range.end - range.start).map_err(|_| ErrorKind::Unsupported)?;
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, range.start)?;
    change(&mut bytes);
    memory.write_all_at(&bytes, range.start)
}

/// Where the kernel reads it from: fields 48 and 49 of /proc/self/stat.
fn range() -> io::Result<Range<u64>> {
    let stat = read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace().skip(48 - 3).map(str::parse);
    match (fields.next(), fields.next()) {
        (Some(Ok(start)), Some(Ok(end))) if start < end => Ok(start..end),
        _ => Err(ErrorKind::Unsupported.into()),
    }
}
