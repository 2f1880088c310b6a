//! A real server and a virtual one, which get the same commands at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::similar::{TOLERANCE_MS, similar};
use crate::real_server::RealServer;
use crate::server::data::Identity;
use crate::server::reply::{Command, Reply};
use crate::server::{ConnectionId, Output, VirtualServer};

/// A sequence is repeated at most this often because a reply took too long.
const REPETITIONS: usize = 10;

/// A fact that does not come true in this time never will.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Pair {
    pub real: RealServer,
    pub ours: VirtualServer,
    sockets: BTreeMap<ConnectionId, BufReader<TcpStream>>,
    /// Bytes that the virtual server has sent.
    received: BTreeMap<ConnectionId, Vec<u8>>,
    /// Connections that the virtual server has closed.
    closed: BTreeSet<ConnectionId>,
    /// To the real server, as a user that may do everything.
    admin: BufReader<TcpStream>,
    /// Number of replies that were compared.
    pub compared: usize,
    /// The longest time between a command and its reply: the clocks may differ by that much.
    pub longest_us: u64,
    /// When the last reply to [`Pair::execute`] arrived.
    replied_at: u64,
}

/// A word of a command that may differ, because it has a time or a token from an earlier reply.
#[derive(Clone, Debug)]
pub struct Each {
    pub real: Vec<u8>,
    pub ours: Vec<u8>,
}

impl Each {
    pub fn same(word: impl Into<Vec<u8>>) -> Self {
        let word = word.into();
        Self { real: word.clone(), ours: word }
    }
}

pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_micros()).expect("a clock before the year 500000")
}

pub fn command(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn encoded(command: &Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reply::bulks(command.iter().cloned()).encode(&mut bytes);
    bytes
}

fn connect(port: u16) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("a TCP option");
    BufReader::new(stream)
}

/// Polls until `fact` is true.
pub fn wait_until(what: &str, mut fact: impl FnMut() -> bool) -> Result<(), String> {
    let started = Instant::now();
    while !fact() {
        if started.elapsed() > PATIENCE {
            return Err(format!("not after {PATIENCE:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Pair {
    /// The virtual server has the real one's identity. Connection 0 is open.
    pub fn start(options: &[&str]) -> Self {
        let real = RealServer::start(options);
        let mut admin = connect(real.port);
        for words in
            [&["ACL", "SETUSER", "admin", "on", ">admin", "~*", "+@all"][..], &["AUTH", "admin", "admin"]]
        {
            assert_eq!(ask(&mut admin, &command(words)), Reply::ok(), "{words:?}");
        }
        let identity = Identity { run_id: String::new(), replication_id: String::new(), is_replica: false };
        let mut pair = Self {
            ours: VirtualServer::new(identity, &[]),
            sockets: BTreeMap::new(),
            received: BTreeMap::new(),
            closed: BTreeSet::new(),
            admin,
            compared: 0,
            longest_us: 0,
            replied_at: 0,
            real,
        };
        pair.copy_identity();
        pair.open(0);
        pair
    }

    /// Gives the virtual server the IDs and the role of the real one.
    pub fn copy_identity(&mut self) {
        let info = self.admin(&["INFO"]);
        let field = |name: &str| info_field(&info, name).unwrap_or_default();
        self.ours.data().identity = Identity {
            run_id: field("run_id"),
            replication_id: field("master_replid"),
            is_replica: field("role") == "slave",
        };
    }

    /// Repeats a failed sequence if a reply in it was late, because then the times of the two servers
    /// differ by more than the tolerance.
    pub fn without_stalls(
        &mut self,
        mut sequence: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        for _ in 0..REPETITIONS {
            self.longest_us = 0;
            let result = sequence(self);
            if result.is_ok() || u128::from(self.longest_us) * 2 < TOLERANCE_MS * 1000 {
                return result;
            }
        }
        Err("the machine is too slow".into())
    }

    /// Removes all data.
    pub fn flush(&mut self) {
        self.admin(&["FLUSHALL"]);
        self.ours.data().databases.clear();
    }

    pub fn open(&mut self, id: ConnectionId) {
        self.sockets.insert(id, connect(self.real.port));
        self.received.insert(id, Vec::new());
        self.ours.open(id, now_us());
    }

    /// The client closes its connection.
    pub fn close(&mut self, id: ConnectionId) {
        self.sockets.remove(&id);
        self.ours.close(id);
    }

    /// A command to the real server only.
    pub fn admin(&mut self, words: &[&str]) -> Reply {
        ask(&mut self.admin, &command(words))
    }

    /// Commands to the real server only, in one round trip.
    pub fn admin_all(&mut self, commands: &[Command]) -> Vec<Reply> {
        let bytes: Vec<u8> = commands.iter().flat_map(encoded).collect();
        self.admin.get_mut().write_all(&bytes).expect("the server reads");
        commands.iter().map(|_| read_reply(&mut self.admin).expect("a reply")).collect()
    }

    /// Waits until this many clients are blocked in the real server.
    pub fn wait_for_blocked(&mut self, count: usize) -> Result<(), String> {
        let wanted = count.to_string();
        wait_until(&format!("{count} blocked clients"), || {
            info_field(&self.admin(&["INFO", "clients"]), "blocked_clients").as_ref() == Some(&wanted)
        })
    }

    fn deliver(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(id, mut bytes) => self.received.entry(id).or_default().append(&mut bytes),
                Output::Close(id) => drop(self.closed.insert(id)),
            }
        }
    }

    /// Passes the time on to the virtual server.
    pub fn tick(&mut self) {
        let outputs = self.ours.tick(now_us());
        self.deliver(outputs);
    }

    /// Sends these commands at once, and reads nothing.
    pub fn send(&mut self, id: ConnectionId, commands: &[&[&str]]) {
        let bytes: Vec<u8> = commands.iter().flat_map(|words| encoded(&command(words))).collect();
        self.send_bytes(id, &bytes, &bytes);
    }

    fn send_bytes(&mut self, id: ConnectionId, real: &[u8], ours: &[u8]) {
        let socket = self.sockets.get_mut(&id).expect("an open connection");
        socket.get_mut().write_all(real).expect("the server reads");
        let outputs = self.ours.receive(id, ours, now_us());
        self.deliver(outputs);
    }

    /// The next reply of each server.
    pub fn replies(&mut self, id: ConnectionId) -> Result<(Reply, Reply), String> {
        let real = read_reply(self.sockets.get_mut(&id).expect("an open connection"))
            .map_err(|error| format!("connection {id}: the real server does not reply: {error}"))?;
        self.tick();
        let received = self.received.entry(id).or_default();
        let mut unread = received.as_slice();
        let ours = read_reply(&mut unread)
            .map_err(|_| format!("connection {id}: real {real:?}, the virtual server does not reply"))?;
        let read = received.len() - unread.len();
        received.drain(..read);
        self.compared += 1;
        Ok((real, ours))
    }

    /// The next replies must be the same.
    pub fn same_reply(&mut self, id: ConnectionId) -> Result<Reply, String> {
        let (real, ours) = self.replies(id)?;
        if similar(&real, &ours) { Ok(real) } else { Err(format!("real {real:?}\nours {ours:?}")) }
    }

    /// A command, whose replies must be the same.
    pub fn same(&mut self, id: ConnectionId, words: &[&str]) -> Result<Reply, String> {
        self.send(id, &[words]);
        self.same_reply(id).map_err(|difference| format!("{words:?}: {difference}"))
    }

    /// As [`Pair::same`], and this is the reply.
    pub fn expect(&mut self, id: ConnectionId, words: &[&str], expected: &str) -> Result<(), String> {
        let reply = self.same(id, words)?;
        let is_expected = match &reply {
            Reply::Error(text) | Reply::Status(text) => text.starts_with(expected),
            other => format!("{other:?}") == expected,
        };
        if is_expected { Ok(()) } else { Err(format!("{words:?}: {reply:?} instead of {expected}")) }
    }

    /// Neither server has sent anything that was not read.
    pub fn nothing_arrives(&mut self, id: ConnectionId) -> Result<(), String> {
        let socket = self.sockets.get_mut(&id).expect("an open connection");
        let is_real_quiet = socket.buffer().is_empty() && {
            socket.get_mut().set_nonblocking(true).expect("a socket");
            let result = socket.get_mut().peek(&mut [0]);
            socket.get_mut().set_nonblocking(false).expect("a socket");
            result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let ours = self.received.get(&id).map_or(0, Vec::len);
        let is_ours_quiet = ours == 0 && !self.closed.contains(&id);
        if is_real_quiet && is_ours_quiet {
            Ok(())
        } else {
            Err(format!("connection {id}: quiet: real {is_real_quiet}, ours {is_ours_quiet}"))
        }
    }

    /// Whether the virtual server has sent something that was not read.
    pub fn has_unread(&self, id: ConnectionId) -> bool {
        self.received.get(&id).is_some_and(|bytes| !bytes.is_empty())
    }

    pub fn has_real_closed(&mut self, id: ConnectionId) -> bool {
        let socket = self.sockets.get_mut(&id).expect("an open connection").get_mut();
        socket.set_nonblocking(true).expect("a socket");
        let end = socket.peek(&mut [0]);
        socket.set_nonblocking(false).expect("a socket");
        matches!(end, Ok(0))
    }

    /// Both servers have closed the connection, or will.
    pub fn both_close(&mut self, id: ConnectionId) -> Result<(), String> {
        let socket = self.sockets.get_mut(&id).expect("an open connection");
        let end = socket.fill_buf().map(<[u8]>::len);
        if !matches!(end, Ok(0)) {
            return Err(format!("connection {id}: the real server does not close it: {end:?}"));
        }
        wait_until("the virtual server closes a connection", || {
            self.tick();
            self.closed.contains(&id)
        })
    }

    /// Waits until the ms of the last reply is over, so that times of two commands are never equal
    /// on one server only.
    pub fn next_ms(&self) {
        while now_us() / 1000 <= self.replied_at / 1000 {
            std::thread::sleep(Duration::from_micros(1000 - self.replied_at % 1000));
        }
    }

    /// A command of which words may differ; returns the real reply, then the virtual one.
    pub fn execute(&mut self, id: ConnectionId, words: &[Each]) -> Result<(Reply, Reply), String> {
        let real = encoded(&words.iter().map(|word| word.real.clone()).collect());
        let ours = encoded(&words.iter().map(|word| word.ours.clone()).collect());
        let socket = self.sockets.get_mut(&id).expect("an open connection");
        let began = now_us();
        socket.get_mut().write_all(&real).map_err(|error| error.to_string())?;
        socket.fill_buf().map_err(|error| error.to_string())?;
        self.replied_at = now_us();
        let took = self.replied_at - began;
        self.longest_us = self.longest_us.max(took);
        let outputs = self.ours.receive(id, &ours, began + took / 2);
        self.deliver(outputs);
        self.replies(id)
    }
}

fn ask(socket: &mut BufReader<TcpStream>, command: &Command) -> Reply {
    socket.get_mut().write_all(&encoded(command)).expect("the server reads");
    read_reply(socket).expect("a reply")
}

/// A field in the reply to INFO.
pub fn info_field(info: &Reply, name: &str) -> Option<String> {
    let Reply::Bulk(text) = info else { return None };
    let text = String::from_utf8_lossy(text);
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| *field == name).map(|(_, value)| value.trim_end().to_owned()).next()
}

fn read_reply(from: &mut impl BufRead) -> std::io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end_matches(['\r', '\n']).split_at(1);
    Ok(match (kind, rest) {
        ("+", text) => Reply::Status(text.into()),
        ("-", text) => Reply::Error(text.into()),
        (":", number) => Reply::Int(number.parse().expect("a number")),
        ("$", "-1") => Reply::Nil,
        ("*", "-1") => Reply::NilArray,
        ("$", length) => {
            let mut bytes = vec![0; length.parse::<usize>().expect("a length") + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Reply::Bulk(bytes)
        }
        ("*", count) => {
            let items = (0..count.parse().expect("a count")).map(|_| read_reply(from));
            Reply::Array(items.collect::<std::io::Result<_>>()?)
        }
        _ => panic!("not a reply: {line:?}"),
    })
}
