//! The messages between redlock and its guardian.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::channel::{Channel, tagged};
use crate::clock::BootTime;
use crate::exit::Exit;

pub(crate) type Environment = Vec<(OsString, OsString)>;

/// From redlock to the guardian.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GuardianCommand {
    /// Start the command, with these variables added to its environment. `grant` is for
    /// [`GuardianConfig::release_orphan`](super::GuardianConfig::release_orphan) and has no zero
    /// byte.
    Start { environment: Environment, limits: Limits, grant: Vec<u8> },
    /// Forward a signal to the command.
    Forward(Signal),
    /// The terminal has sent this signal to redlock's process group.
    Typed(Signal),
    /// The lease was renewed until this moment; the command must be gone by then.
    Deadline(BootTime),
    /// The lock is lost: stop the tree, gently first.
    Stop,
    /// Kill the tree at once.
    Kill,
    /// The lock is released, or was not taken: redlock is about to exit.
    Done,
}

/// How long a command may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The lease's first deadline: the command must be gone by then. [`GuardianCommand::Deadline`]
    /// moves it.
    pub deadline: Option<BootTime>,
    /// The command is stopped at this moment in any case.
    pub end: Option<BootTime>,
    /// Reserved before each deadline for the killed tree to exit.
    pub margin: Duration,
}

/// From the guardian to redlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardianEvent {
    /// The error number of the failed start.
    NotStarted(i32),
    /// The deadline had passed before the command could be started.
    TooLate,
    /// The command, with this process ID, was stopped, as by ^Z.
    Paused(Pid),
    /// The deadline is near and was not moved: the guardian stops the tree.
    Overdue,
    /// --max-hold has run out: the guardian stops the tree.
    TimeUp,
    /// This process of the tree belongs to another user, so that it cannot be signalled.
    Forbidden { pid: Pid, user: Option<u32> },
    /// The command has exited; after a stop, its whole tree.
    Ended(Exit),
    /// The guardian itself is gone.
    Vanished,
}

impl Channel {
    pub(super) fn receive_command(&self) -> io::Result<Option<GuardianCommand>> {
        let parse = |message: Vec<u8>| {
            GuardianCommand::from_bytes(&message).ok_or_else(|| ErrorKind::InvalidData.into())
        };
        self.receive()?.map(parse).transpose()
    }

    pub(super) fn receive_event(&self) -> GuardianEvent {
        let message = self.receive().ok().flatten();
        message.and_then(|message| GuardianEvent::from_bytes(&message)).unwrap_or(GuardianEvent::Vanished)
    }
}

const NEVER: u64 = u64::MAX;
/// No user has this ID.
const NO_USER: u32 = u32::MAX;

pub(super) fn moment_to_bytes(moment: Option<BootTime>) -> [u8; 8] {
    moment.map_or(NEVER, BootTime::as_nanos).to_ne_bytes()
}

pub(super) fn moment_from_bytes(bytes: [u8; 8]) -> Option<BootTime> {
    let nanos = u64::from_ne_bytes(bytes);
    (nanos != NEVER).then(|| BootTime::from_nanos(nanos))
}

pub(super) fn number_from_bytes(payload: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(payload.try_into().ok()?))
}

/// Names and values in turn, each ended by a zero byte: an environment that was cut short is
/// rejected.
fn environment_from_bytes(bytes: &[u8]) -> Option<Environment> {
    let mut parts = bytes.split_inclusive(|&b| b == 0).map(|part| part.strip_suffix(&[0]));
    let mut environment = Vec::new();
    while let Some(name) = parts.next() {
        let [name, value] = [name?, parts.next()??].map(|part| OsStr::from_bytes(part).to_owned());
        environment.push((name, value));
    }
    Some(environment)
}

impl GuardianCommand {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Start { environment, limits, grant } => {
                let mut payload = [limits.deadline, limits.end].map(moment_to_bytes).concat();
                let margin = u64::try_from(limits.margin.as_nanos()).unwrap_or(u64::MAX);
                payload.extend_from_slice(&margin.to_ne_bytes());
                payload.extend_from_slice(grant);
                payload.push(0);
                for part in environment.iter().flat_map(|(name, value)| [name, value]) {
                    payload.extend_from_slice(part.as_bytes());
                    payload.push(0);
                }
                tagged(b's', &payload)
            }
            Self::Forward(signal) => tagged(b'f', &(*signal as i32).to_ne_bytes()),
            Self::Typed(signal) => tagged(b'y', &(*signal as i32).to_ne_bytes()),
            Self::Deadline(moment) => tagged(b'd', &moment_to_bytes(Some(*moment))),
            Self::Stop => tagged(b't', &[]),
            Self::Kill => tagged(b'k', &[]),
            Self::Done => tagged(b'e', &[]),
        }
    }

    pub(super) fn from_bytes(message: &[u8]) -> Option<Self> {
        let (&tag, payload) = message.split_first()?;
        Some(match (tag, payload) {
            (b's', _) => {
                let (deadline, rest) = payload.split_first_chunk()?;
                let (end, rest) = rest.split_first_chunk()?;
                let (margin, rest) = rest.split_first_chunk()?;
                let (grant, variables) = rest.split_at(rest.iter().position(|&b| b == 0)?);
                let limits = Limits {
                    deadline: moment_from_bytes(*deadline),
                    end: moment_from_bytes(*end),
                    margin: Duration::from_nanos(u64::from_ne_bytes(*margin)),
                };
                let environment = environment_from_bytes(&variables[1..])?;
                Self::Start { environment, limits, grant: grant.to_vec() }
            }
            (b'f', _) => Self::Forward(Signal::try_from(number_from_bytes(payload)?).ok()?),
            (b'y', _) => Self::Typed(Signal::try_from(number_from_bytes(payload)?).ok()?),
            (b'd', _) => Self::Deadline(moment_from_bytes(payload.try_into().ok()?)?),
            (b't', []) => Self::Stop,
            (b'k', []) => Self::Kill,
            (b'e', []) => Self::Done,
            _ => return None,
        })
    }
}

impl GuardianEvent {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let with_number = |tag, number: i32| tagged(tag, &number.to_ne_bytes());
        match self {
            Self::NotStarted(errno) => with_number(b'n', errno),
            Self::TooLate => tagged(b'l', &[]),
            Self::Paused(pid) => with_number(b'p', pid.as_raw()),
            Self::Overdue => tagged(b'o', &[]),
            Self::TimeUp => tagged(b'u', &[]),
            Self::Forbidden { pid, user } => {
                tagged(b'x', &[pid.as_raw().to_ne_bytes(), user.unwrap_or(NO_USER).to_ne_bytes()].concat())
            }
            Self::Ended(Exit::Code(code)) => with_number(b'c', code.into()),
            Self::Ended(Exit::Signal(signal)) => with_number(b's', signal),
            Self::Vanished => tagged(b'v', &[]),
        }
    }

    pub(super) fn from_bytes(message: &[u8]) -> Option<Self> {
        let (&tag, payload) = message.split_first()?;
        let number = || number_from_bytes(payload);
        Some(match (tag, payload) {
            (b'n', _) => Self::NotStarted(number()?),
            (b'l', []) => Self::TooLate,
            (b'p', _) => Self::Paused(Pid::from_raw(number()?)),
            (b'o', []) => Self::Overdue,
            (b'u', []) => Self::TimeUp,
            (b'x', _) => {
                let (pid, user) = payload.split_first_chunk()?;
                let user = u32::from_ne_bytes(user.try_into().ok()?);
                let user = Some(user).filter(|user| *user != NO_USER);
                Self::Forbidden { pid: Pid::from_raw(i32::from_ne_bytes(*pid)), user }
            }
            (b'c', _) => Self::Ended(Exit::Code(u8::try_from(number()?).ok()?)),
            (b's', _) => Self::Ended(Exit::Signal(number()?)),
            (b'v', []) => Self::Vanished,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn commands_arrive_whole_and_in_order() {
        let (ours, theirs) = Channel::pair().unwrap();
        let odd = OsString::from_vec(b"\xff =\n".to_vec());
        let at = |nanos| Some(BootTime::from_nanos(nanos));
        let commands = [
            GuardianCommand::Start {
                environment: vec![("REDLOCK_KEY".into(), odd), ("EMPTY".into(), "".into())],
                limits: Limits { deadline: at(7), end: at(9), margin: Duration::from_millis(3) },
                grant: b"a grant".to_vec(),
            },
            GuardianCommand::Start { environment: Vec::new(), limits: Limits::default(), grant: Vec::new() },
            GuardianCommand::Forward(Signal::SIGUSR1),
            GuardianCommand::Typed(Signal::SIGINT),
            GuardianCommand::Deadline(BootTime::from_nanos(1 << 60)),
            GuardianCommand::Stop,
            GuardianCommand::Kill,
            GuardianCommand::Done,
        ];
        for command in &commands {
            ours.send(&command.to_bytes()).unwrap();
        }
        for command in commands {
            assert_eq!(theirs.receive_command().unwrap(), Some(command));
        }
        drop(ours);
        assert_eq!(theirs.receive_command().unwrap(), None);
    }

    #[test]
    fn events_arrive_as_they_were_sent() {
        let (ours, theirs) = Channel::pair().unwrap();
        for event in [
            GuardianEvent::NotStarted(13),
            GuardianEvent::TooLate,
            GuardianEvent::Paused(Pid::from_raw(42)),
            GuardianEvent::Overdue,
            GuardianEvent::TimeUp,
            GuardianEvent::Forbidden { pid: Pid::from_raw(42), user: Some(7) },
            GuardianEvent::Forbidden { pid: Pid::from_raw(42), user: None },
            GuardianEvent::Ended(Exit::Code(255)),
            GuardianEvent::Ended(Exit::Signal(64)),
        ] {
            theirs.send(&event.to_bytes()).unwrap();
            assert_eq!(ours.receive_event(), event);
        }
        drop(theirs);
        assert_eq!(ours.receive_event(), GuardianEvent::Vanished);
    }

    #[test]
    fn a_message_of_the_wrong_length_is_rejected() {
        let start = GuardianCommand::Start {
            environment: vec![("A".into(), "1".into()), ("B".into(), "".into())],
            limits: Limits::default(),
            grant: Vec::new(),
        }
        .to_bytes();
        let whole_variables = [start.len(), start.len() - 3, start.len() - 7];
        for cut in 0..=start.len() {
            let is_accepted = GuardianCommand::from_bytes(&start[..cut]).is_some();
            assert_eq!(is_accepted, whole_variables.contains(&cut), "cut at {cut}");
        }
        let longer = |message: Vec<u8>| [message, vec![0]].concat();
        assert_eq!(GuardianCommand::from_bytes(&longer(GuardianCommand::Kill.to_bytes())), None);
        assert_eq!(GuardianEvent::from_bytes(&longer(GuardianEvent::TimeUp.to_bytes())), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(message: Vec<u8>) {
            let _ = (GuardianCommand::from_bytes(&message), GuardianEvent::from_bytes(&message));
        }
    }
}
