//! Exit codes. Scripts depend on the numbers.

use std::fmt;

/// `doctor` found a problem.
pub(crate) const PROBLEM_FOUND: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const HELD: u8 = 75;
pub(crate) const REFUSED: u8 = 77;
pub(crate) const UNFIT: u8 = 78;
pub(crate) const LOST: u8 = 79;
pub(crate) const TIME_UP: u8 = 124;
pub(crate) const INTERNAL: u8 = 125;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// What each exit code means, for help and manual pages. A command may add details.
const MEANINGS: [(u8, &str); 10] = [
    (USAGE, "usage error"),
    (UNAVAILABLE, "the servers, or a majority of them, cannot be reached or cannot serve now"),
    (HELD, "another run or program holds the lock, or a newer run took our place (-E changes it)"),
    (REFUSED, "a server or the file system refused access: password, permissions"),
    (UNFIT, "servers or settings that cannot work"),
    (LOST, "the lock was lost while the command ran, and the command was stopped"),
    (TIME_UP, "--max-hold expired, and the command was stopped"),
    (INTERNAL, "redlock itself failed"),
    (CANNOT_EXECUTE, "the command cannot be executed"),
    (NOT_FOUND, "the command was not found"),
];

pub(crate) fn meaning(code: u8) -> &'static str {
    MEANINGS.iter().find(|(known, _)| *known == code).map_or("", |(_, meaning)| meaning)
}

/// How a process ends: redlock itself, or its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    /// Killed by this signal. redlock then dies by the same signal as its command.
    Signal(i32),
}

impl Exit {
    pub(crate) fn code(self) -> Option<u8> {
        if let Self::Code(code) = self { Some(code) } else { None }
    }

    pub(crate) fn signal(self) -> Option<i32> {
        if let Self::Signal(number) = self { Some(number) } else { None }
    }
}

/// An error that knows its exit code. Anything else is [`INTERNAL`].
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The exit code of an error.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(INTERNAL, |failure| failure.code)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
