//! One server: where it is, how it is asked, what its answers mean.
//!
//! The only file that names the redis crate. A request is sent without waiting ([`Node::ask`]) and
//! answered later ([`Node::answer`]), so that one thread can have several servers at work.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::{ConnectionAddr, IntoConnectionInfo, Value};
use socket2::SockAddr;

use super::answer::{Answer, interpret};
use super::fault::{self, Fault, NodeError};
use super::link::Link;
use super::resolve::{Resolution, literal, resolve};

/// A script's text and the name under which servers remember it.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    hash: &'static str,
}

// ACQUIRE, BREAK, EXTEND, HEAL, RAISE and RELEASE, made by build.rs from lua/.
include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// One request: one round trip.
#[derive(Clone, Debug)]
pub enum Call {
    Script {
        script: &'static Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    },
    /// Block until something is pushed to this list, or for so long.
    Nap {
        list: Vec<u8>,
        at_most: Duration,
    },
}

impl Call {
    fn packed(&self) -> Vec<u8> {
        match self {
            Self::Script { script, keys, args } => evaluate("EVALSHA", script.hash, keys, args),
            Self::Nap { list, at_most } => redis::cmd("BLPOP")
                .arg(list)
                .arg(format!("{:.3}", at_most.as_secs_f64()))
                .get_packed_command(),
        }
    }

    /// With the script's whole text, for a server that does not know it (any more).
    fn packed_in_full(&self) -> Option<Vec<u8>> {
        match self {
            Self::Script { script, keys, args } => Some(evaluate("EVAL", script.text, keys, args)),
            Self::Nap { .. } => None,
        }
    }
}

fn evaluate(command: &str, script: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Vec<u8> {
    redis::cmd(command).arg(script).arg(keys.len()).arg(keys).arg(args).get_packed_command()
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Where a server is and how to log in.
#[derive(Clone)]
pub struct Server {
    target: Target,
    db: i64,
    username: Option<String>,
    password: Option<String>,
}

impl Server {
    /// The error never repeats the URL: it may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            return Err("TLS (rediss://) is not supported yet".into());
        }
        let info = url.into_connection_info().map_err(|_| {
            "not a server's URL: expected redis://[user:password@]host[:port][/db] or unix:///path[?db=N]"
        })?;
        let target = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Target::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::Unix(path) => Target::Unix(path.clone()),
            _ => return Err("this kind of address is not supported".into()),
        };
        let login = info.redis_settings();
        Ok(Self {
            target,
            db: login.db(),
            username: login.username().map(Into::into),
            password: login.password().map(Into::into),
        })
    }

    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Where to connect, if nobody need be asked for it.
    fn address(&self) -> io::Result<Option<SockAddr>> {
        match &self.target {
            Target::Tcp { host, port } => Ok(literal(host, *port)),
            Target::Unix(path) => SockAddr::unix(path).map(Some),
        }
    }

    /// AUTH and SELECT travel together: one round trip.
    fn login(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut steps = Vec::new();
        if let Some(password) = &self.password {
            let auth = redis::cmd("AUTH").arg(&self.username).arg(password).get_packed_command();
            steps.push(("AUTH", auth));
        }
        if self.db != 0 {
            steps.push(("SELECT", redis::cmd("SELECT").arg(self.db).get_packed_command()));
        }
        steps
    }
}

/// Without user and password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Tcp { host, port } if host.contains(':') => write!(f, "redis://[{host}]:{port}")?,
            Target::Tcp { host, port } => write!(f, "redis://{host}:{port}")?,
            Target::Unix(path) => write!(f, "unix://{}", path.display())?,
        }
        match (&self.target, self.db) {
            (_, 0) => Ok(()),
            (Target::Tcp { .. }, db) => write!(f, "/{db}"),
            (Target::Unix(_), db) => write!(f, "?db={db}"),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the next reply on the link belongs to.
#[derive(Debug)]
enum Expected {
    Login(&'static str),
    Answer(Call),
    /// Nobody waits for this one any more.
    Unwanted,
}

#[derive(Debug)]
pub struct Node {
    server: Server,
    link: Option<Link>,
    /// The server's name is being looked up. Kept when a link is given up, so that there is one at a time.
    resolution: Option<Resolution>,
    expected: VecDeque<Expected>,
    /// Not sent before we are logged in: it would be carried out as somebody else, or in another database.
    held_back: Vec<u8>,
    /// A request went out on a link that is gone: it may yet be carried out.
    loose_end: bool,
    /// An earlier link was open.
    reached: bool,
    /// How many never were: the next one starts with another of the host's addresses.
    silent_links: usize,
}

impl Node {
    pub fn new(server: Server) -> Self {
        Self {
            server,
            link: None,
            resolution: None,
            expected: VecDeque::new(),
            held_back: Vec::new(),
            loose_end: false,
            reached: false,
            silent_links: 0,
        }
    }

    /// Send a request, behind whatever is still under way on the link, connecting if need be. An
    /// earlier request's answer is then no longer wanted, but the order is kept: what the server does
    /// late it does before this.
    pub fn ask(&mut self, call: Call) -> Result<(), NodeError> {
        if self.link.is_none() {
            self.link = Some(self.open_link().map_err(|e| self.unreachable(&e))?);
        }
        for earlier in &mut self.expected {
            if matches!(earlier, Expected::Answer(_)) {
                *earlier = Expected::Unwanted;
            }
        }
        // Behind a request without an answer we may not be there to hear that a script is unknown.
        let unheard = self.loose_end || self.has_unanswered();
        let whole = if unheard { call.packed_in_full() } else { None };
        let bytes = whole.unwrap_or_else(|| call.packed());
        if self.is_logging_in() {
            self.held_back.extend(bytes);
        } else if let Some(link) = &mut self.link {
            link.send(&bytes);
        }
        self.expected.push_back(Expected::Answer(call));
        Ok(())
    }

    /// Open the way to the server, if there is none. What goes wrong is told when something is asked.
    pub fn connect(&mut self) {
        if self.link.is_none() {
            self.link = self.open_link().ok();
        }
    }

    fn is_logging_in(&self) -> bool {
        matches!(self.expected.front(), Some(Expected::Login(_)))
    }

    fn open_link(&mut self) -> io::Result<Link> {
        let mut link = Link::default();
        for (step, bytes) in self.server.login() {
            link.send(&bytes);
            self.expected.push_back(Expected::Login(step));
        }
        match (self.server.address()?, &self.server.target) {
            (Some(address), _) => link.connect(vec![address]),
            (None, Target::Tcp { host, port }) if self.resolution.is_none() => {
                self.resolution = Some(resolve(host, *port)?);
            }
            (None, _) => {}
        }
        Ok(link)
    }

    /// A script of which we do not know whether it was, or will be, carried out.
    fn has_unanswered(&self) -> bool {
        let is_script = |expected: &Expected| {
            matches!(expected, Expected::Answer(Call::Script { .. }) | Expected::Unwanted)
        };
        self.expected.iter().any(is_script)
    }

    /// Can the server be asked without starting a thread?
    pub fn has_address(&self) -> bool {
        self.server.address().is_ok_and(|address| address.is_some())
    }

    /// Is the server blocked in a nap, deaf to anything sent behind it?
    pub fn is_napping(&self) -> bool {
        matches!(self.expected.back(), Some(Expected::Answer(Call::Nap { .. })))
    }

    pub fn has_loose_end(&self) -> bool {
        self.loose_end
    }

    /// Is everything answered that was asked, so that the next question will be answered soon, too?
    pub fn is_attentive(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_open) && self.expected.is_empty()
    }

    /// May a request of ours have reached the server?
    pub fn may_know_us(&self) -> bool {
        self.loose_end || self.reached || self.link.as_ref().is_some_and(Link::is_open)
    }

    pub fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let resolving = || Some((self.resolution.as_ref()?.bell(), PollFlags::POLLIN));
        self.link.as_ref().and_then(Link::interest).or_else(resolving)
    }

    /// Take what has arrived. `None`: the answer is not there yet.
    pub fn answer(&mut self) -> Option<Result<Answer, NodeError>> {
        let link = self.link.as_mut()?;
        if let Some(found) = self.resolution.as_ref().and_then(Resolution::answer) {
            self.resolution = None;
            match found {
                Ok(mut addresses) => {
                    let first = self.silent_links % addresses.len().max(1);
                    addresses.rotate_left(first);
                    link.connect(addresses);
                }
                Err(e) => {
                    self.hang_up();
                    return Some(Err(self.unreachable(&e)));
                }
            }
        }
        link.advance();
        loop {
            let reply = match self.link.as_mut()?.next_reply() {
                Ok(reply) => reply?,
                Err(e) => {
                    self.hang_up();
                    return Some(Err(self.unreachable(&e)));
                }
            };
            let value = redis::parse_redis_value(&reply);
            match (self.expected.pop_front(), value) {
                (_, Err(e)) => {
                    self.hang_up();
                    return Some(Err(self.error(Fault::Unavailable, format!("unreadable answer: {e}"))));
                }
                (Some(Expected::Unwanted), Ok(_)) => {}
                (Some(Expected::Login(step)), Ok(Value::ServerError(e))) => {
                    let error = self.explain(e.code(), e.details(), step);
                    self.hang_up();
                    return Some(Err(error));
                }
                (Some(Expected::Login(_)), Ok(_)) => {
                    if let (false, Some(link)) = (self.is_logging_in(), &mut self.link) {
                        link.send(&std::mem::take(&mut self.held_back));
                    }
                }
                (Some(Expected::Answer(call)), Ok(Value::ServerError(e))) => {
                    match (e.code(), call.packed_in_full(), &mut self.link) {
                        ("NOSCRIPT", Some(whole), Some(link)) => {
                            link.send(&whole);
                            self.expected.push_back(Expected::Answer(call));
                        }
                        _ => return Some(Err(self.explain(e.code(), e.details(), "the lock script"))),
                    }
                }
                (Some(Expected::Answer(Call::Nap { .. })), Ok(_)) => return Some(Ok(Answer::Awake)),
                (Some(Expected::Answer(_)), Ok(value)) => {
                    let meaning = words(&value).and_then(|words| interpret(&words));
                    if let Some(Answer::Unfit(why)) = meaning {
                        return Some(Err(self.error(Fault::Unfit, why)));
                    }
                    return Some(
                        meaning
                            .ok_or_else(|| self.error(Fault::Unfit, "unknown answer to our script".into())),
                    );
                }
                // A word nobody asked for: the server turns us away (too many clients, protected mode).
                (None, Ok(Value::ServerError(e))) => {
                    let error = self.explain(e.code(), e.details(), "connecting");
                    self.hang_up();
                    return Some(Err(error));
                }
                (None, Ok(_)) => {}
            }
        }
    }

    /// Answers that have come meanwhile and that nobody waits for.
    pub fn forget_answers(&mut self) {
        while self.answer().is_some() {}
    }

    /// Drop the link. What was sent on it may still be carried out.
    pub fn hang_up(&mut self) {
        // What is held back, or never got through, the server does not know of.
        let was_open = self.link.as_ref().is_some_and(Link::is_open) && !self.is_logging_in();
        self.reached |= was_open;
        self.silent_links += usize::from(self.link.is_some() && !was_open);
        self.loose_end |= was_open && self.has_unanswered();
        self.expected.clear();
        self.held_back.clear();
        self.link = None;
    }

    pub fn is_being_looked_up(&self) -> bool {
        self.resolution.is_some()
    }

    pub fn name(&self) -> String {
        self.server.to_string()
    }

    pub fn timed_out(&self) -> NodeError {
        self.error(Fault::Unavailable, "no answer in time (is it stopped, or is the network?)".into())
    }

    pub fn error(&self, fault: Fault, text: String) -> NodeError {
        NodeError { fault, node: self.server.to_string(), text }
    }

    fn unreachable(&self, error: &io::Error) -> NodeError {
        let text = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused (is the server running?)".into(),
            io::ErrorKind::NotFound if matches!(self.server.target, Target::Unix(_)) => {
                "no such socket (is the server running?)".into()
            }
            io::ErrorKind::PermissionDenied => "no permission to open the socket".into(),
            _ => error.to_string(),
        };
        self.error(Fault::Unavailable, text)
    }

    /// A server's own error, sorted, with what to do about it.
    fn explain(&self, code: &str, details: Option<&str>, during: &str) -> NodeError {
        let (fault, text) = fault::explain(code, details, during);
        self.error(fault, text)
    }
}

/// A script's answer: words in a row, or a single one.
fn words(value: &Value) -> Option<Vec<Vec<u8>>> {
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        single => Some(vec![text(single)?]),
    }
}

fn text(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_never_shows_its_password() {
        for (url, shown) in [
            ("redis://me:secret@db.example:7000/3", "redis://db.example:7000/3"),
            ("redis://:secret@[::1]", "redis://[::1]:6379"),
            ("unix:///run/r.sock?db=2&pass=secret", "unix:///run/r.sock?db=2"),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(format!("{server:?}"), shown);
            assert_eq!(server.password(), Some("secret"));
        }
    }

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in
            ["", "host:6379", "http://:secret@h", "redis://", "redis://:secret@h/x", "rediss://:secret@h"]
        {
            let error = Server::parse(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
