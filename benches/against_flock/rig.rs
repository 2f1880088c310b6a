//! What is measured and where: the programs, the server, a temporary directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use crate::server::Server;

pub struct Rig {
    pub redlock: PathBuf,
    /// The static build, if its target is installed.
    pub static_redlock: Option<PathBuf>,
    /// See benches/spawner.rs.
    pub spawner: PathBuf,
    floor: PathBuf,
    /// A hand-made program around the rslock crate, if there is one: docs/performance.md.
    rslock: Option<PathBuf>,
    pub server: Server,
    directory: TempDir,
    names_given: u32,
}

impl Rig {
    pub fn build() -> anyhow::Result<Self> {
        let directory = make_directory()?;
        Ok(Self {
            redlock: path_in("BENCH_REDLOCK")?,
            static_redlock: path_in("BENCH_REDLOCK_STATIC").ok(),
            spawner: path_in("BENCH_SPAWNER")?,
            floor: path_in("BENCH_FLOOR")?,
            rslock: path_in("BENCH_RSLOCK").ok(),
            server: Server::start(directory.path())?,
            directory,
            names_given: 0,
        })
    }

    /// A name for a key or a file that was not used before.
    pub fn new_name(&mut self) -> String {
        self.names_given += 1;
        format!("bench-{}", self.names_given)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `redlock run` up to the command.
    pub fn redlock_run(&self, url: &str, key: &str) -> Command {
        self.redlock_run_as(&[], url, key)
    }

    /// The same with these options.
    pub fn redlock_run_as(&self, options: &[&str], url: &str, key: &str) -> Command {
        let mut command = run_on_server(&self.redlock, url, key);
        command.args(options).arg("--");
        command
    }

    /// The same without a server, in a directory of its own.
    pub fn redlock_run_here(&self, key: &str) -> Command {
        self.run_here(&self.redlock, key)
    }

    /// The same two with the static build.
    pub fn static_runs(&self, url: &str, key: &str) -> Option<[Command; 2]> {
        let program = self.static_redlock.as_ref()?;
        Some([with(run_on_server(program, url, key), "--"), self.run_here(program, key)])
    }

    fn run_here(&self, program: &Path, key: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["run", "--local", "--local-dir"]).arg(self.host_directory(key));
        command.args(["--key", key, "--"]);
        command
    }

    pub fn rslock(&self, urls: &str, key: &str) -> Option<Command> {
        let mut command = Command::new(self.rslock.as_ref()?);
        command.args([urls, key]);
        Some(command)
    }

    /// Must be created before the first run.
    pub fn host_directory(&self, key: &str) -> PathBuf {
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

/// The default place of lock files. (In /tmp redlock must find out whether the directory is private
/// to a service.)
fn make_directory() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("redlock-bench-");
    builder.tempdir_in("/run/lock").or_else(|_| builder.tempdir())
}

fn run_on_server(program: &Path, url: &str, key: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--redis", url, "--key", key]);
    command
}

/// For lists of commands to compare.
pub fn with(mut command: Command, argument: impl AsRef<OsStr>) -> Command {
    command.arg(argument);
    command
}

fn path_in(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable).with_context(|| format!("no {variable}: run scripts/bench"))?;
    Ok(path.into())
}
