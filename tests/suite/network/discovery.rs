//! A partition in which the master of a Sentinel service or of a cluster is on the wrong side: the
//! others choose a new one.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::{hold, queue, stopped};
use crate::support::network::NetworkServer;
use crate::support::nodes::{renewed, settle};
use crate::support::redis::program;
use crate::support::{Client, Journal, Network, NetworkHost, Run, queued, wait_until};

/// How soon the servers notice that another one is gone.
const DOWN_AFTER: &str = "1500";
const SENTINEL_PORT: u16 = 26379;

/// A Sentinel on a host, killed when dropped.
struct Sentinel {
    process: Child,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    fn start(host: &NetworkHost, master: &NetworkServer) -> Sentinel {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = dir.path().join("sentinel.conf");
        let text = format!(
            "port {SENTINEL_PORT}\nprotected-mode no\n\
             sentinel monitor main {} {} 2\n\
             sentinel down-after-milliseconds main {DOWN_AFTER}\n\
             sentinel failover-timeout main 4000\n",
            master.address(),
            master.port()
        );
        fs::write(&config, text).expect("the Sentinel's configuration");
        let mut sentinel = Command::new(program());
        sentinel.arg(&config).arg("--sentinel").current_dir(dir.path());
        sentinel.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl is async-signal-safe; nothing else runs between fork and exec.
        unsafe {
            sentinel.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let process = host.enter(|| sentinel.spawn()).expect("redis-server is installed");
        Sentinel { process, _dir: dir }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A master on host 1, replicas on hosts 2 and 3, of which the first will be promoted, and Sentinels on
/// hosts 1 to 3.
struct Service {
    master: NetworkServer,
    replica: NetworkServer,
    _second: NetworkServer,
    _sentinels: Vec<Sentinel>,
}

impl Service {
    fn start(network: &Network) -> Service {
        // What docs/operations.md recommends.
        let args = [
            "--repl-diskless-sync-delay",
            "0",
            "--min-replicas-to-write",
            "1",
            "--min-replicas-max-lag",
            "1",
        ];
        let master = NetworkServer::start(network.host(1), &args);
        let port = master.port().to_string();
        let of = ["--replicaof", &master.address(), &port, "--repl-ping-replica-period", "1"];
        let replica = |host, priority| {
            let args = [&args[..], &of, &["--replica-priority", priority]].concat();
            let replica = NetworkServer::start(network.host(host), &args);
            wait_until("it has the data", || replica.ask(|redis| redis.info("master_link_status")) == "up");
            replica
        };
        let (replica, second) = (replica(2, "1"), replica(3, "100"));
        wait_until("the master knows them", || {
            master.ask(|redis| redis.info("min_slaves_good_slaves")) == "2"
        });
        master.ask(settle);
        let sentinels = (1..=3).map(|host| Sentinel::start(network.host(host), &master)).collect();
        let knows_all = |host: u8| {
            let mut client = network.host(host).enter(|| Client::to_port(SENTINEL_PORT)).ok()?;
            let text = client.try_cmd(&["SENTINEL", "master", "main"]).ok()?;
            Some(text.contains("num-slaves\n2\n") && text.contains("num-other-sentinels\n2\n"))
        };
        wait_until("the Sentinels know each other", || (1..=3).all(|host| knows_all(host) == Some(true)));
        Service { master, replica, _second: second, _sentinels: sentinels }
    }

    fn run(&self, args: &[&str]) -> Run {
        let hosts: Vec<String> = (1..=3).map(|host| format!("10.0.0.{host}:{SENTINEL_PORT}")).collect();
        Run::at(&format!("redis+sentinel://{}/main", hosts.join(",")), "k").args(args)
    }
}

#[test]
fn a_holder_on_the_side_of_the_old_master_is_stopped_before_the_next_one_starts() {
    let network = network!(5);
    let (service, journal) = (Service::start(&network), Journal::new());
    let run = || service.run(&["--ttl", "8s", "--quarantine", "8s"]);
    let holder = hold(network.host(4), run(), &journal, "holder");
    let next = queue(network.host(5), run(), &journal, "next");
    service.master.ask(|redis| queued(redis, "k", 1));
    network.split(&[1, 4]);
    stopped(holder);
    next.wait_for_stderr("promoted");
    next.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder", "next"]);
}

#[test]
fn a_holder_that_loses_the_master_continues_at_the_new_one() {
    let network = network!(5);
    let (service, journal) = (Service::start(&network), Journal::new());
    let holder = hold(network.host(4), service.run(&["--ttl", "15s"]), &journal, "holder");
    wait_until("the claim is replicated", || service.replica.ask(|redis| redis.held("k")));
    network.split(&[1]);
    wait_until("the replica is the master", || service.replica.ask(|redis| redis.info("role")) == "master");
    service.replica.ask(|redis| renewed(redis, "k", 1));
    holder.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder"]);
    assert!(journal.has_ended("holder"));
}

/// Masters on hosts 1 to 3, a replica of the first on host 4.
struct ClusterOfHosts(Vec<NetworkServer>);

impl ClusterOfHosts {
    fn start(network: &Network) -> ClusterOfHosts {
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", DOWN_AFTER];
        let args =
            [&args[..], &["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]].concat();
        let start = |host| NetworkServer::start(network.host(host), &args);
        let cluster = ClusterOfHosts((1..=4).map(start).collect());
        let first = &cluster.0[0];
        for (at, slots) in [0..=5460, 5461..=10922, 10923..=16383].into_iter().enumerate() {
            let slots: Vec<String> = slots.map(|slot: u16| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            cluster.ok(at, &words.collect::<Vec<_>>());
            cluster.ok(at, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for at in 1..4 {
            cluster.ok(at, &["CLUSTER", "MEET", &first.address(), &first.port().to_string()]);
        }
        cluster.wait_for_info("cluster_known_nodes:4\r");
        let id = first.ask(|redis| redis.cmd(&["CLUSTER", "MYID"]));
        let replica = &cluster.0[3];
        wait_until("a replica", || replica.ask(|redis| redis.cmd(&["CLUSTER", "REPLICATE", &id])) == "OK");
        wait_until("the replica has the data", || {
            replica.ask(|redis| redis.info("master_link_status")) == "up"
        });
        cluster.wait_for_info("cluster_state:ok\r");
        cluster
    }

    fn ok(&self, at: usize, command: &[&str]) {
        assert_eq!(self.0[at].ask(|redis| redis.cmd(command)), "OK", "{command:?}");
    }

    fn wait_for_info(&self, text: &str) {
        let says =
            |server: &NetworkServer| server.ask(|redis| redis.cmd(&["CLUSTER", "INFO"]).contains(text));
        wait_until(text, || self.0.iter().all(says));
    }

    /// A run with a key that the first master has.
    fn run(&self, args: &[&str]) -> Run {
        let hosts: Vec<String> =
            self.0.iter().map(|server| format!("{}:{}", server.address(), server.port())).collect();
        Run::at(&format!("redis+cluster://{}", hosts.join(",")), KEY_OF_FIRST).args(args)
    }
}

const KEY_OF_FIRST: &str = "k2";
const NAME_OF_FIRST: &str = "{k2}";

#[test]
fn a_holder_on_the_side_of_a_clusters_old_master_is_stopped_before_the_next_one_starts() {
    let network = network!(6);
    let (cluster, journal) = (ClusterOfHosts::start(&network), Journal::new());
    let run = || cluster.run(&["--ttl", "6s", "--quarantine", "6s"]);
    let first = cluster.run(&["--ttl", "6s", "--quarantine", "off"]);
    let holder = hold(network.host(5), first, &journal, "holder");
    let next = queue(network.host(6), run(), &journal, "next");
    cluster.0[0].ask(|redis| queued(redis, NAME_OF_FIRST, 1));
    network.split(&[1, 5]);
    stopped(holder);
    next.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder", "next"]);
}

#[test]
fn a_holder_that_loses_a_clusters_master_continues_at_the_new_one() {
    let network = network!(6);
    let (cluster, journal) = (ClusterOfHosts::start(&network), Journal::new());
    let holder =
        hold(network.host(5), cluster.run(&["--ttl", "15s", "--quarantine", "off"]), &journal, "holder");
    wait_until("the claim is replicated", || {
        cluster.0[3].ask(|redis| redis.keys().contains(&format!("lock:{NAME_OF_FIRST}")))
    });
    network.split(&[1]);
    wait_until("the replica is the master", || cluster.0[3].ask(|redis| redis.info("role")) == "master");
    cluster.0[3].ask(|redis| renewed(redis, NAME_OF_FIRST, 1));
    holder.wait().expect_code(0);
    assert_eq!(journal.started(), ["holder"]);
    assert!(journal.has_ended("holder"));
}
