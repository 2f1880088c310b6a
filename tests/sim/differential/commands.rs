//! Random commands, also inside small scripts.

use super::Compared;
use super::pair::{Each, Pair};
use super::scripts::compare_data;
use super::similar::similar;
use crate::dice::Dice;
use crate::server::commands::{ALL, MISSING};
use crate::server::reply::{Command, Reply};

const SEEDS: u64 = 10;
const STEPS: usize = 2000;

/// Redis returns the fields of a hash in any order, and the IDs of entries have the time.
fn agree(command: &Command, real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Array(real), Reply::Array(ours)) if command[0] == b"HGETALL" => {
            let pairs = |flat: &[Reply]| {
                let mut pairs: Vec<String> = flat.chunks(2).map(|pair| format!("{pair:?}")).collect();
                pairs.sort();
                pairs
            };
            pairs(real) == pairs(ours)
        }
        (real, ours) if has_times(command) => similar(real, ours),
        (Reply::Error(_), Reply::Error(_)) => similar(real, ours),
        (real, ours) => real == ours,
    }
}

fn has_times(command: &Command) -> bool {
    command.iter().any(|word| matches!(word.as_slice(), b"PTTL" | b"XADD" | b"XREVRANGE"))
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
    let words: Vec<String> = match dice.between(0, 33) {
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
        29 => vec!["XADD".into(), key, "MAXLEN".into(), "~".into(), "9".into(), "*".into(), member, score],
        30 => vec!["XREVRANGE".into(), key, "+".into(), "-".into(), "COUNT".into(), last],
        31 => vec!["LPOP".into(), key],
        32 => vec!["XLEN".into(), key],
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

/// Words are missing, or there are too many.
fn with_wrong_length(command: &mut Command, dice: &mut Dice) {
    if dice.percent(50) {
        command.truncate(usize::try_from(dice.between(1, 3)).expect("small"));
    } else if ALL.iter().any(|kind| kind.name.as_bytes() == command[0] && kind.arity > 0) {
        command.push(b"extra".to_vec());
    }
}

/// The table of commands is that of the real server.
fn compare_table(pair: &mut Pair) -> Result<(), String> {
    let info = |pair: &mut Pair, name: &str| match pair.admin(&["COMMAND", "INFO", name]) {
        Reply::Array(mut one) => one.remove(0),
        other => other,
    };
    for kind in &ALL {
        let real = info(pair, kind.name);
        let Reply::Array(fields) = &real else { return Err(format!("{}: {real:?}", kind.name)) };
        let has = |flag: &str| match &fields[2] {
            Reply::Array(flags) => flags.contains(&Reply::Status(flag.into())),
            _ => false,
        };
        // The scripts' subcommands have flags of their own.
        let is_for_clients = kind.name == "SCRIPT" || has("noscript") == kind.is_for_clients;
        let flags = (has("write"), has("denyoom")) == (kind.writes, kind.grows) && is_for_clients;
        if fields[1] != Reply::Int(kind.arity) || !flags {
            return Err(format!("{} is {real:?}", kind.name));
        }
    }
    let Reply::Array(names) = pair.admin(&["COMMAND", "LIST"]) else { return Err("COMMAND LIST".into()) };
    for name in names {
        let Reply::Bulk(name) = name else { continue };
        let name = String::from_utf8_lossy(&name).into_owned();
        let is_ours = ALL.iter().any(|kind| kind.name.eq_ignore_ascii_case(&name));
        let is_missing = MISSING.split_whitespace().any(|word| word == name);
        if !name.contains('|') && is_ours == is_missing {
            return Err(format!("{name}: here {is_ours}, listed as missing {is_missing}"));
        }
    }
    Ok(())
}

pub fn compare() -> Compared {
    let mut pair = Pair::start(&[]);
    compare_table(&mut pair)?;
    for seed in 1..=SEEDS {
        pair.without_stalls(|pair| sequence(pair, seed))?;
    }
    Ok(format!("{} commands", pair.compared))
}

fn sequence(pair: &mut Pair, seed: u64) -> Result<(), String> {
    pair.flush();
    let mut dice = Dice::new(seed, 0);
    for step in 0..STEPS {
        let mut plain = random_command(&mut dice);
        if dice.percent(3) {
            with_wrong_length(&mut plain, &mut dice);
        }
        // A script sees the order of the fields.
        let is_ordered = plain[0] != b"HGETALL";
        let command = if is_ordered && dice.percent(30) { as_script(&plain, &mut dice) } else { plain };
        let words: Vec<Each> = command.iter().cloned().map(Each::same).collect();
        let (real, ours) = pair.execute(0, &words)?;
        if !agree(&command, &real, &ours) {
            let shown: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
            return Err(format!("seed {seed}, step {step}: {shown:?}\nreal {real:?}\nours {ours:?}"));
        }
    }
    compare_data(pair).map_err(|difference| format!("seed {seed}: {difference}"))
}
