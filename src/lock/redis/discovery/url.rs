//! redis+sentinel:// and redis+cluster:// URLs. No error repeats a part of the URL, which may be
//! part of a password.

use super::Address;
use crate::lock::redis::server::{Server, Target};

const SENTINEL_PORT: u16 = 26379;
const NODE_PORT: u16 = 6379;

const SENTINEL: &str = "expected redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST...]/SERVICE[/DB]";
const CLUSTER: &str = "expected redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST...]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lock::redis) enum Scheme {
    Sentinel,
    Cluster,
}

impl Scheme {
    pub(in crate::lock::redis) fn parse(scheme: &str) -> Option<Self> {
        match scheme.split_once('+')? {
            ("redis" | "rediss" | "valkey" | "valkeys", "sentinel") => Some(Self::Sentinel),
            ("redis" | "rediss" | "valkey" | "valkeys", "cluster") => Some(Self::Cluster),
            _ => None,
        }
    }
}

impl Server {
    /// `rest` follows "://". The login is parsed as in the URL of a single server.
    pub(in crate::lock::redis) fn parse_discovery(
        kind: Scheme,
        scheme: &str,
        rest: &str,
    ) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let (port, expected) = match kind {
            Scheme::Sentinel => (SENTINEL_PORT, SENTINEL),
            Scheme::Cluster => (NODE_PORT, CLUSTER),
        };
        if path.contains(['?', '#']) {
            return Err(format!("unexpected text after the URL: {expected}"));
        }
        let parse = |host: &str| Address::parse(host.trim(), port);
        let addresses: Vec<Address> = hosts
            .split(',')
            .map(|host| parse(host).ok_or_else(|| format!("a host or port is not valid: {expected}")))
            .collect::<Result<_, _>>()?;
        let path = path.strip_prefix('/').unwrap_or(path);
        let (service, db) = match kind {
            Scheme::Sentinel => path.split_once('/').unwrap_or((path, "")),
            Scheme::Cluster => ("", path),
        };
        let target = match kind {
            Scheme::Sentinel if service.is_empty() => {
                return Err(format!(
                    "the name of the service is missing (as in sentinel.conf, often mymaster): {expected}"
                ));
            }
            Scheme::Sentinel
                if !service.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) =>
            {
                let why = "the service, which follows the last host, may have letters, digits, '.', '-' and '_' only";
                return Err(format!("{why}: {expected}"));
            }
            Scheme::Sentinel => Target::Sentinel { sentinels: addresses, service: service.to_owned() },
            Scheme::Cluster if !db.is_empty() && db != "0" => {
                return Err(format!("a Redis Cluster has no databases: {expected}"));
            }
            Scheme::Cluster => Target::Cluster { nodes: addresses },
        };
        let plain = scheme.split('+').next().unwrap_or_default();
        let separator = if login.is_empty() { "" } else { "@" };
        let url = format!("{plain}://{login}{separator}host/{}", if db == "0" { "" } else { db });
        let one = Self::parse(&url).map_err(|_| {
            if db.bytes().all(|b| b.is_ascii_digit()) {
                format!("not a server's URL: {expected}")
            } else {
                format!("the service must be followed by the number of a database, if anything: {expected}")
            }
        })?;
        Ok(Self::discovered(target, one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Server, String> {
        let (scheme, rest) = url.split_once("://").unwrap();
        Server::parse_discovery(Scheme::parse(scheme).unwrap(), scheme, rest)
    }

    #[test]
    fn hosts_ports_service_and_login_are_read() {
        for (url, shown, password) in [
            ("redis+sentinel://a,b:1, [::1]/main", "redis+sentinel://a:26379,b:1,[::1]:26379/main", None),
            ("redis+sentinel://me:s%40%2Cx@a/m.y-m_1/3", "redis+sentinel://a:26379/m.y-m_1/3", Some("s@,x")),
            ("redis+cluster://:pw@a,10.0.0.2:7000", "redis+cluster://a:6379,10.0.0.2:7000", Some("pw")),
            ("valkey+cluster://a/", "redis+cluster://a:6379", None),
        ] {
            let server = parse(url).unwrap_or_else(|why| panic!("{url}: {why}"));
            assert_eq!((server.to_string().as_str(), server.password().as_deref()), (shown, password));
        }
        assert!(parse("redis+sentinel://a/m").unwrap().may_fail_over());
    }

    #[test]
    fn a_mistake_gets_a_helpful_hint() {
        for (url, hint) in [
            ("redis+sentinel://a,b", "name of the service is missing"),
            ("redis+sentinel://a/m,b", "follows the last host"),
            ("redis+sentinel://a/m/x", "number of a database"),
            ("redis+sentinel://a:x/m", "host or port"),
            ("redis+sentinel://,a/m", "host or port"),
            ("redis+sentinel://a/m?x=secret", "after the URL"),
            ("redis+cluster://a/2", "no databases"),
            ("redis+cluster://", "host or port"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(hint) && !why.contains("secret"), "{url}: {why}");
        }
        for scheme in ["redis", "http+cluster", "redis+unix", "sentinel"] {
            assert_eq!(Scheme::parse(scheme), None, "{scheme}");
        }
    }
}
