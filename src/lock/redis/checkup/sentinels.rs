//! Queries every Sentinel of a service for the master. A run queries them in turn until one
//! replies.

use std::thread;
use std::time::Duration;

use super::{Contact, Server};
use crate::clock::BootTime;
use crate::lock::checkup::SentinelFacts;
use crate::lock::redis::discovery::Sentinels;
use crate::lock::redis::script::Call;
use crate::lock::redis::server::Target;
use crate::lock::wait::wait;
use crate::lock::{BackendError, Problem};

/// `configured`: index of the server.
pub(super) fn query_each(server: &Server, configured: usize, node_timeout: Duration) -> Vec<SentinelFacts> {
    let Target::Sentinel { sentinels, service } = &server.target else { return Vec::new() };
    let alone = sentinels.iter().map(|address| {
        let target = Target::Sentinel { sentinels: vec![address.clone()], service: service.clone() };
        (format!("Sentinel {address}"), Server::discovered(target, server.clone()))
    });
    let alone: Vec<(String, Server)> = alone.collect();
    thread::scope(|scope| {
        let query = |server: &Server| {
            let master = named_by(server, node_timeout);
            let down_after = master.as_ref().ok().and_then(|_| down_after(server, node_timeout));
            (master, down_after)
        };
        let threads: Vec<_> = alone.iter().map(|(_, server)| scope.spawn(move || query(server))).collect();
        let replies =
            threads.into_iter().map(|thread| thread.join().unwrap_or((Err(Problem::TimedOut), None)));
        let facts =
            |((name, _), (master, down_after)): (&(String, Server), (Result<_, _>, _))| SentinelFacts {
                name: name.clone(),
                configured,
                master: master.map_err(|problem| BackendError::new(name.clone(), problem)),
                down_after,
            };
        alone.iter().zip(replies).map(facts).collect()
    })
}

/// The master that the only Sentinel of this server names.
fn named_by(server: &Server, node_timeout: Duration) -> Result<String, Problem> {
    let Some(mut sentinel) = Sentinels::of(server) else { return Err(Problem::UnexpectedReply) };
    let until = BootTime::now() + node_timeout;
    sentinel.start();
    loop {
        if let Some(reply) = sentinel.reply() {
            return reply.map(|address| address.to_string());
        }
        if until.has_passed() || !sentinel.is_asking() {
            return Err(Problem::TimedOut);
        }
        let watched: Vec<_> = sentinel.poll_for().into_iter().collect();
        wait(&watched, until, None);
    }
}

/// How long a master may be silent before this Sentinel considers it down. Runs do not need this,
/// so it may be denied.
fn down_after(server: &Server, node_timeout: Duration) -> Option<Duration> {
    let Target::Sentinel { service, .. } = &server.target else { return None };
    let mut contact = Contact::new(server.as_its_sentinel()?, node_timeout);
    let args = vec![b"MASTER".to_vec(), service.clone().into_bytes()];
    let reply = contact.ask(Call::Command { name: "SENTINEL", args }).ok()?;
    let fields: Vec<String> = redis::from_redis_value(reply).ok()?;
    let value = fields.chunks_exact(2).find(|pair| pair[0] == "down-after-milliseconds")?[1].parse().ok()?;
    Some(Duration::from_millis(value))
}
