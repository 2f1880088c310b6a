//! A virtual Redis server: connections, logins, scripts, blocking, on a clock of its own.
//!
//! It executes the real scripts of lua/. What it sends is returned to the caller, which decides
//! when, and whether, it arrives.

pub mod commands;
pub mod data;
mod engine;
mod executed;
pub mod reply;
mod sorted_set;
pub mod store;
mod stream;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::dice::Dice;
use commands::{CommandKind, wrong_number};
use data::{Data, Identity};
use engine::Engine;
pub use engine::Patch;
use executed::changes;
pub use executed::{Change, Executed};
use reply::{Command, Reply, parse_command};
use store::Held;
use stream::StreamRead;

/// Identifies a connection to this server.
pub type ConnectionId = u64;

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

/// In BLPOP or XREAD.
struct Blocked {
    on: BlockedOn,
    /// `None` = forever.
    until: Option<u64>,
    /// Clients are served in the order in which they blocked.
    order: u64,
}

enum BlockedOn {
    Lists(Vec<Vec<u8>>),
    Stream(StreamRead),
}

impl BlockedOn {
    fn includes(&self, key: &[u8]) -> bool {
        match self {
            Self::Lists(lists) => lists.iter().any(|list| list == key),
            Self::Stream(read) => read.key == key,
        }
    }
}

pub struct VirtualServer {
    data: Rc<RefCell<Data>>,
    engine: Engine,
    /// Hashes of the scripts that it knows.
    known: BTreeSet<String>,
    clients: BTreeMap<ConnectionId, Client>,
    /// Number of times that a client has blocked.
    blocked_count: u64,
    /// Clients that were unblocked, and may have sent more commands.
    unblocked: VecDeque<ConnectionId>,
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
            blocked_count: 0,
            unblocked: VecDeque::new(),
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
        self.continue_unblocked(now, &mut outputs);
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
                    self.unblock(id, Reply::NilArray, now, &mut outputs);
                }
                None if self.idle_limit_us.is_some_and(|limit| client.used_at + limit <= now) => {
                    self.clients.remove(&id);
                    outputs.push(Output::Close(id));
                }
                Some(_) | None => {}
            }
        }
        self.continue_unblocked(now, &mut outputs);
        outputs
    }

    /// Execute what unblocked clients have sent behind the command that blocked. Redis does this
    /// after the other client's commands.
    fn continue_unblocked(&mut self, now: u64, outputs: &mut Vec<Output>) {
        while let Some(id) = self.unblocked.pop_front() {
            self.work_off(id, now, outputs);
        }
    }

    /// Execute the commands that have arrived, until one blocks.
    fn work_off(&mut self, id: ConnectionId, now: u64, outputs: &mut Vec<Output>) {
        while let Some(client) = self.clients.get_mut(&id).filter(|client| client.blocked.is_none()) {
            let Some((command, length)) = parse_command(&client.input) else { return };
            client.input.drain(..length);
            client.used_at = now;
            self.data.borrow_mut().selected = client.database;
            let before = self.locks_of(&command);
            let reply = self.on_command(id, &command, now);
            if let Some(reply) = &reply {
                send(outputs, id, reply);
            }
            let changes = changes(before, self.locks_of(&command));
            self.executed.push(Executed { connection: id, command, reply, changes });
            self.serve_blocked(now, outputs);
        }
    }

    /// The locks, if this is a script, which may change them.
    fn locks_of(&self, command: &Command) -> BTreeMap<Vec<u8>, Held> {
        let is_script = command.first().is_some_and(|name| name.starts_with(b"EVAL"));
        if is_script { self.data.borrow_mut().locks() } else { BTreeMap::new() }
    }

    /// `None` if the client blocks.
    fn on_command(&mut self, id: ConnectionId, command: &Command, now: u64) -> Option<Reply> {
        let kind = match CommandKind::of(command, false) {
            Ok(kind) => kind,
            Err(error) => return Some(error),
        };
        let client = self.clients.get_mut(&id)?;
        if !client.is_logged_in && kind.name != "AUTH" {
            return Some(Reply::error("NOAUTH Authentication required."));
        }
        self.data.borrow_mut().selected = client.database;
        let refusal = self.data.borrow().refusal(kind, false);
        if refusal.is_some() {
            return refusal;
        }
        Some(match kind.name {
            "AUTH" => self.log_in(id, &command[1..]),
            "SELECT" => match String::from_utf8_lossy(&command[1]).parse::<i64>() {
                Ok(number @ 0..=15) => {
                    client.database = u32::try_from(number).expect("a small number");
                    Reply::ok()
                }
                Ok(_) => Reply::error("ERR DB index is out of range"),
                Err(_) => Reply::error("ERR value is not an integer or out of range"),
            },
            "PING" => match &command[1..] {
                [] => Reply::Status("PONG".into()),
                [text] => Reply::bulk(text.clone()),
                _ => Reply::error(wrong_number("PING")),
            },
            "SCRIPT" => self.on_scripts(&command[1..]),
            "EVAL" | "EVALSHA" => self.evaluate(kind.name, command),
            "BLPOP" => return self.pop_or_block(id, &command[1..], now),
            "XREAD" => return self.read_or_block(id, &command[1..], now),
            _ => self.data.borrow_mut().execute(command),
        })
    }

    fn log_in(&mut self, id: ConnectionId, words: &[Vec<u8>]) -> Reply {
        let (user, password) = match words {
            [password] => (&b"default"[..], password),
            [user, password] => (user.as_slice(), password),
            _ => return Reply::error("ERR syntax error"),
        };
        if self.password.is_none() && words.len() == 1 {
            return Reply::error(
                "ERR AUTH <password> called without any password configured for the default user. Are you \
                 sure your configuration is correct?",
            );
        }
        // Without a password the default user has any.
        let is_right = user == b"default" && self.password.as_ref().is_none_or(|right| right == password);
        if !is_right {
            return Reply::error("WRONGPASS invalid username-password pair or user is disabled.");
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_logged_in = true;
        }
        Reply::ok()
    }

    fn on_scripts(&mut self, words: &[Vec<u8>]) -> Reply {
        let subcommand = String::from_utf8_lossy(&words[0]).into_owned();
        match (subcommand.to_ascii_uppercase().as_str(), &words[1..]) {
            ("FLUSH", []) => {
                self.known.clear();
                Reply::ok()
            }
            ("LOAD", [text]) => {
                let hash = self.hash_of(text);
                if let Err(error) = self.engine.compile(&hash, text) {
                    return error;
                }
                self.known.insert(hash.clone());
                Reply::bulk(hash)
            }
            ("EXISTS", hashes @ [_, ..]) => {
                let is_known = |hash: &Vec<u8>| self.known.contains(&lower(hash));
                Reply::Array(hashes.iter().map(|hash| Reply::Int(is_known(hash).into())).collect())
            }
            ("LOAD" | "EXISTS", _) => Reply::error(wrong_number(&format!("script|{subcommand}"))),
            _ => Reply::error(format!("ERR unknown subcommand '{subcommand}'. Try SCRIPT HELP.")),
        }
    }

    fn evaluate(&mut self, name: &str, command: &Command) -> Reply {
        let (text, count, rest) = (&command[1], &command[2], &command[3..]);
        let Ok(count) = String::from_utf8_lossy(count).parse::<i64>() else {
            return Reply::error("ERR value is not an integer or out of range");
        };
        let Ok(count) = usize::try_from(count) else {
            return Reply::error("ERR Number of keys can't be negative");
        };
        if count > rest.len() {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        }
        let (keys, args) = rest.split_at(count);
        let hash = if name == "EVAL" { self.hash_of(text) } else { lower(text) };
        if name == "EVAL" {
            if let Err(error) = self.engine.compile(&hash, text) {
                return error;
            }
            self.known.insert(hash.clone());
        } else if !self.known.contains(&hash) {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        }
        self.data.borrow_mut().has_written = false;
        self.engine.run(&hash, keys, args)
    }

    fn hash_of(&mut self, text: &[u8]) -> String {
        if let Some((_, hash)) = self.hashes.iter().find(|(known, _)| known == text) {
            return hash.clone();
        }
        let hash = sha1_smol::Sha1::from(text).digest().to_string();
        self.hashes.push((text.to_vec(), hash.clone()));
        hash
    }

    fn pop_or_block(&mut self, id: ConnectionId, words: &[Vec<u8>], now: u64) -> Option<Reply> {
        let (timeout, lists) = words.split_last()?;
        let seconds = String::from_utf8_lossy(timeout).parse().unwrap_or(f64::NAN);
        if !seconds.is_finite() {
            return Some(Reply::error("ERR timeout is not a float or out of range"));
        }
        if seconds < 0.0 {
            return Some(Reply::error("ERR timeout is negative"));
        }
        for list in lists {
            match self.data.borrow_mut().store().pop_first(list) {
                Ok(Some(element)) => return Some(Reply::bulks([list.clone(), element])),
                Ok(None) => {}
                Err(error) => return Some(Reply::Error(error)),
            }
        }
        // To the next ms, as Redis does.
        let until = (seconds > 0.0).then(|| now + (seconds * 1e3).ceil() as u64 * 1000);
        self.block(id, BlockedOn::Lists(lists.to_vec()), until);
        None
    }

    fn read_or_block(&mut self, id: ConnectionId, words: &[Vec<u8>], now: u64) -> Option<Reply> {
        let read = match self.data.borrow_mut().store().parse_read(words) {
            Ok(read) => read,
            Err(error) => return Some(Reply::Error(error)),
        };
        let entries = self.data.borrow_mut().store().newer_entries(&read);
        let Some(ms) = read.blocks_ms.filter(|_| entries.is_none()) else {
            return Some(entries.unwrap_or(Reply::NilArray));
        };
        self.block(id, BlockedOn::Stream(read), (ms > 0).then(|| now + ms * 1000));
        None
    }

    fn block(&mut self, id: ConnectionId, on: BlockedOn, until: Option<u64>) {
        self.blocked_count += 1;
        if let Some(client) = self.clients.get_mut(&id) {
            client.blocked = Some(Blocked { on, until, order: self.blocked_count });
        }
    }

    fn unblock(&mut self, id: ConnectionId, reply: Reply, now: u64, outputs: &mut Vec<Output>) {
        if let Some(client) = self.clients.get_mut(&id) {
            (client.blocked, client.used_at) = (None, now);
        }
        send(outputs, id, &reply);
        let command = vec![b"(blocked)".to_vec()];
        self.executed.push(Executed { connection: id, command, reply: Some(reply), changes: Vec::new() });
        self.unblocked.push_back(id);
    }

    /// Keys have got elements: clients that wait for them get them, in the order in which they
    /// blocked.
    fn serve_blocked(&mut self, now: u64, outputs: &mut Vec<Output>) {
        let pushed: Vec<(u32, Vec<u8>)> = {
            let mut data = self.data.borrow_mut();
            let take = |(number, store): (&u32, &mut store::Store)| {
                std::mem::take(&mut store.pushed).into_iter().map(|key| (*number, key)).collect()
            };
            data.databases.iter_mut().flat_map::<Vec<_>, _>(take).collect()
        };
        for (database, key) in pushed {
            for id in self.blocked_on(database, &key) {
                if let Some(reply) = self.reply_to_blocked(id, &key) {
                    if self.is_closed_with_reply(id, now) {
                        self.clients.remove(&id);
                        outputs.push(Output::Close(id));
                    } else {
                        self.unblock(id, reply, now, outputs);
                    }
                }
            }
        }
    }

    /// A client that has just been unblocked counts as idle since it blocked. If Redis looks for idle
    /// clients before it sends the reply, the element is lost with the connection.
    fn is_closed_with_reply(&self, id: ConnectionId, now: u64) -> bool {
        let is_idle = self.idle_limit_us.is_some_and(|limit| self.clients[&id].used_at + limit <= now);
        is_idle && Dice::new(now, id).percent(20)
    }

    /// The clients that wait for this key, in order.
    fn blocked_on(&self, database: u32, key: &[u8]) -> Vec<ConnectionId> {
        let order = |client: &Client| {
            let blocked = client.blocked.as_ref().filter(|_| client.database == database)?;
            blocked.on.includes(key).then_some(blocked.order)
        };
        let found = self.clients.iter().filter_map(|(id, client)| Some((order(client)?, *id)));
        found.collect::<BTreeMap<u64, ConnectionId>>().into_values().collect()
    }

    fn reply_to_blocked(&self, id: ConnectionId, key: &[u8]) -> Option<Reply> {
        let client = self.clients.get(&id)?;
        let mut data = self.data.borrow_mut();
        data.selected = client.database;
        match &client.blocked.as_ref()?.on {
            BlockedOn::Lists(_) => {
                let element = data.store().pop_first(key).ok()??;
                Some(Reply::bulks([key.to_vec(), element]))
            }
            BlockedOn::Stream(read) => data.store().newer_entries(read),
        }
    }
}

fn lower(hash: &[u8]) -> String {
    String::from_utf8_lossy(hash).to_ascii_lowercase()
}

fn send(outputs: &mut Vec<Output>, to: ConnectionId, reply: &Reply) {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    match outputs.last_mut() {
        Some(Output::Send(last, sent)) if *last == to => sent.append(&mut bytes),
        _ => outputs.push(Output::Send(to, bytes)),
    }
}
