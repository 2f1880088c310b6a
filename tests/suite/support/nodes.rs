//! A set of real redis-servers for a lock on several servers, and addresses without a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::redis::free_port;
use super::{Client, Job, PATIENCE, Redis, Run, hold, wait_until, wait_until_within};

/// Servers in the order of their addresses, which is the order in which redlock uses them.
pub struct Nodes(Vec<Redis>);

impl Nodes {
    pub fn start(n: usize) -> Nodes {
        Nodes::of((0..n).map(|_| Redis::start()).collect())
    }

    /// These servers.
    pub fn of(mut servers: Vec<Redis>) -> Nodes {
        servers.sort_by_key(Redis::port);
        Nodes(servers)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Redis> {
        self.0.iter()
    }

    /// The servers that were not killed.
    pub fn up(&self) -> impl Iterator<Item = &Redis> {
        self.0.iter().filter(|redis| redis.is_up())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(Redis::url).collect()
    }

    /// `redlock run --redis A,B,C --key KEY --quarantine off`
    pub fn run(&self, key: &str) -> Run {
        Nodes::run_at(&self.urls(), key)
    }

    /// The same with the given URLs.
    pub fn run_at(urls: &[String], key: &str) -> Run {
        Run::at(&urls.join(","), key).args(&["--quarantine", "off"])
    }

    /// `redlock run --redis A,B,C --key KEY`, with the default quarantine.
    pub fn run_quarantined(&self, key: &str) -> Run {
        Run::at(&self.urls().join(","), key)
    }

    /// Holds the key until its stdin is closed, and waits until every living server has the same
    /// claim.
    #[track_caller]
    pub fn hold(&self, run: Run, key: &str) -> Job {
        let job = hold(run);
        wait_until("every living server has the claim", || self.agree(key));
        job
    }

    /// Whether every living server has the lock, under one claim.
    fn agree(&self, key: &str) -> bool {
        let claims = self.claims(key);
        claims.iter().all(|claim| !claim.is_empty() && *claim == claims[0])
    }

    /// The value of lock:key on each living server, "" for none.
    pub fn claims(&self, key: &str) -> Vec<String> {
        self.up().map(|redis| redis.cmd(&["GET", &format!("lock:{key}")])).collect()
    }

    pub fn connect(&self) -> Vec<Client> {
        self.up().map(Redis::connect).collect()
    }

    /// Marks every server as known for an hour, so that none is quarantined.
    pub fn settle(&self) {
        self.up().for_each(settle);
    }

    /// Within PATIENCE no living server has a lock or a queue, and none reappears.
    #[track_caller]
    pub fn all_free(&self) {
        let mut clients = self.connect();
        let mut left = || -> Vec<String> { clients.iter_mut().flat_map(leftover_keys).collect() };
        let mut seen = left();
        wait_until_within(Duration::from_secs(4), &format!("everything is released: {seen:?}"), || {
            seen = left();
            seen.is_empty()
        });
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            assert_eq!(left(), Vec::<String>::new(), "{:?} after everything was free", start.elapsed());
        }
    }

    /// Makes every server load the scripts: a request for an unknown one has no effect, however
    /// late it arrives.
    pub fn warm_up(&self) {
        for _ in 0..2 {
            // A run waits for a majority only, so this waits for all.
            self.hold(self.run("warm"), "warm").wait().expect_code(0);
            wait_until("the lock is released", || self.claims("warm").iter().all(String::is_empty));
        }
        // Every server may be the gate.
        let urls = self.urls();
        for first in 0..self.len() {
            let rotated: Vec<String> =
                (0..self.len()).map(|i| urls[(first + i) % urls.len()].clone()).collect();
            Nodes::run_at(&rotated, "warm").cmd(&["true"]).done().expect_code(0);
        }
    }
}

impl Index<usize> for Nodes {
    type Output = Redis;

    fn index(&self, at: usize) -> &Redis {
        &self.0[at]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.0[at]
    }
}

/// The keys that a run must not leave behind when it has finished or was refused. The fence and the
/// server's marker stay; the tombstone of a waiter that gave up blocks its late requests; a wake-up
/// that was not read expires.
fn leftover_keys(client: &mut Client) -> Vec<String> {
    let stays = |key: &str| {
        ["-fence:", "-newest:", "-done:", "-tombstone:", "-node", "-notify:"]
            .iter()
            .any(|part| key.contains(part))
    };
    let keys = client.keys();
    // The record of a killed holder, for the history, is not a lock.
    let is_record = |key: &str| {
        let of = key.strip_prefix("lock-info:").or_else(|| key.strip_prefix("lock-shared:"));
        of.is_some_and(|of| !keys.contains(&format!("lock:{of}")))
    };
    keys.iter().filter(|key| !stays(key) && !is_record(key)).cloned().collect()
}

/// Sets the marker of a server that has been known for an hour.
pub fn settle(redis: &Redis) {
    let now: u64 = redis.cmd(&["TIME"]).lines().next().expect("seconds").parse().expect("seconds");
    redis.cmd(&["SET", "lock-node", &format!("{} {} 0 0", marker_prefix(redis), (now - 3600) * 1000)]);
}

/// The start of the marker of a server that has kept its data.
pub fn marker_prefix(redis: &Redis) -> String {
    format!("{}.{}", redis.info("run_id"), redis.info("master_replid"))
}

/// The lock's remaining time in ms; negative if there is none.
pub fn pttl(redis: &Redis, key: &str) -> i64 {
    redis.cmd(&["PTTL", &format!("lock:{key}")]).parse().expect("a number")
}

/// Waits until the lock has been renewed on this server `times` times from now.
#[track_caller]
pub fn renewed(redis: &Redis, key: &str, times: usize) {
    // A Sentinel that promotes the server closes its connections.
    let left = || redis.connect().try_cmd(&["PTTL", &format!("lock:{key}")]).ok()?.parse::<i64>().ok();
    for _ in 0..times {
        let mut last = i64::MAX;
        wait_until_within(PATIENCE, "the lock is renewed", || {
            let now = left().unwrap_or(last);
            let grown = now > last;
            last = now;
            grown
        });
    }
}

/// Waits until the lock has been renewed on the server at this index, and on all others in the same
/// round: a server that is restarted while its renewal is on the way loses a vote. The renewals of
/// two rounds must be more than a second apart.
#[track_caller]
pub fn renewed_on_all(nodes: &Nodes, at: usize, key: &str) {
    renewed(&nodes[at], key, 1);
    wait_until("all servers have been renewed", || {
        let left: Vec<i64> = nodes.iter().map(|redis| pttl(redis, key)).collect();
        left.iter().max().unwrap() - left.iter().min().unwrap() < 1000
    });
}

/// An address without a listener, which no other test gets meanwhile.
pub struct Refused {
    _socket: Socket,
    port: u16,
}

impl Refused {
    pub fn new() -> Refused {
        Refused::bound_to(0).expect("a free port")
    }

    /// In the range of the servers' ports: sorted by address, it lies between those that are
    /// started before and after it.
    pub fn among_servers() -> Refused {
        (0..100).find_map(|_| Refused::bound_to(free_port()).ok()).expect("a free port")
    }

    fn bound_to(port: u16) -> io::Result<Refused> {
        let (socket, port) = bound(port)?;
        Ok(Refused { _socket: socket, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// An address where a connect never completes: it listens, and its backlog is full.
pub struct Blackhole {
    _listener: Socket,
    _fillers: Vec<Socket>,
    port: u16,
}

impl Blackhole {
    pub fn new() -> Blackhole {
        let (listener, port) = bound(0).expect("a free port");
        listener.listen(0).expect("listen");
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let fillers = (0..4).map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("non-blocking");
            let _ = socket.connect(&to.into()); // never completes
            socket
        });
        let fillers = fillers.collect();
        let probe = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let answer = probe.connect_timeout(&to.into(), Duration::from_millis(100));
        assert!(answer.is_err(), "the hole is open");
        Blackhole { _listener: listener, _fillers: fillers, port }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn bound(port: u16) -> io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    let port = socket.local_addr()?.as_socket().expect("its address").port();
    Ok((socket, port))
}
