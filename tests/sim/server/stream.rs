//! Streams, and the commands on them.

use super::commands::wrong_number;
use super::reply::Reply;
use super::store::{Bytes, Outcome, SYNTAX, Store, integer, is, parse_int};

type Id = (u64, u64);
type StreamEntry = (Id, Vec<Bytes>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    entries: Vec<StreamEntry>,
    last: Id,
}

fn parse_id(text: &[u8], missing: u64) -> Result<Id, String> {
    let bad = || "ERR Invalid stream ID specified as stream command argument".to_string();
    let text = std::str::from_utf8(text).unwrap_or_default();
    let (ms, count) = text.split_once('-').unwrap_or((text, ""));
    let count = if count.is_empty() { missing } else { count.parse().map_err(|_| bad())? };
    Ok((ms.parse().map_err(|_| bad())?, count))
}

fn range_bound(text: &[u8], missing: u64) -> Result<Id, String> {
    match text {
        b"-" => Ok((0, 0)),
        b"+" => Ok((u64::MAX, u64::MAX)),
        text => parse_id(text, missing),
    }
}

fn entry_reply((id, fields): &StreamEntry) -> Reply {
    Reply::Array(vec![Reply::bulk(format!("{}-{}", id.0, id.1)), Reply::bulks(fields.iter().cloned())])
}

/// The XREAD of one stream: what it waits for.
#[derive(Clone, Debug)]
pub struct StreamRead {
    pub key: Bytes,
    after: Id,
    /// How long it blocks, in ms; 0 = forever. `None` = it does not block.
    pub blocks_ms: Option<u64>,
}

impl Store {
    pub(super) fn on_stream(&mut self, name: &str, key: &[u8], args: &[Bytes], now: u64) -> Outcome {
        match (name, args) {
            ("XADD", words) => self.append(key, words, now),
            ("XLEN", []) => Ok(integer(self.stream(key)?.map_or(0, |stream| stream.entries.len()))),
            ("XREVRANGE", [from, to, rest @ ..]) => self.read_backwards(key, from, to, rest),
            _ => panic!("the virtual server does not have this form of {name}: {args:?}"),
        }
    }

    /// Trimming to about a length is left out: Redis removes whole nodes of about 4 KB.
    fn append(&mut self, key: &[u8], mut words: &[Bytes], now: u64) -> Outcome {
        if words.first().is_some_and(|word| is(word, "MAXLEN")) {
            words = &words[if words.get(1).is_some_and(|word| word == b"~") { 3 } else { 2 }..];
        }
        let Some((id, fields)) =
            words.split_first().filter(|(_, fields)| !fields.is_empty() && fields.len() % 2 == 0)
        else {
            return Err(wrong_number("XADD"));
        };
        assert_eq!(id, b"*", "the scripts let the server choose the ID");
        let stream = self.stream_mut(key)?;
        let id = if now > stream.last.0 { (now, 0) } else { (stream.last.0, stream.last.1 + 1) };
        stream.last = id;
        stream.entries.push((id, fields.to_vec()));
        self.pushed.push(key.to_vec());
        Ok(Reply::bulk(format!("{}-{}", id.0, id.1)))
    }

    fn read_backwards(&self, key: &[u8], from: &[u8], to: &[u8], rest: &[Bytes]) -> Outcome {
        let (last, first) = (range_bound(from, u64::MAX)?, range_bound(to, 0)?);
        let most = match rest {
            [] => usize::MAX,
            [word, count] if is(word, "COUNT") => usize::try_from(parse_int(count)?).unwrap_or(0),
            _ => return Err(SYNTAX.into()),
        };
        let entries = self.stream(key)?.map_or(&[][..], |stream| &stream.entries);
        // Redis replies with a null array if no entry may be returned.
        if most == 0 && self.stream(key)?.is_some() {
            return Ok(Reply::NilArray);
        }
        let chosen = entries.iter().rev().filter(|(id, _)| *id >= first && *id <= last).take(most);
        Ok(Reply::Array(chosen.map(entry_reply).collect()))
    }

    /// Parses `[BLOCK ms] STREAMS key id`.
    pub fn parse_read(&self, mut words: &[Bytes]) -> Result<StreamRead, String> {
        let mut blocks_ms = None;
        if let [option, ms, rest @ ..] = words
            && is(option, "BLOCK")
        {
            let ms = parse_int(ms).map_err(|_| "ERR timeout is not an integer or out of range")?;
            blocks_ms = Some(u64::try_from(ms).map_err(|_| "ERR timeout is negative")?);
            words = rest;
        }
        match words {
            [word, key, after] if is(word, "STREAMS") => {
                let stream = self.stream(key)?;
                let after = match after.as_slice() {
                    b"$" => stream.map_or((0, 0), |stream| stream.last),
                    after => parse_id(after, 0)?,
                };
                Ok(StreamRead { key: key.clone(), after, blocks_ms })
            }
            [word, ..] if is(word, "STREAMS") => {
                Err("ERR Unbalanced XREAD list of streams: for each stream \
                                                      key an ID or '$' must be specified."
                    .into())
            }
            _ => Err(SYNTAX.into()),
        }
    }

    /// The reply to XREAD, if there are newer entries.
    pub fn newer_entries(&self, read: &StreamRead) -> Option<Reply> {
        let stream = self.stream(&read.key).ok()??;
        let newer: Vec<Reply> =
            stream.entries.iter().filter(|(id, _)| *id > read.after).map(entry_reply).collect();
        let of_stream = || Reply::Array(vec![Reply::bulk(read.key.clone()), Reply::Array(newer.clone())]);
        (!newer.is_empty()).then(|| Reply::Array(vec![of_stream()]))
    }
}
