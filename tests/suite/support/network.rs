//! Hosts in network namespaces, joined by a switch, so that lines can be cut as in a machine room: a
//! host that is cut off hears neither a reset nor ICMP, just silence.
//!
//! A thread enters a namespace for a moment ([`NetworkHost::enter`]); processes and sockets that it opens
//! there stay there. The namespaces have no names and end with their last process, socket and
//! descriptor, so tests can run side by side, and even a killed test leaves nothing behind.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::geteuid;

use super::nodes::settle;
use super::{Job, Redis, Run, wait_until};

/// The address of a network card that no host has.
const NO_CARD: &str = "02:00:00:00:00:ff";

/// Hosts with the addresses 10.0.0.1, 10.0.0.2, and so on. All of them know each other's cards: no
/// host asks for them, and none reports that another one is unreachable.
pub struct Network {
    switch: Namespace,
    hosts: Vec<NetworkHost>,
}

impl Network {
    /// The reason if there can be no namespaces here.
    pub fn start(hosts: u8) -> Result<Network, String> {
        if !geteuid().is_root() {
            return Err("only root can make network namespaces".into());
        }
        if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
            return Err("ip (package iproute2) is not installed".into());
        }
        let refused = |what: &str, error: io::Error| format!("{what} cannot be made here: {error}");
        let switch = Namespace::new().map_err(|error| refused("network namespaces", error))?;
        let bridges =
            "link add left type bridge\nlink set left up\nlink add right type bridge\nlink set right up";
        switch.ip(bridges).map_err(|error| refused("bridges", error))?;
        let mut network = Network { switch, hosts: Vec::new() };
        for number in 1..=hosts {
            let namespace = Namespace::new().map_err(|error| refused("network namespaces", error))?;
            let host = NetworkHost { namespace: Arc::new(namespace), number };
            host.plug_into(&network.switch, hosts).map_err(|error| refused("veth cards", error))?;
            network.hosts.push(host);
            network.join(number);
        }
        Ok(network)
    }

    /// The host with this number, from 1.
    pub fn host(&self, number: u8) -> &NetworkHost {
        &self.hosts[usize::from(number) - 1]
    }

    /// Starts a server on each of these hosts.
    pub fn servers(&self, hosts: &[u8]) -> NetworkServers {
        let start = |&number| NetworkServer::start(self.host(number), &[]);
        NetworkServers(hosts.iter().map(start).collect())
    }

    /// Unplugs a host: nothing reaches it, and nothing that it sends arrives.
    pub fn cut_off(&self, host: u8) {
        self.switch.must(&format!("link set port{host} nomaster"));
    }

    /// Plugs a host in again.
    pub fn join(&self, host: u8) {
        self.switch.must(&format!("link set port{host} master left up"));
    }

    /// Separates these hosts from all others; they still reach each other.
    pub fn split(&self, hosts: &[u8]) {
        hosts.iter().for_each(|host| self.switch.must(&format!("link set port{host} master right")));
    }

    /// Restores every line.
    pub fn mend(&self) {
        for host in &self.hosts {
            self.join(host.number);
            host.namespace.must(&host.all_cards(self.hosts.len() as u8));
        }
    }

    /// Nothing that `from` sends arrives at `to`; the other direction works.
    pub fn cut_one_way(&self, from: u8, to: u8) {
        self.host(from).namespace.must(&neighbour(to, NO_CARD));
    }
}

#[derive(Clone)]
pub struct NetworkHost {
    namespace: Arc<Namespace>,
    number: u8,
}

impl NetworkHost {
    pub fn address(&self) -> String {
        address(self.number)
    }

    /// Does this on the host: processes and sockets that it starts or opens stay there.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.namespace.enter(work)
    }

    pub fn spawn(&self, run: Run) -> Job {
        self.enter(|| run.spawn())
    }

    fn plug_into(&self, switch: &Namespace, hosts: u8) -> io::Result<()> {
        let number = self.number;
        let switch = format!("/proc/{}/fd/{}", std::process::id(), switch.0.as_raw_fd());
        let commands = format!(
            "link set lo up\n\
             link add eth0 address {} type veth peer name port{number} netns {switch}\n\
             link set eth0 up\n\
             addr add {}/24 dev eth0\n{}",
            card(number),
            self.address(),
            self.all_cards(hosts)
        );
        self.namespace.ip(&commands)
    }

    /// The commands that make the others' cards known here.
    fn all_cards(&self, hosts: u8) -> String {
        let others = (1..=hosts).filter(|other| *other != self.number);
        others.map(|other| neighbour(other, &card(other))).collect::<Vec<_>>().join("\n")
    }
}

fn address(host: u8) -> String {
    format!("10.0.0.{host}")
}

fn card(host: u8) -> String {
    format!("02:00:00:00:00:{host:02x}")
}

/// The command that makes a host send what is for `host` to this card.
fn neighbour(host: u8, card: &str) -> String {
    format!("neigh replace {} lladdr {card} dev eth0 nud permanent", address(host))
}

/// A server and the host on which it runs.
pub struct NetworkServer {
    host: NetworkHost,
    redis: Redis,
}

impl NetworkServer {
    pub fn start(host: &NetworkHost, args: &[&str]) -> NetworkServer {
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        let redis = host.enter(|| Redis::start_with(&[&open, args].concat()));
        NetworkServer { host: host.clone(), redis }
    }

    pub fn url(&self) -> String {
        format!("redis://{}:{}", self.address(), self.port())
    }

    pub fn address(&self) -> String {
        self.host.address()
    }

    pub fn port(&self) -> u16 {
        self.redis.port()
    }

    /// Calls this with the server, on its own host.
    pub fn ask<T>(&self, ask: impl FnOnce(&Redis) -> T) -> T {
        self.host.enter(|| ask(&self.redis))
    }
}

/// NetworkServers in the order of their addresses.
pub struct NetworkServers(pub Vec<NetworkServer>);

impl NetworkServers {
    pub fn urls(&self) -> String {
        self.0.iter().map(NetworkServer::url).collect::<Vec<_>>().join(",")
    }

    /// `redlock run --redis A,B,C --key KEY --ttl TTL`; all servers have been known for long.
    pub fn run(&self, key: &str, ttl: &str) -> Run {
        self.0.iter().for_each(|server| {
            if server.ask(|redis| redis.cmd(&["EXISTS", "lock-node"])) == "0" {
                server.ask(settle);
            }
        });
        Run::at(&self.urls(), key).args(&["--ttl", ttl])
    }

    /// Waits until no server has the lock.
    #[track_caller]
    pub fn wait_until_free(&self, key: &str) {
        wait_until("the lock is free", || self.0.iter().all(|server| !server.ask(|redis| redis.held(key))));
    }
}

struct Namespace(File);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let home = Namespace::of_this_thread()?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        let new = Namespace::of_this_thread();
        setns(&home.0, CloneFlags::CLONE_NEWNET)?;
        new
    }

    fn of_this_thread() -> io::Result<Namespace> {
        File::open("/proc/thread-self/ns/net").map(Namespace)
    }

    fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Returns even if the work panics: the next step of the test may clean up.
        struct Back(Namespace);
        impl Drop for Back {
            fn drop(&mut self) {
                setns(&self.0.0, CloneFlags::CLONE_NEWNET).expect("the way back");
            }
        }
        let _back = Back(Namespace::of_this_thread().expect("this thread's namespace"));
        setns(&self.0, CloneFlags::CLONE_NEWNET).expect("the namespace");
        work()
    }

    /// Executes commands of ip(8) here, one per line.
    fn ip(&self, commands: &str) -> io::Result<()> {
        let mut ip = Command::new("ip");
        ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ip = self.enter(|| ip.spawn())?;
        ip.stdin.take().expect("a pipe").write_all(commands.as_bytes())?;
        let done = ip.wait_with_output()?;
        let reason = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(io::Error::other(reason)) }
    }

    fn must(&self, command: &str) {
        self.ip(command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}
