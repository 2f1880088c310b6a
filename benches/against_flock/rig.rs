//! What is measured and where: the programs, the server, a folder that goes away.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use crate::server::Server;

pub struct Rig {
    pub redlock: PathBuf,
    floor: PathBuf,
    pub server: Server,
    folder: TempDir,
    names_given: u32,
}

impl Rig {
    pub fn build() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("redlock-bench-").tempdir()?;
        Ok(Self {
            redlock: path_in("BENCH_REDLOCK")?,
            floor: path_in("BENCH_FLOOR")?,
            server: Server::start(folder.path())?,
            folder,
            names_given: 0,
        })
    }

    /// A name for a key or a file that was not used before.
    pub fn new_name(&mut self) -> String {
        self.names_given += 1;
        format!("bench-{}", self.names_given)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `redlock run` up to the command.
    pub fn redlock_run(&self, url: &str, key: &str) -> Command {
        self.redlock_run_as(&[], url, key)
    }

    /// The same with these options.
    pub fn redlock_run_as(&self, options: &[&str], url: &str, key: &str) -> Command {
        let mut command = Command::new(&self.redlock);
        command.args(["run", "--redis", url, "--key", key]).args(options).arg("--");
        command
    }

    /// The same without a server, in a folder of its own.
    pub fn redlock_run_here(&self, key: &str) -> Command {
        let mut command = Command::new(&self.redlock);
        command.args(["run", "--local", "--local-dir"]).arg(self.host_folder(key)).args(["--key", key, "--"]);
        command
    }

    /// To be made before the first run.
    pub fn host_folder(&self, key: &str) -> PathBuf {
        self.file(&format!("{key}.locks"))
    }

    pub fn flock(&self, name: &str) -> Command {
        let mut command = Command::new("flock");
        command.arg(self.file(name));
        command
    }

    pub fn floor(&self, key: &str) -> Command {
        let mut command = Command::new(&self.floor);
        command.args([&self.server.address(), key]);
        command
    }
}

/// Nice to read in a list of commands to compare.
pub fn with(mut command: Command, argument: impl AsRef<OsStr>) -> Command {
    command.arg(argument);
    command
}

fn path_in(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable).with_context(|| format!("no {variable}: run scripts/bench"))?;
    Ok(path.into())
}
