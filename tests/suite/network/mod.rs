//! Real networks: hosts that fall silent without a reset, in one direction or in both, lines that
//! flap, sites that lose each other. Only root can make such a network; see support/network.rs.

/// A network with this many hosts. Ends the test if there can be none here.
macro_rules! network {
    ($hosts:expr) => {
        match $crate::support::Network::start($hosts) {
            Ok(network) => network,
            Err(reason) => skip!(&reason),
        }
    };
}

mod discovery;
mod holder;
mod limits;
mod servers;
mod silence;
mod sites;

use crate::support::{Job, Journal, NetworkHost, Run};

/// A command that runs until its stdin is closed.
const UNTIL_CLOSED: &str = "read x";

/// Holds the lock until its stdin is closed.
#[track_caller]
fn hold(host: &NetworkHost, run: Run, journal: &Journal, name: &str) -> Job {
    let job = host.spawn(run.dir(journal.dir()).stdin_pipe().sh(&Journal::script(name, UNTIL_CLOSED)));
    job.wait_for_line("ready");
    job
}

/// Takes the lock when it is its turn, and ends at once.
fn queue(host: &NetworkHost, run: Run, journal: &Journal, name: &str) -> Job {
    host.spawn(run.dir(journal.dir()).sh(&Journal::script(name, ":")))
}

/// The holder loses its lock, and its command is stopped.
#[track_caller]
fn stopped(mut holder: Job) {
    let _open = holder.take_stdin();
    holder.wait().expect_code(79);
}
