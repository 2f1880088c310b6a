//! A lock on five servers: what it costs alone, with a server that refuses connections, with a
//! silent one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use socket2::{Domain, Socket, Type};

use crate::report::{Row, ms, warn_of_noise};
use crate::rig::{Locker, Rig, with};
use crate::server::Server;
use crate::spawner::time_in_turn;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

pub const FIVE: usize = 5;
/// Five servers / flock.
const GOAL: f64 = 1.9;
/// One of five refused / all five.
const GOAL_REFUSED: f64 = 1.1;
/// redlock's own default for its default lease.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// No timer is exact.
const SLACK: Duration = Duration::from_millis(20);
/// A silent gate costs a second each time.
const SILENT_GATE_SHARE: usize = 40;

/// Servers, an address that refuses connections, and one where connecting never ends.
pub struct Nodes {
    servers: Vec<Server>,
    refused: Unserved,
    silent: Unserved,
}

impl Nodes {
    pub fn start(rig: &Rig, count: usize) -> anyhow::Result<Self> {
        let start = |at: usize| {
            let directory = rig.file(&format!("node-{at}"));
            fs::create_dir(&directory)?;
            Server::start(&directory)
        };
        let servers = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { servers, refused: Unserved::refusing()?, silent: Unserved::silent()? })
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::tcp_url).collect()
    }

    fn urls_with(&self, at: usize, unserved: &Unserved) -> Vec<String> {
        let mut urls = self.urls();
        urls[at] = unserved.url();
        urls
    }
}

/// `redlock run` up to the command.
pub fn redlock_run(rig: &Rig, urls: &[String], key: &str) -> Command {
    let mut command = Command::new(&rig.redlock);
    command.args(["run", "--quarantine", "off", "--redis", &urls.join(","), "--key", key, "--"]);
    command
}

pub fn uncontended(rig: &mut Rig, nodes: &Nodes, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let (stopwatch, key, urls) = (Stopwatch::new(), rig.new_name(), nodes.urls().join(","));
    let others: Vec<Locker> = rig.lockers(&urls)?.into_iter().skip(1).collect();
    let redlock = |urls: Vec<String>| with(redlock_run(rig, &urls, &key), "true");
    let mut commands = vec![
        with(rig.flock(&key), "true"),
        redlock(nodes.urls()),
        redlock(nodes.urls_with(2, &nodes.refused)),
        redlock(nodes.urls_with(0, &nodes.refused)),
        redlock(nodes.urls_with(2, &nodes.silent)),
    ];
    commands.extend(others.iter().map(|other| with(other.run(&urls, &key), "true")));
    let samples = time_in_turn(rig, &commands, rounds)?;
    let mut silent_gate = redlock(nodes.urls_with(0, &nodes.silent));
    let runs = (rounds / SILENT_GATE_SHARE).max(3);
    let silent_gate =
        (0..runs).map(|_| stopwatch.time(&mut silent_gate)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(rows(&samples, &silent_gate, &others))
}

fn rows(samples: &[Vec<Duration>], silent_gate: &[Duration], others: &[Locker]) -> Vec<Row> {
    let summary = |at: usize| Summary::of(&samples[at]);
    let [flock, five, refused, refused_gate, silent] = [0, 1, 2, 3, 4].map(summary);
    let gate = Summary::of(silent_gate);
    warn_of_noise(&flock);
    let of_five = |summary: &Summary| format!("<= {GOAL_REFUSED} x five: {:.2} x", summary.ratio_to(&five));
    let is_met = |summary: &Summary| summary.ratio_to(&five) <= GOAL_REFUSED;
    let within = format!("<= five + {}", ms(NODE_TIMEOUT));
    let is_within = |summary: &Summary| summary.median <= five.median + NODE_TIMEOUT + SLACK;
    let row = |what, summary| Row::timed(what, summary, &flock);
    let mut rows = vec![
        row("flock FILE true", &flock),
        row("five servers", &five).goal(format!("<= {GOAL} x flock"), five.ratio_to(&flock) <= GOAL),
        row("one of five refused", &refused).goal(of_five(&refused), is_met(&refused)),
        row("the gate refused", &refused_gate).goal(of_five(&refused_gate), is_met(&refused_gate)),
        row("one of five silent", &silent)
            .goal(format!("{within}: {:.2} x", silent.ratio_to(&five)), is_within(&silent)),
        row("the gate silent", &gate).goal(within, is_within(&gate)),
    ];
    for (other, samples) in others.iter().zip(&samples[5..]) {
        rows.push(Row::timed(&other.name, &Summary::of(samples), &flock));
    }
    rows
}

/// The connections and commands of one run: on the gate, and on all together.
pub fn count_requests(rig: &mut Rig, nodes: &mut Nodes) -> anyhow::Result<Vec<Row>> {
    let (stopwatch, key) = (Stopwatch::new(), rig.new_name());
    let mut command = with(redlock_run(rig, &nodes.urls(), &key), "true");
    stopwatch.time(&mut command)?;
    let look =
        |nodes: &mut Nodes| nodes.servers.iter_mut().map(Server::traffic).collect::<anyhow::Result<Vec<_>>>();
    let before = look(nodes)?;
    stopwatch.time(&mut command)?;
    let after = look(nodes)?;
    let caused: Vec<_> = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    let connections: u64 = caused.iter().map(|traffic| traffic.connections).sum();
    let commands: u64 = caused.iter().map(|traffic| traffic.total_commands()).sum();
    let nodes = FIVE as u64;
    Ok(vec![
        Row::new("connections to five servers", connections.to_string())
            .goal(nodes.to_string(), connections == nodes),
        Row::new("commands to five servers", commands.to_string())
            .goal((2 * nodes).to_string(), commands == 2 * nodes),
    ])
}

/// An address of ours without a server that replies.
struct Unserved {
    address: SocketAddr,
    _sockets: Vec<Socket>,
}

impl Unserved {
    /// Bound, but without a listener.
    fn refusing() -> anyhow::Result<Self> {
        let socket = tcp()?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let address = socket.local_addr()?.as_socket().context("an address")?;
        Ok(Self { address, _sockets: vec![socket] })
    }

    /// With a listener, but its backlog is full and stays so.
    fn silent() -> anyhow::Result<Self> {
        let mut unserved = Self::refusing()?;
        unserved._sockets[0].listen(0)?;
        for _ in 0..4 {
            let filler = tcp()?;
            filler.set_nonblocking(true)?;
            let _ = filler.connect(&unserved.address.into()); // never completes
            unserved._sockets.push(filler);
        }
        let answer = tcp()?.connect_timeout(&unserved.address.into(), Duration::from_millis(100));
        ensure!(answer.is_err(), "a silent address replies");
        Ok(unserved)
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

fn tcp() -> anyhow::Result<Socket> {
    Ok(Socket::new(Domain::IPV4, Type::STREAM, None)?)
}
