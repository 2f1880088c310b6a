//! Lines to stderr and to the events file, written without ever waiting for their reader.
//!
//! A reader that hangs, ^S at the terminal or a full pipe must not hold up a signal, a deadline or a release. What cannot
//! be written now is kept, in order and up to a bound, and tried again; what exceeds the bound is dropped, and the next
//! line that gets through tells how much that was.
//!
//! O_NONBLOCK belongs to the open file, which we share with the command and with other processes: it must not be set on
//! an inherited descriptor. See [`Way`] for what is done instead.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, PipeReader, PipeWriter, Read, Stderr, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{SpliceFFlags, splice};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::termios::tcgetsid;
use nix::unistd::{getsid, write};
use socket2::SockRef;

use crate::clock::BootTime;

/// How much is kept for a reader that is away.
const BACKLOG: usize = 64 * 1024;
/// PIPE_BUF: a pipe that is ready for writing takes this much in one piece.
const PIECE: usize = 4096;
/// At the exit, when all else is done: for a reader that is behind, but reads.
const LINGER: Duration = Duration::from_millis(100);

/// The descriptor of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Descriptor {
    Stderr(Arc<Stderr>),
    File(Arc<File>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stderr(stderr) => stderr.as_fd(),
            Self::File(file) => file.as_fd(),
        }
    }
}

/// How to write without waiting.
enum Way {
    /// A regular file, or an open file of our own with O_NONBLOCK: a plain write.
    Write(Descriptor),
    /// The kernel is told not to wait with each call.
    Socket(Descriptor),
    /// A pipe that we may not open anew, as it belongs to another user (cron's, sudo's): through a pipe of our own, since
    /// splice, too, is told that with each call.
    Splice { to: Descriptor, reader: PipeReader, writer: PipeWriter },
    /// Nothing better is left (no descriptor is free): poll first, and hope that no other writer comes in between.
    Poll(Descriptor),
    /// A FIFO that nobody reads yet.
    Fifo(PathBuf),
}

impl Way {
    fn to_stderr() -> Self {
        let stderr = Descriptor::Stderr(Arc::new(io::stderr()));
        let kind = fstat(&stderr).map_or(SFlag::empty(), |about| SFlag::from_bits_truncate(about.st_mode));
        match kind & SFlag::S_IFMT {
            SFlag::S_IFREG => Self::Write(stderr),
            SFlag::S_IFSOCK => Self::Socket(stderr),
            kind => match open_anew(&stderr) {
                Ok(file) => Self::Write(Descriptor::File(Arc::new(file))),
                Err(_) if kind == SFlag::S_IFIFO => match io::pipe() {
                    Ok((reader, writer)) => Self::Splice { to: stderr, reader, writer },
                    Err(_) => Self::Poll(stderr),
                },
                Err(_) => Self::Poll(stderr),
            },
        }
    }

    /// As many of the bytes as can be written at once; [`ErrorKind::WouldBlock`] if that is none.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        match self {
            Self::Write(descriptor) => Ok(write(descriptor, bytes)?),
            Self::Socket(descriptor) => {
                SockRef::from(&*descriptor).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            }
            Self::Splice { to, reader, writer } => write_by_splice(to, reader, writer, piece),
            Self::Poll(descriptor) if !is_ready(descriptor, PollTimeout::ZERO) => {
                Err(ErrorKind::WouldBlock.into())
            }
            Self::Poll(descriptor) => Ok(write(descriptor, piece)?),
            Self::Fifo(path) => {
                let file = open_nonblocking(path).map_err(|error| match error.raw_os_error() {
                    Some(libc::ENXIO) => ErrorKind::WouldBlock.into(),
                    _ => error,
                })?;
                *self = Self::Write(Descriptor::File(Arc::new(file)));
                self.write(bytes)
            }
        }
    }

    fn descriptor(&self) -> Option<&Descriptor> {
        match self {
            Self::Write(descriptor)
            | Self::Socket(descriptor)
            | Self::Poll(descriptor)
            | Self::Splice { to: descriptor, .. } => Some(descriptor),
            Self::Fifo(_) => None,
        }
    }

    fn is_terminal(&self) -> bool {
        self.descriptor().is_some_and(|descriptor| descriptor.as_fd().is_terminal())
    }
}

/// What stderr leads to, as an open file of our own.
fn open_anew(stderr: &Descriptor) -> io::Result<File> {
    open_nonblocking(Path::new("/proc/self/fd/2")).or_else(|error| {
        // After `su` the terminal still belongs to the first user; by this name every process may open it.
        let is_ours = tcgetsid(stderr).is_ok_and(|session| getsid(None) == Ok(session));
        if is_ours { open_nonblocking(Path::new("/dev/tty")) } else { Err(error) }
    })
}

fn open_nonblocking(path: &Path) -> io::Result<File> {
    File::options().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn write_by_splice(
    to: &Descriptor,
    mut reader: &PipeReader,
    mut writer: &PipeWriter,
    piece: &[u8],
) -> io::Result<usize> {
    // It is empty, so this does not block.
    writer.write_all(piece)?;
    let moved = splice(reader, None, to, None, piece.len(), SpliceFFlags::SPLICE_F_NONBLOCK);
    let left = piece.len() - moved.unwrap_or(0);
    reader.read_exact(&mut vec![0; left])?;
    Ok(moved?)
}

struct Line {
    text: Vec<u8>,
    /// How many dropped lines it tells of.
    tells_of: usize,
}

/// Lines on their way to a reader.
pub(super) struct Stream {
    way: Way,
    /// The path of a FIFO, to be opened anew when its reader has gone.
    fifo: Option<PathBuf>,
    is_terminal: bool,
    backlog: VecDeque<Line>,
    /// How much of the first of them is written.
    written: usize,
    /// How many lines were dropped since the last one that got through.
    dropped: usize,
    /// Why the last line was dropped; `None` if its reader was away for too long.
    pub(super) last_error: Option<io::Error>,
    /// The disk was full in the middle of a line.
    is_torn: bool,
    /// Nothing could be written though the descriptor seemed ready.
    is_stalled: bool,
}

impl Stream {
    pub(super) fn to_stderr() -> Self {
        Self::new(Way::to_stderr(), None)
    }

    /// Appends to a file; it is created if it is not there.
    pub(super) fn append_to(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.append(true).create(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        match options.open(path) {
            Ok(file) => {
                let is_fifo = file.metadata().is_ok_and(|about| about.file_type().is_fifo());
                let fifo = is_fifo.then(|| path.to_owned());
                Ok(Self::new(Way::Write(Descriptor::File(Arc::new(file))), fifo))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_fifo(path) => {
                Ok(Self::new(Way::Fifo(path.to_owned()), Some(path.to_owned())))
            }
            Err(error) => Err(error),
        }
    }

    fn new(way: Way, fifo: Option<PathBuf>) -> Self {
        Self {
            is_terminal: way.is_terminal(),
            way,
            fifo,
            backlog: VecDeque::new(),
            written: 0,
            dropped: 0,
            last_error: None,
            is_torn: false,
            is_stalled: false,
        }
    }

    /// Write a line, or keep it. `line` is told how many lines before it were dropped.
    pub(super) fn push(&mut self, line: impl FnOnce(usize) -> Vec<u8>) {
        self.flush();
        let line = line(self.dropped);
        if self.backlog.is_empty() || self.backlog_size() + line.len() <= BACKLOG {
            self.keep(line);
        } else {
            (self.dropped, self.last_error) = (self.dropped + 1, None);
        }
    }

    /// The same, whatever the bound: the last line of all.
    pub(super) fn push_last(&mut self, line: impl FnOnce(usize) -> Vec<u8>) {
        self.flush();
        self.keep(line(self.dropped));
    }

    fn keep(&mut self, text: Vec<u8>) {
        self.backlog.push_back(Line { text, tells_of: std::mem::take(&mut self.dropped) });
        self.is_stalled = false;
        self.flush();
    }

    fn backlog_size(&self) -> usize {
        self.backlog.iter().map(|line| line.text.len()).sum()
    }

    /// What is shown for a moment only: now or never.
    pub(super) fn show(&mut self, text: &[u8]) {
        self.flush();
        if self.backlog.is_empty() {
            let _ = self.write(text);
        }
    }

    /// Write as much of the backlog as can be written now.
    pub(super) fn flush(&mut self) {
        while let Some(line) = self.backlog.pop_front() {
            match self.mend().and_then(|()| self.write(&line.text[self.written..])) {
                Ok(length) if self.written + length < line.text.len() => {
                    self.written += length;
                    self.backlog.push_front(line);
                }
                Ok(_) => self.written = 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.backlog.push_front(line);
                }
                Err(error) => {
                    self.is_torn |= std::mem::take(&mut self.written) > 0;
                    self.dropped += 1 + line.tells_of;
                    self.last_error = Some(error);
                }
            }
        }
    }

    /// End a line of which only the beginning could be written.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// The same, if poll finds the descriptor ready. A terminal may seem so and take nothing: then it is not polled
    /// again before there is more to write.
    pub(super) fn flush_ready(&mut self) {
        if self.unwritten().is_some_and(|descriptor| is_ready(&descriptor, PollTimeout::ZERO)) {
            let before = (self.backlog.len(), self.written);
            self.flush();
            self.is_stalled = before == (self.backlog.len(), self.written);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A terminal with `tostop` stops the processes in the background that write to it, unless they block this.
        let mask =
            self.is_terminal.then(|| SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK));
        let result = loop {
            match self.way.write(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe && self.fifo.is_some() => {
                    self.way = Way::Fifo(self.fifo.clone().unwrap_or_default());
                    break Err(ErrorKind::WouldBlock.into());
                }
                result => break result,
            }
        };
        if let Some(Ok(mask)) = mask {
            let _ = mask.thread_set_mask();
        }
        result
    }

    /// To be polled for writing, and then flushed; `None` if nothing is left to be written.
    pub(super) fn unwritten(&self) -> Option<Descriptor> {
        let is_waiting = !self.backlog.is_empty() && !self.is_stalled;
        self.way.descriptor().filter(|_| is_waiting).cloned()
    }

    /// The last chance for what is kept. Returns how many lines were lost.
    pub(super) fn finish(&mut self) -> usize {
        self.flush();
        let end = BootTime::now() + LINGER;
        while let Some(descriptor) = self.unwritten().filter(|_| !end.has_passed()) {
            if is_ready(&descriptor, end.poll_timeout()) {
                self.flush_ready();
            }
        }
        self.dropped + self.backlog.iter().map(|line| 1 + line.tells_of).sum::<usize>()
    }
}

fn is_ready(descriptor: &Descriptor, timeout: PollTimeout) -> bool {
    poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLOUT)], timeout).is_ok_and(|ready| ready > 0)
}

fn is_fifo(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream into a pipe, by the way that does not need our own open file, and its reader.
    fn spliced() -> (Stream, PipeReader) {
        let (ours, theirs) = io::pipe().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let to = Descriptor::File(Arc::new(File::from(std::os::fd::OwnedFd::from(theirs))));
        (Stream::new(Way::Splice { to, reader, writer }, None), ours)
    }

    fn numbered(stream: &mut Stream, lines: std::ops::Range<usize>) {
        for n in lines {
            stream.push(|dropped| match dropped {
                0 => format!("{n:>99}\n").into_bytes(),
                dropped => format!("{dropped} dropped\n{n:>99}\n").into_bytes(),
            });
        }
    }

    #[test]
    fn what_is_dropped_is_counted_at_the_place_where_it_is_missing() {
        let (mut stream, mut reader) = spliced();
        numbered(&mut stream, 0..2000);
        assert!(stream.dropped > 0 && stream.backlog_size() <= BACKLOG);
        let mut read = vec![0; 200];
        let mut text = Vec::new();
        while !(stream.backlog.is_empty() && text.ends_with(b"2000\n")) {
            let length = reader.read(&mut read).unwrap();
            text.extend(&read[..length]);
            stream.flush();
            if stream.backlog.is_empty() && stream.dropped > 0 {
                numbered(&mut stream, 2000..2001);
            }
        }
        let text = String::from_utf8(text).unwrap();
        let note = text.lines().position(|line| line.contains("dropped")).unwrap();
        let kept: Vec<usize> = text.lines().take(note).map(|line| line.trim().parse().unwrap()).collect();
        assert_eq!(kept, (0..note).collect::<Vec<_>>());
        assert_eq!(
            text.lines().skip(note).collect::<Vec<_>>(),
            [format!("{} dropped", 2000 - note), format!("{:>99}", 2000)]
        );
    }

    #[test]
    fn a_long_line_arrives_in_one_piece_however_slowly_it_is_read() {
        let (mut stream, mut reader) = spliced();
        let line: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        stream.push(|_| line.clone());
        let (mut text, mut read) = (Vec::<u8>::new(), [0; 1000]);
        while text.len() < line.len() {
            let length = reader.read(&mut read).unwrap();
            text.extend(&read[..length]);
            stream.flush();
        }
        assert!(text == line && stream.finish() == 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error_but_counts() {
        let (mut stream, reader) = spliced();
        drop(reader);
        numbered(&mut stream, 0..3);
        assert_eq!(stream.finish(), 3);
        assert_eq!(stream.last_error.unwrap().kind(), ErrorKind::BrokenPipe);
    }
}
