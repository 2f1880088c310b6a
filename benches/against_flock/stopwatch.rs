//! Times whole processes. They are started as cheaply as possible and waited for without polling,
//! so a watchdog must end one that hangs.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::PATIENCE;

const CHECK_EVERY: Duration = Duration::from_secs(1);

struct Running {
    pid: Pid,
    since: Instant,
}

pub struct Stopwatch {
    running: Arc<Mutex<Option<Running>>>,
}

impl Stopwatch {
    /// With a watchdog that lives as long as the benchmark.
    pub fn new() -> Self {
        let running = Arc::new(Mutex::new(None));
        let watched = Arc::clone(&running);
        thread::spawn(move || {
            loop {
                thread::sleep(CHECK_EVERY);
                kill_if_overdue(&watched);
            }
        });
        Self { running }
    }

    /// How long the command took, from start to exit.
    pub fn time(&self, command: &mut Command) -> anyhow::Result<Duration> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let since = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        self.set(Some(Running { pid: Pid::from_raw(child.id().cast_signed()), since }));
        let status = child.wait();
        let took = since.elapsed();
        self.set(None);
        let status = status?;
        ensure!(status.success(), "{command:?} failed: {status}");
        Ok(took)
    }

    fn set(&self, running: Option<Running>) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = running;
    }
}

fn kill_if_overdue(watched: &Mutex<Option<Running>>) {
    let running = watched.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Running { pid, since }) = *running
        && since.elapsed() > PATIENCE
    {
        // `time` then reports that it failed.
        let _ = kill(pid, Signal::SIGKILL);
    }
}
