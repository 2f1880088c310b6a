//! Locks on servers, looked at. Every server is asked, and what they say is merged into one view.

mod history;
mod list;
mod merge;
mod pages;
mod wait;

use std::time::{Duration, SystemTime};

use super::keys::Keys;
use super::reply::{InspectReply, Record};
use super::script::{Call, INSPECT};
use super::server::Server;
use super::servers::Servers;
use crate::clock::BootTime;
use crate::lock::{
    BackendError, Detail, FinishedRun, History, Holder, Listing, Problem, Seen, ServerError, ServerState,
    ServerStatus, Status, View,
};
use merge::merge;
use pages::read_pages;

/// How many holders and waiters of one lock are described: a reply has to have a bound.
const MOST_DESCRIBED: usize = 500;
/// `break` needs all holders.
const ALL_HOLDERS: usize = 1_000_000;

pub(crate) struct RedisView {
    pub(super) servers: Servers,
    /// As they were given.
    pub(super) configured: Vec<Server>,
    prefix: String,
}

/// What one server said.
struct Looked {
    state: ServerState,
    rtt: Option<Duration>,
    /// One for each key; empty if it failed.
    records: Vec<Record>,
    /// Of the first lock, if it was asked for.
    last_log_id: Option<Vec<u8>>,
    /// Of the first lock: holders whose lease has ended, which no client has written into the log yet.
    expired: Vec<FinishedRun>,
}

/// How much is to be told.
#[derive(Clone, Copy, Debug)]
struct LookLimits {
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
    fn look_at(&mut self, keys: &[Keys], limits: LookLimits) -> Result<Vec<Looked>, BackendError> {
        let call = self.inspect(keys, limits);
        let round = self.servers.timed_round(self.servers.to_all(&call));
        let mut replies: Vec<Option<Result<InspectReply, BackendError>>> =
            self.servers.all().map(|_| None).collect();
        for (at, reply) in round.replies(&mut self.servers, None) {
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
    fn look_at_one(&mut self, keys: &Keys, limits: LookLimits) -> Result<Vec<Looked>, BackendError> {
        let mut looked = self.look_at(std::slice::from_ref(keys), limits)?;
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
    fn look_with_majority(&mut self, key: &[u8], limits: LookLimits) -> Result<Vec<Looked>, BackendError> {
        let looked = self.look_at_one(&self.keys(key), limits)?;
        self.unless_fewer_answer(self.servers.majority(), &looked)?;
        Ok(looked)
    }

    /// The holders, for `break`. A quarantined server counts, since its claims keep others out. An error
    /// unless a majority can be asked: what the others have could be a lock.
    pub(super) fn holders_to_break(&mut self, keys: &Keys) -> Result<Vec<Holder>, BackendError> {
        let mut looked = self.look_at_one(keys, Self::BREAK_LIMITS)?;
        for (at, looked) in looked.iter_mut().enumerate() {
            let problem = match (&looked.state, looked.records.first()) {
                (ServerState::Replica, _) => Some(Problem::Replica),
                (ServerState::Fails(_), _) | (_, None) => None,
                (ServerState::Serves | ServerState::Quarantined(_), Some(record)) => {
                    let count = record.server_count().filter(|count| *count != self.servers.len());
                    looked.state = ServerState::Serves;
                    count.map(Problem::OtherServerCount)
                }
            };
            if let Some(problem) = problem {
                looked.state = ServerState::Fails(self.servers[at].node.error(problem));
                looked.records.clear();
            }
        }
        self.unless_fewer_answer(self.servers.majority(), &looked)?;
        Ok(self.merged(b"", &looked, 0).holders)
    }

    /// What `break` asks servers between two looks.
    pub(super) fn inspect_to_break(&self, keys: &Keys) -> Call {
        self.inspect(std::slice::from_ref(keys), Self::BREAK_LIMITS)
    }

    const BREAK_LIMITS: LookLimits = LookLimits { holders: ALL_HOLDERS, waiters: 0, log: false };

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
        let counts = self.counts(&state);
        Looked {
            state,
            rtt: Some(rtt),
            records: reply.locks,
            last_log_id: reply.last_log_id.filter(|_| counts),
            expired: reply.expired,
        }
    }

    fn counts(&self, state: &ServerState) -> bool {
        self.servers.len() == 1 || matches!(state, ServerState::Serves)
    }

    fn inspect(&self, keys: &[Keys], limits: LookLimits) -> Call {
        let of_key = |keys: &Keys| {
            let Keys { lock, queue, waiters, info, fence, shared, who, log, .. } = keys;
            [lock, queue, waiters, info, fence, shared, who, log].map(Clone::clone)
        };
        let mut names: Vec<Vec<u8>> = keys.iter().flat_map(of_key).collect();
        // On a cluster that of their slot.
        names.push(keys.first().map_or_else(|| self.keys(b"").node, |keys| keys.node.clone()));
        let args =
            [limits.holders, limits.waiters, limits.log.into()].map(|number| number.to_string().into_bytes());
        Call::Script { script: &INSPECT, keys: names, args: args.to_vec(), in_full: false }
    }
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
        let limits = LookLimits { holders: MOST_DESCRIBED, waiters: MOST_DESCRIBED, log: false };
        let looked = self.look_at_one(&self.keys(key), limits)?;
        Ok(self.merged(key, &looked, 0))
    }

    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError> {
        self.list_all(pattern, detail)
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
        let counted =
            looked.iter().map(|looked| looked.records.get(at).filter(|_| self.counts(&looked.state)));
        let records: Vec<Option<&Record>> = counted.collect();
        let merged = merge(&records, self.servers.majority());
        let mut servers = self.server_states(looked);
        let no_majority = self.unless_fewer_answer(self.servers.majority(), looked).err();
        // A server that was promoted may know a holder. That there is none it cannot know.
        let is_sure = |state: &ServerState| !matches!(state, ServerState::Quarantined(_));
        for (server, (vote, differs)) in servers.iter_mut().zip(merged.votes) {
            let vote = vote.filter(|_| no_majority.is_none() && is_sure(&server.state));
            (server.vote, server.differs) = (vote, differs);
        }
        let sure =
            looked.iter().zip(&records).filter(|(looked, record)| record.is_some() && is_sure(&looked.state));
        let counted = sure.count();
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
