//! redlock beside flock(1), and beside the minimum that a Redis lock can cost. Run it with
//! scripts/bench.
//!
//! The contenders run in turn (A B C A B C ...), so that a slow moment of the machine affects all
//! alike and the ratios are meaningful even if the times are not. A missed goal is a figure, not a
//! failure: the exit code only says whether the measurement worked.

mod crowd_of_clients;
mod growth;
mod handover;
mod holding;
mod many;
mod network;
mod nodes;
mod process;
mod report;
mod rig;
mod server;
mod server_time;
mod spawner;
mod stamp;
mod statistics;
mod stopwatch;
mod uncontended;
mod waiting;

// Direct script calls, and the network lines of the tests.
#[allow(dead_code)]
#[path = "../../tests/suite/support/crowd.rs"]
mod crowd;
#[allow(dead_code)]
#[path = "../../tests/suite/support/script_calls.rs"]
mod script_calls;

#[allow(dead_code)]
#[path = "../../tests/suite/support/proxy.rs"]
mod proxy;
#[path = "../../tests/suite/support/wire.rs"]
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use rig::Rig;

/// How much of everything.
struct Effort {
    uncontended_rounds: usize,
    /// The number of waiters, and of rounds with that many.
    handovers: [(usize, usize); 2],
    waiting_for: Duration,
    node_rounds: usize,
    crowds: usize,
    network: network::Effort,
}

const FULL: Effort = Effort {
    uncontended_rounds: 400,
    handovers: [(8, 16), (40, 5)],
    waiting_for: Duration::from_secs(10),
    node_rounds: 400,
    crowds: 5,
    network: network::Effort { runs: 30, handovers: 5 },
};
const QUICK: Effort = Effort {
    uncontended_rounds: 60,
    handovers: [(8, 5), (40, 2)],
    waiting_for: Duration::from_secs(4),
    node_rounds: 60,
    crowds: 2,
    network: network::Effort { runs: 9, handovers: 2 },
};

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot measure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, file, name] = arguments.as_slice()
        && word == stamp::ARGUMENT
    {
        return stamp::hold_and_note(file, name);
    }
    if let [word] = arguments.as_slice()
        && word == crowd_of_clients::ARGUMENT
    {
        return crowd_of_clients::section();
    }
    // If our parent is killed, nothing of ours stays, since the same holds for our children.
    set_pdeathsig(Signal::SIGKILL)?;
    let given = |option: &str| arguments.iter().any(|argument| argument == option);
    let effort = if given("--quick") { &QUICK } else { &FULL };
    if given("--network") {
        measure_network(effort)
    } else if given("--many") {
        let mut rig = Rig::build()?;
        report::heading(&mut rig);
        measure_many(&mut rig)
    } else if given("--growth") {
        let mut rig = Rig::build()?;
        report::heading(&mut rig);
        measure_growth(&mut rig)
    } else {
        measure(effort)
    }
}

fn measure_network(effort: &Effort) -> anyhow::Result<()> {
    let mut rig = Rig::build()?;
    report::heading(&mut rig);
    network::measure(&mut rig, &effort.network).context("a network")
}

fn measure(effort: &Effort) -> anyhow::Result<()> {
    let mut rig = Rig::build()?;
    report::heading(&mut rig);
    let uncontended = uncontended::measure(&mut rig, effort.uncontended_rounds).context("uncontended")?;
    report::section("uncontended: the whole process, start to end", &uncontended);
    let counts = uncontended::count_requests(&mut rig).context("requests")?;
    report::section("uncontended: what the server sees of one run", &counts);
    let server_time = server_time::measure(&mut rig).context("server time")?;
    report::section("uncontended: the server's time for a take or a release, the mean of both", &server_time);
    for (waiters, rounds) in effort.handovers {
        let rows = handover::measure(&mut rig, waiters, rounds)
            .with_context(|| format!("hand-over with {waiters} waiters"))?;
        report::section(
            &format!("hand-over, {waiters} waiters: end of one holder to start of the next"),
            &rows,
        );
    }
    let waiting = waiting::measure(&mut rig, effort.waiting_for).context("waiting")?;
    report::section("while waiting", &waiting);
    let holding = holding::measure(&mut rig).context("holding")?;
    report::section("while holding", &holding);
    let url = rig.server.tcp_url();
    let crowd = crowd_of_clients::measure(&mut rig, &url, effort.crowds).context("a crowd")?;
    report::section("one server, 20 clients at once, 5 sections of 5 ms each", &crowd);
    measure_many(&mut rig)?;
    measure_nodes(&mut rig, effort).context("five servers")
}

fn measure_many(rig: &mut Rig) -> anyhow::Result<()> {
    let many = many::measure(rig).context("many")?;
    report::section("one call of a script, server time beside 50 / 500 / 5000 others", &many);
    Ok(())
}

fn measure_growth(rig: &mut Rig) -> anyhow::Result<()> {
    let rows = growth::waiters_and_slots(rig).context("waiters and slots")?;
    report::section("server time of a call beside 50 / 500 / 5000 waiters, or holders of slots", &rows);
    let rows = growth::keys_of_a_run(rig).context("keys")?;
    report::section("server time of a call for 1 / 4 / 16 / 64 keys at once", &rows);
    let rows = growth::keys_on_the_server(rig).context("keys on the server")?;
    report::section("server time of a call beside 1 / 1,000 / 100,000 / 1,000,000 other keys", &rows);
    let rows = growth::servers(rig).context("servers")?;
    report::section("whole runs over servers of this machine", &rows);
    Ok(())
}

fn measure_nodes(rig: &mut Rig, effort: &Effort) -> anyhow::Result<()> {
    let mut nodes = nodes::Nodes::start(rig, nodes::FIVE)?;
    let uncontended = nodes::uncontended(rig, &nodes, effort.node_rounds).context("uncontended")?;
    report::section("five servers, uncontended: the whole process, start to end", &uncontended);
    let counts = nodes::count_requests(rig, &mut nodes).context("requests")?;
    report::section("five servers: what they see of one run", &counts);
    let crowd = crowd_of_clients::measure(rig, &nodes.urls().join(","), effort.crowds).context("a crowd")?;
    report::section("five servers, 20 clients at once, 5 sections of 5 ms each", &crowd);
    Ok(())
}
