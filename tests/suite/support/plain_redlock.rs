//! Redlock as other libraries implement it: SET NX PX of a random value on every server, a
//! majority, compare-and-delete.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, Nodes};

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) \
     else return 0 end";

/// One client with a connection to each server and a value of its own.
pub struct PlainRedlock {
    nodes: Vec<Client>,
    value: String,
    attempt: u64,
}

impl PlainRedlock {
    pub fn to(nodes: &Nodes, name: &str) -> PlainRedlock {
        PlainRedlock { nodes: nodes.connect(), value: name.to_owned(), attempt: 0 }
    }

    /// One attempt: gets a majority, or releases everything.
    pub fn try_lock(&mut self, key: &str, ttl: Duration) -> bool {
        self.attempt += 1;
        let (value, ms) = (self.current(), ttl.as_millis().to_string());
        let start = Instant::now();
        let set = |node: &mut Client| node.cmd(&["SET", key, &value, "NX", "PX", &ms]) == "OK";
        let votes = self.nodes.iter_mut().map(set).filter(|won| *won).count();
        let majority = self.nodes.len() / 2 + 1;
        let won = votes >= majority && start.elapsed() < ttl * 9 / 10;
        if !won {
            self.unlock(key);
        }
        won
    }

    /// Retries with a random delay, as the libraries do.
    pub fn lock(&mut self, key: &str, ttl: Duration, patience: Duration) {
        let start = Instant::now();
        let mut random =
            self.value.bytes().fold(1u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        while !self.try_lock(key, ttl) {
            assert!(start.elapsed() < patience, "{} starves", self.value);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            thread::sleep(Duration::from_millis(5 + (random >> 40) % 45));
        }
    }

    /// Returns the number of servers that still had our value.
    pub fn unlock(&mut self, key: &str) -> usize {
        let value = self.current();
        let delete = |node: &mut Client| node.cmd(&["EVAL", RELEASE, "1", key, &value]) == "1";
        self.nodes.iter_mut().map(delete).filter(|deleted| *deleted).count()
    }

    fn current(&self) -> String {
        format!("{}-{}", self.value, self.attempt)
    }
}
