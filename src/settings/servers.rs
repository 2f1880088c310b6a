//! The servers, from their URLs, and how to log in to them. No message repeats any part of a URL
//! that may belong to a password.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

use super::inherited::Origin;
use super::sources::Sources;
use super::tls::{tls, without_tls};
use super::usage;
use crate::cli::BackendArgs;
use crate::exit::{Failure, UNFIT};
use crate::lock::{Password, Server};
use crate::report::io_error;

const MOST_SERVERS: usize = 9;
const PASSWORD: &str = "REDLOCK_PASSWORD";
/// Where Docker, Podman and Kubernetes put secrets, readable by all users of the container.
const SECRETS_OF_CONTAINERS: &str = "/run/secrets";

const SENTINEL_PASSWORD: &str = "REDLOCK_SENTINEL_PASSWORD";

const EXPECTED: &str = "expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] (rediss:// with TLS), unix:///PATH[?db=N], \
                        redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST";
const ENCODE: &str = "special characters in a password must be percent-encoded (@ is %40, # is %23, / is %2F, \
                      ? is %3F, a comma is %2C, a blank is %20); or set REDLOCK_PASSWORD instead";

pub(super) fn servers(args: &BackendArgs, sources: Sources<'_>) -> Result<Vec<Server>, Failure> {
    let urls: Vec<&str> = args.redis.iter().flat_map(|urls| split(urls)).collect();
    let name = sources.name("redis");
    if urls.len() > MOST_SERVERS {
        let message = format!("{name}: {} servers given, at most {MOST_SERVERS} are allowed", urls.len());
        return Err(sources.bad("redis", message));
    }
    // The rest of a password that contains a comma.
    if urls.iter().skip(1).any(|url| !url.contains("://") && url.contains('@')) {
        return Err(sources.bad("redis", format!("{name}: {ENCODE}")));
    }
    let bad = |at: usize, why: &str| match urls.len() {
        1 => sources.bad("redis", format!("{name}: {why}")),
        _ => sources.bad("redis", format!("{name}, server {}: {why}", at + 1)),
    };
    let password = password(PASSWORD, args.password_file.as_deref(), "password_file", sources)?;
    let of_sentinels = password_of_sentinels(args, sources)?;
    let parse = |(at, url): (usize, &&str)| {
        let server = parse(url).map_err(|why| bad(at, &why))?;
        let has_user = server.has_username();
        let server = server
            .with_login(args.username.as_deref(), password.as_ref())
            .with_sentinel_login(args.sentinel_username.as_deref(), of_sentinels.as_ref());
        if server.has_username() && !server.has_password() {
            return Err(if has_user {
                bad(at, "user without a password; for a password alone write redis://:PASSWORD@HOST")
            } else {
                sources.bad(
                    "username",
                    format!("{} needs a password: {PASSWORD_SOURCES}", sources.name("username")),
                )
            });
        }
        Ok(server)
    };
    let servers: Vec<Server> = urls.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    if servers.iter().any(Server::is_cluster) && !servers.iter().all(Server::is_cluster) {
        // The names of the keys differ.
        return Err(sources
            .bad("redis", format!("{name}: a Redis Cluster and other servers cannot hold a lock together")));
    }
    if !servers.iter().any(Server::uses_tls) {
        without_tls(sources)?;
        return Ok(servers);
    }
    let tls = tls(args, sources)?;
    Ok(servers.into_iter().map(|server| server.with_tls(&tls)).collect())
}

/// The Sentinels' own password.
fn password_of_sentinels(args: &BackendArgs, sources: Sources<'_>) -> Result<Option<Password>, Failure> {
    let (file, id) = (args.sentinel_password_file.as_deref(), "sentinel_password_file");
    let password = password(SENTINEL_PASSWORD, file, id, sources)?;
    if password.is_none() && args.sentinel_username.is_some() {
        let name = sources.name("sentinel_username");
        let message =
            format!("{name} needs a password: set {SENTINEL_PASSWORD} or give --sentinel-password-file");
        return Err(sources.bad("sentinel_username", message));
    }
    Ok(password)
}

const PASSWORD_SOURCES: &str = "set REDLOCK_PASSWORD or give --password-file";

/// Files with secrets that all users can read.
pub(super) fn warnings(args: &BackendArgs, sources: Sources<'_>) -> Vec<String> {
    let mut files: Vec<&Path> = Vec::new();
    for (file, id, variable) in [
        (&args.password_file, "password_file", PASSWORD),
        (&args.sentinel_password_file, "sentinel_password_file", SENTINEL_PASSWORD),
    ] {
        let is_set = env::var_os(variable).is_some_and(|password| !password.is_empty());
        files.extend(file.as_deref().filter(|_| sources.was_typed(id) || !is_set));
    }
    let has_password = || args.redis.iter().any(|urls| !typed_secrets(urls).is_empty());
    if let Some(Origin::File { path, .. }) = sources.origin("redis")
        && has_password()
    {
        files.push(path);
    }
    let key = args.tls_key.as_deref().filter(|_| uses_tls(args));
    let secrets = files.into_iter().map(|path| (path, "a password"));
    let secrets = secrets.chain(key.map(|path| (path, "a private key")));
    let warn = |(path, what): (&Path, &str)| {
        let path = path.display();
        format!("warning: {path} holds {what} and is readable by all users of this host: chmod o-r {path}")
    };
    secrets.filter(|(path, _)| is_readable_by_all(path)).map(warn).collect()
}

fn uses_tls(args: &BackendArgs) -> bool {
    let urls = args.redis.iter().flat_map(|urls| split(urls));
    urls.filter_map(|url| Server::parse(url).ok()).any(|server| server.uses_tls())
}

/// The URLs in this text that may hold a password.
pub(super) fn typed_secrets(urls: &str) -> Vec<&str> {
    let may_hold = |url: &&str| Server::parse(url).map_or(true, |server| server.has_password());
    split(urls).filter(may_hold).collect()
}

/// Whether this looks like a URL. No command does.
pub(super) fn is_url(word: &OsStr) -> bool {
    let scheme = word.to_str().and_then(|word| word.split_once("://")).map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+')
}

/// The URLs of a list. An item without a scheme continues the host list of the URL before it, if
/// that may have several hosts.
fn split(urls: &str) -> impl Iterator<Item = &str> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut start = 0;
    for item in urls.split(',') {
        let end = start + item.len();
        let has_several_hosts = |url: &str| url.contains("+sentinel://") || url.contains("+cluster://");
        match parts.last_mut() {
            Some(last) if !item.contains("://") && has_several_hosts(&urls[last.0..last.1]) => last.1 = end,
            _ => parts.push((start, end)),
        }
        start = end + 1;
    }
    parts.into_iter().map(|(start, end)| urls[start..end].trim()).filter(|url| !url.is_empty())
}

fn is_readable_by_all(path: &Path) -> bool {
    let is_of_container = |path: PathBuf| path.starts_with(SECRETS_OF_CONTAINERS);
    let mode = fs::metadata(path).map_or(0, |about| about.permissions().mode());
    mode & 0o004 != 0 && !path.canonicalize().is_ok_and(is_of_container)
}

fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(password) => Ok(Some(password).filter(|password| !password.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(usage(format!("{name} is not valid UTF-8"))),
    }
}

/// The password for servers whose URL has none: from the typed file, else the variable, else the
/// inherited file.
fn password(
    variable_name: &str,
    file: Option<&Path>,
    id: &str,
    sources: Sources<'_>,
) -> Result<Option<Password>, Failure> {
    match (variable(variable_name)?, file) {
        (Some(_), Some(_)) if matches!(sources.origin(id), Some(Origin::Variable(_))) => {
            Err(usage(format!("{variable_name} and {} cannot be used together", sources.name(id))))
        }
        (variable, Some(path)) if variable.is_none() || sources.was_typed(id) => {
            read(path, &sources.name(id)).map(Some)
        }
        (variable, _) => Ok(variable.as_deref().map(Password::fixed)),
    }
}

/// The first line of the file.
fn read(path: &Path, name: &str) -> Result<Password, Failure> {
    let bad = |why: String| Failure::new(UNFIT, format!("{name}: {}: {why}", path.display()));
    Password::from_file(path)
        .map_err(|error| bad(format!("cannot read the password: {}", io_error(&error))))?
        .ok_or_else(|| bad("the first line is empty, expected a password".into()))
}

/// Finds mistakes before parsing: in "redis://:p@ss#1@host" a parser sees the host "ss".
fn parse(url: &str) -> Result<Server, String> {
    let has_several_hosts = url.contains("+sentinel://") || url.contains("+cluster://");
    if url.contains(char::is_whitespace) && !has_several_hosts {
        let is_list = !url.contains('@') || url.matches("://").count() > 1;
        return Err(if is_list { "separate several servers by commas" } else { ENCODE }.into());
    }
    let Some((scheme, rest)) = url.split_once("://") else { return Err(without_scheme(url)) };
    match scheme {
        "redis" | "valkey" | "rediss" | "valkeys" => {}
        "unix" | "redis+unix" | "valkey+unix" => {
            return Server::parse(url).map_err(|_| format!("not a server's URL: {EXPECTED}"));
        }
        _ if has_several_hosts => {}
        scheme if scheme.contains("sentinel") => {
            return Err("not a server's URL: expected redis+sentinel://HOST[:PORT][,HOST...]/SERVICE".into());
        }
        scheme if scheme.contains("cluster") => {
            return Err("not a server's URL: expected redis+cluster://HOST[:PORT][,HOST...]".into());
        }
        _ => return Err(format!("not a server's URL: {EXPECTED}")),
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let login = authority.rsplit_once('@').map_or("", |(login, _)| login);
    if path.contains('@') || login.contains([',', ' ']) {
        return Err(ENCODE.into());
    }
    if has_several_hosts {
        return Server::parse(url);
    }
    Server::parse(url).map_err(|_| {
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = host.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if port.is_some_and(|port| is_number(port) && port.parse::<u16>().is_err()) {
            "the port is out of range (1 to 65535)".into()
        } else if path.strip_prefix('/').is_some_and(|db| !db.is_empty() && !is_number(db)) {
            format!("expected the number of a database after the host: {EXPECTED}")
        } else {
            format!("not a server's URL: {EXPECTED}")
        }
    })
}

/// People write host and port, as for redis-cli. A text that may be a password is not repeated.
fn without_scheme(text: &str) -> String {
    let (host, port) = text.split_once(':').unwrap_or((text, "6379"));
    let is_host = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
    if text.starts_with('/') && !text.contains(['@', '?']) {
        format!("not a server's URL: did you mean unix://{text}?")
    } else if is_host && port.parse::<u16>().is_ok() {
        format!("not a server's URL: did you mean redis://{text}?")
    } else {
        format!("not a server's URL: {EXPECTED}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_be_right_gets_the_hint_that_helps() {
        for (url, hint) in [
            ("localhost:7711", "did you mean redis://localhost:7711?"),
            ("127.0.0.1", "did you mean redis://127.0.0.1?"),
            ("/run/redis.sock", "did you mean unix:///run/redis.sock?"),
            ("redis://a redis://b", "commas"),
            ("redis://:p@ss#w@127.0.0.1:7714", "percent-encoded"),
            ("redis://:pa/ss@h", "percent-encoded"),
            ("redis://:pa?ss@h", "percent-encoded"),
            ("redis://me@corp:Secret#9@h", "percent-encoded"),
            ("redis://:pa ss@h", "percent-encoded"),
            ("redis://h:77111", "out of range"),
            ("redis://h/foo", "database"),
            ("rediss://h/foo", "database"),
            ("rediss+unix:///x", "expected redis://"),
            ("redis+sentinel://h", "name of the service is missing"),
            ("redis+sentinel://:p,x@h/m", "percent-encoded"),
            ("redis+sentinel://:p/x@h/m", "percent-encoded"),
            ("redis-sentinel://h/m", "expected redis+sentinel://"),
            ("redis-cluster://h", "expected redis+cluster://"),
            ("http://h", "expected redis://"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(hint), "{url}: {why}");
        }
        for url in [
            "redis://:p%40ss@h",
            "redis://h:1/2",
            "rediss://h:1/2",
            "unix:///run/a@b",
            "redis://[::1]:7",
            "redis+sentinel://:p%2C@a, b/m",
            "redis+cluster://a,b:1",
            "rediss+sentinel://a/m",
        ] {
            assert!(parse(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn in_a_list_hosts_go_on_with_the_url_before_them() {
        let of = |urls| split(urls).collect::<Vec<_>>();
        assert_eq!(of("redis://a, redis://b,"), ["redis://a", "redis://b"]);
        assert_eq!(
            of("redis+sentinel://a, b:1,c/m,redis://d,redis+cluster://e,f"),
            ["redis+sentinel://a, b:1,c/m", "redis://d", "redis+cluster://e,f"]
        );
        assert_eq!(of("redis://a,b"), ["redis://a", "b"]);
    }
}
