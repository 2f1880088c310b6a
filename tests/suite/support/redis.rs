//! A real redis-server for one test.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::iter;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Client, PATIENCE, Proxy, processes, script_calls};

/// A redis-server on a free port, without persistence, killed when dropped.
pub struct Redis {
    server: Option<Child>,
    port: u16,
    dir: tempfile::TempDir,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
    /// From `--requirepass`, for the test's own connections.
    password: Option<String>,
}

impl Redis {
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// With extra redis-server arguments.
    pub fn start_with(args: &[&str]) -> Redis {
        Redis::start_in(args, &[])
    }

    /// Like services that offer neither INFO nor CONFIG.
    pub fn without_info() -> Redis {
        Redis::start_with(&["--rename-command", "INFO", "INFO_OF_THE_TEST", "--rename-command", "CONFIG", ""])
    }

    /// With extra arguments, and these environment variables.
    pub fn start_in(args: &[&str], env: &[(&str, PathBuf)]) -> Redis {
        let password = args.iter().position(|a| *a == "--requirepass").map(|at| args[at + 1]);
        let mut redis = Redis {
            server: None,
            port: 0,
            dir: tempfile::tempdir().expect("a temporary directory"),
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            password: password.map(str::to_owned),
        };
        for _ in 0..20 {
            let is_of_cluster = args.contains(&"--cluster-enabled");
            redis.port = if is_of_cluster { free_port_for_cluster() } else { free_port() };
            if redis.launch() {
                return redis;
            }
        }
        panic!("redis-server does not start: {}", redis.log());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path of its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Its working directory, deleted with it.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub fn pid(&self) -> i32 {
        self.server.as_ref().expect("the server runs").id() as i32
    }

    /// Whether it was started and has not been killed since.
    pub fn is_up(&self) -> bool {
        self.server.is_some()
    }

    /// SIGSTOP: connects still succeed, but nothing is replied.
    pub fn stop(&self) {
        processes::stop(self.pid());
    }

    pub fn cont(&self) {
        processes::send(self.pid(), Signal::SIGCONT);
    }

    /// SIGKILL and reap.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Kills the server if it runs, and starts it on the same port, empty.
    pub fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        while !self.launch() {
            assert!(start.elapsed() < PATIENCE, "no restart: {}", self.log());
        }
    }

    /// Changes the password, and closes the connections of all clients.
    pub fn change_password(&mut self, password: &str) {
        let mut client = self.connect();
        assert_eq!(client.cmd(&["CONFIG", "SET", "requirepass", password]), "OK");
        self.password = Some(password.to_owned());
        client.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    }

    /// How many logins have failed.
    pub fn failed_logins(&self) -> u64 {
        let stats = self.info("cmdstat_auth");
        let failed = stats.split(',').find_map(|part| part.strip_prefix("failed_calls="));
        failed.map_or(0, |n| n.parse().expect("a count"))
    }

    /// A connection that stays open between commands.
    pub fn connect(&self) -> Client {
        self.try_connect().expect("connect to the server")
    }

    /// Sends one command on a new connection; returns the reply as text, "" for nil, lines for an
    /// array.
    pub fn cmd(&self, args: &[&str]) -> String {
        self.connect().cmd(args)
    }

    /// A field of the exclusive holder's record; "" if there is none.
    pub fn recorded(&self, key: &str, field: &str) -> String {
        let record: serde_json::Value =
            serde_json::from_str(&self.cmd(&["HVALS", &format!("lock-info:{key}")])).unwrap_or_default();
        record[field].as_str().unwrap_or_default().to_owned()
    }

    /// KEYS *, sorted, without the logs of finished runs: almost every run leaves an entry there.
    pub fn keys(&self) -> Vec<String> {
        self.connect().keys()
    }

    /// Keys without an expiry.
    pub fn keys_without_ttl(&self) -> Vec<String> {
        self.connect().keys_without_ttl()
    }

    /// ZCARD lock-queue:key.
    pub fn queue_len(&self, key: &str) -> usize {
        let reply = self.cmd(&["ZCARD", &format!("lock-queue:{key}")]);
        reply.parse().unwrap_or_else(|_| panic!("ZCARD of the queue: {reply}"))
    }

    /// Whether lock:key exists.
    pub fn held(&self, key: &str) -> bool {
        self.cmd(&["EXISTS", &format!("lock:{key}")]) == "1"
    }

    /// A field of INFO, such as `evicted_keys`.
    pub fn info(&self, field: &str) -> String {
        let command = [self.info_command(), "everything"];
        // Sentinel closes all connections of a server that it promotes.
        let first = self.try_connect().and_then(|mut client| client.try_cmd(&command));
        let info = first.unwrap_or_else(|_| self.cmd(&command));
        let line = info.lines().find_map(|l| l.strip_prefix(&format!("{field}:")));
        line.unwrap_or("").trim().to_owned()
    }

    /// Clients that sleep in BLPOP.
    pub fn blocked_clients(&self) -> usize {
        self.info("blocked_clients").parse().expect("a number")
    }

    /// How often clients called this command, from INFO commandstats.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info(&format!("cmdstat_{command}"));
        let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.map_or(0, |n| n.parse().expect("a count"))
    }

    /// How many script calls clients have sent, under any command name.
    pub fn script_calls(&self) -> u64 {
        let commands = ["evalsha", "eval", "evalsha_ro", "eval_ro", "fcall", "fcall_ro", "script|load"];
        commands.iter().map(|command| self.calls(command)).sum()
    }

    /// The output of MONITOR while `work` runs.
    fn monitor<T>(&self, work: impl FnOnce() -> T) -> (Vec<String>, T) {
        const END: &str = "end of monitoring";
        let mut monitor = self.connect();
        assert_eq!(monitor.cmd(&["MONITOR"]), "OK");
        let result = work();
        self.cmd(&["ECHO", END]);
        let lines = iter::from_fn(|| {
            let line = monitor.reply().expect("a line of MONITOR");
            Some(String::from_utf8_lossy(&line).into_owned())
        });
        (lines.take_while(|line| !line.contains(END)).collect(), result)
    }

    /// How many acquire calls clients send while `work` runs. The scripts must be loaded.
    pub fn attempts_during<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let (lines, result) = self.monitor(work);
        let asks = |line: &&String| line.to_lowercase().contains(script_calls::acquire_call().as_str());
        (lines.iter().filter(asks).count() as u64, result)
    }

    /// How often each command is executed while `work` runs, by clients and in scripts, in lower
    /// case.
    pub fn commands_during<T>(&self, work: impl FnOnce() -> T) -> (BTreeMap<String, usize>, T) {
        let (lines, result) = self.monitor(work);
        let mut commands = BTreeMap::new();
        for line in lines {
            let name = line.split('"').nth(1).expect("its name").to_lowercase();
            *commands.entry(name).or_default() += 1;
        }
        (commands, result)
    }

    /// The commands of each script call while `work` runs, in lower case.
    pub fn script_commands<T>(&self, work: impl FnOnce() -> T) -> (Vec<BTreeSet<String>>, T) {
        let (lines, result) = self.monitor(work);
        let mut scripts = Vec::new();
        for line in lines {
            // `1700000000.123456 [0 lua] "get" "lock:k"`
            let (by, command) = line.split_once("] \"").expect("who did what");
            let name = command.split('"').next().expect("its name").to_lowercase();
            match scripts.last_mut() {
                Some(last) if by.ends_with(" lua") => {
                    BTreeSet::insert(last, name);
                }
                _ if name == "evalsha" || name == "eval" => scripts.push(BTreeSet::new()),
                _ => {}
            }
        }
        (scripts, result)
    }

    /// INFO, under the name that `--rename-command` has given it.
    fn info_command(&self) -> &str {
        let renamed = self.args.windows(2).find(|pair| pair[0] == "INFO");
        renamed.map_or("INFO", |pair| &pair[1])
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn launch(&mut self) -> bool {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .expect("the server's log");
        let mut command = Command::new(program());
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string()])
            .arg("--unixsocket")
            .arg(self.socket())
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the server's log"))
            .stderr(log);
        if !is_before_7() {
            command.args(["--enable-debug-command", "yes"]);
        }
        // SAFETY: prctl is async-signal-safe; nothing else runs between fork and exec.
        unsafe {
            command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let mut server = command.spawn().expect("redis-server is installed");
        let pid = server.id().to_string();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if server.try_wait().expect("the server's state").is_some() {
                return false; // the port was taken in between
            }
            if self.is_our_server(&pid) {
                self.server = Some(server);
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = server.kill();
        let _ = server.wait();
        false
    }

    /// Whether our server replies, and not a foreign one on the same port.
    fn is_our_server(&self, pid: &str) -> bool {
        let Ok(mut client) = self.try_connect() else {
            return false;
        };
        match client.try_cmd(&[self.info_command(), "server"]) {
            Ok(info) => info.contains(&format!("process_id:{pid}\r\n")),
            Err(_) => false,
        }
    }

    fn try_connect(&self) -> io::Result<Client> {
        let mut client = Client::to_port(self.port)?;
        if let Some(password) = &self.password {
            client.try_cmd(&["AUTH", password])?;
        }
        Ok(client)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Proxy {
    /// In front of this server and, sorted by address, in its place.
    pub fn to(redis: &Redis) -> Proxy {
        Proxy::next_to(redis.port())
    }
}

/// redis-server, or another engine that REDLOCK_TEST_REDIS_SERVER names: an older one, or
/// valkey-server.
pub fn program() -> OsString {
    std::env::var_os("REDLOCK_TEST_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Redis 6 allows DEBUG for all clients, and does not have the option.
pub fn is_before_7() -> bool {
    static IS_BEFORE_7: LazyLock<bool> = LazyLock::new(|| {
        let version = Command::new(program()).arg("--version").output().expect("redis-server is installed");
        String::from_utf8_lossy(&version.stdout).contains("v=6.")
    });
    *IS_BEFORE_7
}

/// As [`free_port`], for a server of a cluster, which uses a second port, 10,000 higher: that one
/// is below the range, too.
pub fn free_port_for_cluster() -> u16 {
    let both_are_free =
        |port: &u16| *port < 22_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok();
    iter::repeat_with(free_port).find(both_are_free).expect("a free port")
}

/// A free port below the range from which the kernel takes ports for outgoing connections, so that
/// a restarted server finds its own port free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let scattered = std::process::id().wrapping_mul(7919).wrapping_add(n.wrapping_mul(13));
        let port = 10_000 + (scattered % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
