//! Lines for stderr and for the events file, written by a thread: a reader that hangs, ^S at the
//! terminal or a full pipe delays no signal, no deadline and no release.
//!
//! The caller waits for the thread, so that a line comes before what the program does next, such as
//! starting the command; but only for a moment, and not again until the reader has caught up. The
//! queue is bounded. Lines beyond the bound are dropped, and the next line that gets through says how
//! many are missing.
//!
//! The guardian is forked while the program has one thread. Before that, and where no thread can be
//! started, the caller writes what poll says can be written without blocking.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::write;

use crate::clock::BootTime;

/// Bytes that are queued for a reader that is behind.
const QUEUE: usize = 64 * 1024;
/// PIPE_BUF: a pipe that poll calls writable takes this much without blocking.
const PIECE: usize = 4096;
/// How often a reader that is behind is polled.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the caller waits until everything is written.
struct Patience {
    /// If the reader is behind.
    reader: Duration,
    /// If it is not: then the machine is busy, and the thread will run soon.
    thread: Duration,
}

const AFTER_A_LINE: Patience = Patience { reader: PAUSE, thread: Duration::from_millis(100) };
const AT_THE_EXIT: Patience = Patience { reader: Duration::from_millis(100), thread: Duration::from_secs(2) };

static THREADS_ALLOWED: AtomicBool = AtomicBool::new(false);

/// The program will not fork again.
pub(crate) fn allow_threads() {
    THREADS_ALLOWED.store(true, Ordering::Relaxed);
}

pub(super) struct LineWriter(Arc<SharedQueue>);

struct SharedQueue {
    target: WriteTarget,
    /// Nothing that runs under this lock can panic: the panic hook takes it, too.
    state: Mutex<QueueState>,
    /// A line was queued or written.
    changed: Condvar,
}

enum WriteTarget {
    Stderr(Stderr),
    File(File),
    /// Opened again when its reader has gone; `None` until the next reader has come.
    Fifo(PathBuf, Mutex<Option<Arc<File>>>),
}

#[derive(Default)]
struct QueueState {
    has_thread: bool,
    lines: VecDeque<Line>,
    /// A line of which the caller could write only a part.
    unfinished: Option<Line>,
    /// How many lines are lost if the one that the thread is writing is lost.
    in_flight: usize,
    /// Lines for which there was no room, since the newest one in the queue.
    dropped: usize,
    /// Lines that could not be written, since the last one that was.
    failed: usize,
    last_error: Option<io::Error>,
    /// An error, such as a full disk, came in the middle of a line.
    is_torn: bool,
    /// The caller has waited in vain, and no line was written since.
    is_stalled: bool,
}

#[derive(Default)]
struct Line {
    text: Vec<u8>,
    is_event: bool,
    /// It ends a torn line first.
    mends: bool,
    /// How many lines are missing before this one.
    missing: usize,
    written: usize,
}

impl LineWriter {
    pub(super) fn to_stderr() -> Self {
        Self::new(WriteTarget::Stderr(io::stderr()))
    }

    /// Appends to a file, which is created if it does not exist.
    pub(super) fn append_to(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.append(true).create(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let is_fifo = || fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo());
        let fifo = |file| WriteTarget::Fifo(path.to_owned(), Mutex::new(file));
        Ok(Self::new(match options.open(path) {
            Ok(file) if is_fifo() => fifo(Some(Arc::new(file))),
            Ok(file) => WriteTarget::File(file),
            // It has no reader yet.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_fifo() => fifo(None),
            Err(error) => return Err(error),
        }))
    }

    fn new(target: WriteTarget) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(SharedQueue { target, state, changed }))
    }

    /// A line, or several, with the line feed.
    pub(super) fn text(&self, text: impl Into<Vec<u8>>) {
        self.push(Line { text: text.into(), ..Line::default() }, false);
    }

    /// A JSON object and a line feed. The last one of all is queued whatever the bound.
    pub(super) fn event(&self, object: String, is_last: bool) {
        self.push(Line { text: object.into(), is_event: true, ..Line::default() }, is_last);
    }

    /// Text that is soon replaced: dropped if other text is still waiting.
    pub(super) fn show(&self, text: String) {
        if self.0.lock().is_idle() {
            self.text(text);
        }
    }

    fn push(&self, mut line: Line, is_last: bool) {
        let mut state = self.0.lock();
        let queued: usize = state.lines.iter().map(|line| line.text.len()).sum();
        if is_last || queued == 0 || queued + line.text.len() <= QUEUE {
            line.missing = std::mem::take(&mut state.dropped);
            state.lines.push_back(line);
            self.0.write_queue(&mut state, THREADS_ALLOWED.load(Ordering::Relaxed));
            if state.has_thread && !state.is_stalled {
                let mut state = self.0.wait_for_reader(state, &AFTER_A_LINE);
                state.is_stalled = !state.is_idle();
            }
        } else {
            (state.dropped, state.last_error) = (state.dropped + 1, None);
        }
    }

    /// Before the exit: a last chance for queued lines. Returns how many lines were lost, and why the
    /// last of them could not be written; `None` if its reader was too far behind.
    pub(super) fn finish(&self) -> (usize, Option<io::Error>) {
        let mut state = self.0.lock();
        self.0.write_queue(&mut state, true);
        let mut state = self.0.wait_for_reader(state, &AT_THE_EXIT);
        (state.lost(), state.last_error.take())
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have the thread write the queue, or write as much of it as is possible without blocking.
    fn write_queue(self: &Arc<Self>, state: &mut QueueState, may_start_thread: bool) {
        if may_start_thread && !state.has_thread && !state.is_idle() {
            let shared = self.clone();
            let started = thread::Builder::new().name("writer".into()).spawn(move || shared.serve());
            state.has_thread = started.is_ok();
        }
        if state.has_thread {
            return self.changed.notify_all();
        }
        // A terminal with `tostop` stops background processes that write to it, unless they block this.
        let mask = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        while let Some(mut line) = state.next_line() {
            match self.write(&mut line, false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    state.unfinished = Some(line);
                    break;
                }
                result => state.wrote(&line, result),
            }
        }
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
    }

    /// The thread.
    fn serve(&self) {
        // SIGTTOU as above; and a file that exceeds the limit (SIGXFSZ) must not end the process.
        let _ = SigSet::all().thread_block();
        let mut state = self.lock();
        loop {
            if let Some(mut line) = state.next_line() {
                state.in_flight = 1 + line.missing;
                drop(state);
                let result = self.write(&mut line, true);
                state = self.lock();
                state.in_flight = 0;
                state.wrote(&line, result);
                self.changed.notify_all();
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Returns when everything is written, or when the reader is too far behind.
    fn wait_for_reader<'a>(
        self: &Arc<Self>,
        mut state: MutexGuard<'a, QueueState>,
        patience: &Patience,
    ) -> MutexGuard<'a, QueueState> {
        let begin = BootTime::now();
        while !state.is_idle() {
            let at_most = if self.takes_more() { patience.thread } else { patience.reader };
            if begin.elapsed() >= at_most {
                break;
            }
            let waited = self.changed.wait_timeout(state, PAUSE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.write_queue(&mut state, false);
        }
        state
    }

    /// Write the rest of the line. If that must not block, what is left is [`ErrorKind::WouldBlock`].
    fn write(&self, line: &mut Line, may_block: bool) -> io::Result<()> {
        while line.written < line.text.len() {
            if !may_block && self.poll(PollTimeout::ZERO).is_none() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let rest = &line.text[line.written..];
            let piece = if may_block { rest } else { &rest[..rest.len().min(PIECE)] };
            let written = match &self.target {
                WriteTarget::Stderr(stderr) => write(stderr, piece).map_err(io::Error::from),
                WriteTarget::File(file) => write(file, piece).map_err(io::Error::from),
                WriteTarget::Fifo(path, file) => write_to_fifo(path, file, piece),
            };
            match written.map_err(|error| (error.kind(), error)) {
                Ok(length) => line.written += length,
                Err((ErrorKind::Interrupted, _)) => {}
                Err((ErrorKind::WouldBlock, _)) if may_block => {
                    self.poll(PollTimeout::NONE);
                    thread::sleep(PAUSE);
                }
                // The next reader gets the whole line.
                Err((ErrorKind::BrokenPipe, _)) if matches!(self.target, WriteTarget::Fifo(..)) => {
                    line.written = 0;
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the reader is not behind.
    fn takes_more(&self) -> bool {
        self.poll(PollTimeout::ZERO).is_some_and(|events| !events.contains(PollFlags::POLLERR))
    }

    /// `None` if a write would block.
    fn poll(&self, timeout: PollTimeout) -> Option<PollFlags> {
        let fifo;
        let fd = match &self.target {
            WriteTarget::Stderr(stderr) => stderr.as_fd(),
            WriteTarget::File(file) => file.as_fd(),
            WriteTarget::Fifo(_, file) => {
                fifo = file.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
                fifo.as_fd()
            }
        };
        let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
        poll(&mut fds, timeout).ok().filter(|ready| *ready > 0)?;
        fds[0].revents()
    }
}

/// Waits for a reader first, if there is none.
fn write_to_fifo(path: &Path, fifo: &Mutex<Option<Arc<File>>>, bytes: &[u8]) -> io::Result<usize> {
    let opened = fifo.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let file = match opened {
        Some(file) => file,
        None => Arc::new(File::options().append(true).open(path)?),
    };
    let written = write(&file, bytes);
    let is_open = written != Err(Errno::EPIPE);
    *fifo.lock().unwrap_or_else(PoisonError::into_inner) = is_open.then_some(file);
    Ok(written?)
}

impl QueueState {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.unfinished.is_none() && self.in_flight == 0
    }

    /// The next line to be written, with a note of the lines that are missing before it.
    fn next_line(&mut self) -> Option<Line> {
        if self.unfinished.is_some() {
            return self.unfinished.take();
        }
        let mut line = self.lines.pop_front()?;
        line.missing += std::mem::take(&mut self.failed);
        line.mends = self.is_torn;
        line.complete();
        Some(line)
    }

    fn wrote(&mut self, line: &Line, result: io::Result<()>) {
        self.is_stalled = false;
        self.is_torn = result.is_err() && (line.mends || line.written > 0);
        if let Err(error) = result {
            self.failed += 1 + line.missing;
            self.last_error = Some(error);
        }
    }

    fn lost(&self) -> usize {
        let queued: usize = self.lines.iter().chain(&self.unfinished).map(|line| 1 + line.missing).sum();
        self.failed + self.in_flight + queued + self.dropped
    }
}

impl Line {
    fn complete(&mut self) {
        let mut before = if self.mends { "\n".to_owned() } else { String::new() };
        match self.missing {
            0 => {}
            missing if self.is_event => {
                self.text.truncate(self.text.len() - "}\n".len());
                self.text.extend(format!(",\"dropped\":{missing}}}\n").bytes());
            }
            1 => before += "redlock: a line is missing here: it could not be written\n",
            missing => {
                before += &format!("redlock: {missing} lines are missing here: they could not be written\n");
            }
        }
        self.text.splice(0..0, before.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;

    fn into_pipe() -> (LineWriter, PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        (LineWriter::new(WriteTarget::File(File::from(OwnedFd::from(writer)))), reader)
    }

    fn numbered(writer: &LineWriter, numbers: std::ops::Range<usize>) {
        numbers.for_each(|n| writer.text(format!("{n:>99}\n")));
    }

    /// What can be read now.
    fn read_some(reader: &mut PipeReader) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let length = reader.read(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    fn dropped_lines_are_counted_where_they_are_missing() {
        let (writer, mut reader) = into_pipe();
        numbered(&writer, 0..2000);
        let mut text = Vec::new();
        while !text.ends_with(b"2000\n") {
            text.extend(read_some(&mut reader));
            let state = writer.0.wait_for_reader(writer.0.lock(), &AT_THE_EXIT);
            if state.is_idle() && !text.ends_with(b"2000\n") {
                drop(state);
                numbered(&writer, 2000..2001);
            }
        }
        let (mut next, mut notes) = (0, 0);
        for line in String::from_utf8(text).unwrap().lines() {
            match line.strip_prefix("redlock: ") {
                Some(note) => {
                    next += note.split(' ').next().unwrap().parse::<usize>().unwrap();
                    notes += 1;
                }
                None => {
                    assert_eq!(line.trim(), next.to_string());
                    next += 1;
                }
            }
        }
        assert!(next == 2001 && notes > 0);
    }

    #[test]
    fn the_caller_counts_dropped_lines_where_they_are_missing() {
        dropped_lines_are_counted_where_they_are_missing();
    }

    #[test]
    fn the_thread_counts_dropped_lines_where_they_are_missing() {
        allow_threads();
        dropped_lines_are_counted_where_they_are_missing();
    }

    #[test]
    fn a_long_line_arrives_whole_however_slowly_it_is_read() {
        let (writer, mut reader) = into_pipe();
        let line: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        writer.text(line.clone());
        assert_eq!(writer.finish().0, 1);
        let mut text = Vec::<u8>::new();
        while text.len() < line.len() {
            text.extend(read_some(&mut reader));
        }
        assert!(text == line);
        assert_eq!(writer.finish().0, 0);
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_but_its_lines_count_as_lost() {
        let (writer, reader) = into_pipe();
        drop(reader);
        numbered(&writer, 0..3);
        let (lost, error) = writer.finish();
        assert_eq!((lost, error.map(|error| error.kind())), (3, Some(ErrorKind::BrokenPipe)));
    }

    #[test]
    fn an_event_says_in_a_field_how_many_are_missing() {
        let mut line = Line { text: b"{\"v\":1}\n".to_vec(), is_event: true, missing: 2, ..Line::default() };
        line.complete();
        assert_eq!(line.text, b"{\"v\":1,\"dropped\":2}\n");
    }
}
