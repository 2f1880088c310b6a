//! The data of a server, and the commands on it that the scripts and the client use.
//!
//! Written from the documented behaviour of Redis 7; `differential` compares it with a real server,
//! command by command.

use std::collections::{BTreeMap, VecDeque};

use super::commands::wrong_number;
use super::reply::Reply;
use super::sorted_set::SortedSet;
use super::stream::Stream;

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";

pub(super) type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Bytes),
    List(VecDeque<Bytes>),
    /// In the order of insertion, as a small hash of Redis.
    Hash(Vec<(Bytes, Bytes)>),
    Sorted(SortedSet),
    Stream(Stream),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub value: Value,
    /// By this server's clock, in ms.
    pub expires: Option<u64>,
}

/// A string, and when it expires.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub value: Bytes,
    pub expires: Option<u64>,
}

/// The keys of one database.
#[derive(Clone, Debug, Default)]
pub struct Store {
    keys: BTreeMap<Bytes, Entry>,
    /// Lists and streams that have got elements since it was last asked, in order.
    pub pushed: Vec<Bytes>,
    /// When expired keys were last removed.
    expired_at: u64,
}

pub(super) type Outcome = Result<Reply, String>;

pub(super) fn parse_int(text: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NOT_AN_INTEGER.into())
}

/// The elements of `length` between two indices, of which negative ones count from the end.
pub(super) fn index_range(length: usize, from: &[u8], to: &[u8]) -> Result<std::ops::Range<usize>, String> {
    let length = i64::try_from(length).expect("a small collection");
    let resolve = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let from = resolve(parse_int(from)?);
    let to = parse_int(to)?;
    let to = if to < 0 { length + to } else { to.min(length - 1) };
    let range = if from > to || from >= length { 0..0 } else { from..to + 1 };
    Ok(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Which value a kind of command works on.
macro_rules! typed {
    ($read:ident, $write:ident, $variant:ident, $type:ty) => {
        pub(super) fn $read(&self, key: &[u8]) -> Result<Option<&$type>, String> {
            match self.keys.get(key).map(|entry| &entry.value) {
                None => Ok(None),
                Some(Value::$variant(value)) => Ok(Some(value)),
                Some(_) => Err(WRONG_TYPE.into()),
            }
        }

        pub(super) fn $write(&mut self, key: &[u8]) -> Result<&mut $type, String> {
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

    /// The strings whose keys begin like this.
    pub fn strings_with(&self, start: &[u8]) -> BTreeMap<Bytes, Held> {
        let from = self.keys.range(start.to_vec()..).take_while(|(key, _)| key.starts_with(start));
        let text = |(key, entry): (&Bytes, &Entry)| match &entry.value {
            Value::Text(value) => Some((key.clone(), Held { value: value.clone(), expires: entry.expires })),
            _ => None,
        };
        from.filter_map(text).collect()
    }

    /// The members of a sorted set whose scores are larger than this.
    pub fn members_above(&self, key: &[u8], score: f64) -> Vec<&Bytes> {
        let set = self.sorted(key).ok().flatten();
        let above = |set: &'_ SortedSet| set.0.iter().filter(|(other, _)| *other > score).count();
        set.map_or_else(Vec::new, |set| set.0.iter().rev().take(above(set)).map(|(_, name)| name).collect())
    }

    /// Every key, and when it expires.
    pub fn expiries(&self) -> impl Iterator<Item = (&Bytes, Option<u64>)> {
        self.keys.iter().map(|(key, entry)| (key, entry.expires))
    }

    pub(super) fn drop_if_empty(&mut self, key: &[u8]) {
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
            ("XADD" | "XLEN" | "XREVRANGE", [key, rest @ ..]) => self.on_stream(name, key, rest, now),
            (
                "ZADD" | "ZCARD" | "ZCOUNT" | "ZSCORE" | "ZRANK" | "ZREM" | "ZRANGE" | "ZRANGEBYSCORE"
                | "ZRANGEBYLEX" | "ZLEXCOUNT",
                [key, rest @ ..],
            ) => self.on_sorted_set(name, key, rest),
            ("SCAN", [cursor, options @ ..]) => self.scan(cursor, options),
            ("HSET", [_, _, ..]) => Err(wrong_number(name)),
            _ => panic!("the virtual server does not have this form of {name}: {args:?}"),
        }
    }

    /// Everything at once: a page of any size is a valid reply. Only the patterns of a plain prefix
    /// and `*` are supported.
    fn scan(&self, cursor: &[u8], mut options: &[Bytes]) -> Outcome {
        if cursor != b"0" {
            return Err("ERR invalid cursor".into());
        }
        let (mut prefix, mut wanted_type) = (&b""[..], None);
        while let [option, value, rest @ ..] = options {
            if is(option, "MATCH") {
                prefix = value.strip_suffix(b"*").expect("a prefix and *");
            } else if is(option, "TYPE") {
                wanted_type = Some(value);
            } else if is(option, "COUNT") {
                parse_int(value)?;
            } else {
                return Err(SYNTAX.into());
            }
            options = rest;
        }
        if !options.is_empty() {
            return Err(SYNTAX.into());
        }
        assert!(!prefix.iter().any(|byte| b"*?[\\".contains(byte)), "a plain prefix");
        let is_wanted = |key: &Bytes| {
            key.starts_with(prefix) && wanted_type.is_none_or(|name| is(name, self.type_name(key)))
        };
        let found = self.keys.keys().filter(|key| is_wanted(key)).cloned();
        Ok(Reply::Array(vec![Reply::bulk("0"), Reply::bulks(found)]))
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
}

pub(super) fn integer(number: usize) -> Reply {
    Reply::Int(i64::try_from(number).expect("a small number"))
}
