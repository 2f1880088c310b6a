//! Messages about a grant that is known by its token: `redlock acquire`, `extend` and `release`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::events::{events, time};
use super::format::{self, LocalTime, quoted};
use super::json::Object;
use super::problem::io_error;
use super::status::obstacle;
use super::stderr::print;
use super::text::sanitize;
use super::{Consequence, LossCause, Report};
use crate::duration::{format, millis};
use crate::lock::{Grant, Loss, Outcome, Status};

/// The token was printed: the lock now belongs to its bearer.
pub(crate) fn handed_out() {
    events(|events| events.decide(Outcome::Acquired));
}

/// A keeper has released the lock.
pub(crate) fn kept() {
    events(|events| events.suggest(Outcome::Released));
}

impl Report {
    /// Send all further lines to the system log: nothing reads stderr any more.
    pub(crate) fn detach(&mut self) {
        self.erase_live_line();
        super::stderr::detach();
    }

    /// The lock was lost while a keeper had it: that decides the outcome, whatever follows from it.
    pub(crate) fn lost_by_keeper(&mut self, cause: &LossCause, consequence: Consequence) {
        self.lost(cause, consequence);
        events(|events| events.decide(Outcome::Lost));
    }

    /// A keeper tried to release the lock, and it was gone.
    pub(crate) fn was_lost_before_release(&mut self, loss: &Loss) {
        self.info(&no_longer_this_tokens(&self.lock(), &format::loss(loss)));
    }

    /// A keeper could not renew the lock, and signals the watched process before the lease ends.
    pub(crate) fn signalled_in_time(&mut self, pid: Pid, signal: Signal) {
        let why = self.last_failure.as_ref().map_or_else(String::new, |failure| format!(" ({failure})"));
        self.error(&format!(
            "cannot renew the lock {} in time{why}: process {pid} was sent {signal} before the lease ends",
            self.lock()
        ));
        events(|events| events.lost("overdue", None, true));
    }

    /// The caller has not said how long the lock is needed.
    pub(crate) fn nobody_renews(&mut self, ttl: Duration) {
        let now = SystemTime::now();
        let end = now.checked_add(ttl).and_then(|end| format::clock_time(end, now, self.local_time));
        let at = end.map_or_else(String::new, |end| format!(" at {end},"));
        self.info(&format!(
            "nobody renews the lock {}: it ends{at} in {}; choose --ttl, or --for-shell to keep it",
            self.lock(),
            format(ttl)
        ));
    }

    /// `--ttl none`.
    pub(crate) fn stays_locked(&mut self) {
        self.info(&format!("--ttl none: {} stays locked until it is released or broken", self.lock()));
    }
}

pub(crate) fn token_printed_too_late(lock: &str) -> String {
    format!("the lease of {lock} expired before its token could be printed")
}

pub(crate) fn cannot_print_token(lock: &str, error: &std::io::Error) -> String {
    format!("cannot print the token of {lock}: {}; the lock was released", io_error(error))
}

/// `what`: the process to be watched.
pub(crate) fn cannot_watch(what: &str, error: Errno) -> String {
    if error == Errno::ESRCH {
        return format!("{what}: no such process");
    }
    format!("{what}: cannot watch it: {}", error.desc())
}

/// With `--on-lost stop`.
pub(crate) fn cannot_stop(what: &str) -> String {
    format!("{what}: belongs to another user and cannot be signalled: use --on-lost warn")
}

/// The watched process has exited before the lock was granted.
pub(crate) fn watched_has_ended(lock: &str, pid: i32) -> String {
    format!("stopped waiting for {lock}: watched process {pid} has exited")
}

/// A keeper's title in `ps`.
pub(crate) fn keeper_title(keys: &[Vec<u8>], watched: Option<Pid>) -> String {
    let watched = watched.map_or_else(String::new, |pid| format!(" for pid {pid}"));
    format!("redlock: keeper of {}{watched}", quoted(keys))
}

/// One line. `expires_in`: `None` if the lease is renewed or never ends.
pub(crate) fn token_json(
    keys: &[Vec<u8>],
    grant: &Grant,
    expires_in: Option<Duration>,
    keeper: Option<u32>,
) -> String {
    let names: Vec<String> = keys.iter().map(sanitize).collect();
    let expires_at = expires_in.and_then(|left| SystemTime::now().checked_add(left));
    let slots = (!grant.slots.is_empty()).then_some(grant.slots.as_slice());
    let object = Object::default()
        .with_known("key", names.first().map(String::as_str))
        .with("keys", names.as_slice())
        .with("token", grant.claim.to_string())
        .with("fences", grant.fences.as_slice())
        .with_known("slots", slots)
        .with_known("expires_ms", expires_in.map(millis))
        .with_known("expires_at", expires_at.map(time))
        .with_known("keeper", keeper);
    format!("{}\n", object.text())
}

/// Lines for `eval`.
pub(crate) fn shell_exports(variables: &[(OsString, OsString)]) -> Vec<u8> {
    let export = |(name, value): &(OsString, OsString)| {
        [b"export ", name.as_bytes(), b"=", &shell_quoted(value.as_bytes()), b"\n"].concat()
    };
    variables.iter().flat_map(export).collect()
}

/// One word for every POSIX shell, with any bytes.
fn shell_quoted(value: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    if !value.is_empty() && value.iter().all(is_plain) {
        return value.to_vec();
    }
    let mut quoted = vec![b'\''];
    for &byte in value {
        if byte == b'\'' {
            quoted.extend(b"'\\''");
        } else {
            quoted.push(byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The locks of a token that has lost others.
pub(crate) enum Rest {
    /// It holds these.
    Held(Vec<Vec<u8>>),
    /// It held these until now.
    Released(Vec<Vec<u8>>),
}

impl Rest {
    pub(crate) fn keys(&self) -> &[Vec<u8>] {
        let (Self::Held(keys) | Self::Released(keys)) = self;
        keys
    }
}

/// The token no longer holds these locks. `now`: the status of one, if another client holds it.
pub(crate) fn no_longer_ours(
    lost: &[Vec<u8>],
    loss: &Loss,
    now: Option<&Status>,
    rest: &Rest,
    local_time: LocalTime,
) {
    let why = match now {
        Some(status) => obstacle(status, local_time),
        // Its own release leaves no more than that.
        None if *loss == Loss::Expired => {
            "it was released, or is gone: expired, deleted, evicted or flushed".into()
        }
        None => format::loss(loss),
    };
    let rest = match rest {
        _ if rest.keys().is_empty() => String::new(),
        Rest::Held(keys) => format!("; it still holds {}: release that", quoted(keys)),
        Rest::Released(keys) => format!("; released {}", quoted(keys)),
    };
    print(&(no_longer_this_tokens(&quoted(lost), &why) + &rest));
}

fn no_longer_this_tokens(lock: &str, why: &str) -> String {
    format!("this token no longer holds {lock}: {why}")
}

/// `ttl`: `None` = forever.
pub(crate) fn extended(keys: &[Vec<u8>], ttl: Option<Duration>) {
    let until = ttl.map_or_else(|| "forever".into(), |ttl| format!("for {}", format(ttl)));
    print(&format!("{} is held {until} from now on", quoted(keys)));
}

pub(crate) fn released(keys: &[Vec<u8>]) {
    print(&format!("released {}", quoted(keys)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    #[test]
    fn plain_words_need_no_quotes() {
        assert_eq!(shell_quoted(b"3f2b8c1e-9a4d.1"), b"3f2b8c1e-9a4d.1");
        assert_eq!(shell_quoted(b"1 2"), b"'1 2'");
        assert_eq!(shell_quoted(b"it's"), b"'it'\\''s'");
        assert_eq!(shell_quoted(b""), b"''");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_back_any_bytes(value in proptest::collection::vec(1u8..=255, 0..40)) {
            let name = OsString::from("REDLOCK_KEY");
            let script = shell_exports(&[(name, OsString::from_vec(value.clone()))]);
            let line = [&script[..], b"printf %s. \"$REDLOCK_KEY\""].concat();
            let output = Command::new("/bin/sh").arg("-c").arg(OsString::from_vec(line)).output().unwrap();
            prop_assert_eq!(output.stdout, [&value[..], b"."].concat());
        }
    }
}
