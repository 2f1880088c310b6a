//! A line that falls silent just before a renewal is due, and is back half a second before the command
//! would have to be stopped, costs nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::hold;
use crate::support::nodes::renewed;
use crate::support::{Journal, Network, wait_until};

const HOLDER: u8 = 4;
/// The silence begins and ends this long before the renewal and the stop.
const BEFORE_RENEWAL: Duration = Duration::from_millis(60);
const BEFORE_STOP: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_millis(100);

/// Whether the run survived the silence; `None` if the silence lasted longer than planned, because the
/// machine is busy.
fn survives(network: &Network, servers: &[u8], ttl: u32) -> Option<bool> {
    let (servers, journal) = (network.servers(servers), Journal::new());
    let mut holder = hold(network.host(HOLDER), servers.run("k", &format!("{ttl}s")), &journal, "holder");
    let last = servers.0.len() - 1;
    servers.0[last].ask(|redis| renewed(redis, "k", 1));
    let (renewed_at, ttl) = (Instant::now(), Duration::from_secs(ttl.into()));
    let stops_at = renewed_at + ttl * 99 / 100 - (ttl / 3).min(Duration::from_secs(5));
    sleep((renewed_at + ttl / 3 - BEFORE_RENEWAL).saturating_duration_since(Instant::now()));
    network.cut_off(HOLDER);
    sleep((stops_at - BEFORE_STOP).saturating_duration_since(Instant::now()));
    network.join(HOLDER);
    let is_late = Instant::now() > stops_at - BEFORE_STOP + LATE;
    let _open = holder.take_stdin();
    let mut is_renewed = false;
    wait_until("the lock is renewed or lost", || {
        is_renewed =
            servers.0[last].ask(|redis| crate::support::pttl(redis, "k")) > (ttl / 2).as_millis() as i64;
        is_renewed || !holder.is_running()
    });
    let survives = is_renewed && holder.is_running() && !holder.stderr_so_far().contains("lost");
    (!is_late).then_some(survives)
}

/// A promise about time that a busy machine may break: one of three attempts must succeed.
#[track_caller]
fn assert_survives(network: &Network, servers: &[u8], ttl: u32) {
    let mut attempts = Vec::new();
    while attempts.len() < 3 {
        attempts.push(survives(network, servers, ttl));
        if attempts.contains(&Some(true)) {
            return;
        }
    }
    // A machine that is late every time shows nothing.
    assert!(!attempts.contains(&Some(false)), "lost with a ttl of {ttl} s: {attempts:?}");
}

macro_rules! silence_tests {
    ($($name:ident: $servers:expr, $ttl:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_survives(&network!(HOLDER), $servers, $ttl);
        }
    )*};
}

silence_tests! {
    a_run_on_one_server_survives_a_silence_with_a_ttl_of_4_s: &[1], 4;
    a_run_on_one_server_survives_a_silence_with_a_ttl_of_6_s: &[1], 6;
    a_run_on_one_server_survives_a_silence_with_a_ttl_of_10_s: &[1], 10;
    a_run_on_three_servers_survives_a_silence_with_a_ttl_of_4_s: &[1, 2, 3], 4;
    a_run_on_three_servers_survives_a_silence_with_a_ttl_of_6_s: &[1, 2, 3], 6;
    a_run_on_three_servers_survives_a_silence_with_a_ttl_of_10_s: &[1, 2, 3], 10;
}
