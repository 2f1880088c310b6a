//! Messages about problems with a server or a lock file, with advice.

use std::time::Duration;

use super::text::sanitize;
use super::tls;
use crate::duration::format_seconds;
use crate::lock::{
    BackendError, FileProblem, PROTOCOL, Problem, ServerError, ServerErrorKind, VERSION, Votes, majority_of,
};

/// The permissions of a user that only locks, with the default prefix. Also in docs/install.md.
const ACL: &str = "~lock:* ~lock-* +evalsha +eval +blpop +select +info +time +get +exists +set +del +pexpire \
                   +persist +pttl +hset +hget +hgetall +hdel +hlen +rpush +zadd +zrem +zrange +zrangebyscore \
                   +zrank +zscore +zcount +zlexcount +zrangebylex +xadd +xrevrange";

/// What `list` and `history` need besides.
const LOOK_ACL: &str = " +scan +xread";

const PASSWORD_MISSING: &str = "the server requires a password: put it into REDLOCK_PASSWORD, or into the URL in \
                                REDLOCK_REDIS (redis://:PASSWORD@host), not on the command line";

/// A file that is removed while a run uses it lets a second run in.
const REMOVE_SAFELY: &str = "make sure that no run uses this key, then remove it";

/// The error without the number that Rust appends.
pub(crate) fn io_error(error: &std::io::Error) -> String {
    without_number(&error.to_string()).to_owned()
}

fn without_number(error: &str) -> &str {
    error.split(" (os error ").next().unwrap_or_default()
}

/// " by 2 of 3 votes (redis://c:6379: connection refused ...)"; empty if all servers can vote.
pub(super) fn votes(Votes { servers, voted, failures }: &Votes) -> String {
    if failures.is_empty() {
        return String::new();
    }
    format!(" by {voted} of {servers} votes ({})", all(failures))
}

/// The problem, its place and advice.
pub(crate) fn backend_error(error: &BackendError) -> String {
    let problem = problem(&error.problem);
    match &error.at {
        Some(at) => format!("{at}: {problem}"),
        None => problem,
    }
}

pub(crate) fn problem(problem: &Problem) -> String {
    match problem {
        Problem::NoMajority { servers, causes } => {
            let (left, needed) = (servers - causes.len(), majority_of(*servers));
            format!("only {left} of {servers} servers can vote, {needed} are needed: {}", all(causes))
        }
        Problem::Quarantined { servers: 1, quarantined, .. } => quarantine(quarantined),
        Problem::Quarantined { servers, quarantined, causes } => {
            let mut text = format!(
                "{} of {servers} servers are new, restarted or promoted and do not vote for another {} ({}); \
                 wait, or see {}",
                quarantined.len(),
                longest(quarantined),
                names(quarantined),
                about_quarantine(quarantined)
            );
            if !causes.is_empty() {
                text.push_str(&format!("; {}", all(causes)));
            }
            text
        }
        Problem::InQuarantine(left) => {
            format!("new, restarted or promoted, does not vote for another {}", round_up(*left))
        }
        Problem::ConnectionRefused => "connection refused (is the server running?)".into(),
        Problem::NoSocket => "no such socket (is the server running?)".into(),
        Problem::SocketPermission => "no permission to open the socket".into(),
        Problem::UnknownHost(why) => {
            let why = why.trim_start_matches("failed to lookup address information: ");
            format!("cannot resolve this host name ({})", without_number(why))
        }
        Problem::Connection(text) => without_number(text).to_owned(),
        Problem::TimedOut => "timed out (server stopped, or network down?)".into(),
        Problem::Tls(problem) => tls::problem(problem),
        Problem::ClosedUnanswered => {
            "the server closed the connection without a reply (if it expects TLS, use rediss://)".into()
        }
        Problem::UnreadableReply(why) => format!("unreadable reply: {why}"),
        Problem::UnexpectedReply => "unexpected reply to our script".into(),
        Problem::StaleReply => "replied to an older request".into(),
        Problem::Server(error) => server_error(error),
        Problem::Replica => "this server is a replica: use the primary".into(),
        Problem::NoLongerMaster => "no longer the master: looking for its successor".into(),
        Problem::NoMaster(causes) => format!("no Sentinel names a usable master: {}", all(causes)),
        Problem::UnknownService(service) => {
            format!("has no service {service:?} (SENTINEL MASTERS lists the services)")
        }
        Problem::SentinelLogin(reply) => format!(
            "login refused ({reply}): put the Sentinel's own password into REDLOCK_SENTINEL_PASSWORD or \
             --sentinel-password-file; the password in the URL is the master's"
        ),
        Problem::LoginChanging(refusal) => self::problem(refusal),
        Problem::NotASentinel(reply) => {
            format!("not a Sentinel; their default port is 26379 ({reply})")
        }
        Problem::LongLease { servers } => format!(
            "a lease of more than 30s must be known to every server, and {} cannot confirm it now: use --ttl \
             30s or less, or wait until all servers vote",
            servers.join(", ")
        ),
        Problem::ListedTwice { other } => format!("the same server as {other}: listed twice"),
        Problem::OtherServerCount(1) => {
            "the key is held as a lock on one server: all clients must name the same servers".into()
        }
        Problem::OtherServerCount(servers) => {
            format!("the key is held as a lock over {servers} servers: all clients must name the same ones")
        }
        Problem::OtherLockCount(1) => "this token covers one lock: name only that one".into(),
        Problem::OtherLockCount(locks) => {
            format!("this token covers {locks} locks: name all of them, also those that it has lost")
        }
        Problem::OtherProtocol { protocol, version } => format!(
            "held by {} (protocol {protocol}); this is redlock {VERSION} (protocol {PROTOCOL}), and the two \
             cannot share a lock: upgrade the older one, and try again when the lock is free",
            redlock(version)
        ),
        Problem::OtherSlots(0) => {
            "the key is held without --slots: all clients must use it the same way".into()
        }
        Problem::OtherSlots(slots) => {
            format!("the key is held with --slots {slots}: all clients must use --slots {slots}")
        }
        Problem::GrantedTooLate => {
            "the lock was granted after its lease had expired (--ttl is too short for this network)".into()
        }
        Problem::NoLease => "this lock has no lease to renew".into(),
        Problem::ClaimVanished => {
            "a lock vanished right after it was granted: the server does not keep its data".into()
        }
        Problem::File(problem) => file_problem(problem),
    }
}

/// "redlock 0.1.0"
fn redlock(version: &str) -> String {
    if version.is_empty() {
        "an unknown version of redlock".into()
    } else {
        format!("redlock {}", sanitize(version))
    }
}

fn all(causes: &[BackendError]) -> String {
    grouped(causes.iter().map(|cause| (cause.at.clone(), problem(&cause.problem)))).join("; ")
}

/// Each text once, behind everything that it is about: "a, b: connection refused".
pub(crate) fn grouped(texts: impl Iterator<Item = (Option<String>, String)>) -> Vec<String> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for (subject, text) in texts {
        let is_same = |(subjects, known): &&mut (Vec<String>, String)| {
            *known == text && subjects.is_empty() == subject.is_none()
        };
        match groups.iter_mut().find(is_same) {
            Some((subjects, _)) => subjects.extend(subject),
            None => groups.push((subject.into_iter().collect(), text)),
        }
    }
    let sentence = |(subjects, text): (Vec<String>, String)| {
        if subjects.is_empty() { text } else { format!("{}: {text}", subjects.join(", ")) }
    };
    groups.into_iter().map(sentence).collect()
}

/// Longer than the usual quarantine, with Sentinel, and a second.
const LONG_QUARANTINE: Duration = Duration::from_secs(36);

/// Where to read why it takes so long.
fn about_quarantine(servers: &[(String, Duration)]) -> &'static str {
    match servers.iter().map(|(_, left)| *left).max() {
        Some(left) if left > LONG_QUARANTINE => {
            "--quarantine; redlock doctor shows who requested such a long lease"
        }
        _ => "--quarantine",
    }
}

/// "redis://a:6379, redis://b:6379 are new, restarted or promoted and do not vote for another 28s
/// (see --quarantine)"
pub(super) fn quarantine(servers: &[(String, Duration)]) -> String {
    let verbs = if servers.len() == 1 { ["is", "does"] } else { ["are", "do"] };
    format!(
        "{} {} new, restarted or promoted and {} not vote for another {} (see {})",
        names(servers),
        verbs[0],
        verbs[1],
        longest(servers),
        about_quarantine(servers)
    )
}

fn names(servers: &[(String, Duration)]) -> String {
    servers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn longest(servers: &[(String, Duration)]) -> String {
    round_up(servers.iter().map(|(_, left)| *left).max().unwrap_or_default())
}

fn round_up(time: Duration) -> String {
    format_seconds(time + Duration::from_millis(999))
}

fn server_error(ServerError { kind, reply, during }: &ServerError) -> String {
    let advice = match kind {
        ServerErrorKind::PasswordMissing => return PASSWORD_MISSING.into(),
        ServerErrorKind::PermissionDenied => {
            let looks =
                ["scan", "xrevrange", "xread"].iter().any(|name| reply.contains(&format!("'{name}'")));
            let more = if looks { LOOK_ACL } else { "" };
            return format!(
                "this user lacks a permission that redlock needs ({reply}); it needs: {ACL}{more}"
            );
        }
        ServerErrorKind::PasswordWrong => "wrong user or password",
        ServerErrorKind::ProtectedMode => {
            "the server is in protected mode and refuses clients from other hosts"
        }
        ServerErrorKind::CommandMissing if reply.contains("EVAL") => {
            "the server does not support scripts, which redlock needs (if it is a Sentinel, use \
             redis+sentinel://HOST:PORT/SERVICE)"
        }
        ServerErrorKind::CommandMissing => "the server lacks a command that redlock needs",
        ServerErrorKind::ReadOnlyReplica => "this server is a read-only replica: use the primary",
        ServerErrorKind::WrongType => {
            "this key holds something that is not a lock: choose another --key or --prefix"
        }
        ServerErrorKind::ClusterNode => {
            "this server is part of a Redis Cluster: use redis+cluster://HOST:PORT instead of redis://"
        }
        ServerErrorKind::NotACluster => {
            "this server is not part of a Redis Cluster: use redis://HOST:PORT instead of redis+cluster://"
        }
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
        FileProblem::Directory(why) => format!("cannot use the directory: {}", without_number(why)),
        FileProblem::NoDirectory => "no such directory: create it, or choose another with --local-dir".into(),
        FileProblem::ReadOnly => "the directory is read-only here: choose another with --local-dir \
             (in a systemd service with ProtectSystem=strict, add it to ReadWritePaths=)"
            .into(),
        FileProblem::NotADirectory => "is not a directory".into(),
        FileProblem::NotSticky => {
            "every user may delete files in this directory: set its sticky bit (chmod +t), or choose another"
                .into()
        }
        FileProblem::OwnedByAnother => {
            "no permission to use this lock file, which belongs to another user".into()
        }
        FileProblem::CannotCreate => {
            "no permission to create a lock file in this directory: choose another with --local-dir".into()
        }
        FileProblem::SymbolicLink => {
            format!("is a symbolic link, which redlock does not follow: {REMOVE_SAFELY}")
        }
        FileProblem::NotRegular => format!("is not a regular file: {REMOVE_SAFELY}"),
        FileProblem::Linked => {
            format!("is another name of a file that may not be a lock file: {REMOVE_SAFELY}")
        }
        FileProblem::Io(why) => without_number(why).to_owned(),
        FileProblem::DeletedInUse => "was deleted, renamed or replaced while in use: try again".into(),
        FileProblem::OtherSlots(0) => {
            "is in use without --slots (the same as --slots 1): all users of a key must use the same number"
                .into()
        }
        FileProblem::OtherSlots(slots) => {
            format!("is in use with --slots {slots}: all users of a key must use the same number")
        }
        FileProblem::FileSystemFull => {
            "the file system of the directory is full (or your quota): make room, or \
             choose another directory with --local-dir"
                .into()
        }
        FileProblem::MutexLocked => "another program, or a redlock that is stopped, keeps it locked".into(),
        FileProblem::ForeignLocks => "locked by a program other than redlock".into(),
        FileProblem::HolderOfAnotherUser => {
            "the holder belongs to another user: only that user or root can ask it to release the lock".into()
        }
        FileProblem::HolderNotFound => {
            "the holder is not visible from here: does it belong to another user, or run in a container?"
                .into()
        }
        FileProblem::HolderElsewhere => {
            "the file was renamed or deleted while a holder uses it, so that holder cannot be asked: \
             stop it with kill(1)"
                .into()
        }
        FileProblem::HolderSilent { pid } => silent_holder(*pid),
        FileProblem::HolderTooOld => {
            "the holder is an older redlock, which cannot be asked to release the lock: stop it with kill(1)"
                .into()
        }
    }
}

fn silent_holder(pid: Option<i32>) -> String {
    let why = "is it stopped, or busy stopping its command?";
    match pid {
        Some(pid) => format!(
            "the process that holds it (pid {pid}) does not respond: {why} kill -CONT {pid} resumes it, kill \
             -9 {pid} ends it and frees the lock"
        ),
        None => format!("the process that holds it does not respond: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_the_same_problem_are_named_together() {
        let down = |name: &str| BackendError::new(name, Problem::ConnectionRefused);
        assert_eq!(
            backend_error(&BackendError::no_majority(vec![down("a"), down("b")], 3)),
            "only 1 of 3 servers can vote, 2 are needed: a, b: connection refused (is the server running?)"
        );
        let late = BackendError::new("c", Problem::TimedOut);
        assert_eq!(
            backend_error(&BackendError::no_majority(vec![down("a"), late, down("b")], 3)),
            "only 0 of 3 servers can vote, 2 are needed: a, b: connection refused (is the server running?); \
             c: timed out (server stopped, or network down?)"
        );
        assert_eq!(
            backend_error(&BackendError::no_majority(vec![down("a")], 1)),
            "a: connection refused (is the server running?)"
        );
    }

    #[test]
    fn a_single_server_is_not_counted() {
        let quarantined = vec![("a".to_owned(), Duration::from_secs(5))];
        let only = Problem::Quarantined { servers: 1, quarantined, causes: Vec::new() };
        assert!(problem(&only).starts_with("a is new, restarted or promoted and does not vote for another"));
    }

    #[test]
    fn quarantined_servers_share_one_sentence() {
        let left = Duration::from_millis(27_100);
        let both = [("a".to_owned(), left), ("b".to_owned(), Duration::from_secs(1))];
        assert_eq!(
            quarantine(&both),
            "a, b are new, restarted or promoted and do not vote for another 28s (see --quarantine)"
        );
        assert!(
            quarantine(&both[1..])
                .starts_with("b is new, restarted or promoted and does not vote for another 1s")
        );
    }

    #[test]
    fn the_permissions_match_the_documents() {
        let documents = include_str!("../../docs/install.md");
        let start = documents.find("\nACL SETUSER").unwrap() + 1;
        let rule = documents[start..].lines().next().unwrap();
        let documented: Vec<&str> =
            rule.split_whitespace().filter(|word| word.starts_with(['+', '~'])).collect();
        assert_eq!(ACL.split_whitespace().collect::<Vec<_>>(), documented);
    }
}
