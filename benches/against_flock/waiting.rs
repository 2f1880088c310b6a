//! Another client holds the lock for long: what does a waiter cost meanwhile?

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

use crate::holding::{GUARDIAN, holder};
use crate::process::{Guarded, child_named, cpu_ticks, cpu_time, wait_until};
use crate::report::{Row, ms};
use crate::rig::{Rig, with};

const WAITERS: usize = 10;
/// Ten of these are the period of a renewal. Waiters that arrive all at once also renew all at
/// once, and a window that ends just before a renewal would show too few of them.
const BETWEEN_ARRIVALS: Duration = Duration::from_millis(210);
/// For each waiter.
const COMMANDS_A_SECOND: f64 = 1.0;
/// "About zero": a thousandth of one core.
const CPU_SHARE: f64 = 0.001;

pub fn measure(rig: &mut Rig, window: Duration) -> anyhow::Result<Vec<Row>> {
    let key = rig.new_name();
    let holder = holder(rig, &key)?;
    let waiters = (1..=WAITERS).map(|place| waiter(rig, &key, place)).collect::<anyhow::Result<Vec<_>>>()?;
    let pids = with_guardians(&waiters)?;

    let (traffic, usage, started) = (rig.server.traffic()?, Usage::of(&pids)?, Instant::now());
    sleep(window);
    let waited = started.elapsed().as_secs_f64() * WAITERS as f64;
    let used = Usage::of(&pids)?.since(&usage);
    let caused = rig.server.traffic()?.since(&traffic);

    holder.finish()?;
    waiters.into_iter().try_for_each(Guarded::finish)?;
    let rate = caused.total_commands() as f64 / waited;
    let by_name: Vec<String> =
        caused.commands.iter().map(|(name, calls)| format!("{:.2} {name}", *calls as f64 / waited)).collect();
    let mut rows = vec![
        Row::new("commands a second a waiter", format!("{rate:.2}"))
            .goal(format!("<= {COMMANDS_A_SECOND}"), rate <= COMMANDS_A_SECOND),
        Row::new("  of which", by_name.join(", ")),
    ];
    rows.extend(used.rows(waited));
    Ok(rows)
}

fn waiter(rig: &mut Rig, key: &str, place: usize) -> anyhow::Result<Guarded> {
    let waiter = Guarded::spawn(&mut with(rig.redlock_run(&rig.server.tcp_url(), key), "true"))?;
    wait_until("the waiter has arrived", || Ok(rig.server.queue_length(key)? == place))?;
    sleep(BETWEEN_ARRIVALS);
    Ok(waiter)
}

fn with_guardians(waiters: &[Guarded]) -> anyhow::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for waiter in waiters {
        pids.extend([waiter.pid(), child_named(waiter.pid(), GUARDIAN)?]);
    }
    Ok(pids)
}

/// Processor time, by both of the kernel's accounts.
struct Usage {
    ticks: u64,
    exact: Duration,
}

impl Usage {
    fn of(pids: &[u32]) -> anyhow::Result<Self> {
        let mut usage = Self { ticks: 0, exact: Duration::ZERO };
        for pid in pids {
            usage.ticks += cpu_ticks(*pid)?;
            usage.exact += cpu_time(*pid)?;
        }
        Ok(usage)
    }

    fn since(&self, before: &Self) -> Self {
        Self { ticks: self.ticks - before.ticks, exact: self.exact.saturating_sub(before.exact) }
    }

    fn rows(&self, waited: f64) -> [Row; 2] {
        // Where the system does not say, the value that Linux has always had.
        let ticks_a_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
        let in_ticks = self.ticks as f64 / ticks_a_second;
        let share = in_ticks.max(self.exact.as_secs_f64()) / waited;
        [
            Row::new("CPU a second a waiter", ms(Duration::from_secs_f64(share)))
                .goal("about 0 (<= 1 ms)", share <= CPU_SHARE),
            Row::new("  utime+stime, all together", format!("{} ticks", self.ticks)),
        ]
    }
}
