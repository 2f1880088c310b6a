//! No other client wants the lock: what does the wrapper cost?

use std::fs;
use std::process::Command;

use crate::report::{Row, warn_of_noise};
use crate::rig::{Rig, with};
use crate::server::Traffic;
use crate::spawner::time_in_turn;
use crate::statistics::Summary;
use crate::stopwatch::Stopwatch;

/// redlock run / flock.
const GOAL: Goal = Goal { at_most: 1.45, words: "<= 1.45 x flock" };
const GOAL_HERE: Goal = Goal { at_most: 1.25, words: "<= 1.25 x flock" };
const GOAL_STATIC: Goal = Goal { at_most: 1.3, words: "<= 1.3 x flock" };
const GOAL_STATIC_HERE: Goal = Goal { at_most: 1.15, words: "<= 1.15 x flock" };

struct Goal {
    at_most: f64,
    words: &'static str,
}

struct Contender {
    what: String,
    command: Command,
    goal: Option<Goal>,
}

pub fn measure(rig: &mut Rig, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let (commands, contenders): (Vec<_>, Vec<_>) =
        contenders(rig)?.into_iter().map(|it| (it.command, (it.what, it.goal))).unzip();
    let summaries: Vec<Summary> =
        time_in_turn(rig, &commands, rounds)?.iter().map(|samples| Summary::of(samples)).collect();
    let flock = &summaries[FLOCK];
    warn_of_noise(flock);
    let row = |((what, goal), summary): ((String, Option<Goal>), &Summary)| {
        let row = Row::timed(what, summary, flock);
        match goal {
            Some(Goal { at_most, words }) => row.goal(words, summary.ratio_to(flock) <= at_most),
            None => row,
        }
    };
    Ok(contenders.into_iter().zip(&summaries).map(row).collect())
}

const FLOCK: usize = 1;

fn contenders(rig: &mut Rig) -> anyhow::Result<Vec<Contender>> {
    let name = rig.new_name();
    fs::create_dir(rig.host_directory(&name))?;
    let tcp = rig.server.tcp_url();
    let redlock = |url: &str| with(rig.redlock_run(url, &name), "true");
    let mode = |options: &[&str], key: &str| {
        with(rig.redlock_run_as(options, &tcp, &format!("{name}-{key}")), "true")
    };
    let contender = |what: &str, command, goal| Contender { what: what.to_owned(), command, goal };
    let mut contenders = vec![
        contender("true", Command::new("true"), None),
        contender("flock FILE true", with(rig.flock(&name), "true"), None),
        contender("floor: SET, true, EVAL", with(rig.floor(&name), "true"), None),
        contender("redlock run -- true, TCP", redlock(&tcp), Some(GOAL)),
        contender("redlock run -- true, unix", redlock(&rig.server.unix_url()), Some(GOAL)),
        contender("redlock run --shared, TCP", mode(&["--shared"], "shared"), Some(GOAL)),
        contender("redlock run --slots 8, TCP", mode(&["--slots", "8"], "slots"), Some(GOAL)),
        contender("redlock run, three keys, TCP", mode(&["--key", "a", "--key", "b"], "keys"), Some(GOAL)),
        contender("redlock run, this host", with(rig.redlock_run_here(&name), "true"), Some(GOAL_HERE)),
    ];
    for locker in rig.lockers(&tcp)?.into_iter().skip(1) {
        // A key of its own, since the programs may use one name for different things.
        let key = rig.new_name();
        let on_server = with(locker.run(&tcp, &key), "true");
        let goal = locker.is_ours.then_some(GOAL_STATIC);
        contenders.push(contender(&format!("{}, TCP", locker.name), on_server, goal));
        if locker.is_ours {
            let here = with(rig.run_here(&locker.program, &name), "true");
            let what = format!("{}, this host", locker.name);
            contenders.push(contender(&what, here, Some(GOAL_STATIC_HERE)));
        }
    }
    Ok(contenders)
}

/// The connections and commands of one run on a server that has loaded our scripts.
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
