//! URLs that name servers by those who know where they are: redis+sentinel://, redis+cluster://. No error repeats
//! anything of a URL that may be a part of a password.

use super::address::Address;
use super::server::{Server, Target};

const SENTINEL_PORT: u16 = 26379;
const NODE_PORT: u16 = 6379;

const SENTINEL: &str = "expected redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST...]/SERVICE[/DB]";
const CLUSTER: &str = "expected redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST...]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sentinel,
    Cluster,
}

/// What a scheme means, if it is one of these.
pub(super) fn kind(scheme: &str) -> Option<Kind> {
    match scheme.split_once('+')? {
        ("redis" | "rediss" | "valkey" | "valkeys", "sentinel") => Some(Kind::Sentinel),
        ("redis" | "rediss" | "valkey" | "valkeys", "cluster") => Some(Kind::Cluster),
        _ => None,
    }
}

impl Server {
    /// `rest` follows "://". The login is parsed as that of a URL of one server.
    pub(super) fn parse_discovery(kind: Kind, scheme: &str, rest: &str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let (port, expected) = match kind {
            Kind::Sentinel => (SENTINEL_PORT, SENTINEL),
            Kind::Cluster => (NODE_PORT, CLUSTER),
        };
        if path.contains(['?', '#']) {
            return Err(format!("there is something behind the URL: {expected}"));
        }
        let parse = |host: &str| Address::parse(host.trim(), port);
        let addresses: Vec<Address> = hosts
            .split(',')
            .map(|host| parse(host).ok_or_else(|| format!("a host or port is not valid: {expected}")))
            .collect::<Result<_, _>>()?;
        let path = path.strip_prefix('/').unwrap_or(path);
        let (service, db) = match kind {
            Kind::Sentinel => path.split_once('/').unwrap_or((path, "")),
            Kind::Cluster => ("", path),
        };
        let target = match kind {
            Kind::Sentinel if service.is_empty() => {
                return Err(format!(
                    "the name of the service is missing (as in sentinel.conf, often mymaster): {expected}"
                ));
            }
            Kind::Sentinel if !service.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) => {
                let why = "the name of a service, which follows the last host, has letters, digits, '.', '-' and '_' only";
                return Err(format!("{why}: {expected}"));
            }
            Kind::Sentinel => Target::Sentinel { sentinels: addresses, service: service.to_owned() },
            Kind::Cluster if !db.is_empty() && db != "0" => {
                return Err(format!("a Redis Cluster has no databases: {expected}"));
            }
            Kind::Cluster => Target::Cluster { nodes: addresses },
        };
        let plain = scheme.split('+').next().unwrap_or_default();
        let separator = if login.is_empty() { "" } else { "@" };
        let url = format!("{plain}://{login}{separator}host/{}", if db == "0" { "" } else { db });
        let one = Self::parse(&url).map_err(|_| {
            if db.bytes().all(|b| b.is_ascii_digit()) {
                format!("not a server's URL: {expected}")
            } else {
                format!("what follows the service must be the number of a database: {expected}")
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
        Server::parse_discovery(kind(scheme).expect("one of ours"), scheme, rest)
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
            assert_eq!((server.to_string().as_str(), server.password()), (shown, password));
        }
        assert!(parse("redis+sentinel://a/m").unwrap().may_fail_over());
    }

    #[test]
    fn mistakes_get_the_hint_that_helps() {
        for (url, hint) in [
            ("redis+sentinel://a,b", "name of the service is missing"),
            ("redis+sentinel://a/m,b", "follows the last host"),
            ("redis+sentinel://a/m/x", "number of a database"),
            ("redis+sentinel://a:x/m", "host or port"),
            ("redis+sentinel://,a/m", "host or port"),
            ("redis+sentinel://a/m?x=secret", "behind the URL"),
            ("redis+cluster://a/2", "no databases"),
            ("redis+cluster://", "host or port"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(hint) && !why.contains("secret"), "{url}: {why}");
        }
        for scheme in ["redis", "http+cluster", "redis+unix", "sentinel"] {
            assert_eq!(kind(scheme), None, "{scheme}");
        }
    }
}
