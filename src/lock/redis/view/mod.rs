//! Read-only access to locks on servers. Every server is queried, and the reports are merged into
//! one view.

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
    BackendError, Detail, Done, FinishedRun, History, Holder, Listing, Problem, ServerError, ServerState,
    ServerStatus, Status, Usual, View, WaitProgress,
};
use merge::merge;
use pages::read_pages;

/// Maximum number of holders and waiters described for one lock: a reply must be bounded.
const MAX_DESCRIBED: usize = 500;
/// Number of finished runs that show how long a lock is usually held.
const TIMED_RUNS: usize = 50;
pub(super) const DESCRIBED: InspectLimits =
    InspectLimits { holders: MAX_DESCRIBED, waiters: MAX_DESCRIBED, log: false, durations: 0 };
/// `break` needs all holders.
const ALL_HOLDERS: usize = 1_000_000;

pub(crate) struct RedisView {
    pub(super) servers: Servers,
    /// As configured: a master may be found through Sentinels, or through a cluster.
    pub(super) configured: Vec<Server>,
    prefix: String,
}

/// The report of one server.
struct ServerReport {
    state: ServerState,
    rtt: Option<Duration>,
    /// One for each key; empty if it failed.
    records: Vec<Record>,
    /// The marks of success, one for each key.
    done: Vec<Option<Done>>,
    /// For how long the last successful runs held each lock, if requested.
    durations: Vec<Vec<Duration>>,
    /// The end of the first lock's log, if requested.
    last_log_id: Option<Vec<u8>>,
    /// Expired holders of the first lock that no client has logged yet.
    expired: Vec<FinishedRun>,
}

/// The extent of a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct InspectLimits {
    holders: usize,
    waiters: usize,
    /// Whether to report the end of the first lock's log, and the holders that are not in it yet.
    log: bool,
    /// Number of finished runs whose times are reported.
    durations: usize,
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

    /// Queries all servers about these locks. Returns an error if none of them replies.
    fn inspect_all(
        &mut self,
        keys: &[Keys],
        limits: InspectLimits,
    ) -> Result<Vec<ServerReport>, BackendError> {
        let call = self.inspect_call(keys, limits);
        let round = self.servers.timed_round(self.servers.to_all(&call));
        let mut replies: Vec<Option<Result<InspectReply, BackendError>>> =
            self.servers.all().map(|_| None).collect();
        for (at, reply) in round.replies(&mut self.servers, None) {
            replies[at] = Some(reply);
        }
        let mut seen: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut reports = Vec::new();
        for (at, reply) in replies.into_iter().enumerate() {
            let node = &self.servers[at].node;
            let reply = reply.unwrap_or_else(|| Err(node.timed_out())).and_then(|reply| {
                let twin = seen.iter().find(|(_, run_id)| *run_id == reply.run_id);
                if let Some((other, _)) = twin {
                    let other = self.servers[*other].node.name();
                    return Err(node.error(Problem::ListedTwice { other }));
                }
                seen.push((at, reply.run_id.clone()));
                if reply.locks.len() == keys.len() {
                    Ok(reply.up_to_date())
                } else {
                    Err(node.error(Problem::UnexpectedReply))
                }
            });
            reports.push(match reply {
                Ok(reply) => self.counted(reply, node.round_trip()),
                Err(error) => ServerReport {
                    state: ServerState::Fails(error),
                    rtt: None,
                    records: Vec::new(),
                    done: Vec::new(),
                    durations: Vec::new(),
                    last_log_id: None,
                    expired: Vec::new(),
                },
            });
        }
        self.require_replies(1, &reports)?;
        Ok(reports)
    }

    fn require_replies(&self, count: usize, reports: &[ServerReport]) -> Result<(), BackendError> {
        let errors: Vec<BackendError> = reports.iter().filter_map(ServerReport::error).collect();
        if errors.len() + count > self.servers.len() {
            return Err(BackendError::no_majority(errors, self.servers.len()));
        }
        Ok(())
    }

    /// The same for one lock: a server with a value of another type counts as failed.
    fn inspect_one(&mut self, keys: &Keys, limits: InspectLimits) -> Result<Vec<ServerReport>, BackendError> {
        let mut reports = self.inspect_all(std::slice::from_ref(keys), limits)?;
        for (at, report) in reports.iter_mut().enumerate() {
            if matches!(report.records.first(), Some(Record::WrongType)) {
                let problem = Problem::Server(ServerError::new("WRONGTYPE", None, "the lock script"));
                report.state = ServerState::Fails(self.servers[at].node.error(problem));
                report.records.clear();
            }
        }
        self.require_replies(1, &reports)?;
        Ok(reports)
    }

    /// The same, but an error if no majority replies: what the others know could be a lock.
    fn inspect_with_majority(
        &mut self,
        key: &[u8],
        limits: InspectLimits,
    ) -> Result<Vec<ServerReport>, BackendError> {
        let reports = self.inspect_one(&self.keys(key), limits)?;
        self.require_replies(self.servers.majority(), &reports)?;
        Ok(reports)
    }

    /// The holders, for `break`, and the mark of success. A quarantined server counts, because its claims keep others out.
    /// Returns an error if no majority replies: what the others have could be a lock.
    pub(super) fn holders_to_break(
        &mut self,
        keys: &Keys,
    ) -> Result<(Vec<Holder>, Option<Done>), BackendError> {
        let mut reports = self.inspect_one(keys, Self::BREAK_LIMITS)?;
        for (at, report) in reports.iter_mut().enumerate() {
            let problem = match (&report.state, report.records.first()) {
                (ServerState::Replica, _) => Some(Problem::Replica),
                (ServerState::Fails(_), _) | (_, None) => None,
                (ServerState::Serves | ServerState::Quarantined(_), Some(record)) => {
                    let count = record.server_count().filter(|count| *count != self.servers.len());
                    report.state = ServerState::Serves;
                    record.protocol_problem().or(count.map(Problem::OtherServerCount))
                }
            };
            if let Some(problem) = problem {
                report.state = ServerState::Fails(self.servers[at].node.error(problem));
                report.records.clear();
            }
        }
        self.require_replies(self.servers.majority(), &reports)?;
        let status = self.merged(b"", &reports, 0);
        Ok((status.holders, status.done))
    }

    /// The request that `break` sends between two inspections.
    pub(super) fn inspect_call_to_break(&self, keys: &Keys) -> Call {
        self.inspect_call(std::slice::from_ref(keys), Self::BREAK_LIMITS)
    }

    const BREAK_LIMITS: InspectLimits =
        InspectLimits { holders: ALL_HOLDERS, waiters: 0, log: false, durations: 0 };

    /// Classifies a reply. A server that is quarantined may have an old copy of its data. A single
    /// server that nothing can replace has no quarantine, unless a client requests one.
    fn counted(&self, reply: InspectReply, rtt: Duration) -> ServerReport {
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
        ServerReport {
            state,
            rtt: Some(rtt),
            records: reply.locks,
            done: reply.done,
            durations: reply.durations,
            last_log_id: reply.last_log_id.filter(|_| counts),
            expired: reply.expired,
        }
    }

    fn counts(&self, state: &ServerState) -> bool {
        self.servers.len() == 1 || matches!(state, ServerState::Serves)
    }

    fn inspect_call(&self, keys: &[Keys], limits: InspectLimits) -> Call {
        // A cluster has a marker for each slot.
        let node = keys.first().map_or_else(|| self.keys(b"").node, |keys| keys.node.clone());
        inspect_call(keys, &node, limits)
    }
}

/// `node`: the name of the marker.
pub(super) fn inspect_call(keys: &[Keys], node: &[u8], limits: InspectLimits) -> Call {
    let of_key = |keys: &Keys| {
        let Keys { lock, queue, waiters, info, fence, shared, who, log, done, .. } = keys;
        [lock, queue, waiters, info, fence, shared, who, log, done].map(Clone::clone)
    };
    let mut names: Vec<Vec<u8>> = keys.iter().flat_map(of_key).collect();
    names.push(node.to_vec());
    let args = [limits.holders, limits.waiters, limits.log.into(), limits.durations]
        .map(|number| number.to_string().into_bytes());
    Call::Script { script: &INSPECT, keys: names, args: args.to_vec(), in_full: false }
}

impl ServerReport {
    fn error(&self) -> Option<BackendError> {
        match &self.state {
            ServerState::Fails(error) => Some(error.clone()),
            ServerState::Serves | ServerState::Replica | ServerState::Quarantined(_) => None,
        }
    }
}

impl View for RedisView {
    fn status(&mut self, key: &[u8]) -> Result<Status, BackendError> {
        let limits = InspectLimits { durations: TIMED_RUNS, ..DESCRIBED };
        let reports = self.inspect_one(&self.keys(key), limits)?;
        Ok(self.merged(key, &reports, 0))
    }

    fn list(&mut self, pattern: Option<&[u8]>, detail: Detail) -> Result<Listing, BackendError> {
        self.list_all(pattern, detail)
    }

    fn history(&mut self, key: &[u8], since: Option<SystemTime>) -> Result<History, BackendError> {
        self.read_history(key, since)
    }

    fn logged_keys(&mut self, pattern: Option<&[u8]>) -> Result<Vec<Vec<u8>>, BackendError> {
        RedisView::logged_keys(self, pattern)
    }

    fn wait_until_free(
        &mut self,
        key: &[u8],
        until: Option<BootTime>,
        observer: &mut dyn FnMut(WaitProgress<'_>),
    ) -> Result<Status, BackendError> {
        self.wait_for_release(key, until, observer)
    }
}

impl RedisView {
    fn merged(&self, key: &[u8], reports: &[ServerReport], at: usize) -> Status {
        let counted =
            reports.iter().map(|report| report.records.get(at).filter(|_| self.counts(&report.state)));
        let records: Vec<Option<&Record>> = counted.collect();
        let merged = merge(&records, self.servers.majority());
        let mut servers = self.server_states(reports);
        let no_majority = self.require_replies(self.servers.majority(), reports).err();
        // A server that was promoted may know a holder, but it cannot know that there is none.
        let is_sure = |state: &ServerState| !matches!(state, ServerState::Quarantined(_));
        for (server, (vote, differs)) in servers.iter_mut().zip(merged.votes) {
            let vote = vote.filter(|_| no_majority.is_none() && is_sure(&server.state));
            (server.vote, server.differs) = (vote, differs);
        }
        let sure = reports
            .iter()
            .zip(&records)
            .filter(|(report, record)| record.is_some() && is_sure(&report.state));
        let counted = sure.count();
        let is_decided = merged.status.is_taken() || counted >= self.servers.majority();
        let too_few_vote = || BackendError::no_majority(self.errors_of_uncounted(reports), servers.len());
        let undecided = no_majority.or_else(|| (!is_decided).then(too_few_vote));
        let done = reports.iter().filter_map(|report| report.done.get(at)?.clone());
        let done = done.min_by_key(|done| done.ago);
        // Each server has its own log.
        let logs = reports.iter().filter_map(|report| report.durations.get(at));
        let usual = logs.max_by_key(|log| log.len()).and_then(|log| Usual::of(log.clone()));
        Status { key: key.to_vec(), servers, undecided, done, usual, ..merged.status }
    }

    /// The error of each server whose reply does not count.
    fn errors_of_uncounted(&self, reports: &[ServerReport]) -> Vec<BackendError> {
        let why = |(at, report): (usize, &ServerReport)| match &report.state {
            ServerState::Serves => None,
            ServerState::Replica => Some(self.servers[at].node.error(Problem::Replica)),
            ServerState::Quarantined(left) => Some(self.servers[at].node.error(Problem::InQuarantine(*left))),
            ServerState::Fails(error) => Some(error.clone()),
        };
        reports.iter().enumerate().filter_map(why).collect()
    }

    fn server_states(&self, reports: &[ServerReport]) -> Vec<ServerStatus> {
        let names = self.servers.names().into_iter().zip(reports);
        let status = |(name, report): (String, &ServerReport)| ServerStatus {
            name,
            state: report.state.clone(),
            vote: None,
            differs: None,
            rtt: report.rtt,
        };
        names.map(status).collect()
    }
}
