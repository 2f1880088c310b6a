//! The virtual server beside a real one: the same random commands and scripts give the same replies
//! and leave the same data.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::dice::Dice;
use crate::real_server::RealServer;
use crate::server::data::Identity;
use crate::server::reply::Reply;
use crate::server::{Output, VirtualServer};

/// Remaining times, in ms, may differ by what a busy machine takes.
const TOLERANCE_MS: i64 = 5000;

type Command = Vec<Vec<u8>>;

/// Both servers, which get the same commands.
struct Pair {
    virtual_server: VirtualServer,
    real: BufReader<TcpStream>,
    _server: RealServer,
}

impl Pair {
    fn start() -> Self {
        let server = RealServer::start();
        let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
        let identity = Identity { run_id: "a".repeat(40), replication_id: "b".repeat(40), is_replica: false };
        let mut virtual_server = VirtualServer::new(identity, &[]);
        virtual_server.open(0, 0);
        Self { virtual_server, real: BufReader::new(stream), _server: server }
    }

    /// The real server's reply, and the virtual one's.
    fn execute(&mut self, command: &Command) -> (Reply, Reply) {
        let mut bytes = Vec::new();
        Reply::bulks(command.iter().cloned()).encode(&mut bytes);
        self.real.get_mut().write_all(&bytes).expect("the server reads");
        let outputs = self.virtual_server.receive(0, &bytes, 1_700_000_000_000_000);
        let [Output::Send(0, reply)] = &outputs[..] else { panic!("{command:?}: {outputs:?}") };
        (read_reply(&mut self.real), read_reply(&mut reply.as_slice()))
    }
}

fn read_reply(from: &mut impl BufRead) -> Reply {
    let mut line = String::new();
    from.read_line(&mut line).expect("a reply");
    let (kind, rest) = line.trim_end().split_at(1);
    match (kind, rest) {
        ("+", text) => Reply::Status(text.into()),
        ("-", text) => Reply::Error(text.into()),
        (":", number) => Reply::Int(number.parse().expect("a number")),
        ("$", "-1") => Reply::Nil,
        ("*", "-1") => Reply::NilArray,
        ("$", length) => {
            let mut bytes = vec![0; length.parse::<usize>().expect("a length") + 2];
            from.read_exact(&mut bytes).expect("the whole reply");
            bytes.truncate(bytes.len() - 2);
            Reply::Bulk(bytes)
        }
        ("*", count) => {
            Reply::Array((0..count.parse().expect("a count")).map(|_| read_reply(from)).collect())
        }
        _ => panic!("not a reply: {line:?}"),
    }
}

/// Errors of scripts end with a line number, and a remaining time goes on.
fn agree(command: &Command, real: &Reply, virtual_reply: &Reply) -> bool {
    match (real, virtual_reply) {
        (Reply::Error(real), Reply::Error(ours)) => {
            let text = |error: &str| error.split(" script: ").next().map(str::to_owned);
            text(real) == text(ours)
        }
        (Reply::Int(real), Reply::Int(ours)) if command[0] == b"PTTL" && *real > 0 => {
            (real - ours).abs() < TOLERANCE_MS
        }
        (Reply::Array(real), Reply::Array(ours)) if command[0] == b"HGETALL" => {
            let pairs = |flat: &[Reply]| {
                let mut pairs: Vec<String> = flat.chunks(2).map(|pair| format!("{pair:?}")).collect();
                pairs.sort();
                pairs
            };
            pairs(real) == pairs(ours)
        }
        (real, ours) => real == ours,
    }
}

/// A random command on a handful of keys.
fn random_command(dice: &mut Dice) -> Command {
    let key = dice.one_of(&["a", "b", "c", "d"]).to_string();
    let member = dice.one_of(&["x", "y", "z", "xy", "x 1", ""]).to_string();
    let score = dice.one_of(&["1", "2", "-3", "1700000000000000", "inf", "-inf"]).to_string();
    let bound = dice.one_of(&["1", "(1", "2", "-inf", "+inf", "(1700000000000000"]).to_string();
    let name = dice.one_of(&["-", "+", "[x", "(x", "[y", "[x 1"]).to_string();
    let other = dice.one_of(&["-", "+", "[z", "(z", "[xy", "nonsense"]).to_string();
    let index = dice.one_of(&["0", "1", "-1", "-2", "5"]).to_string();
    let last = dice.one_of(&["0", "1", "-1", "-3", "9"]).to_string();
    let words: Vec<String> = match dice.between(0, 29) {
        0 => vec!["SET".into(), key, member],
        1 => vec!["SET".into(), key, member, "PX".into(), "3600000".into()],
        2 => vec!["SET".into(), key, member, "NX".into()],
        3 => vec!["SET".into(), key, member, "KEEPTTL".into()],
        4 => vec!["GET".into(), key],
        5 => vec!["DEL".into(), key, "a".into()],
        6 => vec!["EXISTS".into(), key, "b".into(), "b".into()],
        7 => vec!["PEXPIRE".into(), key, dice.one_of(&["3600000", "0", "-5", "many"]).to_string()],
        8 => vec!["PTTL".into(), key],
        9 => vec!["PERSIST".into(), key],
        10 => vec!["RPUSH".into(), key, member],
        11 => vec!["LRANGE".into(), key, index, last],
        12 => vec!["HSET".into(), key, member, score],
        13 => vec!["HGET".into(), key, member],
        14 => vec!["HMGET".into(), key, member, "x".into()],
        15 => vec!["HGETALL".into(), key],
        16 => vec!["HDEL".into(), key, member, "x".into()],
        17 => vec!["HLEN".into(), key],
        18 => vec!["ZADD".into(), key, score, member],
        19 => vec!["ZREM".into(), key, member],
        20 => vec!["ZCOUNT".into(), key, bound, "+inf".into()],
        21 => vec!["ZSCORE".into(), key, member],
        22 => vec!["ZRANK".into(), key, member],
        23 => vec!["ZRANGE".into(), key, index, last, "WITHSCORES".into()],
        24 => vec![
            "ZRANGEBYSCORE".into(),
            key,
            "-inf".into(),
            bound,
            "WITHSCORES".into(),
            "LIMIT".into(),
            "0".into(),
            "2".into(),
        ],
        // A range of names has a meaning where all scores are the same.
        25 => vec!["ZLEXCOUNT".into(), "names".into(), name, other],
        26 => vec!["ZRANGEBYLEX".into(), "names".into(), name, other, "LIMIT".into(), "1".into(), "2".into()],
        27 => vec!["TYPE".into(), key],
        28 => vec!["ZREM".into(), "names".into(), member],
        _ => vec!["ZADD".into(), "names".into(), "0".into(), member],
    };
    words.into_iter().map(String::into_bytes).collect()
}

/// The same inside a script, whose conversions are part of what is compared.
fn as_script(command: &Command, dice: &mut Dice) -> Command {
    let body = dice.one_of(&[
        "return redis.call(unpack(ARGV))",
        "return redis.pcall(unpack(ARGV))",
        "local ok, reply = pcall(redis.call, unpack(ARGV)) return { ok, reply, tostring(ok) }",
        "local reply = redis.pcall(unpack(ARGV)) return type(reply)",
        "local reply = redis.pcall(unpack(ARGV)) return reply or 'nothing'",
    ]);
    let head = [b"EVAL".to_vec(), body.as_bytes().to_vec(), b"0".to_vec()];
    head.into_iter().chain(command.iter().cloned()).collect()
}

pub fn compare(seed: u64, commands: usize) {
    let (mut pair, mut dice) = (Pair::start(), Dice::new(seed, 0));
    for step in 0..commands {
        let plain = random_command(&mut dice);
        let is_ordered = plain[0] != b"HGETALL" && plain[0] != b"PTTL";
        let command = if is_ordered && dice.percent(30) { as_script(&plain, &mut dice) } else { plain };
        let (real, ours) = pair.execute(&command);
        let shown: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert!(
            agree(&command, &real, &ours),
            "seed {seed}, step {step}: {shown:?}\nreal {real:?}\nours {ours:?}"
        );
    }
}
