//! `--watch`: refresh until ^C.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::child::signals::{Signals, exit_by_signal, suspend_self};
use crate::child::{local_time, terminal};
use crate::clock::BootTime;
use crate::exit::{Exit, Failure};
use crate::report::{self, LongLines, Size};

/// If the terminal does not report its size.
const USUAL_SIZE: Size = Size { rows: 24, columns: 80 };

/// Show what `look` returns, with a pause of `interval` between two looks. Only a failure of the
/// first look ends it: servers may come back.
pub(super) fn watch(
    interval: Duration,
    long: LongLines,
    look: impl FnMut() -> Result<String, Failure>,
) -> anyhow::Result<Exit> {
    if io::stdout().is_terminal() { on_terminal(interval, long, look) } else { off_terminal(interval, look) }
}

/// A blank line after each look. Ends when the reader closes the pipe.
fn off_terminal(
    interval: Duration,
    mut look: impl FnMut() -> Result<String, Failure>,
) -> anyhow::Result<Exit> {
    let mut stdout = io::stdout();
    let mut text = look()?;
    loop {
        match stdout.write_all(format!("{text}\n").as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Code(0)),
            written => written?,
        }
        thread::sleep(interval);
        text = look().unwrap_or_else(|failure| {
            report::print(&failure.message);
            String::new()
        });
    }
}

fn on_terminal(
    interval: Duration,
    long: LongLines,
    mut look: impl FnMut() -> Result<String, Failure>,
) -> anyhow::Result<Exit> {
    // ^C works at once, even while a server is slow to reply.
    let mut signals = Signals::block_and_interrupt_with(|| {
        let _nothing_is_drawn_again = report::leave_screen();
        exit_by_signal(Signal::SIGINT as i32);
    })?;
    let mut text = look()?;
    report::enter_screen()?;
    let mut next = BootTime::now() + interval;
    loop {
        let shown = report::draw_screen(&heading(interval), &text, long, size());
        if let Err(error) = shown {
            drop(report::leave_screen());
            return Err(error.into());
        }
        match signals.next_until(next).map(|received| received.signal) {
            None => {
                text = look().unwrap_or_else(|failure| report::failed_look(&failure.message));
                next = BootTime::now() + interval;
            }
            Some(signal @ (Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)) => {
                drop(report::leave_screen());
                return Ok(Exit::Signal(signal as i32));
            }
            Some(Signal::SIGTSTP) => {
                drop(report::leave_screen());
                suspend_self();
                report::enter_screen()?;
            }
            // Resized or continued: redraw.
            Some(_) => {}
        }
    }
}

fn heading(interval: Duration) -> String {
    report::watch_heading(interval, SystemTime::now(), local_time)
}

fn size() -> Size {
    terminal::size(&io::stdout()).map_or(USUAL_SIZE, |(rows, columns)| Size { rows, columns })
}
