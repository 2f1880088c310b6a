//! Nobody else wants the lock: what does the wrapper cost?

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::report::{Row, warn_of_noise};
use crate::rig::{Rig, with};
use crate::server::Traffic;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

const WARM_UP_ROUNDS: usize = 5;
/// redlock run / flock.
const GOAL: Goal = Goal { at_most: 1.5, words: "<= 1.5 x flock (aim 1.25)" };
const GOAL_HERE: Goal = Goal { at_most: 1.3, words: "<= 1.3 x flock" };

struct Goal {
    at_most: f64,
    words: &'static str,
}

struct Contender {
    what: &'static str,
    command: Command,
    goal: Option<Goal>,
    samples: Vec<Duration>,
}

pub fn measure(rig: &mut Rig, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let stopwatch = Stopwatch::new();
    let mut contenders = contenders(rig)?;
    for round in 0..WARM_UP_ROUNDS + rounds {
        for place in 0..contenders.len() {
            // Another one begins each round: to be first, or to follow a certain other, may matter.
            let turn = (round + place) % contenders.len();
            let took = stopwatch.time(&mut contenders[turn].command)?;
            if round >= WARM_UP_ROUNDS {
                contenders[turn].samples.push(took);
            }
        }
    }
    Ok(rows(&contenders))
}

const FLOCK: usize = 1;

fn contenders(rig: &mut Rig) -> anyhow::Result<[Contender; 9]> {
    let name = rig.new_name();
    fs::create_dir(rig.host_folder(&name))?;
    let redlock = |url: String| with(rig.redlock_run(&url, &name), "true");
    let mode = |options: &[&str], key: &str| {
        with(rig.redlock_run_as(options, &rig.server.tcp_url(), &format!("{name}-{key}")), "true")
    };
    let contender = |what, command, goal| Contender { what, command, goal, samples: Vec::new() };
    Ok([
        contender("true", Command::new("true"), None),
        contender("flock FILE true", with(rig.flock(&name), "true"), None),
        contender("floor: SET, true, EVAL", with(rig.floor(&name), "true"), None),
        contender("redlock run -- true, TCP", redlock(rig.server.tcp_url()), Some(GOAL)),
        contender("redlock run -- true, unix", redlock(rig.server.unix_url()), Some(GOAL)),
        contender("redlock run --shared, TCP", mode(&["--shared"], "shared"), Some(GOAL)),
        contender("redlock run --slots 8, TCP", mode(&["--slots", "8"], "slots"), Some(GOAL)),
        contender("redlock run, three keys, TCP", mode(&["--key", "a", "--key", "b"], "keys"), Some(GOAL)),
        contender(
            "redlock run -- true, this host",
            with(rig.redlock_run_here(&name), "true"),
            Some(GOAL_HERE),
        ),
    ])
}

fn rows(contenders: &[Contender]) -> Vec<Row> {
    let flock = Summary::of(&contenders[FLOCK].samples);
    warn_of_noise(&flock);
    let row = |contender: &Contender| {
        let summary = Summary::of(&contender.samples);
        let row = Row::timed(contender.what, &summary, &flock);
        match &contender.goal {
            Some(Goal { at_most, words }) => row.goal(*words, summary.ratio_to(&flock) <= *at_most),
            None => row,
        }
    };
    contenders.iter().map(row).collect()
}

/// What one run on a server that knows our scripts makes of connections and commands.
pub fn count_requests(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let stopwatch = Stopwatch::new();
    let mut rows = Vec::new();
    for (way, url) in [("TCP", rig.server.tcp_url()), ("unix", rig.server.unix_url())] {
        let key = rig.new_name();
        let mut command = with(rig.redlock_run(&url, &key), "true");
        let before = rig.server.traffic()?;
        stopwatch.time(&mut command)?;
        let caused = rig.server.traffic()?.since(&before);
        rows.push(connections_row(way, &caused));
        rows.push(commands_row(way, &caused));
    }
    Ok(rows)
}

fn connections_row(way: &str, caused: &Traffic) -> Row {
    let connections = caused.connections;
    Row::new(format!("connections, {way}"), connections.to_string()).goal("1", connections == 1)
}

fn commands_row(way: &str, caused: &Traffic) -> Row {
    let by_name: Vec<String> =
        caused.commands.iter().map(|(name, calls)| format!("{calls} {name}")).collect();
    let is_met = caused.total_commands() == 2 && caused.commands.contains_key("evalsha");
    Row::new(format!("commands, {way}"), by_name.join(", ")).goal("2 evalsha", is_met)
}
