//! What grows with the work, and what does not: keys of a run, keys on the server, waiters, holders
//! of slots, servers.

use crate::crowd::{self, Server};
use crate::many::{beside, text};
use crate::nodes::{Nodes, redlock_run};
use crate::report::{Row, ms};
use crate::rig::{Rig, with};
use crate::spawner::time_in_turn;
use crate::statistics::Summary;

const KEYS_OF_A_RUN: [usize; 4] = [1, 4, 16, 64];
const KEYS_ON_THE_SERVER: [usize; 4] = [1, 1_000, 100_000, 1_000_000];
const SERVERS: [usize; 5] = [1, 3, 5, 7, 9];
const ROUNDS: usize = 100;

/// The server's time for a call of each script: one lock with this many keys.
pub fn keys_of_a_run(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let names: Vec<String> = (0..KEYS_OF_A_RUN[KEYS_OF_A_RUN.len() - 1]).map(|n| format!("k{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    measure(rig, KEYS_OF_A_RUN, |server, keys| crowd::lock(server, 0, &names[..keys]))
}

/// The same for one key, beside this many foreign ones.
pub fn keys_on_the_server(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    measure(rig, KEYS_ON_THE_SERVER, |server, keys| {
        let fill = "for i = 1, ARGV[1] do redis.call('SET', 'other:' .. i, i) end";
        server.cmd(&["EVAL", fill, "0", &keys.to_string()]);
        crowd::lock(server, 0, &["k"])
    })
}

/// One writer among waiters, one holder of a slot among others.
pub fn waiters_and_slots(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let mut rows = beside(rig, &crowd::WRITERS[..1])?;
    rows.extend(beside(rig, &crowd::SHARERS[2..3])?);
    Ok(rows)
}

fn measure<const N: usize>(
    rig: &mut Rig,
    sizes: [usize; N],
    mut scenario: impl FnMut(&mut Server, usize) -> Vec<crowd::Row>,
) -> anyhow::Result<Vec<Row>> {
    let mut by_size = Vec::new();
    for size in sizes {
        rig.server.command(&["FLUSHALL"])?;
        let send = |words: &[&str]| text(rig.server.command(words).expect("the server replies"));
        by_size.push(scenario(&mut Server::new(send), size));
    }
    let row = |at: usize| {
        let micros: Vec<String> = by_size.iter().map(|rows| rows[at].1.to_string()).collect();
        Row::new(by_size[0][at].0, format!("{} us", micros.join(" / ")))
    };
    Ok((0..by_size[0].len()).map(row).collect())
}

/// Whole runs on this many servers of this machine.
pub fn servers(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let nodes = Nodes::start(rig, SERVERS[SERVERS.len() - 1])?;
    let key = rig.new_name();
    let mut commands = vec![with(rig.flock(&key), "true")];
    commands.extend(SERVERS.map(|count| with(redlock_run(rig, &nodes.urls()[..count], &key), "true")));
    let samples = time_in_turn(rig, &commands, ROUNDS)?;
    let flock = Summary::of(&samples[0]);
    let row = |(count, samples): (usize, &Vec<_>)| {
        Row::timed(format!("{count} servers"), &Summary::of(samples), &flock)
    };
    let mut rows = vec![Row::new("flock FILE true", ms(flock.median))];
    rows.extend(SERVERS.into_iter().zip(&samples[1..]).map(row));
    Ok(rows)
}
