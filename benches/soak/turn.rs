//! One run: its request, and how it must end.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::dice::Dice;
use crate::world::{Backend, World};

/// Few, so that runs compete, and so that what a key leaves behind is bounded.
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// On servers the others wait this long for the lock of a killed holder.
const TTL: &str = "2s";
const HELD: i32 = 75;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exclusive,
    Shared,
    Slots,
    SeveralKeys,
    NonBlocking,
    /// A short wait, which often ends before the lock is free.
    Impatient,
    Retries,
    MinHold,
    /// The holder is killed while its command runs.
    Killed,
}

#[derive(Debug)]
pub struct Turn {
    backend: Backend,
    kind: Kind,
    key: &'static str,
    /// What the command does: usually nothing.
    hold: Duration,
}

pub enum End {
    Ran,
    Held,
    Killed,
}

impl Turn {
    pub fn draw(backend: Backend, dice: &mut Dice) -> Self {
        let kind = dice.weighted(&[
            (300, Kind::Exclusive),
            (200, Kind::Shared),
            (100, if backend == Backend::ThreeServers { Kind::Shared } else { Kind::Slots }),
            (100, Kind::SeveralKeys),
            (150, Kind::NonBlocking),
            (100, Kind::Impatient),
            (20, Kind::Retries),
            (15, Kind::MinHold),
            (3, Kind::Killed),
        ]);
        let hold = Duration::from_millis(if dice.percent(5) { dice.between(1, 30) } else { 0 });
        Self { backend, kind, key: dice.one_of(&KEYS), hold }
    }

    fn args(&self) -> Vec<&'static str> {
        match self.kind {
            Kind::Exclusive | Kind::Killed => vec![],
            Kind::Shared => vec!["--shared"],
            Kind::Slots => vec!["--slots", "2"],
            Kind::SeveralKeys => vec!["--key", "e"],
            Kind::NonBlocking => vec!["-n"],
            Kind::Impatient => vec!["-w", "0.02"],
            Kind::Retries => vec!["--retries", "3", "--retry-interval", "10ms"],
            Kind::MinHold => vec!["--min-hold", "30ms"],
        }
    }

    fn may_find_it_held(&self) -> bool {
        matches!(self.kind, Kind::NonBlocking | Kind::Impatient | Kind::Retries)
    }

    pub fn play(&self, world: &World) -> anyhow::Result<End> {
        // Slots cannot be combined with other modes.
        let key = if self.kind == Kind::Slots { "slots" } else { self.key };
        let mut command = Command::new(world.redlock());
        command.args(["run", "--key", key]).args(world.backend_args(self.backend, TTL)).args(self.args());
        command.arg("--");
        match (self.kind, self.hold) {
            (Kind::Killed, _) => command.args(world.marked_sleep()),
            (_, Duration::ZERO) => command.arg("true"),
            (_, hold) => command.arg("sleep").arg(hold.as_secs_f64().to_string()),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: the closure makes one system call: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let mut child = command.spawn().context("redlock")?;
        if self.kind == Kind::Killed {
            sleep(Duration::from_millis(20));
            child.kill()?;
        }
        let output = child.wait_with_output()?;
        match (output.status.code(), output.status.signal()) {
            (None, Some(9)) if self.kind == Kind::Killed => Ok(End::Killed),
            (Some(0), None) if self.kind != Kind::Killed => Ok(End::Ran),
            (Some(HELD), None) if self.may_find_it_held() => Ok(End::Held),
            _ => bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end()),
        }
    }
}
