//! A real Redis Cluster of the test's own.

use std::ops::{Index, IndexMut};

use super::tls::{Authority, TlsRedis, Valid};
use super::{Client, Redis, Run, wait_until};

const SLOTS: usize = 16384;

pub struct Cluster {
    /// First the masters, then their replicas in the same order.
    nodes: Vec<Redis>,
    masters: usize,
    /// The ports on which clients find the servers, if not their own.
    tls_ports: Vec<u16>,
}

const ARGS: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "15000", // long, since on a busy machine the servers would take each other for dead
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

impl Cluster {
    /// Masters only.
    pub fn start(masters: usize) -> Cluster {
        Cluster::of((0..masters).map(|_| Redis::start_with(&ARGS)).collect(), masters, Vec::new())
    }

    pub fn with_replicas(masters: usize) -> Cluster {
        Cluster::of((0..2 * masters).map(|_| Redis::start_with(&ARGS)).collect(), masters, Vec::new())
    }

    /// Masters that use TLS, also between themselves; the test itself connects without it.
    pub fn with_tls(masters: usize, authority: &Authority) -> Cluster {
        let args = [&ARGS[..], &["--tls-cluster", "yes"]].concat();
        let serve = || authority.serve_with(&["localhost", "127.0.0.1"], Valid::Now, &args);
        let servers: Vec<TlsRedis> = (0..masters).map(|_| serve()).collect();
        let ports = servers.iter().map(TlsRedis::port).collect();
        Cluster::of(servers.into_iter().map(|server| server.plain).collect(), masters, ports)
    }

    fn of(nodes: Vec<Redis>, masters: usize, tls_ports: Vec<u16>) -> Cluster {
        let count = nodes.len();
        let cluster = Cluster { nodes, masters, tls_ports };
        for at in 0..masters {
            let slots: Vec<String> =
                (0..SLOTS).filter(|slot| slot * masters / SLOTS == at).map(|s| s.to_string()).collect();
            let command: Vec<&str> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
            assert_eq!(cluster[at].cmd(&command), "OK");
            cluster[at].cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        let first = cluster.client_port(0).to_string();
        for node in &cluster.nodes[1..] {
            assert_eq!(node.cmd(&["CLUSTER", "MEET", "127.0.0.1", &first]), "OK");
        }
        let knows_all = |node: &Redis| {
            let info = node.cmd(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{count}\r"))
        };
        wait_until("the servers know each other", || cluster.nodes.iter().all(knows_all));
        for at in masters..count {
            let master = cluster.id(at - masters);
            wait_until("a replica", || cluster[at].cmd(&["CLUSTER", "REPLICATE", &master]) == "OK");
        }
        for at in masters..count {
            wait_until("the replicas have the data", || cluster[at].info("master_link_status") == "up");
        }
        cluster
    }

    /// The second server comes first: it does not own most slots.
    pub fn url(&self) -> String {
        let order = (1..self.nodes.len()).chain([0]);
        let hosts: Vec<String> = order.map(|at| format!("127.0.0.1:{}", self.client_port(at))).collect();
        let scheme = if self.tls_ports.is_empty() { "redis" } else { "rediss" };
        format!("{scheme}+cluster://{}", hosts.join(","))
    }

    /// From now on the servers soon notice when one of them dies.
    pub fn detect_failures_quickly(&self) {
        let set = ["CONFIG", "SET", "cluster-node-timeout", "1000"];
        self.nodes.iter().for_each(|node| assert_eq!(node.cmd(&set), "OK"));
    }

    /// The port on which clients find a server.
    fn client_port(&self, at: usize) -> u16 {
        self.tls_ports.get(at).copied().unwrap_or_else(|| self[at].port())
    }

    pub fn run(&self, key: &str) -> Run {
        Run::at(&self.url(), key)
    }

    pub fn id(&self, at: usize) -> String {
        self[at].cmd(&["CLUSTER", "MYID"])
    }

    pub fn slot(&self, name: &str) -> usize {
        self[0].cmd(&["CLUSTER", "KEYSLOT", name]).parse().expect("a slot")
    }

    /// The master that owns the slot of this key at first.
    pub fn owner(&self, key: &str) -> usize {
        self.slot(key) * self.masters / SLOTS
    }

    /// All key names on all masters.
    pub fn keys(&self) -> Vec<String> {
        self.nodes[..self.masters].iter().flat_map(Redis::keys).collect()
    }

    /// Sets the marker of the key's slot to that of a server known for an hour.
    pub fn settle(&self, key: &str, at: usize) {
        let tag = (0..).find(|tag: &u32| self.slot(&tag.to_string()) == self.slot(key)).expect("a tag");
        let now: u64 = self[at].cmd(&["TIME"]).lines().next().expect("seconds").parse().expect("seconds");
        let marker = format!("{} {} 0 0", super::nodes::marker_prefix(&self[at]), (now - 3600) * 1000);
        assert_eq!(self[at].cmd(&["SET", &format!("lock-node:{{{tag}}}"), &marker]), "OK");
    }

    /// Keys in different slots that this master owns at first.
    pub fn keys_of<const N: usize>(&self, at: usize) -> [String; N] {
        let keys = (0..).map(|n| format!("new-{n}")).filter(|key| self.owner(key) == at);
        keys.take(N).collect::<Vec<_>>().try_into().expect("there are as many as one likes")
    }

    /// Ages a server's shard marker by an hour.
    pub fn age_shard_marker(&self, at: usize) {
        let names = self[at].keys();
        let name = names.iter().find(|name| name.starts_with("lock-shard:{")).expect("a shard marker");
        let marker = self[at].cmd(&["GET", name]);
        let [prefix, since, owner] = marker.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{marker}")
        };
        let since = since.parse::<u64>().expect("a time") - 3_600_000;
        assert_eq!(self[at].cmd(&["SET", name, &format!("{prefix} {since} {owner}")]), "OK");
    }

    /// Waits until a replica replies with `reply`; READONLY makes it serve reads.
    pub fn wait_for_replica(&self, at: usize, command: &[&str], reply: &str) {
        let mut client = self[at].connect();
        client.cmd(&["READONLY"]);
        wait_until("the replica has all data", || client.cmd(command) == reply);
    }

    pub fn wait_for_promotion(&self, at: usize) {
        wait_until("the replica is the master", || self[at].info("role") == "master");
    }

    /// Waits until these servers know each other's slots, and serve.
    pub fn wait_until_it_serves(&self, nodes: impl Iterator<Item = usize> + Clone) {
        let is_ok = |at: usize| self[at].cmd(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        wait_until("the cluster serves", || nodes.clone().all(is_ok));
    }

    /// Waits until a holder has renewed its lease on this server: more than `ms` are left.
    pub fn renewed(&self, at: usize, key: &str, ms: i64) {
        let left = || self[at].cmd(&["PTTL", &format!("lock:{{{key}}}")]).parse::<i64>();
        wait_until("the holder renews", || left().is_ok_and(|left| left > ms));
    }

    /// Starts to move the key's slot.
    pub fn begin_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).to_string();
        let set = |at: usize, what: &str, whose: usize| {
            assert_eq!(self[at].cmd(&["CLUSTER", "SETSLOT", &slot, what, &self.id(whose)]), "OK");
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
    }

    /// Moves all keys of the slot, then the slot itself.
    pub fn finish_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).to_string();
        let port = self[to].port().to_string();
        let mut source: Client = self[from].connect();
        loop {
            let names = source.cmd(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let Some(name) = names.lines().next() else { break };
            let moved = source.cmd(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{name}: {moved}");
        }
        let id = self.id(to);
        for at in [to, from].into_iter().chain((0..self.masters).filter(|at| *at != to && *at != from)) {
            assert_eq!(self[at].cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]), "OK");
        }
    }
}

impl Index<usize> for Cluster {
    type Output = Redis;

    fn index(&self, at: usize) -> &Redis {
        &self.nodes[at]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.nodes[at]
    }
}
