//! What happened, for people, and as a hash: the same seed gives the same one.

use std::collections::VecDeque;

use crate::network::{ConnectionId, ServerId};

/// How many lines are kept for a report.
const KEPT: usize = 4000;

#[derive(Default)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    /// Whether lines are kept at all.
    pub is_kept: bool,
}

impl Trace {
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter()
    }

    pub fn note(&mut self, now: u64, text: impl FnOnce() -> String) {
        self.mix(now);
        if self.is_kept {
            let line = format!("{:>12.6}  {}", now as f64 / 1e6, text());
            for byte in line.bytes() {
                self.mix(byte.into());
            }
            self.lines.push_back(line);
            if self.lines.len() > KEPT {
                self.lines.pop_front();
            }
        }
    }

    pub fn received(&mut self, now: u64, server: ServerId, id: ConnectionId, bytes: &[u8]) {
        self.mix_bytes(bytes);
        self.note(now, || format!("server {server} received on {id}: {}", readable(bytes)));
    }

    pub fn replied(&mut self, now: u64, server: ServerId, id: ConnectionId, bytes: &[u8]) {
        self.mix_bytes(bytes);
        self.note(now, || format!("server {server} replied on {id}: {}", readable(bytes)));
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

/// The words of a request or reply. A script's text or hash says little, its arguments much.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split("\r\n").filter(|word| !word.starts_with(['*', '$']) && !word.is_empty());
    let shortened = words.map(|word| if word.len() > 60 { "..." } else { word });
    shortened.collect::<Vec<_>>().join(" ")
}
