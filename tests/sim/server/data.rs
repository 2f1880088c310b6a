//! What one command does, whether a client sends it or a script calls it: the data, the clock, and
//! the rules about who may write when.

use std::collections::{BTreeMap, BTreeSet};

use super::reply::Reply;
use super::store::Store;

/// What a server says about itself, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Identity {
    pub run_id: String,
    /// A new one each time the server starts as a master, or becomes one.
    pub replication_id: String,
    pub is_replica: bool,
}

#[derive(Clone, Debug)]
pub struct Data {
    pub identity: Identity,
    pub databases: BTreeMap<u32, Store>,
    /// The database of the connection whose command is executed.
    pub selected: u32,
    /// By this server's clock.
    pub now_us: u64,
    /// Over its limit of memory: what takes more is refused.
    pub is_out_of_memory: bool,
    /// Commands that the user may not call.
    pub denied: BTreeSet<String>,
    /// The script that is being executed has written something.
    pub has_written: bool,
}

/// Commands that change data.
const WRITES: [&str; 11] =
    ["SET", "DEL", "PEXPIRE", "PERSIST", "RPUSH", "LPOP", "HSET", "HDEL", "XADD", "ZADD", "ZREM"];
/// Those of them that may take memory.
const GROWS: [&str; 5] = ["SET", "RPUSH", "HSET", "XADD", "ZADD"];

impl Data {
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            databases: BTreeMap::new(),
            selected: 0,
            now_us: 0,
            is_out_of_memory: false,
            denied: BTreeSet::new(),
            has_written: false,
        }
    }

    pub fn store(&mut self) -> &mut Store {
        let now = self.now_us / 1000;
        let store = self.databases.entry(self.selected).or_default();
        store.expire(now);
        store
    }

    /// `in_script`: a script that has written may go on writing when memory is short.
    pub fn execute(&mut self, command: &[Vec<u8>], in_script: bool) -> Reply {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        if self.denied.contains(&name) {
            return Reply::error(if in_script {
                "NOPERM The user executing the script can't run this command or subcommand".to_string()
            } else {
                format!("NOPERM this user has no permissions to run the '{}' command", name.to_lowercase())
            });
        }
        let (is_write, grows) = (WRITES.contains(&name.as_str()), GROWS.contains(&name.as_str()));
        if is_write && self.identity.is_replica {
            return Reply::error("READONLY You can't write against a read only replica.");
        }
        if grows && self.is_out_of_memory && !(in_script && self.has_written) {
            return Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
        }
        self.has_written |= is_write;
        match name.as_str() {
            "TIME" => {
                let (seconds, rest) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
                Reply::bulks([seconds.to_string().into(), rest.to_string().into()])
            }
            "INFO" => self.info(command.get(1).map_or(&b""[..], Vec::as_slice)),
            "CLUSTER" => Reply::error("ERR This instance has cluster support disabled"),
            _ => {
                let now = self.now_us / 1000;
                self.store().execute(command, now)
            }
        }
    }

    fn info(&self, section: &[u8]) -> Reply {
        let Identity { run_id, replication_id, is_replica } = &self.identity;
        let server = format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{run_id}\r\n");
        let role = if *is_replica { "slave" } else { "master" };
        let replication = format!("# Replication\r\nrole:{role}\r\nmaster_replid:{replication_id}\r\nmaster_replid2:{}\r\n", "0".repeat(40));
        Reply::bulk(match section {
            b"server" => server,
            b"replication" => replication,
            _ => format!("{server}\r\n{replication}"),
        })
    }
}
