//! What can be wrong with a server, sorted by what it means for the user.

use std::fmt;

/// What kind of trouble a server is in; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Cannot be reached, or cannot serve now.
    Unavailable,
    /// Does not let us.
    Refused,
    /// Will never be able to hold this lock as it is set up.
    Unfit,
}

#[derive(Clone, Debug)]
pub struct NodeError {
    pub fault: Fault,
    pub node: String,
    pub text: String,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.text)
    }
}

/// A server's own error, sorted, with what to do about it.
pub fn explain(code: &str, details: Option<&str>, during: &str) -> (Fault, String) {
    let said = match details {
        Some(details) => format!("{code} {}", before_script_trace(details)),
        None => code.to_owned(),
    };
    match sort(code, &said) {
        (fault, "") => (fault, format!("{during}: {said}")),
        (fault, advice) => (fault, format!("{advice} ({said})")),
    }
}

/// Redis appends " script: <hash>, on @user_script:<line>." to errors out of a script.
fn before_script_trace(details: &str) -> &str {
    details.split(" script: ").next().unwrap_or(details)
}

fn sort(code: &str, said: &str) -> (Fault, &'static str) {
    use Fault::{Refused, Unavailable, Unfit};
    let has = |words: &str| said.contains(words);
    match code {
        "NOAUTH" => (Refused, "the server wants a password: put it into the URL, redis://:password@host"),
        "WRONGPASS" => (Refused, "user or password is wrong"),
        "NOPERM" => {
            (Refused, "this user may not do all that a lock needs: see docs/operations.md for the ACL")
        }
        "DENIED" => (Refused, "the server is in protected mode and refuses clients from other hosts"),
        "READONLY" => (Unfit, "this server is a read-only replica: name the primary"),
        "WRONGTYPE" => {
            (Unfit, "there is something at this key that is not a lock: choose another --key or --prefix")
        }
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (Unfit, "this server is part of a Redis Cluster, which is not supported")
        }
        "OOM" => (Unavailable, "the server is out of memory"),
        "LOADING" => (Unavailable, "the server is still loading its data"),
        "BUSY" => (Unavailable, "the server is busy with somebody's script"),
        "MISCONF" => (Unavailable, "the server cannot save to disk and refuses writes"),
        "NOREPLICAS" => (Unavailable, "the server has too few replicas and refuses writes"),
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "UNBLOCKED" => {
            (Unavailable, "the server cannot serve now")
        }
        _ if has("max number of clients") => (Unavailable, "the server has no connection left"),
        _ if has("unauthenticated") => {
            (Refused, "the server wants a password: put it into the URL, redis://:password@host")
        }
        _ if has("invalid password") || has("without any password configured") => {
            (Refused, "user or password is wrong")
        }
        _ if has("unknown command") => (Refused, "the server does not offer a command that a lock needs"),
        _ if has("can't run this command") || has("can't access at least one of the keys") => {
            (Refused, "this user may not do all that a lock needs: see docs/operations.md for the ACL")
        }
        _ => (Unfit, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_error_has_its_own_kind() {
        for (code, said, fault) in [
            ("NOAUTH", "NOAUTH Authentication required.", Fault::Refused),
            ("ERR", "ERR Protocol error: unauthenticated multibulk length", Fault::Refused),
            ("ERR", "ERR unknown command 'EVALSHA'", Fault::Refused),
            ("ERR", "ERR max number of clients reached", Fault::Unavailable),
            ("OOM", "OOM command not allowed", Fault::Unavailable),
            ("READONLY", "READONLY You can't write", Fault::Unfit),
            ("WRONGTYPE", "WRONGTYPE Operation", Fault::Unfit),
        ] {
            assert_eq!(sort(code, said).0, fault, "{said}");
        }
    }
}
