//! A module of src/lock/redis.

use std::fmt::Debug;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use socket2::SockAddr;

use super::connection::{Connection, Endpoint};
use super::longest_lease::LongestLease;
use super::node::Node;
use super::reply::{
    AcquireReply, BreakReply, CollectReply, ExtendReply, FollowUpReply, Granted, RaiseReply, ReleaseReply,
    Reply,
};
use super::requests::{Ask, Requests, Terms, Timing};
use super::resp::reply_length;
use super::script::Call;
use super::tally::Tally;
use super::{Claim, Keys, Server, WaiterId};
use crate::clock::BootTime;
use crate::fuzz::{SECRET, assert_printable, is_only_password, memory};
use crate::lock::{BackendError, Blocked, Problem};
use crate::{report, secrets};

const TIMING: Timing = Timing {
    ttl: Some(Duration::from_secs(30)),
    node_timeout: Duration::from_secs(1),
    quarantine: Duration::from_secs(30),
};

pub(crate) fn resp(data: &[u8]) {
    // Includes the scripts, of which several copies may be in transit.
    let bytes_allowed = 512 * 1024 + 256 * data.len();
    let replies = memory::at_most(bytes_allowed, || split(data));
    // The result is the same for any division into pieces.
    assert_eq!(memory::at_most(bytes_allowed, || received_in_pieces(data)), replies);
    let [in_pieces, at_once] = [pieces(data).collect(), vec![data]]
        .map(|pieces| memory::at_most(bytes_allowed, || outcomes_of_request(&pieces)));
    assert_eq!(in_pieces, at_once);
}

/// The replies in these bytes, and whether the rest is invalid.
fn split(mut bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut replies = Vec::new();
    loop {
        assert_each_cut_waits(bytes);
        match reply_length(bytes) {
            Ok(Some(length)) => {
                let (reply, rest) = bytes.split_at(length);
                // The parser of the redis crate finds the same end.
                assert!(redis::parse_redis_value(&reply[..length - 1]).is_err(), "{reply:?}");
                let _ = redis::parse_redis_value(reply);
                replies.push(reply.to_vec());
                bytes = rest;
            }
            Ok(None) => return (replies, false),
            Err(_) => return (replies, true),
        }
    }
}

/// While bytes are missing there is neither a reply nor an error; once there is one of them it
/// stays.
fn assert_each_cut_waits(bytes: &[u8]) {
    let outcome = |cut: usize| reply_length(&bytes[..cut]).map_err(drop);
    let last = outcome(bytes.len());
    if let Ok(Some(length)) = last {
        assert!((1..=bytes.len()).contains(&length));
        assert_eq!(outcome(length), last);
    }
    let is_early = |cut: usize| last.is_ok_and(|length| length.is_none_or(|length| cut < length));
    let mut is_decided = false;
    for cut in 0..bytes.len().min(256) {
        let outcome = outcome(cut);
        if is_early(cut) {
            assert_eq!(outcome, Ok(None), "{:?}", &bytes[..cut]);
        } else if is_decided || last.is_ok() {
            assert_eq!(outcome, last, "{:?}", &bytes[..cut]);
        }
        is_decided |= outcome != Ok(None);
    }
}

/// The first byte of each piece is its length.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(*data.first()?).clamp(1, data.len());
        let (piece, rest) = data.split_at(length);
        data = rest;
        Some(piece)
    })
}

/// A server that sends the input.
static SERVER: LazyLock<(String, UnixListener)> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("redlock-fuzz-{}.sock", std::process::id()));
    let path = path.into_os_string().into_string().expect("text");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    (path, listener)
});

fn accept() -> UnixStream {
    SERVER.1.accept().expect("a client").0
}

fn received_in_pieces(data: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut connection = Connection::default();
    let addresses = vec![SockAddr::unix(&SERVER.0).expect("an address")];
    connection.connect(Endpoint { addresses, security: None });
    let mut server = accept();
    let mut replies = Vec::new();
    for piece in pieces(data) {
        server.write_all(piece).expect("there is room");
        connection.advance();
        loop {
            match connection.next_reply() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
}

/// The results of a request if the server sends this, and then closes the connection.
fn outcomes_of_request(pieces: &[&[u8]]) -> Vec<String> {
    let server = Server::parse(&format!("unix://{}?pass={SECRET}", SERVER.0)).expect("a URL");
    let mut node = Node::new(server, TIMING.node_timeout);
    node.ask(acquire_call(1)).expect("sent");
    let mut server = accept();
    let mut outcomes = Vec::new();
    let mut read = |node: &mut Node| {
        while let Some(outcome) = node.reply::<AcquireReply>() {
            if let Err(error) = &outcome {
                assert_printable(&report::backend_error(error), true);
            }
            outcomes.push(format!("{outcome:?}"));
        }
    };
    for piece in pieces {
        if server.write_all(piece).is_err() {
            break;
        }
        read(&mut node);
    }
    drop(server);
    read(&mut node);
    assert!(!node.is_open(), "a closed connection is noticed");
    outcomes
}

fn acquire_call(keys: usize) -> Call {
    let requests = Requests::new(vec![Keys::new(&[], "lock", b"k"); keys], 1, TIMING);
    let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
    requests.acquire(claim, &Terms::default(), &Ask::Newcomer { proposed: 1 })
}

/// The first byte is the number of requested keys; then each line is a field.
pub(crate) fn replies(data: &[u8]) {
    let Some((&keys, fields)) = data.split_first() else { return };
    let keys = usize::from(keys % 3) + 1;
    let value = Value::Array(fields.split(|&b| b == b'\n').map(field).collect());
    let call = acquire_call(keys);
    let bytes_allowed = 4096 + 96 * data.len();
    memory::at_most(bytes_allowed, || {
        let _ = (checked::<ExtendReply>(&call, &value), checked::<CollectReply>(&call, &value));
        let _ = (checked::<FollowUpReply>(&call, &value), checked::<ReleaseReply>(&call, &value));
        if let Some(RaiseReply::Refused(tokens)) = checked(&call, &value) {
            assert_eq!(tokens.len(), keys);
        }
        let _ = checked::<BreakReply>(&call, &value);
    });
    if let Some(reply) = memory::at_most(bytes_allowed, || checked::<AcquireReply>(&call, &value)) {
        match &reply {
            AcquireReply::Granted(granted) => {
                assert_eq!(granted.fences.len(), keys);
                assert!(granted.slots.is_empty() || granted.slots.len() == keys);
                let again = checked::<AcquireReply>(&call, &written(granted)).expect("our own text");
                assert_eq!(format!("{again:?}"), format!("{reply:?}"));
            }
            AcquireReply::Refused(refusal) => assert_blocked(&refusal.blocked, keys),
            _ => {}
        }
        count(reply);
    }
}

/// A line that begins like a reply of another type has that type.
fn field(line: &[u8]) -> Value {
    let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
    match line.split_first() {
        Some((b':', number)) => Value::Int(text(number).parse().unwrap_or(i64::MIN)),
        Some((b'+', line)) => Value::SimpleString(text(line)),
        Some((b'~', [])) => Value::Nil,
        Some((b'*', line)) => Value::Array(vec![field(line)]),
        _ => Value::BulkString(line.to_vec()),
    }
}

fn checked<R: Reply + Debug>(call: &Call, value: &Value) -> Option<R> {
    match R::parse(call, value) {
        Ok(reply) => Some(reply),
        Err(problem) => {
            assert_problem(problem);
            None
        }
    }
}

fn assert_problem(problem: Problem) {
    let error = BackendError::new("redis://host:6379", problem);
    let _ = error.fault();
    assert_printable(&report::backend_error(&error), false);
}

fn assert_blocked(blocked: &Blocked, keys: usize) {
    assert!(blocked.key < keys, "{blocked:?}");
    assert_printable(&report::blocker(&blocked.by, |_| None), false);
}

/// As lua/ writes it.
fn written(granted: &Granted) -> Value {
    let joined = |numbers: Vec<String>| Value::BulkString(numbers.join(" ").into());
    let bound = &granted.memory.bound;
    let number = |number: u128| Value::BulkString(number.to_string().into());
    Value::Array(vec![
        Value::BulkString(b"granted".to_vec()),
        Value::BulkString(granted.run_id.clone()),
        joined(granted.fences.iter().map(u64::to_string).collect()),
        joined(granted.slots.iter().map(u32::to_string).collect()),
        number(granted.stamp.into()),
        number(granted.memory.known_for.as_millis()),
        joined([bound.longest, bound.raised_ago].map(|time| time.as_millis().to_string()).to_vec()),
    ])
}

/// One reply alone, and with two others missing.
fn count(reply: AcquireReply) {
    for servers in [1, 3] {
        let names = (0..servers).map(|at| format!("redis://host{at}:6379")).collect();
        let mut tally = Tally::new(names, LongestLease::new(TIMING.quarantine));
        tally.add_reply(0, BootTime::now(), Ok(reply.clone()));
        assert!(servers == 1 || !tally.has_majority(), "one of three");
        let late = |at: usize| BackendError::new(format!("redis://host{at}:6379"), Problem::TimedOut);
        let _ = tally.verdict(late);
    }
}

pub(crate) fn urls(data: &[u8]) {
    let Ok(url) = std::str::from_utf8(data) else { return };
    assert_printable(&secrets::without_passwords(url), is_only_password(url));
    // In a path the same word is not a password.
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let is_first =
        |(scheme, rest): (&str, &str)| is_scheme(scheme) && rest.starts_with(&format!(":{SECRET}@"));
    let is_secret = is_only_password(url) && url.split_once("://").is_some_and(is_first);
    // The url crate looks for international names in a host: about 40 bytes for each of its bytes.
    match memory::at_most(64 * 1024 + 128 * url.len(), || Server::parse(url)) {
        Err(message) => assert_printable(&message, url.contains(SECRET)),
        Ok(server) => {
            let shown = server.to_string();
            assert_eq!(format!("{server:?}"), shown);
            assert_printable(&shown, is_secret);
            for (step, command) in server.login() {
                let length = reply_length(&command).ok().flatten();
                assert_eq!(length, Some(command.len()), "{step} is one command");
            }
            // The displayed URL names the same server, without the password. It is for people: a
            // path is not encoded.
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/:._-[]".contains(&b);
            let Some(("redis" | "rediss" | "unix", address)) = shown.split_once("://") else {
                panic!("{shown:?}")
            };
            if !address.bytes().all(is_plain) {
                return;
            }
            let again = Server::parse(&shown).unwrap_or_else(|why| panic!("{shown:?}: {why}"));
            assert_eq!(again.order(), server.order(), "{shown:?}");
            assert!(!again.has_password());
        }
    }
}
