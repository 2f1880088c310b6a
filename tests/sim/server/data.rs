//! Executes one command, sent by a client or called by a script: the data, the clock, and the rules
//! by which a command is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::commands::CommandKind;
use super::reply::Reply;
use super::store::{Held, Store};

/// The fields of INFO that the scripts read.
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

    /// The locks in the selected database.
    pub fn locks(&mut self) -> BTreeMap<Vec<u8>, Held> {
        self.store().strings_with(b"lock:")
    }

    /// The error with which a command is refused, whatever its arguments are. `in_script`: a script
    /// that has written may go on writing when memory is short.
    pub fn refusal(&self, kind: &CommandKind, in_script: bool) -> Option<Reply> {
        if self.denied.contains(kind.name) && kind.name != "AUTH" {
            return Some(Reply::error(if in_script {
                "ERR The user executing the script can't run this command or subcommand".to_string()
            } else {
                let name = kind.name.to_lowercase();
                format!("NOPERM this user has no permissions to run the '{name}' command")
            }));
        }
        // A replica ignores its limit of memory.
        if kind.writes && self.identity.is_replica {
            return Some(Reply::error("READONLY You can't write against a read only replica."));
        }
        let is_short = self.is_out_of_memory && !(in_script && self.has_written);
        (kind.grows && is_short)
            .then(|| Reply::error("OOM command not allowed when used memory > 'maxmemory'."))
    }

    /// A command that a script calls.
    pub fn execute_in_script(&mut self, command: &[Vec<u8>]) -> Reply {
        let kind = match CommandKind::of(command, true) {
            Ok(kind) => kind,
            Err(error) => return error,
        };
        if let Some(refusal) = self.refusal(kind, true) {
            return refusal;
        }
        self.has_written |= kind.writes;
        self.execute(command)
    }

    /// Execute a command that was not refused.
    pub fn execute(&mut self, command: &[Vec<u8>]) -> Reply {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
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
        let replication = format!(
            "# Replication
role:{role}
master_replid:{replication_id}
master_replid2:{}
",
            "0".repeat(40)
        );
        Reply::bulk(match section.to_ascii_lowercase().as_slice() {
            b"server" => server,
            b"replication" => replication,
            b"cluster" => "# Cluster\r\ncluster_enabled:0\r\n".to_owned(),
            b"" | b"default" | b"all" | b"everything" => format!("{server}\r\n{replication}"),
            _ => String::new(),
        })
    }
}
