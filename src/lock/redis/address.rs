//! A host and a port, as a URL, a Sentinel or a cluster names them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use redis::{ConnectionAddr, IntoConnectionInfo};
use socket2::SockAddr;

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
        let behind_host = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
        let has_port = behind_host.contains(':');
        let url = if has_port { format!("redis://{text}") } else { format!("redis://{text}:{default_port}") };
        match url.into_connection_info().ok().filter(|_| is_plain)?.addr() {
            ConnectionAddr::Tcp(host, port) => Some(Self { host: host.clone(), port: *port }),
            _ => None,
        }
    }

    /// As cluster nodes write it: "10.0.0.1:6379", "::1:6379", ":6379" or "?:6379" for the host that says so.
    pub(super) fn parse_redirection(text: &str, speaker: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { &speaker.host } else { host };
        Some(Self { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
    }

    /// Where to connect, if no name must be resolved for it.
    pub(super) fn literal(&self) -> Option<SockAddr> {
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
