//! Where a server is, and how to log in to it.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::connection::Security;
use super::discovery::{Address, Scheme};
use super::password::Password;
use super::tls::Tls;
use crate::lock::{Problem, ServerError, ServerErrorKind};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Tcp(Address),
    Unix(PathBuf),
    /// The master of this service, which any of these Sentinels names.
    Sentinel {
        sentinels: Vec<Address>,
        service: String,
    },
    /// The master of a key's slot, which any node of the cluster names.
    Cluster {
        nodes: Vec<Address>,
    },
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(super) target: Target,
    db: i64,
    username: Option<String>,
    password: Option<Password>,
    /// `None` without TLS.
    tls: Option<Arc<Tls>>,
    /// The Sentinels' own user and password.
    sentinel_login: Option<(Option<String>, Password)>,
}

impl Server {
    /// The master of a service or of a slot, with user, password and database of `login`.
    pub(super) fn discovered(target: Target, login: Self) -> Self {
        Self { target, ..login }
    }

    /// The error never repeats the URL: it may hold a password.
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        if let Some((scheme, rest)) = url.split_once("://")
            && let Some(kind) = Scheme::parse(scheme)
        {
            return Self::parse_discovery(kind, scheme, rest);
        }
        // The redis crate accepts these schemes only with its own TLS.
        let is_tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
        let plain = if is_tls { Cow::Owned(url.replacen("s:", ":", 1)) } else { Cow::Borrowed(url) };
        let info = plain.as_ref().into_connection_info().map_err(|_| {
            "not a server's URL: expected redis://[user:password@]host[:port][/db] (rediss:// with TLS) or \
             unix:///path[?db=N]"
        })?;
        let target = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Target::Tcp(Address { host: host.clone(), port: *port }),
            ConnectionAddr::Unix(path) => Target::Unix(path.clone()),
            _ => return Err("this kind of address is not supported".into()),
        };
        let login = info.redis_settings();
        Ok(Self {
            target,
            db: login.db(),
            username: login.username().map(Into::into),
            password: login.password().map(Password::fixed),
            tls: is_tls.then(Arc::default),
            sentinel_login: None,
        })
    }

    /// All clients sort the servers by address, in whatever order they were given: the first usable
    /// one is the gate.
    pub(super) fn order(&self) -> (&Target, i64) {
        (&self.target, self.db)
    }

    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some()
    }

    #[cfg(test)]
    pub(crate) fn password(&self) -> Option<String> {
        self.password.as_ref().map(Password::current)
    }

    pub(crate) fn has_username(&self) -> bool {
        self.username.is_some()
    }

    /// Add this user and password if the URL has no password. The URL's own user wins.
    pub(crate) fn with_login(mut self, username: Option<&str>, password: Option<&Password>) -> Self {
        if self.password.is_none() {
            self.username = self.username.or(username.map(Into::into));
            self.password = password.cloned();
        }
        self
    }

    pub(crate) fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Replace the TLS settings of a server that uses TLS.
    pub(crate) fn with_tls(mut self, tls: &Arc<Tls>) -> Self {
        self.tls = self.tls.map(|_| Arc::clone(tls));
        self
    }

    /// How to secure a connection to this host.
    pub(super) fn security(&self, host: &str) -> Option<Security> {
        self.tls.as_ref().map(|tls| (Arc::clone(tls), host.to_owned()))
    }

    pub(crate) fn with_sentinel_login(mut self, username: Option<&str>, password: Option<&Password>) -> Self {
        self.sentinel_login = password.map(|password| (username.map(Into::into), password.clone()));
        self
    }

    fn sentinel_password(&self) -> Option<&Password> {
        self.sentinel_login.as_ref().map(|(_, password)| password)
    }

    /// The server has executed a request.
    pub(super) fn accepted(&self) {
        self.password.iter().chain(self.sentinel_password()).for_each(Password::accepted);
        self.tls.iter().for_each(|tls| tls.accepted());
    }

    /// This problem, or that a login is being changed, if that may be the reason.
    pub(super) fn judge(&self, problem: Problem) -> Problem {
        use ServerErrorKind::{PasswordMissing, PasswordWrong};
        let may_be_changing = |password: Option<&Password>| password.is_some_and(Password::may_be_changing);
        let is_wrong = |error: &ServerError| matches!(error.kind, PasswordMissing | PasswordWrong);
        let is_changing = matches!(&problem, Problem::Server(error) if is_wrong(error))
            && may_be_changing(self.password.as_ref())
            || matches!(problem, Problem::SentinelLogin(_)) && may_be_changing(self.sentinel_password())
            || matches!((&problem, &self.tls), (Problem::Tls(problem), Some(tls)) if tls.may_be_changing(problem));
        if is_changing { Problem::LoginChanging(Box::new(problem)) } else { problem }
    }

    /// Whether another server may replace it, without knowing all that this one has granted.
    pub(crate) fn may_fail_over(&self) -> bool {
        matches!(self.target, Target::Sentinel { .. } | Target::Cluster { .. })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster { .. })
    }

    pub(crate) fn is_sentinel(&self) -> bool {
        matches!(self.target, Target::Sentinel { .. })
    }

    /// Whether a name must be resolved before anything can be sent.
    pub(super) fn needs_lookup(&self) -> bool {
        let first = match &self.target {
            Target::Tcp(address) => Some(address),
            Target::Unix(_) => return false,
            Target::Sentinel { sentinels: all, .. } | Target::Cluster { nodes: all } => all.first(),
        };
        first.is_none_or(|address| address.literal().is_none())
    }

    /// The first request to a Sentinel, if it needs a login.
    pub(super) fn sentinel_login(&self) -> Option<Vec<u8>> {
        let (username, password) = self.sentinel_login.as_ref()?;
        Some(redis::cmd("AUTH").arg(username).arg(password.current()).get_packed_command())
    }

    /// The first of its Sentinels as a server of its own, for other questions than where the master
    /// is.
    pub(super) fn as_its_sentinel(&self) -> Option<Self> {
        let Target::Sentinel { sentinels, .. } = &self.target else { return None };
        let address = sentinels.first()?.clone();
        let login = self.sentinel_login.clone();
        Some(Self {
            target: Target::Tcp(address),
            db: 0,
            username: login.as_ref().and_then(|(username, _)| username.clone()),
            password: login.map(|(_, password)| password),
            ..self.clone()
        })
    }

    /// All steps are sent together: one round trip.
    pub(super) fn login(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut steps = Vec::new();
        if let Some(password) = &self.password {
            let auth = redis::cmd("AUTH").arg(&self.username).arg(password.current()).get_packed_command();
            steps.push(("AUTH", auth));
        }
        if self.db != 0 {
            steps.push(("SELECT", redis::cmd("SELECT").arg(self.db).get_packed_command()));
        }
        // The Sentinel's information may be out of date.
        if self.is_sentinel() {
            steps.push((ROLE, redis::cmd("INFO").arg("replication").get_packed_command()));
        }
        steps
    }
}

/// The login step that checks whether the server is a master.
pub(super) const ROLE: &str = "INFO replication";

/// Without user and password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.uses_tls() { "rediss" } else { "redis" };
        match &self.target {
            Target::Tcp(address) => write!(f, "{scheme}://{address}")?,
            Target::Unix(path) => write!(f, "unix://{}", path.display())?,
            Target::Sentinel { sentinels, service } => {
                write!(f, "{scheme}+sentinel://{}/{service}", joined(sentinels))?;
            }
            Target::Cluster { nodes } => write!(f, "{scheme}+cluster://{}", joined(nodes))?,
        }
        match (&self.target, self.db) {
            (_, 0) => Ok(()),
            (Target::Tcp(_) | Target::Sentinel { .. } | Target::Cluster { .. }, db) => write!(f, "/{db}"),
            (Target::Unix(_), db) => write!(f, "?db={db}"),
        }
    }
}

fn joined(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_never_shows_its_password() {
        for (url, shown) in [
            ("redis://me:secret@db.example:7000/3", "redis://db.example:7000/3"),
            ("redis://:secret@[::1]", "redis://[::1]:6379"),
            ("rediss://:secret@[::1]:1/2", "rediss://[::1]:1/2"),
            ("valkeys://:secret@h", "rediss://h:6379"),
            ("unix:///run/r.sock?db=2&pass=secret", "unix:///run/r.sock?db=2"),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(format!("{server:?}"), shown);
            assert_eq!(server.password().as_deref(), Some("secret"));
        }
    }

    #[test]
    fn a_bad_url_is_rejected_and_not_repeated() {
        for url in
            ["", "host:6379", "http://:secret@h", "redis://", "redis://:secret@h/x", "rediss://:secret@h/x"]
        {
            let error = Server::parse(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
