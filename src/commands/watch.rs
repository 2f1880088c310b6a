//! `--watch`: refresh until ^C.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;
use nix::sys::signal::Signal;

use crate::child::signals::{Signals, ends, exit_by_signal, suspend_self};
use crate::child::{local_time, terminal};
use crate::clock::BootTime;
use crate::exit::{Exit, Failure};
use crate::poll::Poll;
use crate::report::{self, Content, Size};

/// If the terminal does not report its size.
const USUAL_SIZE: Size = Size { rows: 24, columns: terminal::USUAL_WIDTH };

/// Show what `look` returns, with a pause of `interval` between two looks. Only a failure of the
/// first look ends it: servers may come back.
pub(super) fn watch(
    interval: Duration,
    content: Content,
    look: impl FnMut() -> Result<String, Failure>,
) -> anyhow::Result<Exit> {
    let is_terminal = io::stdout().is_terminal();
    if is_terminal { on_terminal(interval, content, look) } else { off_terminal(interval, content, look) }
}

/// Ends when the reader closes the pipe.
fn off_terminal(
    interval: Duration,
    content: Content,
    mut look: impl FnMut() -> Result<String, Failure>,
) -> anyhow::Result<Exit> {
    let mut stdout = io::stdout();
    let end = if matches!(content, Content::Json) { "" } else { "\n" };
    let mut text = look()?;
    loop {
        match stdout.write_all(format!("{text}{end}").as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Code(0)),
            written => written?,
        }
        if reader_leaves_within(interval) {
            return Ok(Exit::Code(0));
        }
        text = look().unwrap_or_else(|failure| {
            report::print(&failure.message);
            String::new()
        });
    }
}

/// Sleeps for the interval, or until the pipe has no reader.
fn reader_leaves_within(interval: Duration) -> bool {
    let stdout = io::stdout();
    let mut poll = Poll::new();
    poll.add(stdout.as_fd(), PollFlags::empty(), ());
    poll.until(Some(BootTime::now() + interval));
    !poll.wait().is_empty()
}

fn on_terminal(
    interval: Duration,
    content: Content,
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
        let shown = report::draw_screen(&heading(interval), &text, content, size());
        if let Err(error) = shown {
            drop(report::leave_screen());
            return Err(error.into());
        }
        match signals.next_until(Some(next)).map(|received| received.signal) {
            None => {
                text = look().unwrap_or_else(|failure| report::failed_look(&failure.message));
                next = BootTime::now() + interval;
            }
            Some(signal) if ends(signal) => {
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
