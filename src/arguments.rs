//! This process's argument list, as `ps` shows it to every user of the host. The kernel reads it
//! from the process's own memory.

use std::fs::{File, read_to_string};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Change the list in place, without changing its length.
pub(crate) fn overwrite(change: impl FnOnce(&mut [u8])) -> io::Result<()> {
    let [range, _] = ranges()?;
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let length = usize::try_from(range.end - range.start).map_err(|_| ErrorKind::Unsupported)?;
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, range.start)?;
    change(&mut bytes);
    memory.write_all_at(&bytes, range.start)
}

/// Replace the list by this text. A longer text continues into the environment, as with
/// setproctitle(3): if the list does not end with a zero byte, the kernel shows the text up to the
/// next zero byte.
pub(crate) fn set_title(title: &[u8]) -> io::Result<()> {
    let [arguments, environment] = ranges()?;
    let room =
        if title.len() as u64 > arguments.end - arguments.start - 1 && arguments.end == environment.start {
            arguments.start..environment.end
        } else {
            arguments.clone()
        };
    let length = |range: &Range<u64>| {
        usize::try_from(range.end - range.start).map_err(|_| io::Error::from(ErrorKind::Unsupported))
    };
    let shown = &title[..title.len().min(length(&room)? - 1)];
    let mut bytes = vec![0; length(&arguments)?.max(shown.len() + 1)];
    bytes[..shown.len()].copy_from_slice(shown);
    File::options().write(true).open("/proc/self/mem")?.write_all_at(&bytes, room.start)
}

/// The addresses of the arguments and the environment: fields 48 to 51 of /proc/self/stat.
fn ranges() -> io::Result<[Range<u64>; 2]> {
    let stat = read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = after_name.split_ascii_whitespace().skip(48 - 3).map_while(|field| field.parse().ok());
    match fields.take(4).collect::<Vec<u64>>()[..] {
        [start, end, env_start, env_end] if start < end && env_start <= env_end => {
            Ok([start..end, env_start..env_end])
        }
        _ => Err(ErrorKind::Unsupported.into()),
    }
}
