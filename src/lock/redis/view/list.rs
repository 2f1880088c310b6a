//! Listing all locks: their names are found on every server, or on every master of a cluster, and
//! then the locks are inspected.

use redis::Value;

use super::{InspectLimits, RedisView, ServerReport, read_pages};
use crate::lock::redis::discovery::masters;
use crate::lock::redis::keys::{Keys, Wanted, cluster_patterns, scan_pattern, untagged};
use crate::lock::redis::script::Call;
use crate::lock::redis::servers::Servers;
use crate::lock::{BackendError, Detail, Listing, ServerState, ServerStatus, Status, View};

/// Number of holders and waiters described for each lock where many locks are in one reply. A lock
/// with more is queried by itself.
const DESCRIBED_IN_LIST: usize = 10;
/// Number of locks in one request: the server does nothing else meanwhile.
const LOCKS_PER_REQUEST: usize = 50;
/// Number of keys that a server visits in one step of a scan. It does nothing else meanwhile, and
/// its reply must be bounded.
const SCAN_COUNT: usize = 500;

/// The keys of all locks that any server has.
#[derive(Default)]
struct FoundKeys {
    keys: Vec<Vec<u8>>,
    /// Masters of clusters that could not be queried, if the others cannot know their locks.
    missing: Vec<BackendError>,
}

impl RedisView {
    pub(super) fn list_all(
        &mut self,
        pattern: Option<&[u8]>,
        detail: Detail,
    ) -> Result<Listing, BackendError> {
        let FoundKeys { keys, mut missing } = self.find_keys(Wanted::Locks, pattern)?;
        let limits = match detail {
            Detail::Summary => {
                InspectLimits { holders: DESCRIBED_IN_LIST, waiters: 0, log: false, durations: 0 }
            }
            Detail::Full => InspectLimits {
                holders: DESCRIBED_IN_LIST,
                waiters: DESCRIBED_IN_LIST,
                log: false,
                durations: 0,
            },
        };
        let mut locks = Vec::new();
        let (mut servers, mut undecided) = (Vec::new(), None);
        // Without any lock the servers are still queried, for their own state.
        let is_empty = keys.is_empty() && missing.is_empty();
        let batches = if is_empty { vec![Vec::new()] } else { self.batches(keys) };
        for batch in &batches {
            match self.inspect_batch(batch, limits, detail) {
                Ok((reports, taken)) => {
                    locks.extend(taken);
                    servers = self.server_states(&reports);
                    undecided = undecided.or(self.require_replies(self.servers.majority(), &reports).err());
                }
                // Part of a cluster is down.
                Err(error) if self.is_cluster() => missing.push(error),
                Err(error) => return Err(error),
            }
        }
        if servers.is_empty() && !batches.is_empty() {
            let masters = missing.len();
            return Err(BackendError::no_majority(missing, masters));
        }
        // On a cluster each slot has its own quarantine, and the slot of the last request does not
        // stand for the whole cluster.
        for server in servers.iter_mut().filter(|_| self.is_cluster()) {
            if matches!(server.state, ServerState::Quarantined(_)) {
                server.state = ServerState::Serves;
            }
        }
        missing.dedup_by(|one, other| one.at == other.at);
        servers.extend(missing.iter().map(failing));
        Ok(Listing { locks, servers, missing, undecided })
    }

    /// Returns the servers' reports about these locks, and the locks that are taken.
    fn inspect_batch(
        &mut self,
        batch: &[Vec<u8>],
        limits: InspectLimits,
        detail: Detail,
    ) -> Result<(Vec<ServerReport>, Vec<Status>), BackendError> {
        let keys: Vec<Keys> = batch.iter().map(|key| self.keys(key)).collect();
        let reports = self.inspect_all(&keys, limits)?;
        let mut taken = Vec::new();
        for (at, key) in batch.iter().enumerate() {
            let status = self.merged(key, &reports, at);
            // The longest holder is known only if all are described.
            let is_cut = status.holders.len() < status.holder_count
                || detail == Detail::Full && status.waiters.len() < status.waiter_count;
            let status = if is_cut { self.status(key)? } else { status };
            if status.is_taken() {
                taken.push(status);
            }
        }
        Ok((reports, taken))
    }

    /// The keys that have finished runs. An error if some of them cannot be known.
    pub(super) fn logged_keys(&mut self, pattern: Option<&[u8]>) -> Result<Vec<Vec<u8>>, BackendError> {
        let FoundKeys { keys, mut missing } = self.find_keys(Wanted::Logs, pattern)?;
        missing.pop().map_or(Ok(keys), Err)
    }

    fn find_keys(&mut self, wanted: Wanted, pattern: Option<&[u8]>) -> Result<FoundKeys, BackendError> {
        let mut found = if self.is_cluster() {
            self.find_keys_of_clusters(wanted, pattern)?
        } else {
            let (before, glob) = scan_pattern(wanted, &self.prefix, pattern);
            // Locks that only a minority knows are listed as such.
            let tolerated = self.servers.len() - 1;
            let (names, _) = scan(&mut self.servers, &glob, tolerated)?;
            let key = |name: &Vec<u8>| name.strip_prefix(before.as_slice()).map(<[u8]>::to_vec);
            FoundKeys { keys: names.iter().filter_map(key).collect(), missing: Vec::new() }
        };
        // A scan may return a key twice, and several servers return the same ones.
        found.keys.sort_unstable();
        found.keys.dedup();
        Ok(found)
    }

    /// Each master of a cluster knows only its own locks; with several clusters, a majority of them
    /// knows every lock that is held.
    fn find_keys_of_clusters(
        &self,
        wanted: Wanted,
        pattern: Option<&[u8]>,
    ) -> Result<FoundKeys, BackendError> {
        let (before, globs) = cluster_patterns(wanted, &self.prefix, pattern);
        let timeout = self.servers.node_timeout;
        let (mut names, mut incomplete, mut missing) = (Vec::new(), 0, Vec::new());
        for server in &self.configured {
            let masters = masters(server, timeout)?.into_iter().map(|master| master.server).collect();
            let mut masters = Servers::new(masters, timeout);
            // If none of them can be queried, there is nothing to show.
            let tolerated = masters.len().saturating_sub(1);
            let known = missing.len();
            for glob in &globs {
                let (found, failed) = scan(&mut masters, glob, tolerated)?;
                names.extend(found);
                missing.extend(failed.into_iter().map(|(_, error)| error));
            }
            incomplete += usize::from(missing.len() > known);
        }
        if incomplete <= self.servers.tolerated() {
            missing.clear();
        }
        missing.sort_by(|one, other| one.at.cmp(&other.at));
        missing.dedup_by(|one, other| one.at == other.at);
        let key = |name: &Vec<u8>| untagged(name.strip_prefix(before.as_slice())?).map(<[u8]>::to_vec);
        Ok(FoundKeys { keys: names.iter().filter_map(key).collect(), missing })
    }

    /// The keys of each request: on a cluster they must be in one slot.
    fn batches(&self, mut keys: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
        let chunks = |keys: &[Vec<u8>]| keys.chunks(LOCKS_PER_REQUEST).map(<[_]>::to_vec).collect::<Vec<_>>();
        if !self.is_cluster() {
            return chunks(&keys);
        }
        let slot = |key: &Vec<u8>| self.keys(key).slot();
        keys.sort_by_cached_key(slot);
        keys.chunk_by(|a, b| slot(a) == slot(b)).flat_map(chunks).collect()
    }
}

fn failing(error: &BackendError) -> ServerStatus {
    ServerStatus {
        name: error.at.clone().unwrap_or_default(),
        state: ServerState::Fails(error.clone()),
        vote: None,
        differs: None,
        rtt: None,
    }
}

/// Names, and the servers that could not be queried for theirs.
type Names = (Vec<Vec<u8>>, Vec<(usize, BackendError)>);

/// The names on all servers that match this pattern; `tolerated` servers may fail.
fn scan(servers: &mut Servers, pattern: &[u8], tolerated: usize) -> Result<Names, BackendError> {
    let call = |cursor: &Vec<u8>| {
        let count = SCAN_COUNT.to_string().into_bytes();
        let args = vec![cursor.clone(), b"MATCH".to_vec(), pattern.to_vec(), b"COUNT".to_vec(), count];
        Call::Command { name: "SCAN", args }
    };
    let mut found = Vec::new();
    let failed = read_pages(servers, b"0".to_vec(), tolerated, call, |_, reply| {
        let (cursor, names) = scan_step(reply)?;
        found.extend(names);
        Some(Some(cursor).filter(|cursor| cursor != b"0"))
    })?;
    Ok((found, failed))
}

/// The next cursor, and the names.
fn scan_step(reply: Value) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let (cursor, names): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(reply).ok()?;
    Some((cursor, names))
}
