//! What is measured and where: the programs, the server, a temporary directory.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::server::Server;

pub struct Rig {
    pub redlock: PathBuf,
    /// redlock, its static build, if there is one, and the peers of BENCH_PEERS.
    lockers: Vec<Locker>,
    /// See benches/spawner.rs.
    pub spawner: PathBuf,
    floor: PathBuf,
    pub server: Server,
    directory: TempDir,
    names_given: u32,
}

/// A program that takes a lock on servers, runs a command, and releases the lock.
#[derive(Clone)]
pub struct Locker {
    pub name: String,
    pub program: PathBuf,
    pub is_ours: bool,
}

impl Locker {
    /// Its command line up to the command.
    pub fn run(&self, urls: &str, key: &str) -> Command {
        let mut command = Command::new(&self.program);
        if self.is_ours {
            command.args(["run", "--redis", urls, "--key", key]);
            if urls.contains(',') {
                // The servers have just started.
                command.args(["--quarantine", "off"]);
            }
            command.arg("--");
        } else {
            command.args([urls, key]);
        }
        command
    }
}

impl Rig {
    pub fn build() -> anyhow::Result<Self> {
        // They slow every dynamic program, but not the static one.
        let is_of_cargo = |(name, _): (OsString, _)| name == "LD_LIBRARY_PATH" || name == "CARGO";
        ensure!(!std::env::vars_os().any(is_of_cargo), "cargo's environment: run scripts/bench");
        let directory = make_directory()?;
        Ok(Self {
            redlock: path_in("BENCH_REDLOCK")?,
            lockers: lockers()?,
            spawner: path_in("BENCH_SPAWNER")?,
            floor: path_in("BENCH_FLOOR")?,
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

    /// Those that can take a lock on these servers.
    pub fn lockers(&mut self, urls: &str) -> anyhow::Result<Vec<Locker>> {
        let key = self.new_name();
        let mut able = Vec::new();
        for locker in &self.lockers {
            let output = with(locker.run(urls, &key), "true").stdin(Stdio::null()).output();
            let output = output.with_context(|| locker.name.clone())?;
            if output.status.success() {
                able.push(locker.clone());
            } else {
                let reason = String::from_utf8_lossy(&output.stderr);
                println!("\nskipped: {}: {}", locker.name, reason.trim_end());
            }
        }
        Ok(able)
    }

    pub fn run_here(&self, program: &Path, key: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["run", "--local", "--local-dir"]).arg(self.host_directory(key));
        command.args(["--key", key, "--"]);
        command
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

fn lockers() -> anyhow::Result<Vec<Locker>> {
    let redlock = |name: &str, program| Locker { name: name.to_owned(), program, is_ours: true };
    let mut lockers = vec![redlock("redlock", path_in("BENCH_REDLOCK")?)];
    lockers.extend(path_in("BENCH_REDLOCK_STATIC").ok().map(|program| redlock("redlock, static", program)));
    for peer in std::env::var("BENCH_PEERS").unwrap_or_default().split_whitespace() {
        let (name, program) = peer.split_once('=').context("BENCH_PEERS: NAME=PROGRAM ...")?;
        lockers.push(Locker { name: name.to_owned(), program: program.into(), is_ours: false });
    }
    Ok(lockers)
}

fn path_in(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable).with_context(|| format!("no {variable}: run scripts/bench"))?;
    Ok(path.into())
}
