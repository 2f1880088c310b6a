//! Where a server is, and how to log in to it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};
use socket2::SockAddr;

use super::resolve::literal;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Where a server is and how to log in.
#[derive(Clone)]
pub(crate) struct Server {
    pub(super) target: Target,
    db: i64,
    username: Option<String>,
    password: Option<String>,
}

impl Server {
    /// The error never repeats the URL: it may hold a password.
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            return Err("TLS (rediss://) is not supported yet".into());
        }
        let info = url.into_connection_info().map_err(|_| {
            "not a server's URL: expected redis://[user:password@]host[:port][/db] or unix:///path[?db=N]"
        })?;
        let target = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Target::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::Unix(path) => Target::Unix(path.clone()),
            _ => return Err("this kind of address is not supported".into()),
        };
        let login = info.redis_settings();
        Ok(Self {
            target,
            db: login.db(),
            username: login.username().map(Into::into),
            password: login.password().map(Into::into),
        })
    }

    /// All clients put the servers into the order of their addresses, whatever order they were named in: the
    /// first usable one is the gate.
    pub(super) fn order(&self) -> (&Target, i64) {
        (&self.target, self.db)
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(crate) fn has_username(&self) -> bool {
        self.username.is_some()
    }

    /// With this user and password, if the URL has no password; its own user goes first.
    pub(crate) fn with_login(mut self, username: Option<&str>, password: Option<&str>) -> Self {
        if self.password.is_none() {
            self.username = self.username.or(username.map(Into::into));
            self.password = password.map(Into::into);
        }
        self
    }

    /// Where to connect, if no name must be resolved for it.
    pub(super) fn address(&self) -> io::Result<Option<SockAddr>> {
        match &self.target {
            Target::Tcp { host, port } => Ok(literal(host, *port)),
            Target::Unix(path) => SockAddr::unix(path).map(Some),
        }
    }

    /// AUTH and SELECT travel together: one round trip.
    pub(super) fn login(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut steps = Vec::new();
        if let Some(password) = &self.password {
            let auth = redis::cmd("AUTH").arg(&self.username).arg(password).get_packed_command();
            steps.push(("AUTH", auth));
        }
        if self.db != 0 {
            steps.push(("SELECT", redis::cmd("SELECT").arg(self.db).get_packed_command()));
        }
        steps
    }
}

/// Without user and password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Tcp { host, port } if host.contains(':') => write!(f, "redis://[{host}]:{port}")?,
            Target::Tcp { host, port } => write!(f, "redis://{host}:{port}")?,
            Target::Unix(path) => write!(f, "unix://{}", path.display())?,
        }
        match (&self.target, self.db) {
            (_, 0) => Ok(()),
            (Target::Tcp { .. }, db) => write!(f, "/{db}"),
            (Target::Unix(_), db) => write!(f, "?db={db}"),
        }
    }
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
            ("unix:///run/r.sock?db=2&pass=secret", "unix:///run/r.sock?db=2"),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(format!("{server:?}"), shown);
            assert_eq!(server.password(), Some("secret"));
        }
    }

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in
            ["", "host:6379", "http://:secret@h", "redis://", "redis://:secret@h/x", "rediss://:secret@h"]
        {
            let error = Server::parse(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
