//! Keepers that watch an ancestor of this process: `redlock acquire --for-shell` in the script that
//! called us. A script that did not evaluate the keeper's variables holds the lock all the same.
//!
//! A keeper has a file in memory that describes its locks, and the watched process's descriptor
//! (pidfd). The kernel shows both in /proc, to processes of the keeper's user and to root only. The
//! descriptor pins the process, and /proc shows its ID in our own PID namespace, so no other process
//! is mistaken for it: not one with a reused ID, and not one of another namespace or host.
//!
//! Any user can give a process the keeper's name and such files, even a process of root's (a program
//! with the setuid bit). So the file in memory must belong to our own user: only our user can make one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;
use nix::unistd::{Pid, geteuid};

use super::proc_entry::{Process, all_processes, is_ancestor_of, open_files};

/// The contents of the files in memory with this name, of our user's keepers that watch a process or
/// an ancestor of it.
pub(crate) fn published_above(process: Pid, name: &str) -> Vec<String> {
    let link = format!("/memfd:{name} (deleted)");
    let keepers = all_processes().into_iter().filter(|process| process.is_keeper);
    keepers.filter_map(|keeper| published(keeper, &link, process)).collect()
}

fn published(keeper: Process, link: &str, below: Pid) -> Option<String> {
    let (mut text, mut watched) = (None, None);
    for (path, target) in open_files(keeper.pid) {
        if target.as_os_str() == link {
            text = read_own(&path).ok().flatten();
        } else if target.to_string_lossy().contains("pidfd") {
            let fd = path.file_name()?.to_str()?;
            let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", keeper.pid)).ok()?;
            watched = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        }
    }
    // -1 if it has exited, 0 if it is in a namespace that ours does not see.
    let watched = watched.filter(|pid| *pid > 0).map(Pid::from_raw)?;
    text.filter(|_| is_ancestor_of(watched, below))
}

/// `None` if the file belongs to another user. The descriptor may lead to another file by now, even to
/// a pipe without a writer.
fn read_own(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.uid() != geteuid().as_raw() {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Some(text))
}
