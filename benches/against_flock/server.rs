//! A redis-server of our own, and its counters.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use redis::{Client, Connection, Value};

use crate::process::{Guarded, wait_until};

/// Commands that clients send. The server also counts the commands inside scripts, under their own
/// names; none of them is in this list.
const CLIENT_COMMANDS: [&str; 11] =
    ["auth", "blpop", "brpop", "client", "eval", "evalsha", "function", "hello", "ping", "script", "select"];
const ATTEMPTS_TO_START: usize = 5;

pub struct Server {
    port: u16,
    socket: PathBuf,
    /// Our own connection, kept open so that queries do not count as new connections.
    connection: Connection,
    _process: Guarded,
}

/// What the server has counted for its clients.
#[derive(Debug)]
pub struct Traffic {
    pub connections: u64,
    pub commands: BTreeMap<String, u64>,
}

impl Traffic {
    pub fn since(&self, before: &Traffic) -> Traffic {
        let earlier = |name: &String| before.commands.get(name).copied().unwrap_or(0);
        let commands = self.commands.iter().map(|(name, calls)| (name.clone(), calls - earlier(name)));
        Traffic {
            connections: self.connections - before.connections,
            commands: commands.filter(|(_, calls)| *calls > 0).collect(),
        }
    }

    pub fn total_commands(&self) -> u64 {
        self.commands.values().sum()
    }
}

impl Server {
    pub fn start(directory: &Path) -> anyhow::Result<Self> {
        for _ in 0..ATTEMPTS_TO_START {
            // Another process may take the port before the server does: then another port is tried.
            let port = free_port()?;
            if let Some(server) = Self::launch(directory, port)? {
                return Ok(server);
            }
        }
        bail!("redis-server does not start")
    }

    fn launch(directory: &Path, port: u16) -> anyhow::Result<Option<Self>> {
        let socket = directory.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(directory);
        let mut process = Guarded::spawn(&mut command).context("redis-server")?;
        let client = Client::open(format!("unix://{}", socket.display()))?;
        let mut connection = None;
        wait_until("redis-server replies", || {
            connection = client.get_connection().ok();
            Ok(connection.is_some() || process.has_ended()?)
        })?;
        Ok(connection.map(|connection| Self { port, socket, connection, _process: process }))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn tcp_url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub fn queue_length(&mut self, key: &str) -> anyhow::Result<usize> {
        Ok(redis::cmd("ZCARD").arg(format!("lock-queue:{key}")).query(&mut self.connection)?)
    }

    pub fn command(&mut self, words: &[&str]) -> anyhow::Result<Value> {
        let (name, rest) = words.split_first().context("a command")?;
        Ok(redis::cmd(name).arg(rest).query(&mut self.connection)?)
    }

    pub fn version(&mut self) -> anyhow::Result<String> {
        let info = self.info("server")?;
        Ok(info.get("redis_version").context("redis_version")?.clone())
    }

    pub fn traffic(&mut self) -> anyhow::Result<Traffic> {
        let connections =
            self.info("stats")?.get("total_connections_received").context("connections")?.parse()?;
        let mut commands = BTreeMap::new();
        for (name, figures) in self.info("commandstats")? {
            let name = name.trim_start_matches("cmdstat_").to_owned();
            let family = name.split('|').next().unwrap_or_default();
            if CLIENT_COMMANDS.contains(&family) {
                commands.insert(name, calls(&figures)?);
            }
        }
        Ok(Traffic { connections, commands })
    }

    fn info(&mut self, section: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.connection)?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// From `calls=2,usec=311,...`.
fn calls(figures: &str) -> anyhow::Result<u64> {
    let first = figures.split(',').next().and_then(|part| part.strip_prefix("calls="));
    Ok(first.context("a commandstats line without calls")?.parse()?)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
