//! Locks on servers, looked at. Every server is asked, and what they say is merged into one view.

mod history;
mod merge;
mod pages;
mod wait;

use std::time::{Duration, SystemTime};

use redis::Value;

use super::keys::{Keys, cluster_patterns, lock_pattern, untagged};
use super::masters::masters;
use super::reply::{InspectReply, Record};
use super::script::{Call, INSPECT};
use super::server::Server;
use super::servers::Servers;
use crate::clock::BootTime;
use crate::lock::{
    BackendError, Detail, FinishedRun, History, Listing, Problem, Seen, ServerError, ServerState,
    ServerStatus, Status, View,
};
use merge::merge;
use pages::read_pages;

/// How many holders and waiters of one lock are described: a reply has to have a bound.
const MOST_DESCRIBED: usize = 500;
/// The same where many locks are described in one reply. What has more is asked for by itself.
const FEW_DESCRIBED: usize = 10;
/// How many locks one request is about: a server does nothing else meanwhile.
const LOCKS_AT_ONCE: usize = 50;
/// How many keys a server looks at in one step of a scan. It does nothing else meanwhile, and its reply has to have a
/// bound.
const SCAN_COUNT: usize = 500;

pub(crate) struct RedisView {
    servers: Servers,
    /// As they were given.
    configured: Vec<Server>,
    prefix: String,
}

/// What one server said.
struct Looked {
    state: ServerState,
    rtt: Option<Duration>,
    /// One for each key; empty if it said nothing that counts.
    records: Vec<Record>,
    /// Of the first lock, if it was asked for.
    last_log_id: Option<Vec<u8>>,
    /// Of the first lock: holders whose lease has ended, which no client has written into the log yet.
    expired: Vec<FinishedRun>,
}

/// How much is to be told.
#[derive(Clone, Copy, Debug)]
struct Limits {
    holders: usize,
    waiters: usize,
    /// The end of the first lock's log is told, too, and which holders are not in it yet.
    log: bool,
}

impl RedisView {
    pub(crate) fn new(servers: Vec<Server>, prefix: &str, node_timeout: Duration) -> Self {
        Self {
            configured: servers.clone(),
            servers: Servers::new(servers, node_timeout),
            prefix: prefix.to_owned(),
        }
    }

    fn keys(&self, key: &[u8]) -> Keys {
        Keys::new(&self.configured, &self.prefix, key)
    }

    fn is_cluster(&self) -> bool {
        self.configured.iter().any(Server::is_cluster)
    }

    /// Asks all servers about these locks. An error if none of them can be asked.
    fn look_at(&mut self, keys: &[Vec<u8>], limits: Limits) -> Result<Vec<Looked>, BackendError> {
        let call = self.inspect(keys, limits);
        let asked = self.servers.ask(self.servers.all(), |_| call.clone());
        let mut replies: Vec<Option<Result<InspectReply, BackendError>>> =
            self.servers.all().map(|_| None).collect();
        for (at, reply) in self.servers.collect_patiently(asked) {
            replies[at] = Some(reply);
        }
        let mut seen: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut looked = Vec::new();
        for (at, reply) in replies.into_iter().enumerate() {
            let node = &self.servers[at].node;
            let reply = reply.unwrap_or_else(|| Err(node.timed_out())).and_then(|reply| {
                let twin = seen.iter().find(|(_, run_id)| *run_id == reply.run_id);
                if let Some((other, _)) = twin {
                    let other = Some(self.servers[*other].node.name());
                    return Err(node.error(Problem::ListedTwice { other }));
                }
                seen.push((at, reply.run_id.clone()));
                if reply.locks.len() == keys.len() {
                    Ok(reply.up_to_date())
                } else {
                    Err(node.error(Problem::UnexpectedReply))
                }
            });
            looked.push(match reply {
                Ok(reply) => self.counted(reply, node.round_trip()),
                Err(error) => Looked {
                    state: ServerState::Fails(error),
                    rtt: None,
                    records: Vec::new(),
                    last_log_id: None,
                    expired: Vec::new(),
                },
            });
        }
        self.unless_fewer_answer(1, &looked)?;
        Ok(looked)
    }

    fn unless_fewer_answer(&self, than: usize, looked: &[Looked]) -> Result<(), BackendError> {
        let errors: Vec<BackendError> = looked.iter().filter_map(Looked::error).collect();
        if errors.len() + than > self.servers.len() {
            return Err(BackendError::no_majority(errors, self.servers.len()));
        }
        Ok(())
    }

    /// The same about one lock: a server with something else at its key fails.
    fn look_at_one(&mut self, key: &[u8], limits: Limits) -> Result<Vec<Looked>, BackendError> {
        let mut looked = self.look_at(&[key.to_vec()], limits)?;
        for (at, looked) in looked.iter_mut().enumerate() {
            if matches!(looked.records.first(), Some(Record::WrongType)) {
                let problem = Problem::Server(ServerError::new("WRONGTYPE", None, "the lock script"));
                looked.state = ServerState::Fails(self.servers[at].node.error(problem));
                looked.records.clear();
            }
        }
        self.unless_fewer_answer(1, &looked)?;
        Ok(looked)
    }

    /// The same, and an error if less than a majority can be asked: what the others know could be a lock.
    fn look_with_majority(&mut self, key: &[u8], limits: Limits) -> Result<Vec<Looked>, BackendError> {
        let looked = self.look_at_one(key, limits)?;
        self.unless_fewer_answer(self.servers.majority(), &looked)?;
        Ok(looked)
    }

    /// With several servers one that does not vote may have an old copy of its data. A single one is shown for what
    /// it is; if no other can take its place, it has no quarantine unless a client asks for it.
    fn counted(&self, reply: InspectReply, rtt: Duration) -> Looked {
        let is_alone = self.servers.len() == 1;
        let has_quarantine = !is_alone || self.configured.iter().any(Server::may_fail_over);
        let state = if reply.is_replica {
            ServerState::Replica
        } else if has_quarantine && !reply.quarantine.is_zero() {
            ServerState::Quarantined(reply.quarantine)
        } else {
            ServerState::Serves
        };
        let counts = is_alone || matches!(state, ServerState::Serves);
        Looked {
            state,
            rtt: Some(rtt),
            records: if counts { reply.locks } else { Vec::new() },
            last_log_id: reply.last_log_id.filter(|_| counts),
            expired: reply.expired,
        }
    }

    fn inspect(&self, keys: &[Vec<u8>], limits: Limits) -> Call {
        let of_key = |key: &Vec<u8>| {
            let Keys { lock, queue, waiters, info, fence, shared, who, log, .. } = self.keys(key);
            [lock, queue, waiters, info, fence, shared, who, log]
        };
        let mut names: Vec<Vec<u8>> = keys.iter().flat_map(of_key).collect();
        // On a cluster that of their slot.
        names.push(self.keys(keys.first().map_or(b"", Vec::as_slice)).node);
        let args =
            [limits.holders, limits.waiters, limits.log.into()].map(|number| number.to_string().into_bytes());
        Call::Script { script: &INSPECT, keys: names, args: args.to_vec() }
    }

    /// The keys of all locks that any server has.
    fn find_keys(&mut self, pattern: Option<&[u8]>) -> Result<Vec<Vec<u8>>, BackendError> {
        let (before, mut keys): (_, Vec<Vec<u8>>);
        if self.is_cluster() {
            let globs;
            (before, globs) = cluster_patterns(&self.prefix, pattern);
            let mut found = Vec::new();
            for server in &self.configured {
                let masters = masters(server, self.servers.node_timeout)?;
                let masters = masters.into_iter().map(|master| master.server).collect();
                let mut masters = Servers::new(masters, self.servers.node_timeout);
                for glob in &globs {
                    found.extend(scan(&mut masters, glob, 0)?);
                }
            }
            let key = |name: &Vec<u8>| untagged(name.strip_prefix(before.as_slice())?).map(<[u8]>::to_vec);
            keys = found.iter().filter_map(key).collect();
        } else {
            let glob;
            (before, glob) = lock_pattern(&self.prefix, pattern);
            // What a minority knows is listed as that.
            let tolerated = self.servers.len() - 1;
            let found = scan(&mut self.servers, &glob, tolerated)?;
            let key = |name: &Vec<u8>| name.strip_prefix(before.as_slice()).map(<[u8]>::to_vec);
            keys = found.iter().filter_map(key).collect();
        }
        // A scan may name a key twice, and several servers name the same ones.
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// What is asked for in one request: on a cluster the locks of one slot.
    fn batches(&self, mut keys: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
        let chunks = |keys: &[Vec<u8>]| keys.chunks(LOCKS_AT_ONCE).map(<[_]>::to_vec).collect::<Vec<_>>();
        if !self.is_cluster() {
            return chunks(&keys);
        }
        let slot = |key: &Vec<u8>| self.keys(key).slot();
        keys.sort_by_cached_key(slot);
        keys.chunk_by(|a, b| slot(a) == slot(b)).flat_map(chunks).collect()
    }
}

/// The names that match this pattern, of all servers; so many of them may fail.
fn scan(servers: &mut Servers, pattern: &[u8], tolerated: usize) -> Result<Vec<Vec<u8>>, BackendError> {
    let call = |cursor: &Vec<u8>| {
        let count = SCAN_COUNT.to_string().into_bytes();
        let args = vec![cursor.clone(), b"MATCH".to_vec(), pattern.to_vec(), b"COUNT".to_vec(), count];
        Call::Command { name: "SCAN", args }
    };
    let mut found = Vec::new();
    read_pages(servers, b"0".to_vec(), tolerated, call, |_, reply| {
        let (cursor, names) = scan_step(reply)?;
        found.extend(names);
        Some(Some(cursor).filter(|cursor| cursor != b"0"))
    })?;
    Ok(found)
}

impl Looked {
    fn error(&self) -> Option<BackendError> {
        match &self.state {
            ServerState::Fails(error) => Some(error.clone()),
            ServerState::Serves | ServerState::Replica | ServerState::Quarantined(_) => None,
        }
    }
}

impl View for RedisView {
    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError> {
        let limits = Limits { holders: MOST_DESCRIBED, waiters: MOST_DESCRIBED, log: false };
        let looked = self.look_at_one(key, limits)?;
        Ok(self.merged(key, &looked, 0))
    }

    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError> {
        let keys = self.find_keys(pattern)?;
        let limits = match detail {
            Detail::Summary => Limits { holders: FEW_DESCRIBED, waiters: 0, log: false },
            Detail::Full => Limits { holders: FEW_DESCRIBED, waiters: FEW_DESCRIBED, log: false },
        };
        let mut locks = Vec::new();
        let (mut servers, mut undecided) = (Vec::new(), None);
        // Without any lock the servers are still asked, to tell how they are.
        let batches = if keys.is_empty() { vec![Vec::new()] } else { self.batches(keys) };
        for batch in &batches {
            let looked = self.look_at(batch, limits)?;
            for (at, key) in batch.iter().enumerate() {
                let status = self.merged(key, &looked, at);
                // Which of them has held it longest is not known before all are.
                let is_cut = status.holders.len() < status.holder_count
                    || detail == Detail::Full && status.waiters.len() < status.waiter_count;
                let status = if is_cut { self.status(key)? } else { status };
                if status.is_taken() {
                    locks.push(status);
                }
            }
            servers = self.server_states(&looked);
            undecided = undecided.or(self.unless_fewer_answer(self.servers.majority(), &looked).err());
        }
        // On a cluster each slot has a quarantine of its own, and the last one that was asked for is not the cluster.
        for server in servers.iter_mut().filter(|_| self.is_cluster()) {
            if matches!(server.state, ServerState::Quarantined(_)) {
                server.state = ServerState::Serves;
            }
        }
        Ok(Listing { locks, servers, undecided })
    }

    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError> {
        self.read_history(key, since)
    }

    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(Seen<'_>),
    ) -> Result<Status, BackendError> {
        self.wait_for_release(key, until, observer)
    }
}

impl RedisView {
    fn merged(&self, key: &[u8], looked: &[Looked], at: usize) -> Status {
        let records: Vec<Option<&Record>> = looked.iter().map(|looked| looked.records.get(at)).collect();
        let merged = merge(&records, self.servers.majority());
        let mut servers = self.server_states(looked);
        let no_majority = self.unless_fewer_answer(self.servers.majority(), looked).err();
        // A server that was promoted may know a holder. That there is none it cannot know.
        let is_sure = |state: &ServerState| !matches!(state, ServerState::Quarantined(_));
        for (server, (vote, differs)) in servers.iter_mut().zip(merged.votes) {
            let vote = vote.filter(|_| no_majority.is_none() && is_sure(&server.state));
            (server.vote, server.differs) = (vote, differs);
        }
        let is_counted = |looked: &&Looked| looked.records.len() > at && is_sure(&looked.state);
        let counted = looked.iter().filter(is_counted).count();
        let is_decided = merged.status.is_taken() || counted >= self.servers.majority();
        let too_few_vote = || BackendError::no_majority(self.silent(looked), servers.len());
        let undecided = no_majority.or_else(|| (!is_decided).then(too_few_vote));
        Status { key: key.to_vec(), servers, undecided, ..merged.status }
    }

    /// Why each server whose word does not count is silent.
    fn silent(&self, looked: &[Looked]) -> Vec<BackendError> {
        let why = |(at, looked): (usize, &Looked)| match &looked.state {
            ServerState::Serves => None,
            ServerState::Replica => Some(self.servers[at].node.error(Problem::Replica)),
            ServerState::Quarantined(left) => Some(self.servers[at].node.error(Problem::InQuarantine(*left))),
            ServerState::Fails(error) => Some(error.clone()),
        };
        looked.iter().enumerate().filter_map(why).collect()
    }

    fn server_states(&self, looked: &[Looked]) -> Vec<ServerStatus> {
        let names = self.servers.names().into_iter().zip(looked);
        let status = |(name, looked): (String, &Looked)| ServerStatus {
            name,
            state: looked.state.clone(),
            vote: None,
            differs: None,
            rtt: looked.rtt,
        };
        names.map(status).collect()
    }
}

/// The next cursor, and the names.
fn scan_step(reply: Value) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let (cursor, names): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(reply).ok()?;
    Some((cursor, names))
}
