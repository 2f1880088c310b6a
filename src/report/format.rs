//! Sentences for people: what blocks a lock, what is wrong with a server or a lock file, and what to do.

use crate::duration::format_seconds;
use crate::lock::{
    BackendError, Blocked, Blocker, FileProblem, HolderInfo, Holding, Problem, ServerError, ServerErrorKind,
    Votes, majority_of,
};
use std::time::Duration;

/// How many of several keys a line shows.
const MOST_SHOWN: usize = 4;

const PASSWORD_MISSING: &str = "the server wants a password: put it into the URL, redis://:password@host";
const PERMISSION_MISSING: &str =
    "this user lacks a permission that redlock needs: see docs/operations.md for the ACL";

/// Text that no terminal takes for an escape sequence: control characters and invalid bytes become escapes.
pub(crate) fn sanitize(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_bidi_control(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Without the number that Rust adds.
pub(crate) fn io_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// Invisible, and able to reverse a line.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `"a", "b"`; of many, the first few.
pub(crate) fn quoted(keys: &[String]) -> String {
    let shown = if keys.len() > MOST_SHOWN { MOST_SHOWN - 1 } else { keys.len() };
    let quoted: Vec<String> = keys[..shown].iter().map(|key| format!("\"{key}\"")).collect();
    quoted.join(", ") + &and_others(keys.len() - shown)
}

pub(super) fn waiting(keys: &[String], blocked: &Blocked, waited: Duration) -> String {
    let mut line = format!("waiting for {}: ", quoted(keys));
    if let Some(ahead) = blocked.position {
        line.push_str(&format!("place {} in the queue, ", ahead + 1));
    }
    let (key, blocker) = (blocked_key(keys, blocked), blocker(&blocked.by));
    line.push_str(&format!("{key}{blocker}, waited {}", format_seconds(waited)));
    line
}

/// For one line of a terminal: what changes comes first, what may be cut off last.
pub(super) fn live_line_text(keys: &[String], blocked: &Blocked, waited: Duration) -> String {
    let place = blocked.position.map_or_else(String::new, |ahead| format!(", place {}", ahead + 1));
    let (key, blocker) = (blocked_key(keys, blocked), blocker(&blocked.by));
    format!("redlock: {}: waited {}{place}, {key}{blocker}", quoted(keys), format_seconds(waited))
}

/// The same while the servers cannot be used.
pub(super) fn unavailable_live_line(keys: &[String], error: &str, waited: Duration) -> String {
    format!("redlock: {}: waited {}, {error}; trying again", quoted(keys), format_seconds(waited))
}

/// Of several keys, the one that is taken.
fn blocked_key(keys: &[String], blocked: &Blocked) -> String {
    match (keys.get(blocked.key), &blocked.by) {
        (_, Blocker::Quarantine(_)) => String::new(),
        (Some(key), _) if keys.len() > 1 => format!("\"{key}\" is "),
        _ => String::new(),
    }
}

/// "held by root@web1 pid 42 (nightly, rsync) for 2m 3s"
pub(crate) fn blocker(by: &Blocker) -> String {
    match by {
        Blocker::Holder(holding) => {
            let (who, others) = (holder(&holding.info), and_others(holding.others));
            format!("held by {who}{others}{}", since_and_job(holding))
        }
        Blocker::Reservation(holding) => {
            format!("kept by --min-hold of {}{}", holder(&holding.info), since_and_job(holding))
        }
        Blocker::Foreign { .. } => "held by another program".into(),
        Blocker::Queue => "free, but others are ahead in the queue".into(),
        Blocker::Quarantine(servers) => {
            let servers: Vec<String> = servers
                .iter()
                .map(|(name, left)| format!("{name} is quarantined for another {}", format_seconds(*left)))
                .collect();
            format!("{}: may have lost locks (disable with --quarantine off)", servers.join(", "))
        }
    }
}

fn since_and_job(holding: &Holding) -> String {
    let held_for = holding.held_for.map_or_else(String::new, |time| format!(" for {}", format_seconds(time)));
    match holding.info.job_url.as_str() {
        "" => held_for,
        job_url => format!("{held_for}, {job_url}"),
    }
}

fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and another".into(),
        count => format!(" and {count} others"),
    }
}

fn holder(info: &HolderInfo) -> String {
    if info.pid.is_empty() {
        return "an unknown process".into();
    }
    let mut text = format!("{}@{} pid {}", info.user, info.host, info.pid);
    let about: Vec<&str> =
        [&info.label, &info.command].into_iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
    if !about.is_empty() {
        text.push_str(&format!(" ({})", about.join(", ")));
    }
    text
}

/// " by 2 of 3 votes (redis://c:6379: connection refused ...)"; nothing if all servers can vote.
pub(super) fn votes(Votes { servers, failures }: &Votes) -> String {
    if failures.is_empty() {
        return String::new();
    }
    format!(" by {} of {servers} votes ({})", servers - failures.len(), all(failures))
}

/// What is wrong, where, and what to do about it.
pub(crate) fn backend_error(error: &BackendError) -> String {
    let problem = problem(&error.problem);
    match &error.at {
        Some(at) => format!("{at}: {problem}"),
        None => problem,
    }
}

pub(super) fn problem(problem: &Problem) -> String {
    match problem {
        Problem::NoMajority { servers, causes } => {
            let needed = majority_of(*servers);
            format!("{} of {servers} servers unavailable, {needed} required: {}", causes.len(), all(causes))
        }
        Problem::Quarantined { servers, quarantined, causes } => {
            let list: Vec<String> = quarantined
                .iter()
                .map(|(name, left)| format!("{name} for another {}s", left.as_secs_f64().ceil()))
                .collect();
            let mut text = format!(
                "no majority of {servers} servers: quarantined are {}, which may have lost locks that they granted \
                 (disable with --quarantine off)",
                list.join(", ")
            );
            if !causes.is_empty() {
                text.push_str(&format!("; {}", all(causes)));
            }
            text
        }
        Problem::ConnectionRefused => "connection refused (is the server running?)".into(),
        Problem::NoSocket => "no such socket (is the server running?)".into(),
        Problem::SocketPermission => "no permission to open the socket".into(),
        Problem::UnknownHost(why) => format!("cannot resolve the host's name: {why}"),
        Problem::Connection(text) => text.clone(),
        Problem::TimedOut => "timed out (server stopped, or network down?)".into(),
        Problem::UnreadableReply(why) => format!("unreadable reply: {why}"),
        Problem::UnexpectedReply => "unexpected reply to our script".into(),
        Problem::StaleReply => "answered an older request".into(),
        Problem::Server(error) => server_error(error),
        Problem::Replica => "this server is a replica: name the primary".into(),
        Problem::ListedTwice { other: Some(other) } => format!("the same server as {other}, listed twice"),
        Problem::ListedTwice { other: None } => {
            "the same server is listed twice (by another name, socket or database)".into()
        }
        Problem::OtherServerCount(servers) => {
            format!("the key is held as a lock over {servers} server(s): everyone must name the same ones")
        }
        Problem::OtherSlots(0) => "the key is held without --slots: everyone must use it the same way".into(),
        Problem::OtherSlots(slots) => {
            format!("the key is held with --slots {slots}: everyone must give the same number")
        }
        Problem::GrantedTooLate => {
            "the lock was granted after its lease had run out (--ttl is too short for this network)".into()
        }
        Problem::NoLease => "this lock has no lease to renew".into(),
        Problem::File(problem) => file_problem(problem),
    }
}

fn all(causes: &[BackendError]) -> String {
    causes.iter().map(backend_error).collect::<Vec<_>>().join("; ")
}

fn server_error(ServerError { kind, reply, during }: &ServerError) -> String {
    let advice = match kind {
        ServerErrorKind::PasswordMissing => PASSWORD_MISSING,
        ServerErrorKind::PasswordWrong => "user or password is wrong",
        ServerErrorKind::PermissionDenied => PERMISSION_MISSING,
        ServerErrorKind::ProtectedMode => {
            "the server is in protected mode and refuses clients from other hosts"
        }
        ServerErrorKind::CommandMissing => "the server does not offer a command that redlock needs",
        ServerErrorKind::ReadOnlyReplica => "this server is a read-only replica: name the primary",
        ServerErrorKind::WrongType => {
            "there is something at this key that is not a lock: choose another --key or --prefix"
        }
        ServerErrorKind::ClusterNode => "this server is part of a Redis Cluster, which is not supported",
        ServerErrorKind::OutOfMemory => "the server is out of memory",
        ServerErrorKind::Loading => "the server is still loading its data",
        ServerErrorKind::BusyScript => "the server is busy with a script",
        ServerErrorKind::CannotSave => "the server cannot save to disk and refuses writes",
        ServerErrorKind::TooFewReplicas => "the server has too few replicas and refuses writes",
        ServerErrorKind::TooManyClients => "the server has reached its connection limit",
        ServerErrorKind::CannotServe => "the server cannot serve now",
        ServerErrorKind::Other => return format!("{during}: {reply}"),
    };
    format!("{advice} ({reply})")
}

fn file_problem(problem: &FileProblem) -> String {
    match problem {
        FileProblem::Directory(why) => format!("cannot use the directory: {why}"),
        FileProblem::NoDirectory => "no such directory: make it, or name another with --local-dir".into(),
        FileProblem::ReadOnly => {
            "the directory is read-only here: name another with --local-dir \
             (in a systemd service with ProtectSystem=strict, add it to ReadWritePaths=)"
                .into()
        }
        FileProblem::NotADirectory => "is not a directory".into(),
        FileProblem::NotSticky => {
            "every user may delete files in this directory: set its sticky bit (chmod +t) or name another".into()
        }
        FileProblem::OwnedByAnother => {
            "no permission to use this lock file; it belongs to another user".into()
        }
        FileProblem::CannotCreate => {
            "no permission to create a lock file in this directory: name another with --local-dir".into()
        }
        FileProblem::SymbolicLink => "is a symbolic link, which is not followed; remove it".into(),
        FileProblem::NotRegular => "is not a regular file with one link; remove it".into(),
        FileProblem::Io(why) => why.clone(),
        FileProblem::DeletedInUse => "was deleted while in use; try again".into(),
        FileProblem::OtherSlots(0) => {
            "is in use without --slots (which is the same as --slots 1): all users of a key must agree on that".into()
        }
        FileProblem::OtherSlots(slots) => {
            format!("is in use with --slots {slots}: all users of a key must agree on that")
        }
        FileProblem::WholeFileLocked => "another program has locked the whole file".into(),
        FileProblem::ForeignLocks => "locked by a program other than redlock".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(others: usize) -> Blocked {
        let info = HolderInfo {
            host: "web1".into(),
            pid: "42".into(),
            user: "root".into(),
            label: "nightly".into(),
            command: "rsync".into(),
            job_url: String::new(),
        };
        let held_for = Some(Duration::from_millis(123_456));
        let by = Blocker::Holder(Holding { info, others, held_for, expires_in: None });
        Blocked { key: 0, position: Some(0), by }
    }

    #[test]
    fn a_wait_line_says_who_since_when_and_which_place() {
        assert_eq!(
            waiting(&["deploy".into()], &held(0), Duration::from_millis(2100)),
            "waiting for \"deploy\": place 1 in the queue, held by root@web1 pid 42 (nightly, rsync) for 2m 3s, waited 2s"
        );
    }

    #[test]
    fn of_several_keys_the_taken_one_is_named() {
        let blocked = Blocked { key: 1, ..held(2) };
        assert_eq!(
            waiting(&["a".into(), "b".into()], &blocked, Duration::ZERO),
            "waiting for \"a\", \"b\": place 1 in the queue, \"b\" is held by root@web1 pid 42 (nightly, rsync) and 2 others for 2m 3s, waited 0s"
        );
    }

    #[test]
    fn of_many_keys_the_first_are_named() {
        let keys: Vec<String> = (1..=9).map(|n| n.to_string()).collect();
        assert_eq!(quoted(&keys[..4]), r#""1", "2", "3", "4""#);
        assert_eq!(quoted(&keys), r#""1", "2", "3" and 6 others"#);
    }

    #[test]
    fn each_cause_is_named_with_its_server() {
        let down = |name: &str| BackendError::new(name, Problem::ConnectionRefused);
        assert_eq!(
            backend_error(&BackendError::no_majority(vec![down("a"), down("b")], 3)),
            "2 of 3 servers unavailable, 2 required: a: connection refused (is the server running?); \
             b: connection refused (is the server running?)"
        );
        assert_eq!(
            backend_error(&BackendError::no_majority(vec![down("a")], 1)),
            "a: connection refused (is the server running?)"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(sanitize(b"a\x1b[31m\nb\xff\xc3\xa9"), "a\\u{1b}[31m\\nb\\xff\u{e9}");
    }

    proptest! {
        #[test]
        fn nothing_harmful_gets_through(bytes: Vec<u8>) {
            prop_assert!(!sanitize(&bytes).chars().any(char::is_control));
        }
    }
}
