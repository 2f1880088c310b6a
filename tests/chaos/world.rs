//! Servers, the links to them, and the files of one chaos run.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::nemesis::delay;
use crate::plan::{Link, Weather};
use crate::support::processes::is_installed;
use crate::support::{Proxy, Redis, host};
use crate::turn::Terms;

pub struct World {
    pub terms: Terms,
    pub weather: Weather,
    directory: TempDir,
    servers: Vec<Redis>,
    /// The offset of each server's clock, in microseconds.
    clocks: Vec<File>,
    /// By host, then by server.
    links: Vec<Vec<Proxy>>,
}

/// The options that tell redlock where the lock is.
pub struct Backend {
    locks: String,
    /// By host: each reaches the servers through links of its own. Empty without servers.
    urls: Vec<String>,
    quarantine: String,
}

impl Backend {
    pub fn args(&self, host: usize, ttl_ms: u64) -> Vec<String> {
        let ttl = format!("{ttl_ms}ms");
        let words = match self.urls.get(host).filter(|urls| !urls.is_empty()) {
            None => vec!["--local", "--local-dir", &self.locks],
            Some(urls) => vec!["--redis", urls, "--ttl", &ttl, "--quarantine", &self.quarantine],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

impl World {
    pub fn new(terms: Terms, weather: Weather) -> World {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(directory.path().join("locks")).expect("a directory for locks");
        let shim = build_shim(directory.path());
        let mut world = World { terms, weather, directory, servers: vec![], clocks: vec![], links: vec![] };
        for at in 0..terms.nodes {
            let args = ["--appendonly", "yes", "--appendfsync", "always"];
            let clock = world.path(&format!("clock-{at}"));
            let server = match &shim {
                Some(library) => {
                    fs::write(&clock, 0i64.to_ne_bytes()).expect("a clock");
                    let offset = File::options().write(true).open(&clock).expect("a clock");
                    world.clocks.push(offset);
                    Redis::start_in(&args, &[("LD_PRELOAD", library.clone()), ("CHAOS_CLOCK", clock)])
                }
                None => Redis::start_with(&args),
            };
            world.servers.push(server);
        }
        world.links = world.connect_hosts();
        world
    }

    /// With ports in the order of the servers, so that sorting by address gives the same order on
    /// all hosts.
    fn connect_hosts(&self) -> Vec<Vec<Proxy>> {
        let ports: Vec<u16> = self.servers.iter().map(Redis::port).collect();
        (0..self.terms.hosts).map(|_| Proxy::to_ports(&ports)).collect()
    }

    pub fn has_clocks(&self) -> bool {
        !self.clocks.is_empty()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Keeps the files for inspection.
    pub fn keep_files(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }

    pub fn backend(&self) -> Backend {
        let urls = |links: &Vec<Proxy>| links.iter().map(Proxy::url).collect::<Vec<_>>().join(",");
        Backend {
            locks: self.path("locks").display().to_string(),
            urls: self.links.iter().map(urls).collect(),
            quarantine: match self.weather {
                Weather::Forgetful => format!("{}ms", self.terms.longest_ttl_ms),
                Weather::Gentle | Weather::Remembering => "off".to_owned(),
            },
        }
    }

    pub fn server(&self, at: usize) -> &Redis {
        &self.servers[at]
    }

    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    pub fn kill_server(&mut self, at: usize) {
        self.servers[at].kill();
    }

    pub fn start_server(&mut self, at: usize, remembers: bool) {
        if !remembers {
            let _ = fs::remove_dir_all(self.servers[at].dir().join("appendonlydir"));
        }
        self.servers[at].restart();
    }

    /// Moves the clock of a server from its current time.
    pub fn jump_clock(&self, at: usize, now_ms: i64) {
        let Some(clock) = self.clocks.get(at) else { return };
        clock.write_all_at(&(now_ms * 1000).to_ne_bytes(), 0).expect("the clock");
    }

    pub fn links(&self, link: Link) -> impl Iterator<Item = &Proxy> {
        let hosts = self.links.iter().enumerate();
        hosts
            .filter(move |(host, _)| link.host.is_none_or(|h| h == *host))
            .map(move |(_, to)| &to[link.server])
    }

    /// Restores the initial state: every server runs, everything is forwarded.
    pub fn restore(&mut self) {
        for proxy in self.links.iter().flatten() {
            proxy.resume();
            proxy.deliver();
            proxy.drop_replies(false);
            if self.weather != Weather::Gentle {
                delay(proxy, 0);
            }
        }
        for server in &mut self.servers {
            if server.is_up() {
                server.cont();
            } else {
                server.restart();
            }
        }
    }

    /// Everything that holds a lock, or waits for one, on the servers or in the kernel. A held lock
    /// has `lock:K` in every mode; the records of a killed holder outlive it, for the history, and
    /// hold nothing.
    pub fn held_or_awaited(&self) -> Vec<String> {
        let stays = |key: &String| {
            let parts = ["-fence:", "-info:", "-log:", "-node", "-notify:", "-shared:", "-tombstone:"];
            parts.iter().any(|part| key.contains(part))
        };
        let on_servers = self.servers.iter().enumerate().flat_map(|(at, server)| {
            let keys = server.keys().into_iter().filter(|key| !stays(key));
            keys.map(move |key| format!("{key} on server {at}")).collect::<Vec<_>>()
        });
        let files = host::lock_files(&self.path("locks")).into_iter().filter(|file| host::is_locked(file));
        on_servers.chain(files.map(|file| format!("a lock on {}", file.display()))).collect()
    }

    /// Without the marker of a server.
    pub fn keys_without_ttl(&self) -> Vec<String> {
        let of = |(at, server): (usize, &Redis)| {
            let keys = server.keys_without_ttl().into_iter().filter(|key| key != "lock-node");
            keys.map(move |key| format!("{key} on server {at}")).collect::<Vec<_>>()
        };
        self.servers.iter().enumerate().flat_map(of).collect()
    }
}

/// The library that moves a server's clock; None without a C compiler.
fn build_shim(directory: &Path) -> Option<PathBuf> {
    if !is_installed("cc") {
        println!("chaos: no cc: the clocks of the servers do not jump");
        return None;
    }
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    fs::write(&source, include_str!("clock.c")).expect("the source");
    let built =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.is_ok_and(|status| status.success()), "clock.c does not compile");
    Some(library)
}
