//! What happened, for people, and as a hash: the same seed gives the same one.

use std::collections::BTreeMap;

use crate::network::{ServerId, SiteId};
use crate::scripts;
use crate::server::Executed;
use crate::server::reply::Reply;

#[derive(Default)]
pub struct Trace {
    hash: u64,
    lines: Vec<String>,
    /// Whether lines are kept at all.
    pub is_kept: bool,
    /// The names of waiters, once a server has received a request of theirs.
    names: BTreeMap<String, String>,
}

impl Trace {
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.lines.iter().map(|line| self.with_names(line))
    }

    pub fn note(&mut self, now: u64, text: impl FnOnce() -> String) {
        self.mix(now);
        if self.is_kept {
            self.lines.push(format!("{:>11.6}  {}", now as f64 / 1e6, text()));
        }
    }

    pub fn executed(&mut self, now: u64, server: ServerId, site: Option<SiteId>, call: &Executed) {
        let mut bytes = Vec::new();
        call.command.iter().for_each(|word| bytes.extend(word));
        if let Some(reply) = &call.reply {
            reply.encode(&mut bytes);
        }
        self.mix_bytes(&bytes);
        let Some(request) = self.is_kept.then(|| readable(&call.command)) else {
            return self.mix(now);
        };
        let site = site.map_or("?".into(), |site| site.to_string());
        if let Some(claim) = claim_of(&call.command) {
            self.names.entry(claim).or_insert_with(|| format!("waiter-of-{site}"));
        }
        let reply = call.reply.as_ref().map_or("(blocks)".into(), short);
        self.note(now, || format!("server {server} <- host {site}: {request} -> {reply}"));
    }

    /// UUIDs say little: the waiters get names.
    fn with_names(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (id, name) in &self.names {
            line = line.replace(id, name);
        }
        line
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }
}

/// The arguments of a script, without its keys.
pub fn script_call(command: &[Vec<u8>]) -> Option<(&'static str, &[Vec<u8>])> {
    if !matches!(command.first()?.as_slice(), b"EVAL" | b"EVALSHA") {
        return None;
    }
    let name = scripts::name_of(command.get(1)?)?;
    let keys: usize = std::str::from_utf8(command.get(2)?).ok()?.parse().ok()?;
    Some((name, command.get(3 + keys..)?))
}

fn claim_of(command: &[Vec<u8>]) -> Option<String> {
    let (_, args) = script_call(command)?;
    let claim = String::from_utf8_lossy(args.first()?).into_owned();
    claim.split_once('.').map(|(waiter, _)| waiter.to_owned())
}

fn readable(command: &[Vec<u8>]) -> String {
    let (name, words) = match script_call(command) {
        Some((name, args)) => (name.to_owned(), args),
        None => (String::from_utf8_lossy(&command[0]).into_owned(), &command[1..]),
    };
    let words = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    let shown: Vec<String> = words.map(|word| if word.is_empty() { "''".into() } else { word }).collect();
    format!("{name} {}", shown.join(" "))
}

fn short(reply: &Reply) -> String {
    match reply {
        Reply::Status(text) => text.clone(),
        Reply::Error(text) => format!("error: {text}"),
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(bytes) if bytes.is_empty() => "''".into(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Nil | Reply::NilArray => "nil".into(),
        Reply::Array(items) => items.iter().map(short).collect::<Vec<_>>().join(" "),
    }
}
