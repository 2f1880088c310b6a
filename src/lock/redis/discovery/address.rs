//! A host and a port, as a URL, a Sentinel or a cluster names them, and the look-up of the host's
//! addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;
use redis::{ConnectionAddr, IntoConnectionInfo};
use socket2::SockAddr;

use crate::world::Resolution;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// "host", "host:port", "[::1]:port".
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of another crate")]
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let is_plain = !text.is_empty() && !text.contains(['@', '/', '?', '#']);
        let after_host = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
        let has_port = after_host.contains(':');
        let url = if has_port { format!("redis://{text}") } else { format!("redis://{text}:{default_port}") };
        match url.into_connection_info().ok().filter(|_| is_plain)?.addr() {
            ConnectionAddr::Tcp(host, port) => Some(Self { host: host.clone(), port: *port }),
            _ => None,
        }
    }

    /// As cluster nodes write it: "10.0.0.1:6379", "::1:6379"; ":6379" or "?:6379" for their own
    /// host.
    pub(super) fn parse_redirection(text: &str, speaker: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { &speaker.host } else { host };
        Some(Self { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
    }

    /// Where to connect, unless a name must be resolved first.
    pub(in crate::lock::redis) fn literal(&self) -> Option<SockAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port).into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The look-up of one host name at a time.
#[derive(Debug, Default)]
pub(super) struct Lookup(Option<(Address, Resolution)>);

impl Lookup {
    /// The address, or `None` if its name is now being resolved. A look-up of the same name that is
    /// running goes on.
    pub(super) fn start(&mut self, address: &Address) -> io::Result<Option<SockAddr>> {
        if let Some(literal) = address.literal() {
            self.0 = None;
            return Ok(Some(literal));
        }
        if self.0.as_ref().is_none_or(|(other, _)| other != address) {
            self.0 = Some((address.clone(), Resolution::start(&address.host, address.port)?));
        }
        Ok(None)
    }

    pub(super) fn is_running(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.0.as_ref().map(|(_, resolution)| (resolution.wake_fd(), PollFlags::POLLIN))
    }

    /// The host and all its addresses, once.
    pub(super) fn result(&mut self) -> Option<(String, io::Result<Vec<SockAddr>>)> {
        let result = self.0.as_ref()?.1.result()?;
        self.0.take().map(|(address, _)| (address.host, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_its_port_out() {
        for (text, shown) in [
            ("h", "h:26379"),
            ("h:1", "h:1"),
            ("10.0.0.1", "10.0.0.1:26379"),
            ("[::1]", "[::1]:26379"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(Address::parse(text, 26379).unwrap().to_string(), shown);
        }
        for text in ["", ":1", "h:x", "h:70000", "a@h", "h/1", "::1", "a b"] {
            assert_eq!(Address::parse(text, 26379), None, "{text}");
        }
    }

    #[test]
    fn a_redirection_may_leave_its_host_out() {
        let speaker = Address { host: "10.0.0.9".into(), port: 1 };
        for (text, shown) in [
            ("10.0.0.1:6380", "10.0.0.1:6380"),
            (":6380", "10.0.0.9:6380"),
            ("?:6380", "10.0.0.9:6380"),
            ("::1:6380", "[::1]:6380"),
            ("node.example:6380", "node.example:6380"),
        ] {
            assert_eq!(Address::parse_redirection(text, &speaker).unwrap().to_string(), shown);
        }
        for text in ["", "10.0.0.1", "h:", "h:70000"] {
            assert_eq!(Address::parse_redirection(text, &speaker), None, "{text}");
        }
    }
}
