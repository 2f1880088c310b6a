//! A network of hosts and servers: each host has a line to each server, with a latency, stalls and
//! losses that can be changed while it runs (see `Proxy`).
//!
//! All processes are on this machine; the lines that a process uses decide which host it is on.
//! There are three ways to build a network:
//!
//! - `Links::start`: every host has its own lines, and **all hosts use the same name for a
//!   server**, as they would on a network. A preloaded `connect` redirects each host's connections
//!   to its own lines. Most tests want this.
//! - `Links::own_names`: every host has its own lines and **its own names for the servers** (the
//!   ports of its lines), as through tunnels or mapped ports. For tests of exactly that.
//! - `Links::one_host`: all processes share one host's lines, and nothing is preloaded. For tests
//!   of one client, and where the latency is the same for all.
//!
//! In each of them the servers are ordered by name (address), on every host: `links[0]` is the
//! gate.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::{Nodes, Proxy, Redis, Refused, Run, preload};

/// LINES_OF_HOST has pairs of ports: a connect to the first goes to the second.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
int connect(int fd, const struct sockaddr *to, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    const char *lines = getenv("LINES_OF_HOST");
    if (!lines || to->sa_family != AF_INET || length < sizeof(struct sockaddr_in)) return real(fd, to, length);
    struct sockaddr_in there;
    memcpy(&there, to, sizeof there);
    char *next = (char *)lines;
    while (*next) {
        long name = strtol(next, &next, 10), line = strtol(next, &next, 10);
        if (there.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && there.sin_port == htons(name)) {
            there.sin_port = htons(line);
            break;
        }
    }
    return real(fd, (struct sockaddr *)&there, sizeof there);
}
"#;

pub struct Links {
    nodes: Nodes,
    /// By host, then by server.
    lines: Vec<Vec<Proxy>>,
    /// Addresses that lead nowhere without the preloaded `connect`.
    names: Option<Vec<Refused>>,
}

impl Links {
    /// A network without latency. The names of the servers are the same on all hosts.
    pub fn start(servers: usize, hosts: usize) -> Links {
        Links::between(Nodes::start(servers), hosts)
    }

    /// The same with these servers.
    pub fn between(nodes: Nodes, hosts: usize) -> Links {
        let mut names: Vec<Refused> = nodes.iter().map(|_| Refused::new()).collect();
        names.sort_by_key(Refused::port);
        Links { names: Some(names), ..Links::own_names_of(nodes, hosts) }
    }

    /// Each host has its own names for the servers.
    pub fn own_names(servers: usize, hosts: usize) -> Links {
        Links::own_names_of(Nodes::start(servers), hosts)
    }

    /// A network with one host.
    pub fn one_host(servers: usize) -> Links {
        Links::own_names(servers, 1)
    }

    /// A network with one host and these servers.
    pub fn one_host_to(nodes: Nodes) -> Links {
        Links::own_names_of(nodes, 1)
    }

    fn own_names_of(nodes: Nodes, hosts: usize) -> Links {
        let targets: Vec<u16> = nodes.iter().map(Redis::port).collect();
        let lines = (0..hosts).map(|_| Proxy::to_ports(&targets)).collect();
        Links { nodes, lines, names: None }
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn servers(&self) -> usize {
        self.nodes.len()
    }

    /// The line between this host and this server.
    pub fn line(&self, host: usize, server: usize) -> &Proxy {
        &self.lines[host][server]
    }

    /// All lines of a host, in the order of the servers.
    pub fn lines_of(&self, host: usize) -> &[Proxy] {
        &self.lines[host]
    }

    /// All lines to a server.
    pub fn lines_to(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        self.lines.iter().map(move |lines| &lines[server])
    }

    /// Every line.
    pub fn all(&self) -> impl Iterator<Item = &Proxy> {
        self.lines.iter().flatten()
    }

    /// Delays every line by this much in each direction.
    pub fn each_way(&self, by: Duration) {
        self.all().for_each(|line| line.each_way(by));
    }

    /// The URLs that this host uses for the servers.
    pub fn urls(&self, host: usize) -> Vec<String> {
        match &self.names {
            Some(names) => names.iter().map(Refused::url).collect(),
            None => self.lines[host].iter().map(Proxy::url).collect(),
        }
    }

    /// The port that this host uses for the server.
    pub fn port(&self, host: usize, server: usize) -> String {
        let port =
            self.names.as_ref().map_or_else(|| self.line(host, server).port(), |names| names[server].port());
        port.to_string()
    }

    /// `redlock run --redis A,B,C --key KEY --quarantine off` on this host.
    pub fn run(&self, host: usize, key: &str) -> Run {
        self.run_at(host, &self.urls(host), key)
    }

    /// The same with these URLs.
    pub fn run_at(&self, host: usize, urls: &[String], key: &str) -> Run {
        self.on(host, Nodes::run_at(urls, key))
    }

    /// The same with the default quarantine.
    pub fn run_quarantined(&self, host: usize, key: &str) -> Run {
        self.on(host, Run::at(&self.urls(host).join(","), key))
    }

    /// Runs this call on this host.
    pub fn on(&self, host: usize, run: Run) -> Run {
        let Some(names) = &self.names else { return run };
        let pairs = names.iter().zip(&self.lines[host]);
        let pairs: Vec<String> =
            pairs.map(|(name, line)| format!("{} {}", name.port(), line.port())).collect();
        run.env("LD_PRELOAD", preload::library("lines-of-host", SHIM)).env("LINES_OF_HOST", pairs.join(" "))
    }

    /// Makes every server load the scripts.
    pub fn warm_up(&self) {
        self.nodes.warm_up();
    }

    /// Sends SIGKILL; connects are refused on all lines.
    pub fn kill(&mut self, server: usize) {
        self.nodes[server].kill();
        self.lines_to(server).for_each(Proxy::refuse);
    }

    /// Kills the server if it runs, and starts it empty.
    pub fn restart(&mut self, server: usize) {
        self.kill(server);
        self.nodes[server].restart();
        self.lines_to(server).for_each(Proxy::mend);
    }
}

impl Index<usize> for Links {
    type Output = Redis;

    fn index(&self, server: usize) -> &Redis {
        &self.nodes[server]
    }
}

impl IndexMut<usize> for Links {
    fn index_mut(&mut self, server: usize) -> &mut Redis {
        &mut self.nodes[server]
    }
}
