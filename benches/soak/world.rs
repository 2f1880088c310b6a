//! The servers, the lock directory, and the runs that live all the time.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::Context;
use redis::{Client, Connection};
use tempfile::TempDir;

use crate::figures::{Figures, Life, keys};
use crate::process::{Guarded, wait_until};
use crate::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    OneServer,
    ThreeServers,
    ThisHost,
}

pub const BACKENDS: [Backend; 3] = [Backend::OneServer, Backend::ThreeServers, Backend::ThisHost];

pub struct World {
    redlock: PathBuf,
    /// Distinguishes the commands of killed holders from all other processes.
    mark: String,
    /// A connection of ours to each of them.
    connections: Mutex<Vec<Connection>>,
    urls: Vec<String>,
    locks: PathBuf,
    /// A holder that renews and a waiter behind it, on each backend: its description, and its
    /// process.
    lives: Vec<(String, Guarded)>,
    _servers: Vec<Server>,
    _directory: TempDir,
}

fn connect(server: &Server) -> anyhow::Result<Connection> {
    Ok(Client::open(server.tcp_url())?.get_connection()?)
}

impl World {
    pub fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        // A copy of the binary: it distinguishes its processes from those of other redlocks.
        let built = std::env::var_os("SOAK_REDLOCK").context("no SOAK_REDLOCK: run scripts/soak")?;
        let redlock = directory.path().join("redlock");
        fs::copy(built, &redlock)?;
        let locks = directory.path().join("locks");
        fs::create_dir(&locks)?;
        fs::set_permissions(&locks, fs::Permissions::from_mode(0o700))?;
        let mut servers = Vec::new();
        for at in 0..4 {
            let home = directory.path().join(format!("server{at}"));
            fs::create_dir(&home)?;
            servers.push(Server::start(&home)?);
        }
        let mut world = Self {
            redlock,
            mark: format!("{}", 1_000_000 + u64::from(std::process::id())),
            connections: Mutex::new(servers.iter().map(connect).collect::<anyhow::Result<_>>()?),
            urls: servers.iter().map(Server::tcp_url).collect(),
            locks,
            lives: Vec::new(),
            _servers: servers,
            _directory: directory,
        };
        for backend in BACKENDS {
            for what in ["holder", "waiter"] {
                let life = Guarded::spawn(world.long_run(backend).args(["sleep", "infinity"]))?;
                wait_until("the run has settled", || world.is_settled(&life, what))?;
                world.lives.push((format!("{what}, {backend:?}"), life));
            }
        }
        Ok(world)
    }

    pub fn redlock(&self) -> &Path {
        &self.redlock
    }

    pub fn marked_sleep(&self) -> [&str; 2] {
        ["sleep", &self.mark]
    }

    /// A short lease means many renewals; but not so short that a busy machine cannot keep it.
    fn long_run(&self, backend: Backend) -> Command {
        let mut command = Command::new(&self.redlock);
        command.args(["run", "-q", "--key", "held"]).args(self.backend_args(backend, "3s")).arg("--");
        command
    }

    /// A holder has a grandchild, the command; a waiter has only its guardian.
    fn is_settled(&self, life: &Guarded, what: &str) -> anyhow::Result<bool> {
        let descendants = Life::of(life.pid())?.processes;
        Ok(if what == "holder" { descendants == 3 } else { descendants == 2 })
    }

    pub fn backend_args(&self, backend: Backend, ttl: &str) -> Vec<OsString> {
        let on = |urls: &[String]| -> Vec<OsString> {
            let servers = urls.iter().flat_map(|url| ["-r".into(), url.into()]);
            servers.chain(["--ttl".into(), ttl.into()]).collect()
        };
        match backend {
            Backend::OneServer => on(&self.urls[..1]),
            // Servers that have just been started would be quarantined.
            Backend::ThreeServers => {
                [on(&self.urls[1..]), vec!["--quarantine".into(), "off".into()]].concat()
            }
            Backend::ThisHost => vec!["--local-dir".into(), self.locks.clone().into()],
        }
    }

    /// While no worker's run is active.
    pub fn count(&self) -> anyhow::Result<Figures> {
        self.wait_for_the_killed()?;
        let mut figures = Figures::default();
        for (at, server) in self.connections.lock().expect("no thread panics").iter_mut().enumerate() {
            figures.add_server(at, server)?;
        }
        figures.add_directory(&self.locks)?;
        for (what, life) in &self.lives {
            figures.add_life(what, &Life::of(life.pid())?);
        }
        figures.add_processes(&self.redlock, &self.mark)?;
        Ok(figures)
    }

    /// Their guardians stop the commands a moment later; their locks expire.
    fn wait_for_the_killed(&self) -> anyhow::Result<()> {
        let mut left = String::new();
        let waited = wait_until("killed holders and their locks are gone", || {
            let mut locks = Vec::new();
            for server in self.connections.lock().expect("no thread panics").iter_mut() {
                let names = keys(server)?.into_iter();
                locks.extend(names.filter(|key| key.starts_with("lock:") && key != "lock:held"));
            }
            let processes = Figures::processes(&self.redlock, &self.mark)?;
            left = format!("{processes} processes of redlock, {locks:?}");
            Ok(locks.is_empty() && processes == self.lives.len() as u64 * 2)
        });
        waited.context(left)
    }
}
