//! A master, a replica and a Sentinel that monitors them, all real; and useless Sentinels.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use super::nodes::settle;
use super::redis::{free_port, program};
use super::tls::{Authority, Valid};
use super::{Client, Redis, Run, wait_until};

pub const SERVICE: &str = "main";

pub struct Sentinels {
    pub master: Redis,
    pub replica: Redis,
    sentinel: Child,
    port: u16,
    /// The ports on which clients find the Sentinel, the master and the replica.
    found_at: [u16; 3],
    scheme: &'static str,
    _dir: tempfile::TempDir,
}

const FAST: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

impl Sentinels {
    pub fn start() -> Sentinels {
        Sentinels::start_with(&[], "")
    }

    /// With extra arguments for the servers, and lines for the Sentinel's configuration.
    pub fn start_with(args: &[&str], lines: &str) -> Sentinels {
        let master = Redis::start_with(&[&FAST, args].concat());
        let of = master.port().to_string();
        let replica = Redis::start_with(&[&FAST, args, &["--replicaof", "127.0.0.1", &of]].concat());
        let (port, ports) = (free_port(), [master.port(), replica.port()]);
        Sentinels::monitor(master, replica, port, [port, ports[0], ports[1]], "redis", lines)
    }

    /// All of them use TLS, also between themselves; the test itself connects without it.
    pub fn with_tls(authority: &Authority) -> Sentinels {
        let names = ["localhost", "127.0.0.1"];
        let args = [&FAST[..], &["--tls-replication", "yes"]].concat();
        let master = authority.serve_with(&names, Valid::Now, &args);
        let of = master.port().to_string();
        let args = [&args[..], &["--replicaof", "127.0.0.1", &of]].concat();
        let replica = authority.serve_with(&names, Valid::Now, &args);
        let tls_port = free_port();
        let settings = authority.settings(&names, Valid::Now, tls_port);
        let lines: String = settings.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        let lines = format!("{lines}tls-auth-clients no\ntls-replication yes");
        let found_at = [tls_port, master.port(), replica.port()];
        Sentinels::monitor(master.plain, replica.plain, free_port(), found_at, "rediss", &lines)
    }

    fn monitor(
        master: Redis,
        replica: Redis,
        port: u16,
        found_at: [u16; 3],
        scheme: &'static str,
        lines: &str,
    ) -> Sentinels {
        wait_until("the replica has the master's data", || replica.info("master_link_status") == "up");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = dir.path().join("sentinel.conf");
        let monitor = format!("monitor {SERVICE} 127.0.0.1 {} 1", found_at[1]);
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel {monitor}\nsentinel down-after-milliseconds {SERVICE} 30000\n\
             sentinel failover-timeout {SERVICE} 4000\n{lines}\n"
        );
        fs::write(&config, text).expect("the Sentinel's configuration");
        let log = fs::File::create(dir.path().join("log")).expect("the Sentinel's log");
        let mut command = Command::new(program());
        command.arg(&config).arg("--sentinel").current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the Sentinel's log")).stderr(log);
        // SAFETY: prctl is async-signal-safe; nothing else runs between fork and exec.
        unsafe {
            command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let sentinel = command.spawn().expect("redis-server is installed");
        let all = Sentinels { master, replica, sentinel, port, found_at, scheme, _dir: dir };
        wait_until("the Sentinel listens", || Client::to_port(port).is_ok());
        if !lines.contains("requirepass") {
            let named = format!("name\n127.0.0.1:{}", all.found_at[2]);
            wait_until("the Sentinel knows the replica", || {
                all.ask(&["SENTINEL", "replicas", SERVICE]).contains(&named)
            });
        }
        settle(&all.master);
        all
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// With these Sentinels before the real one.
    pub fn url_behind(&self, others: &[u16]) -> String {
        let ports = others.iter().chain([&self.found_at[0]]);
        let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("{}+sentinel://{}/{SERVICE}", self.scheme, hosts.join(","))
    }

    pub fn url(&self) -> String {
        self.url_behind(&[])
    }

    pub fn run(&self, key: &str) -> Run {
        Run::at(&self.url(), key)
    }

    pub fn ask(&self, args: &[&str]) -> String {
        Client::to_port(self.port).expect("the Sentinel").cmd(args)
    }

    /// Kills the master; the Sentinel notices it soon. Before that its limit is long, since on a
    /// busy machine it would take a living master for dead.
    pub fn kill_master(&mut self) {
        self.set_down_after(500);
        self.master.kill();
    }

    /// Sets how long a server may be silent before the Sentinel takes it for dead.
    pub fn set_down_after(&self, ms: u32) {
        let set = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds", &ms.to_string()];
        assert_eq!(self.ask(&set), "OK");
    }

    /// Promotes the replica; returns when the Sentinel reports it as the master.
    pub fn fail_over(&self) {
        self.begin_failover();
        self.wait_for_failover();
    }

    /// Starts the failover as soon as the Sentinel considers the other server ready.
    pub fn begin_failover(&self) {
        wait_until("a failover", || self.ask(&["SENTINEL", "failover", SERVICE]) == "OK");
    }

    pub fn wait_for_failover(&self) {
        let named = format!("127.0.0.1\n{}", self.found_at[2]);
        wait_until("the replica is the master", || {
            self.ask(&["SENTINEL", "get-master-addr-by-name", SERVICE]) == named
                && self.replica.info("role") == "master"
        });
        // On a busy machine the Sentinel would soon take the new master for dead.
        self.set_down_after(30_000);
    }

    /// Kills the Sentinel.
    pub fn kill_sentinel(&mut self) {
        let _ = self.sentinel.kill();
        let _ = self.sentinel.wait();
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.kill_sentinel();
    }
}

/// Starts a Sentinel that names this port to every client; returns its own port.
pub fn sentinel_naming(named: u16) -> u16 {
    let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{named}\r\n", named.to_string().len());
    let url = super::impostor(Box::leak(answer.into_boxed_str()));
    url.rsplit_once(':').expect("a port").1.parse().expect("a port")
}

/// A Sentinel that accepts connections and never replies, for as long as the value lives.
pub struct SilentSentinel(TcpListener);

impl SilentSentinel {
    pub fn start() -> SilentSentinel {
        SilentSentinel(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    pub fn port(&self) -> u16 {
        self.0.local_addr().expect("its address").port()
    }
}
