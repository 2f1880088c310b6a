//! Runs of other users, which only root can start.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use tempfile::TempDir;

use super::run::{Job, Run, binary};

/// The uid of a user without privileges.
pub const UNPRIVILEGED: u32 = 65534;

/// A copy of the binary that every user may execute, wherever the source tree is.
pub struct OtherUsers {
    directory: TempDir,
}

impl OtherUsers {
    /// None if we are not root.
    pub fn new() -> Option<OtherUsers> {
        geteuid().is_root().then(|| {
            let users = OtherUsers { directory: tempfile::tempdir().expect("a temporary directory") };
            // Another process copies it: a descriptor of ours, inherited by a child of another
            // thread, would make the file busy.
            let script = "chmod 755 \"$1\" && install -m 755 \"$2\" \"$1/redlock\"";
            let mut install = Command::new("sh");
            install.args(["-c", script, "sh"]).arg(users.directory.path()).arg(binary());
            assert!(install.status().expect("a shell").success(), "the binary can be copied");
            users
        })
    }

    /// Runs as this user with this umask.
    pub fn run(&self, uid: u32, run: Run, umask: &str) -> Run {
        let script = format!("umask {umask}; exec \"$@\"");
        self.run_through(uid, run, &["sh", "-c", &script, "sh"])
    }

    /// Runs as this user, started by another program.
    pub fn run_through(&self, uid: u32, run: Run, wrapper: &[&str]) -> Run {
        let id = uid.to_string();
        let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
        run.program(self.program()).dir(self.directory.path()).through(&[&user[..], wrapper].concat())
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("redlock")
    }
}

/// A program of another user in Python, killed when it is dropped. `None` if it cannot be started here.
pub fn stranger(uid: u32, script: &str, args: &[&Path]) -> Option<Job> {
    let python = Path::new("/usr/bin/python3");
    if !geteuid().is_root() || !python.exists() {
        return None;
    }
    let run = Run::bare().program(python.into()).dir("/").args(&["-c", script]);
    let run = args.iter().fold(run, |run, arg| run.arg(arg));
    let id = uid.to_string();
    Some(run.through(&["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]).stdin_pipe().spawn())
}
