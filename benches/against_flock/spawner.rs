//! Times whole processes that a separate small program starts: see benches/spawner.rs.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::rig::Rig;

const WARM_UP_ROUNDS: usize = 5;

/// The times of each command, run in turn in this many rounds.
pub fn time_in_turn(rig: &Rig, commands: &[Command], rounds: usize) -> anyhow::Result<Vec<Vec<Duration>>> {
    let mut spawner = Command::new(&rig.spawner);
    spawner.arg((WARM_UP_ROUNDS + rounds).to_string());
    for (at, command) in commands.iter().enumerate() {
        ensure!(command.get_envs().len() == 0, "the spawner passes its own environment on: {command:?}");
        spawner.args((at > 0).then_some(":::")).arg(command.get_program()).args(command.get_args());
    }
    // The commands write to stderr only if something is wrong.
    let output = spawner.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("the spawner")?;
    ensure!(output.status.success(), "the spawner: {}", output.status);
    let mut samples = vec![Vec::new(); commands.len()];
    for line in String::from_utf8(output.stdout)?.lines() {
        let (turn, nanos) = line.split_once(' ').context("a line of the spawner")?;
        samples[turn.parse::<usize>()?].push(Duration::from_nanos(nanos.parse()?));
    }
    samples.iter_mut().for_each(|samples| drop(samples.drain(..WARM_UP_ROUNDS)));
    Ok(samples)
}
