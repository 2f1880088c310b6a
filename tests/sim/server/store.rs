//! The data of a server, and the commands on it that the scripts and the client use.
//!
//! Written from the documented behaviour of Redis 7; `differential.rs` compares it with a real
//! server, command by command.

use std::collections::{BTreeMap, VecDeque};

use super::reply::Reply;

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Bytes),
    List(VecDeque<Bytes>),
    /// In the order of insertion, as a small hash of Redis.
    Hash(Vec<(Bytes, Bytes)>),
    Sorted(SortedSet),
    Stream(Stream),
}

/// Members by score, then by bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SortedSet(Vec<(f64, Bytes)>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    entries: Vec<((u64, u64), Vec<Bytes>)>,
    last: (u64, u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub value: Value,
    /// By this server's clock, in ms.
    pub expires: Option<u64>,
}

/// The keys of one database.
#[derive(Clone, Debug, Default)]
pub struct Store {
    keys: BTreeMap<Bytes, Entry>,
    /// Lists that were pushed to since it was last asked.
    pub pushed: Vec<Bytes>,
    /// When expired keys were last removed.
    expired_at: u64,
}

type Outcome = Result<Reply, String>;

impl SortedSet {
    fn position(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(_, other)| other == member)
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        self.position(member).map(|at| self.0[at].0)
    }

    fn insert(&mut self, score: f64, member: &[u8]) -> bool {
        let is_new = !self.remove(member);
        let at = self
            .0
            .partition_point(|(other, name)| *other < score || (*other == score && name.as_slice() < member));
        self.0.insert(at, (score, member.to_vec()));
        is_new
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        self.position(member).map(|at| self.0.remove(at)).is_some()
    }
}

/// A bound of a range of scores: `5`, `(5`, `-inf`, `+inf`.
fn score_bound(text: &[u8]) -> Result<(f64, bool), String> {
    let (is_exclusive, number) = match text.strip_prefix(b"(") {
        Some(number) => (true, number),
        None => (false, text),
    };
    let number = parse_float(number).ok_or("ERR min or max is not a float")?;
    Ok((number, is_exclusive))
}

fn is_between(score: f64, from: (f64, bool), to: (f64, bool)) -> bool {
    let above = if from.1 { score > from.0 } else { score >= from.0 };
    let below = if to.1 { score < to.0 } else { score <= to.0 };
    above && below
}

/// A bound of a range of names: `[name`, `(name`, `-`, `+`.
enum NameBound<'a> {
    First,
    Last,
    Name { name: &'a [u8], is_exclusive: bool },
}

fn name_bound(text: &[u8]) -> Result<NameBound<'_>, String> {
    match text.split_first() {
        Some((b'-', [])) => Ok(NameBound::First),
        Some((b'+', [])) => Ok(NameBound::Last),
        Some((b'[', name)) => Ok(NameBound::Name { name, is_exclusive: false }),
        Some((b'(', name)) => Ok(NameBound::Name { name, is_exclusive: true }),
        _ => Err("ERR min or max not valid string range item".into()),
    }
}

fn is_between_names(member: &[u8], from: &NameBound<'_>, to: &NameBound<'_>) -> bool {
    let above = match *from {
        NameBound::First => true,
        NameBound::Last => false,
        NameBound::Name { name, is_exclusive } => member > name || (member == name && !is_exclusive),
    };
    let below = match *to {
        NameBound::First => false,
        NameBound::Last => true,
        NameBound::Name { name, is_exclusive } => member < name || (member == name && !is_exclusive),
    };
    above && below
}

fn parse_float(text: &[u8]) -> Option<f64> {
    match text {
        b"-inf" => Some(f64::NEG_INFINITY),
        b"inf" | b"+inf" => Some(f64::INFINITY),
        text => std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| !number.is_nan()),
    }
}

pub fn format_score(score: f64) -> Bytes {
    if score.is_infinite() {
        return if score > 0.0 { b"inf".to_vec() } else { b"-inf".to_vec() };
    }
    assert!(score.fract() == 0.0 && score.abs() < 1e17, "{score}: the scripts use whole numbers");
    format!("{score:.0}").into_bytes()
}

fn parse_int(text: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NOT_AN_INTEGER.into())
}

/// The elements of `length` between two indices, of which negative ones count from the end.
fn index_range(length: usize, from: &[u8], to: &[u8]) -> Result<std::ops::Range<usize>, String> {
    let length = i64::try_from(length).expect("a small collection");
    let resolve = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let from = resolve(parse_int(from)?);
    let to = parse_int(to)?;
    let to = if to < 0 { length + to } else { to.min(length - 1) };
    let range = if from > to || from >= length { 0..0 } else { from..to + 1 };
    Ok(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Options such as WITHSCORES and LIMIT behind a range.
struct RangeOptions {
    with_scores: bool,
    offset: usize,
    count: usize,
}

fn range_options(mut words: &[Bytes]) -> Result<RangeOptions, String> {
    let mut options = RangeOptions { with_scores: false, offset: 0, count: usize::MAX };
    while let Some(word) = words.first() {
        if is(word, "WITHSCORES") {
            options.with_scores = true;
            words = &words[1..];
        } else if is(word, "LIMIT") && words.len() >= 3 {
            options.offset = usize::try_from(parse_int(&words[1])?).unwrap_or(usize::MAX);
            options.count = usize::try_from(parse_int(&words[2])?).unwrap_or(usize::MAX);
            words = &words[3..];
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(options)
}

fn members(chosen: impl Iterator<Item = (f64, Bytes)>, options: &RangeOptions) -> Reply {
    let mut list = Vec::new();
    for (score, member) in chosen.skip(options.offset).take(options.count) {
        list.push(member);
        if options.with_scores {
            list.push(format_score(score));
        }
    }
    Reply::bulks(list)
}

/// Which value a kind of command works on.
macro_rules! typed {
    ($read:ident, $write:ident, $variant:ident, $type:ty) => {
        fn $read(&self, key: &[u8]) -> Result<Option<&$type>, String> {
            match self.keys.get(key).map(|entry| &entry.value) {
                None => Ok(None),
                Some(Value::$variant(value)) => Ok(Some(value)),
                Some(_) => Err(WRONG_TYPE.into()),
            }
        }

        fn $write(&mut self, key: &[u8]) -> Result<&mut $type, String> {
            let entry = self
                .keys
                .entry(key.to_vec())
                .or_insert_with(|| Entry { value: Value::$variant(<$type>::default()), expires: None });
            match &mut entry.value {
                Value::$variant(value) => Ok(value),
                _ => Err(WRONG_TYPE.into()),
            }
        }
    };
}

impl Store {
    typed!(text, _text_mut, Text, Bytes);
    typed!(list, list_mut, List, VecDeque<Bytes>);
    typed!(hash, hash_mut, Hash, Vec<(Bytes, Bytes)>);
    typed!(sorted, sorted_mut, Sorted, SortedSet);
    typed!(stream, stream_mut, Stream, Stream);

    /// Time stands still while a script runs.
    pub fn expire(&mut self, now: u64) {
        if std::mem::replace(&mut self.expired_at, now) == now {
            return;
        }
        self.keys.retain(|_, entry| entry.expires.is_none_or(|expires| expires > now));
    }

    /// The value of a string.
    pub fn string(&self, key: &[u8]) -> Option<&Bytes> {
        self.text(key).ok().flatten()
    }

    /// The members of a sorted set.
    pub fn members(&self, key: &[u8]) -> Vec<&Bytes> {
        let set = self.sorted(key).ok().flatten();
        set.map_or_else(Vec::new, |set| set.0.iter().map(|(_, member)| member).collect())
    }

    /// Every key, and when it expires.
    pub fn expiries(&self) -> impl Iterator<Item = (&Bytes, Option<u64>)> {
        self.keys.iter().map(|(key, entry)| (key, entry.expires))
    }

    fn drop_if_empty(&mut self, key: &[u8]) {
        let is_empty = match self.keys.get(key).map(|entry| &entry.value) {
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Hash(hash)) => hash.is_empty(),
            Some(Value::Sorted(set)) => set.0.is_empty(),
            Some(Value::Text(_) | Value::Stream(_)) | None => false,
        };
        if is_empty {
            self.keys.remove(key);
        }
    }

    /// For BLPOP.
    pub fn pop_first(&mut self, key: &[u8]) -> Result<Option<Bytes>, String> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        debug_assert!(!list.is_empty());
        let first = self.list_mut(key)?.pop_front();
        self.drop_if_empty(key);
        Ok(first)
    }

    /// `now`: by this server's clock, in ms. The caller has removed what has expired.
    pub fn execute(&mut self, command: &[Bytes], now: u64) -> Reply {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        self.dispatch(&name, &command[1..], now).unwrap_or_else(Reply::Error)
    }

    fn dispatch(&mut self, name: &str, args: &[Bytes], now: u64) -> Outcome {
        match (name, args) {
            ("GET", [key]) => Ok(self.text(key)?.map_or(Reply::Nil, |text| Reply::bulk(text.clone()))),
            ("SET", [key, value, options @ ..]) => self.set(key, value, options, now),
            ("DEL", keys @ [_, ..]) => {
                let removed = keys.iter().filter(|key| self.keys.remove(*key).is_some()).count();
                Ok(integer(removed))
            }
            ("EXISTS", keys @ [_, ..]) => {
                Ok(integer(keys.iter().filter(|key| self.keys.contains_key(*key)).count()))
            }
            ("TYPE", [key]) => Ok(Reply::Status(self.type_name(key).into())),
            ("PTTL", [key]) => Ok(Reply::Int(match self.keys.get(key).map(|entry| entry.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(expires)) => i64::try_from(expires.saturating_sub(now)).unwrap(),
            })),
            ("PEXPIRE", [key, ms]) => {
                let ms = parse_int(ms)?;
                let Some(entry) = self.keys.get_mut(key) else { return Ok(Reply::Int(0)) };
                if ms <= 0 {
                    self.keys.remove(key);
                } else {
                    entry.expires = Some(now + ms.unsigned_abs());
                }
                Ok(Reply::Int(1))
            }
            ("PERSIST", [key]) => {
                let had_expiry = self.keys.get_mut(key).and_then(|entry| entry.expires.take()).is_some();
                Ok(Reply::Int(had_expiry.into()))
            }
            ("RPUSH", [key, values @ ..]) if !values.is_empty() => {
                let list = self.list_mut(key)?;
                list.extend(values.iter().cloned());
                let length = list.len();
                self.pushed.push(key.clone());
                Ok(integer(length))
            }
            ("LPOP", [key]) => Ok(self.pop_first(key)?.map_or(Reply::Nil, Reply::Bulk)),
            ("LRANGE", [key, from, to]) => {
                let Some(list) = self.list(key)? else { return Ok(Reply::Array(Vec::new())) };
                Ok(Reply::bulks(list.range(index_range(list.len(), from, to)?).cloned()))
            }
            ("HSET", [key, pairs @ ..]) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let hash = self.hash_mut(key)?;
                let mut added = 0;
                for pair in pairs.chunks_exact(2) {
                    match hash.iter_mut().find(|(field, _)| *field == pair[0]) {
                        Some((_, value)) => value.clone_from(&pair[1]),
                        None => {
                            hash.push((pair[0].clone(), pair[1].clone()));
                            added += 1;
                        }
                    }
                }
                Ok(integer(added))
            }
            ("HGET", [key, field]) => {
                let found = self.hash(key)?.and_then(|hash| hash.iter().find(|(name, _)| name == field));
                Ok(found.map_or(Reply::Nil, |(_, value)| Reply::bulk(value.clone())))
            }
            ("HMGET", [key, fields @ ..]) if !fields.is_empty() => {
                let hash = self.hash(key)?;
                let value = |field: &Bytes| {
                    let found = hash.and_then(|hash| hash.iter().find(|(name, _)| name == field));
                    found.map_or(Reply::Nil, |(_, value)| Reply::bulk(value.clone()))
                };
                Ok(Reply::Array(fields.iter().map(value).collect()))
            }
            ("HGETALL", [key]) => {
                let hash = self.hash(key)?.cloned().unwrap_or_default();
                Ok(Reply::bulks(hash.into_iter().flat_map(|(field, value)| [field, value])))
            }
            ("HLEN", [key]) => Ok(integer(self.hash(key)?.map_or(0, Vec::len))),
            ("HDEL", [key, fields @ ..]) if !fields.is_empty() => {
                if self.hash(key)?.is_none() {
                    return Ok(Reply::Int(0));
                }
                let hash = self.hash_mut(key)?;
                let before = hash.len();
                hash.retain(|(field, _)| !fields.contains(field));
                let removed = before - hash.len();
                self.drop_if_empty(key);
                Ok(integer(removed))
            }
            ("XADD", [key, rest @ ..]) => self.append(key, rest, now),
            ("XLEN", [key]) => Ok(integer(self.stream(key)?.map_or(0, |stream| stream.entries.len()))),
            ("XREVRANGE", [key, from, to, rest @ ..]) => self.read_backwards(key, from, to, rest),
            (
                "ZADD" | "ZCARD" | "ZCOUNT" | "ZSCORE" | "ZRANK" | "ZREM" | "ZRANGE" | "ZRANGEBYSCORE"
                | "ZRANGEBYLEX" | "ZLEXCOUNT",
                [key, rest @ ..],
            ) => self.on_sorted_set(name, key, rest),
            (
                "GET" | "SET" | "DEL" | "EXISTS" | "TYPE" | "PTTL" | "PEXPIRE" | "PERSIST" | "RPUSH" | "LPOP"
                | "LRANGE" | "HSET" | "HGET" | "HMGET" | "HGETALL" | "HLEN" | "HDEL" | "XADD" | "XLEN"
                | "XREVRANGE" | "ZADD" | "ZCARD" | "ZCOUNT" | "ZSCORE" | "ZRANK" | "ZREM" | "ZRANGE"
                | "ZRANGEBYSCORE" | "ZRANGEBYLEX" | "ZLEXCOUNT",
                _,
            ) => Err(format!("ERR wrong number of arguments for '{}' command", name.to_lowercase())),
            _ => panic!("the virtual server does not know {name} {args:?}"),
        }
    }

    fn type_name(&self, key: &[u8]) -> &'static str {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => "none",
            Some(Value::Text(_)) => "string",
            Some(Value::List(_)) => "list",
            Some(Value::Hash(_)) => "hash",
            Some(Value::Sorted(_)) => "zset",
            Some(Value::Stream(_)) => "stream",
        }
    }

    fn set(&mut self, key: &Bytes, value: &Bytes, mut options: &[Bytes], now: u64) -> Outcome {
        let (mut expires, mut keeps_ttl, mut only_new, mut only_old) = (None, false, false, false);
        while let Some(option) = options.first() {
            let mut taken = 1;
            if is(option, "PX") && options.len() > 1 {
                let ms = parse_int(&options[1])?;
                if ms <= 0 {
                    return Err("ERR invalid expire time in 'set' command".into());
                }
                expires = Some(now + ms.unsigned_abs());
                taken = 2;
            } else if is(option, "KEEPTTL") {
                keeps_ttl = true;
            } else if is(option, "NX") {
                only_new = true;
            } else if is(option, "XX") {
                only_old = true;
            } else {
                return Err(SYNTAX.into());
            }
            options = &options[taken..];
        }
        let old = self.keys.get(key);
        if (only_new && old.is_some()) || (only_old && old.is_none()) {
            return Ok(Reply::Nil);
        }
        if keeps_ttl {
            expires = old.and_then(|entry| entry.expires);
        }
        self.keys.insert(key.clone(), Entry { value: Value::Text(value.clone()), expires });
        Ok(Reply::ok())
    }

    /// Trimming to about a length is left out: Redis does it by whole nodes of a hundred entries.
    fn append(&mut self, key: &[u8], mut words: &[Bytes], now: u64) -> Outcome {
        if words.first().is_some_and(|word| is(word, "MAXLEN")) {
            words = &words[if words.get(1).is_some_and(|word| word == b"~") { 3 } else { 2 }..];
        }
        let Some((id, fields)) =
            words.split_first().filter(|(_, fields)| !fields.is_empty() && fields.len() % 2 == 0)
        else {
            return Err("ERR wrong number of arguments for 'xadd' command".into());
        };
        assert_eq!(id, b"*", "the scripts let the server choose the ID");
        let stream = self.stream_mut(key)?;
        let id = if now > stream.last.0 { (now, 0) } else { (stream.last.0, stream.last.1 + 1) };
        stream.last = id;
        stream.entries.push((id, fields.to_vec()));
        Ok(Reply::bulk(format!("{}-{}", id.0, id.1)))
    }

    fn read_backwards(&self, key: &[u8], from: &[u8], to: &[u8], rest: &[Bytes]) -> Outcome {
        let id = |text: &[u8], missing: u64| -> Result<(u64, u64), String> {
            let text = std::str::from_utf8(text).unwrap_or_default();
            let bad = || "ERR Invalid stream ID specified as stream command argument".to_string();
            match text {
                "-" => Ok((0, 0)),
                "+" => Ok((u64::MAX, u64::MAX)),
                text => {
                    let (ms, count) = text.split_once('-').unwrap_or((text, ""));
                    let count = if count.is_empty() { missing } else { count.parse().map_err(|_| bad())? };
                    Ok((ms.parse().map_err(|_| bad())?, count))
                }
            }
        };
        let (last, first) = (id(from, u64::MAX)?, id(to, 0)?);
        let most = match rest {
            [] => usize::MAX,
            [word, count] if is(word, "COUNT") => usize::try_from(parse_int(count)?).unwrap_or(0),
            _ => return Err(SYNTAX.into()),
        };
        let entries = self.stream(key)?.map_or(&[][..], |stream| &stream.entries);
        let chosen = entries.iter().rev().filter(|(id, _)| *id >= first && *id <= last).take(most);
        Ok(Reply::Array(
            chosen
                .map(|(id, fields)| {
                    let id = Reply::bulk(format!("{}-{}", id.0, id.1));
                    Reply::Array(vec![id, Reply::bulks(fields.iter().cloned())])
                })
                .collect(),
        ))
    }

    fn on_sorted_set(&mut self, name: &str, key: &[u8], args: &[Bytes]) -> Outcome {
        let empty = SortedSet::default();
        // Arguments are checked before the key's type, as Redis does.
        let set = || self.sorted(key).map(|set| set.unwrap_or(&empty));
        match (name, args) {
            ("ZCARD", []) => Ok(integer(set()?.0.len())),
            ("ZSCORE", [member]) => {
                Ok(set()?.score(member).map_or(Reply::Nil, |score| Reply::bulk(format_score(score))))
            }
            ("ZRANK", [member]) => Ok(set()?.position(member).map_or(Reply::Nil, integer)),
            ("ZCOUNT", [from, to]) => {
                let (from, to) = (score_bound(from)?, score_bound(to)?);
                Ok(integer(set()?.0.iter().filter(|(score, _)| is_between(*score, from, to)).count()))
            }
            ("ZRANGE", [from, to, rest @ ..]) => {
                let options = range_options(rest)?;
                parse_int(from)?;
                parse_int(to)?;
                let set = set()?;
                let range = index_range(set.0.len(), from, to)?;
                Ok(members(set.0[range].iter().cloned(), &options))
            }
            ("ZRANGEBYSCORE", [from, to, rest @ ..]) => {
                let (options, from, to) = (range_options(rest)?, score_bound(from)?, score_bound(to)?);
                let chosen = set()?.0.iter().filter(|(score, _)| is_between(*score, from, to)).cloned();
                Ok(members(chosen, &options))
            }
            ("ZRANGEBYLEX", [from, to, rest @ ..]) => {
                let (options, from, to) = (range_options(rest)?, name_bound(from)?, name_bound(to)?);
                let chosen = set()?.0.iter().filter(|(_, name)| is_between_names(name, &from, &to));
                Ok(members(chosen.cloned(), &options))
            }
            ("ZLEXCOUNT", [from, to]) => {
                let (from, to) = (name_bound(from)?, name_bound(to)?);
                Ok(integer(set()?.0.iter().filter(|(_, name)| is_between_names(name, &from, &to)).count()))
            }
            ("ZADD", pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let scores: Result<Vec<f64>, String> = pairs
                    .chunks_exact(2)
                    .map(|pair| parse_float(&pair[0]).ok_or("ERR value is not a valid float".into()))
                    .collect();
                let (scores, set) = (scores?, self.sorted_mut(key)?);
                let added = pairs.chunks_exact(2).zip(scores);
                let added = added.filter(|(pair, score)| set.insert(*score, &pair[1])).count();
                Ok(integer(added))
            }
            ("ZREM", names @ [_, ..]) => {
                if self.sorted(key)?.is_none() {
                    return Ok(Reply::Int(0));
                }
                let set = self.sorted_mut(key)?;
                let removed = names.iter().filter(|member| set.remove(member)).count();
                self.drop_if_empty(key);
                Ok(integer(removed))
            }
            _ => Err(format!("ERR wrong number of arguments for '{}' command", name.to_lowercase())),
        }
    }
}

fn integer(number: usize) -> Reply {
    Reply::Int(i64::try_from(number).expect("a small number"))
}
