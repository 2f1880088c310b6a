//! What redlock and its guardian say to each other: fixed records over a socket pair.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use socket2::SockRef;

use crate::lock::BootTime;

pub type Environment = Vec<(OsString, OsString)>;

/// From redlock to the guardian.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// Start the command, with these added to its environment.
    Start { environment: Environment, until: Until },
    /// Pass a signal on.
    Pass(Signal),
    /// The lease now ends here; the command must be gone before.
    Deadline(BootTime),
    /// The lock is lost: stop the tree, gently first.
    Stop,
    /// Stop the tree at once.
    Kill,
}

/// How long a command may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// The lease's first deadline: it must be gone before. Renewed as long as the lease is.
    pub deadline: Option<BootTime>,
    /// It is stopped then in any case.
    pub end: Option<BootTime>,
}

/// From the guardian to redlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// With the error number of the failed start.
    NotStarted(i32),
    /// The deadline had passed before the command could be started.
    TooLate,
    /// The command, this process, was stopped, as by ^Z.
    Paused(Pid),
    /// The deadline is near and no new one came: the guardian stops the tree.
    Overdue,
    /// It has run as long as it may: the guardian stops the tree.
    TimeUp,
    /// The command has ended; after a stop, its whole tree.
    Ended(Ending),
    /// The guardian itself is gone.
    Vanished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    /// By number: real-time signals have no name.
    Signal(i32),
}

pub type Record = [u8; 16];

const NEVER: u64 = u64::MAX;

fn moment_to_nanos(moment: Option<BootTime>) -> u64 {
    moment.map_or(NEVER, BootTime::as_nanos)
}

fn nanos_to_moment(nanos: u64) -> Option<BootTime> {
    (nanos != NEVER).then(|| BootTime::from_nanos(nanos))
}

fn record(kind: u64, value: u64) -> Record {
    let mut record = [0; 16];
    record[..8].copy_from_slice(&kind.to_ne_bytes());
    record[8..].copy_from_slice(&value.to_ne_bytes());
    record
}

fn read_record(from: &mut impl Read) -> io::Result<(u64, u64)> {
    let mut record: Record = [0; 16];
    from.read_exact(&mut record)?;
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&record[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok((number(0), number(8)))
}

fn signal(value: u64) -> io::Result<Signal> {
    let number = i32::try_from(value).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Signal::try_from(number)?)
}

/// The two ends are one program: numbers cannot be out of range.
fn number(value: i32) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// In one piece, as two threads give orders; and never waiting for a reader, who may be stopped: whatever
/// finds no room has hundreds of others before it, and the deadline the other side knows is kept anyway.
pub fn send(bytes: &[u8], to: &UnixStream) -> io::Result<()> {
    SockRef::from(to).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(drop)
}

impl Order {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Start { environment, until } => {
                let moments = [until.deadline, until.end].map(moment_to_nanos);
                let mut text = moments.map(u64::to_ne_bytes).as_flattened().to_vec();
                for (name, value) in environment {
                    for part in [name, value] {
                        text.extend_from_slice(part.as_bytes());
                        text.push(0);
                    }
                }
                bytes.extend(record(1, text.len() as u64));
                bytes.extend(text);
            }
            Self::Pass(signal) => bytes.extend(record(2, number(*signal as i32))),
            Self::Deadline(moment) => bytes.extend(record(3, moment.as_nanos())),
            Self::Stop => bytes.extend(record(4, 0)),
            Self::Kill => bytes.extend(record(5, 0)),
        }
        bytes
    }

    pub fn receive(mut from: impl Read) -> io::Result<Self> {
        match read_record(&mut from)? {
            (1, length) => {
                let mut text = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?];
                from.read_exact(&mut text)?;
                let Some((moments, text)) = text.split_first_chunk::<16>() else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let (deadline, end) = read_record(&mut moments.as_slice())?;
                let until = Until { deadline: nanos_to_moment(deadline), end: nanos_to_moment(end) };
                let mut parts = text.split(|&b| b == 0).map(|part| OsStr::from_bytes(part).to_owned());
                let mut environment = Vec::new();
                while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                    environment.push((name, value));
                }
                Ok(Self::Start { environment, until })
            }
            (2, value) => Ok(Self::Pass(signal(value)?)),
            (3, nanos) => Ok(Self::Deadline(BootTime::from_nanos(nanos))),
            (4, _) => Ok(Self::Stop),
            (5, _) => Ok(Self::Kill),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Notice {
    pub fn to_bytes(self) -> Record {
        match self {
            Self::NotStarted(errno) => record(1, number(errno)),
            Self::Paused(pid) => record(2, number(pid.as_raw())),
            Self::Overdue => record(3, 0),
            Self::Ended(Ending::Code(code)) => record(4, number(code)),
            Self::Ended(Ending::Signal(signal)) => record(5, number(signal)),
            Self::TooLate => record(6, 0),
            Self::Vanished => record(7, 0),
            Self::TimeUp => record(8, 0),
        }
    }

    pub fn receive(mut from: impl Read) -> Self {
        let Ok((kind, value)) = read_record(&mut from) else {
            return Self::Vanished;
        };
        let number = i32::try_from(value).unwrap_or_default();
        match kind {
            1 => Self::NotStarted(number),
            2 => Self::Paused(Pid::from_raw(number)),
            3 => Self::Overdue,
            4 => Self::Ended(Ending::Code(number)),
            5 => Self::Ended(Ending::Signal(number)),
            6 => Self::TooLate,
            8 => Self::TimeUp,
            _ => Self::Vanished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn orders_arrive_as_they_were_given() {
        let odd = OsString::from_vec(b"\xff =\n".to_vec());
        for order in [
            Order::Start {
                environment: vec![("REDLOCK_KEY".into(), odd), ("EMPTY".into(), "".into())],
                until: Until { deadline: Some(BootTime::from_nanos(7)), end: Some(BootTime::from_nanos(9)) },
            },
            Order::Start { environment: Vec::new(), until: Until::default() },
            Order::Pass(Signal::SIGUSR1),
            Order::Deadline(BootTime::from_nanos(1 << 60)),
            Order::Stop,
            Order::Kill,
        ] {
            assert_eq!(Order::receive(order.to_bytes().as_slice()).unwrap(), order);
        }
    }

    #[test]
    fn notices_arrive_as_they_were_given() {
        for notice in [
            Notice::NotStarted(13),
            Notice::TooLate,
            Notice::Paused(Pid::from_raw(42)),
            Notice::Overdue,
            Notice::TimeUp,
            Notice::Ended(Ending::Code(255)),
            Notice::Ended(Ending::Signal(64)),
        ] {
            assert_eq!(Notice::receive(notice.to_bytes().as_slice()), notice);
        }
    }

    #[test]
    fn a_closed_socket_is_a_vanished_guardian() {
        assert_eq!(Notice::receive(&b""[..]), Notice::Vanished);
    }
}
