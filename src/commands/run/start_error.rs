//! Why the command could not be started.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::exit::{self, Failure};

/// 127 if there is no such command; 126 if there is, but it cannot be run. A script whose interpreter is missing gives the
/// same error as a missing script.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
pub(super) fn start_error(argv: &[OsString], errno: i32) -> Failure {
    let (why, program) = (Errno::from_raw(errno), argv[0].as_os_str());
    let (name, found) = (program.to_string_lossy(), find(program));
    let cannot = |why: &str| Failure::new(exit::CANNOT_EXECUTE, format!("{name}: cannot execute: {why}"));
    match (why, found) {
        (Errno::ENOENT, Some(_)) => cannot("its interpreter was not found"),
        // EACCES: a directory in PATH that we may not search.
        (Errno::ENOENT | Errno::EACCES, None) => Failure::new(exit::NOT_FOUND, not_found(argv)),
        (Errno::EACCES, Some(path)) if path.is_dir() => cannot("is a directory"),
        (Errno::EACCES, Some(_)) => cannot("permission denied (chmod +x?)"),
        (why, _) => cannot(why.desc()),
    }
}

fn not_found(argv: &[OsString]) -> String {
    let name = argv[0].to_string_lossy();
    if argv.len() == 1 && name.contains(' ') {
        return format!("{name:?}: command not found (for a shell line use -c)");
    }
    if name.contains('/') { format!("{name}: no such file") } else { format!("{name}: command not found") }
}

fn find(program: &OsStr) -> Option<PathBuf> {
    if program.is_empty() {
        return None;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory: PathBuf| directory.join(Path::new(program)))
        .find(|path| path.exists())
}
