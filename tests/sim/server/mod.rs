//! A virtual Redis server: connections, logins, scripts, blocking, on a clock of its own.
//!
//! It executes the real scripts of lua/. What it sends is returned to the caller, which decides
//! when, and whether, it arrives.

pub mod data;
mod engine;
pub mod reply;
pub mod store;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use data::{Data, Identity};
use engine::Engine;
pub use engine::Patch;
use reply::{Command, Reply, parse_command};

/// Identifies a connection to this server.
pub type ConnectionId = u64;

/// A command that a server has executed, and its reply.
#[derive(Debug)]
pub struct Executed {
    pub connection: ConnectionId,
    pub command: Command,
    /// `None` while BLPOP blocks.
    pub reply: Option<Reply>,
}

/// What a server does to a connection.
#[derive(Debug, PartialEq)]
pub enum Output {
    Send(ConnectionId, Vec<u8>),
    Close(ConnectionId),
}

struct Client {
    input: Vec<u8>,
    is_logged_in: bool,
    database: u32,
    blocked: Option<Blocked>,
    used_at: u64,
}

/// In BLPOP.
struct Blocked {
    lists: Vec<Vec<u8>>,
    /// `None` = forever.
    until: Option<u64>,
    since: u64,
}

pub struct VirtualServer {
    data: Rc<RefCell<Data>>,
    engine: Engine,
    /// Hashes of the scripts that it knows.
    known: BTreeSet<String>,
    clients: BTreeMap<ConnectionId, Client>,
    pub password: Option<Vec<u8>>,
    /// Idle connections are closed after this time; never those that are blocked.
    pub idle_limit_us: Option<u64>,
    /// What it has executed since the world last asked.
    pub executed: Vec<Executed>,
    /// Texts of scripts that it was sent, with their hashes.
    hashes: Vec<(Vec<u8>, String)>,
}

impl VirtualServer {
    /// `patches`: changes to the scripts' texts, for mutants.
    pub fn new(identity: Identity, patches: &[Patch]) -> Self {
        let data = Rc::new(RefCell::new(Data::new(identity)));
        let engine = Engine::new(&data, patches.to_vec());
        Self {
            data,
            engine,
            known: BTreeSet::new(),
            clients: BTreeMap::new(),
            password: None,
            idle_limit_us: None,
            executed: Vec::new(),
            hashes: Vec::new(),
        }
    }

    pub fn data(&self) -> std::cell::RefMut<'_, Data> {
        self.data.borrow_mut()
    }

    pub fn forget_scripts(&mut self) {
        self.known.clear();
    }

    pub fn open(&mut self, id: ConnectionId, now: u64) {
        let is_logged_in = self.password.is_none();
        let client = Client { input: Vec::new(), is_logged_in, database: 0, blocked: None, used_at: now };
        self.clients.insert(id, client);
    }

    pub fn close(&mut self, id: ConnectionId) {
        self.clients.remove(&id);
    }

    /// The process ends: every connection is gone.
    pub fn stop(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.clients).into_keys().collect()
    }

    /// `now`: by this server's clock, in microseconds.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: u64) -> Vec<Output> {
        self.data.borrow_mut().now_us = now;
        let mut outputs = Vec::new();
        if let Some(client) = self.clients.get_mut(&id) {
            client.input.extend_from_slice(bytes);
            client.used_at = now;
        }
        self.work_off(id, now, &mut outputs);
        self.serve_blocked(now, &mut outputs);
        outputs
    }

    /// When [`VirtualServer::tick`] has something to do.
    pub fn next_moment(&self) -> Option<u64> {
        let idle = |client: &Client| match (&client.blocked, self.idle_limit_us) {
            (Some(blocked), _) => blocked.until,
            (None, Some(limit)) => Some(client.used_at + limit),
            (None, None) => None,
        };
        self.clients.values().filter_map(idle).min()
    }

    /// Time has passed: unblock and close what has waited for too long.
    pub fn tick(&mut self, now: u64) -> Vec<Output> {
        self.data.borrow_mut().now_us = now;
        let mut outputs = Vec::new();
        let ids: Vec<ConnectionId> = self.clients.keys().copied().collect();
        for id in ids {
            let client = self.clients.get_mut(&id).expect("it was just listed");
            match &client.blocked {
                Some(Blocked { until: Some(until), .. }) if *until <= now => {
                    (client.blocked, client.used_at) = (None, now);
                    send(&mut outputs, id, &Reply::NilArray);
                    let (command, reply) = (vec![b"(blocked)".to_vec()], Some(Reply::NilArray));
                    self.executed.push(Executed { connection: id, command, reply });
                    self.work_off(id, now, &mut outputs);
                }
                None if self.idle_limit_us.is_some_and(|limit| client.used_at + limit <= now) => {
                    self.clients.remove(&id);
                    outputs.push(Output::Close(id));
                }
                Some(_) | None => {}
            }
        }
        self.serve_blocked(now, &mut outputs);
        outputs
    }

    /// Execute the commands that have arrived, until one blocks.
    fn work_off(&mut self, id: ConnectionId, now: u64, outputs: &mut Vec<Output>) {
        while let Some(client) = self.clients.get_mut(&id).filter(|client| client.blocked.is_none()) {
            let Some((command, length)) = parse_command(&client.input) else { return };
            client.input.drain(..length);
            client.used_at = now;
            let reply = self.on_command(id, &command, now);
            if let Some(reply) = &reply {
                send(outputs, id, reply);
            }
            self.executed.push(Executed { connection: id, command, reply });
        }
    }

    /// `None` if the client blocks.
    fn on_command(&mut self, id: ConnectionId, command: &Command, now: u64) -> Option<Reply> {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        let client = self.clients.get_mut(&id)?;
        if !client.is_logged_in && name != "AUTH" {
            return Some(Reply::error("NOAUTH Authentication required."));
        }
        self.data.borrow_mut().selected = client.database;
        Some(match name.as_str() {
            "AUTH" => {
                let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
                let is_right = self.password.as_ref() == command.last();
                client.is_logged_in |= is_right;
                if is_right { Reply::ok() } else { Reply::error(wrong) }
            }
            "SELECT" => {
                let number = String::from_utf8_lossy(&command[1]).parse().ok();
                client.database = number?;
                Reply::ok()
            }
            "PING" => Reply::Status("PONG".into()),
            "SCRIPT" => {
                self.known.clear();
                Reply::ok()
            }
            "EVAL" | "EVALSHA" => self.evaluate(&name, command),
            "BLPOP" => return self.block(id, command, now),
            _ => self.data.borrow_mut().execute(command, false),
        })
    }

    fn evaluate(&mut self, name: &str, command: &Command) -> Reply {
        let count: usize = String::from_utf8_lossy(&command[2]).parse().expect("a number of keys");
        let (keys, args) = command[3..].split_at(count);
        if self.data.borrow().denied.contains(name) {
            let text =
                format!("NOPERM this user has no permissions to run the '{}' command", name.to_lowercase());
            return Reply::error(text);
        }
        let (hash, text) = if name == "EVAL" {
            (self.hash_of(&command[1]), Some(command[1].as_slice()))
        } else {
            (String::from_utf8_lossy(&command[1]).into_owned(), None)
        };
        if text.is_some() {
            self.known.insert(hash.clone());
        } else if !self.known.contains(&hash) {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        }
        self.data.borrow_mut().has_written = false;
        self.engine.run(&hash, text, keys, args)
    }

    fn hash_of(&mut self, text: &[u8]) -> String {
        if let Some((_, hash)) = self.hashes.iter().find(|(known, _)| known == text) {
            return hash.clone();
        }
        let hash = sha1_smol::Sha1::from(text).digest().to_string();
        self.hashes.push((text.to_vec(), hash.clone()));
        hash
    }

    fn block(&mut self, id: ConnectionId, command: &Command, now: u64) -> Option<Reply> {
        let (timeout, lists) = command[1..].split_last()?;
        for list in lists {
            match self.data.borrow_mut().store().pop_first(list) {
                Ok(Some(element)) => return Some(Reply::bulks([list.clone(), element])),
                Ok(None) => {}
                Err(error) => return Some(Reply::Error(error)),
            }
        }
        let seconds: f64 = String::from_utf8_lossy(timeout).parse().expect("a timeout");
        let until = (seconds > 0.0).then(|| now + (seconds * 1e6) as u64);
        let blocked = Blocked { lists: lists.to_vec(), until, since: now };
        self.clients.get_mut(&id)?.blocked = Some(blocked);
        None
    }

    /// Lists were pushed to: the client that has waited longest gets the element.
    fn serve_blocked(&mut self, now: u64, outputs: &mut Vec<Output>) {
        loop {
            let pushed: Vec<(u32, Vec<u8>)> = {
                let mut data = self.data.borrow_mut();
                let take = |(number, store): (&u32, &mut store::Store)| {
                    std::mem::take(&mut store.pushed).into_iter().map(|list| (*number, list)).collect()
                };
                data.databases.iter_mut().flat_map::<Vec<_>, _>(take).collect()
            };
            if pushed.is_empty() {
                return;
            }
            for (database, list) in pushed {
                while let Some((id, element)) = self.next_served(database, &list) {
                    let reply = Reply::bulks([list.clone(), element]);
                    send(outputs, id, &reply);
                    let command = vec![b"(blocked)".to_vec()];
                    self.executed.push(Executed { connection: id, command, reply: Some(reply) });
                    self.work_off(id, now, outputs);
                }
            }
        }
    }

    fn next_served(&mut self, database: u32, list: &[u8]) -> Option<(ConnectionId, Vec<u8>)> {
        let waits = |client: &&mut Client| {
            let blocked = client.blocked.as_ref().filter(|_| client.database == database);
            blocked.is_some_and(|blocked| blocked.lists.iter().any(|other| other == list))
        };
        let since = |client: &Client| client.blocked.as_ref().map(|blocked| blocked.since);
        let (id, client) = self
            .clients
            .iter_mut()
            .filter(|(_, client)| waits(client))
            .min_by_key(|(_, client)| since(client))?;
        let mut data = self.data.borrow_mut();
        data.selected = database;
        let element = data.store().pop_first(list).ok()??;
        (client.blocked, client.used_at) = (None, data.now_us);
        Some((*id, element))
    }
}

fn send(outputs: &mut Vec<Output>, to: ConnectionId, reply: &Reply) {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    match outputs.last_mut() {
        Some(Output::Send(last, sent)) if *last == to => sent.append(&mut bytes),
        _ => outputs.push(Output::Send(to, bytes)),
    }
}
