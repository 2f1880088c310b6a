//! A server's error reply, sorted by what it means for a lock.

use crate::lock::{ServerError, ServerErrorKind};

impl ServerError {
    pub(crate) fn new(code: &str, details: Option<&str>, during: &'static str) -> Self {
        let reply = match details {
            Some(details) => format!("{code} {}", without_script_trace(details)),
            None => code.to_owned(),
        };
        Self { kind: sort(code, &reply), reply, during }
    }
}

/// Redis appends " script: <hash>, on @user_script:<line>." to errors out of a script.
fn without_script_trace(details: &str) -> &str {
    match details.rsplit_once(" script: ") {
        Some((error, trace)) if trace.contains("@user_script") => error,
        _ => details,
    }
}

fn sort(code: &str, reply: &str) -> ServerErrorKind {
    use ServerErrorKind as Kind;
    let has = |part: &str| reply.contains(part);
    match code {
        "NOAUTH" => Kind::PasswordMissing,
        "WRONGPASS" => Kind::PasswordWrong,
        "NOPERM" => Kind::PermissionDenied,
        "DENIED" => Kind::ProtectedMode,
        "READONLY" => Kind::ReadOnlyReplica,
        "WRONGTYPE" => Kind::WrongType,
        "MOVED" | "ASK" | "CROSSSLOT" => Kind::ClusterNode,
        "OOM" => Kind::OutOfMemory,
        "LOADING" => Kind::Loading,
        "BUSY" => Kind::BusyScript,
        "MISCONF" => Kind::CannotSave,
        "NOREPLICAS" => Kind::TooFewReplicas,
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "UNBLOCKED" => Kind::CannotServe,
        _ if has("max number of clients") => Kind::TooManyClients,
        _ if has("unauthenticated") => Kind::PasswordMissing,
        _ if has("invalid password") || has("without any password configured") => Kind::PasswordWrong,
        _ if has("unknown command") => Kind::CommandMissing,
        _ if has("can't run this command") || has("can't access at least one of the keys") => {
            Kind::PermissionDenied
        }
        // Redis 7.2 and Valkey, from inside a script.
        _ if has("ACL failure") => Kind::PermissionDenied,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Fault;

    #[test]
    fn each_server_error_has_its_own_kind() {
        for (reply, kind, fault) in [
            ("NOAUTH Authentication required.", ServerErrorKind::PasswordMissing, Fault::Refused),
            (
                "ERR Protocol error: unauthenticated multibulk length",
                ServerErrorKind::PasswordMissing,
                Fault::Refused,
            ),
            ("ERR unknown command 'EVALSHA'", ServerErrorKind::CommandMissing, Fault::Refused),
            ("ERR max number of clients reached", ServerErrorKind::TooManyClients, Fault::Unavailable),
            ("OOM command not allowed", ServerErrorKind::OutOfMemory, Fault::Unavailable),
            ("READONLY You can't write", ServerErrorKind::ReadOnlyReplica, Fault::Unfit),
            ("WRONGTYPE Operation", ServerErrorKind::WrongType, Fault::Unfit),
            (
                "ERR ACL failure in script: User l has no permissions to run the 'exists' command",
                ServerErrorKind::PermissionDenied,
                Fault::Refused,
            ),
            ("ERR anything else", ServerErrorKind::Other, Fault::Unfit),
        ] {
            let (code, details) = reply.split_once(' ').unwrap();
            let error = ServerError::new(code, Some(details), "a test");
            assert_eq!((error.kind, error.kind.fault()), (kind, fault), "{reply}");
        }
    }

    #[test]
    fn the_position_in_our_script_is_left_out() {
        let details = "command not allowed script: ab12, on @user_script:7.";
        assert_eq!(ServerError::new("OOM", Some(details), "").reply, "OOM command not allowed");
        let details = "ACL failure in script: no permissions script: ab12, on @user_script:7.";
        assert_eq!(
            ServerError::new("ERR", Some(details), "").reply,
            "ERR ACL failure in script: no permissions"
        );
    }
}
