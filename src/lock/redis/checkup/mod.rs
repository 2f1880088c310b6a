//! Gathers the facts that decide whether servers are fit to hold locks, with the user's own login.
//! Each server has its own thread, so that one that hangs delays no other; each request has the
//! node timeout.
//!
//! A fact that a server denies is an error in the facts, and the check-up continues. A server that
//! does not reply is not queried again.

mod info;
mod sentinels;
mod shard;
mod trial;

use std::thread;
use std::time::Duration;

use redis::Value;

use super::discovery::{Master, masters, tag_in};
use super::reply::CommandReply;
use super::script::Call;
use super::servers::Servers;
use super::{Keys, RedisLock, Server, Timing};
use crate::lock::checkup::{
    Config, Found, Info, Marker, ServerClock, ServerFacts, ServerKind, ServersCheckup,
};
use crate::lock::claim::WaiterId;
use crate::lock::{BackendError, Problem, ServerErrorKind};
use crate::world::wall_clock;
use info::{add_config, parse_info, parse_marker};
use shard::Shard;

pub(crate) use trial::between_trials;

/// Arguments of CONFIG GET, one for each request, because servers before Redis 7 take only one. No
/// pattern may match a password.
const CONFIG: [&str; 4] = ["min-replicas-*", "cluster-node-timeout", "appendfsync", "save"];

const FIRST_KEY: &str = "first";

/// Checks all servers in parallel.
pub(crate) fn check_servers(servers: &[Server], prefix: &str, node_timeout: Duration) -> ServersCheckup {
    let mut checkup = ServersCheckup { configured: servers.len(), ..ServersCheckup::default() };
    thread::scope(|scope| {
        let threads = servers.iter().enumerate().map(|(at, server)| {
            let members = scope.spawn(move || members(server, at, prefix, node_timeout));
            let sentinels = scope.spawn(move || sentinels::query_each(server, at, node_timeout));
            (members, sentinels)
        });
        for (members, sentinels) in threads.collect::<Vec<_>>() {
            checkup.servers.extend(members.join().unwrap_or_default());
            checkup.sentinels.extend(sentinels.join().unwrap_or_default());
        }
    });
    checkup
}

/// The servers behind a configured one.
fn members(configured: &Server, at: usize, prefix: &str, node_timeout: Duration) -> Vec<ServerFacts> {
    if !configured.is_cluster() {
        let kind = if configured.is_sentinel() { ServerKind::OfSentinels } else { ServerKind::Plain };
        let keys = Keys::new(&[], prefix, random_key().as_bytes());
        return vec![facts(configured, at, kind, &keys, node_timeout)];
    }
    let kind = ServerKind::OfCluster;
    let keys_of = |key: &str| Keys::new(std::slice::from_ref(configured), prefix, key.as_bytes());
    let cluster = match masters(configured, node_timeout) {
        Ok(masters) => masters,
        // Check the master that holds the slot of a random key.
        Err(error) if is_denied(&error) => {
            let one = facts(configured, at, kind, &keys_of(&random_key()), node_timeout);
            return vec![ServerFacts { others: Some(error), ..one }];
        }
        Err(error) => {
            let (name, first_key) = (configured.to_string(), FIRST_KEY.to_owned());
            let found = Err(error);
            return vec![ServerFacts { name, configured: at, kind, others: None, first_key, found }];
        }
    };
    thread::scope(|scope| {
        let check = |Master { server, slot }: &Master| {
            let key = format!("{{{}}}{}", tag_in(*slot), random_key());
            let facts = facts(server, at, kind, &keys_of(&key), node_timeout);
            ServerFacts { first_key: format!("{{{}}}{FIRST_KEY}", tag_in(*slot)), ..facts }
        };
        let threads: Vec<_> = cluster.iter().map(|master| scope.spawn(move || check(master))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn random_key() -> String {
    format!("redlock-doctor-{}", WaiterId::random())
}

fn facts(
    server: &Server,
    configured: usize,
    kind: ServerKind,
    keys: &Keys,
    node_timeout: Duration,
) -> ServerFacts {
    let mut contact = Contact::new(server.clone(), node_timeout);
    let found = contact.find_out(kind, keys, server, node_timeout);
    let first_key = FIRST_KEY.to_owned();
    ServerFacts { name: contact.name(), configured, kind, others: None, first_key, found }
}

/// The connection to one server, with one request at a time.
struct Contact {
    servers: Servers,
}

impl Contact {
    fn new(server: Server, node_timeout: Duration) -> Self {
        Self { servers: Servers::new(vec![server], node_timeout) }
    }

    fn find_out(
        &mut self,
        kind: ServerKind,
        keys: &Keys,
        server: &Server,
        node_timeout: Duration,
    ) -> Result<Found, BackendError> {
        let info = self.info()?;
        let certificate_expires = self.servers[0].node.certificate_expires();
        let clock = self.clock()?;
        let rtt = self.round_trip();
        let marker = match kind {
            ServerKind::Plain | ServerKind::OfSentinels => self.marker(keys)?,
            ServerKind::OfCluster => self.shard_marker(keys)?,
        };
        let config = self.config()?;
        let cannot_work = info.as_ref().is_ok_and(|info| {
            let is_stray_node = info.is_cluster && kind != ServerKind::OfCluster;
            is_stray_node || info.is_replica == Some(true) || info.mode.as_deref() == Some("sentinel")
        });
        let trial = (!cannot_work).then(|| trial::try_lock(server, keys, node_timeout, self));
        Ok(Found { rtt, clock, info, config, marker, certificate_expires, trial })
    }

    /// Includes the server that the URL currently resolves to.
    fn name(&self) -> String {
        let node = &self.servers[0].node;
        match node.present() {
            Some(address) => format!("{} ({address})", node.name()),
            None => node.name(),
        }
    }

    fn round_trip(&self) -> Duration {
        self.servers[0].node.round_trip()
    }

    fn error(&self, problem: Problem) -> BackendError {
        self.servers[0].node.error(problem)
    }

    fn ask(&mut self, call: Call) -> Result<Value, BackendError> {
        let mut round = self.servers.timed_round([(0, call)]);
        match round.reply(&mut self.servers, None) {
            Some((_, Ok(CommandReply(value)))) => Ok(value),
            Some((_, Err(error))) => {
                self.servers[0].node.disconnect();
                Err(error)
            }
            None => Err(self.error(Problem::TimedOut)),
        }
    }

    /// The inner error: the server denies it. The outer error: the server cannot be queried.
    fn ask_for<T>(
        &mut self,
        (name, args): (&'static str, &[&[u8]]),
        parse: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Result<T, BackendError>, BackendError> {
        let args = args.iter().map(|arg| arg.to_vec()).collect();
        match self.ask(Call::Command { name, args }) {
            Ok(value) => Ok(parse(value).ok_or_else(|| self.error(Problem::UnexpectedReply))),
            Err(error) if is_denied(&error) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    fn info(&mut self) -> Result<Result<Info, BackendError>, BackendError> {
        let text = |value| redis::from_redis_value::<String>(value).ok();
        self.ask_for(("INFO", &[]), |value| text(value).map(|text| parse_info(&text)))
    }

    fn clock(&mut self) -> Result<Result<ServerClock, BackendError>, BackendError> {
        let sent_at = wall_clock();
        let time = |value| redis::from_redis_value::<(u64, u64)>(value).ok();
        let reply = self.ask_for(("TIME", &[]), time)?;
        // The clock was read half a round trip ago, plus or minus that half.
        let half = self.round_trip() / 2;
        Ok(reply.map(|(seconds, micros)| {
            let there = Duration::from_secs(seconds) + Duration::from_micros(micros);
            let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let (theirs, ours) = (millis(there), millis(sent_at + half));
            ServerClock { now_ms: theirs.unsigned_abs(), ahead_ms: theirs - ours, uncertainty: half }
        }))
    }

    fn marker(&mut self, keys: &Keys) -> Result<Result<Option<Marker>, BackendError>, BackendError> {
        let text = |value| redis::from_redis_value::<Option<Vec<u8>>>(value).ok();
        let marker = |value| text(value).map(|text| text.and_then(|text| parse_marker(&text)));
        let mut marker = self.ask_for(("GET", &[&keys.node]), marker)?;
        if let Ok(Some(marker)) = &mut marker
            && marker.raised_ms > 0
        {
            let client = [keys.node.as_slice(), b"-by"].concat();
            let client = self.ask_for(("GET", &[&client]), |value| redis::from_redis_value(value).ok())?;
            marker.raised_by = client.ok().flatten().unwrap_or_default();
        }
        Ok(marker)
    }

    /// The marker has no reign if the set of the server's slots is uncertain.
    fn shard_marker(&mut self, keys: &Keys) -> Result<Result<Option<Marker>, BackendError>, BackendError> {
        let text = |value| redis::from_redis_value::<String>(value).ok();
        let nodes = match self.ask_for(("CLUSTER", &[b"NODES"]), text)? {
            Ok(nodes) => nodes,
            Err(error) => return Ok(Err(error)),
        };
        let shard = Shard::parse(&nodes);
        let Some((shard, name)) = shard.and_then(|shard| shard.marker_name(keys).map(|name| (shard, name)))
        else {
            return Ok(Ok(Some(Marker::default())));
        };
        let text = |value| redis::from_redis_value::<Option<Vec<u8>>>(value).ok();
        let marker = |value| text(value).map(|text| text.and_then(|text| shard.parse_marker(&text)));
        self.ask_for(("GET", &[&name]), marker)
    }

    fn config(&mut self) -> Result<Result<Config, BackendError>, BackendError> {
        let mut config = Config::default();
        for name in CONFIG {
            match self.ask_for(("CONFIG", &[b"GET", name.as_bytes()]), Some)? {
                Ok(reply) => add_config(&mut config, reply),
                // The others would be refused as well.
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(config))
    }
}

/// Denied, not offered, or specific to this request: the server replies, and can be queried
/// further.
fn is_denied(error: &BackendError) -> bool {
    use ServerErrorKind as Kind;
    let is_refusal =
        |kind| matches!(kind, Kind::PermissionDenied | Kind::CommandMissing | Kind::WrongType | Kind::Other);
    // In a cluster the key may be in a slot of another node.
    let is_elsewhere = |kind| matches!(kind, Kind::ClusterNode | Kind::CannotServe | Kind::Loading);
    matches!(&error.problem, Problem::Server(error) if is_refusal(error.kind) || is_elsewhere(error.kind))
}
