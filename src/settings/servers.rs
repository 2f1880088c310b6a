//! The servers, from their URLs, and how to log in to them. No message repeats anything of a URL that may be a
//! part of a password.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

use super::inherited::Origin;
use super::sources::Sources;
use super::usage;
use crate::cli::ServerArgs;
use crate::exit::{Failure, UNFIT};
use crate::lock::Server;
use crate::report::io_error;

const MOST_SERVERS: usize = 9;
const PASSWORD: &str = "REDLOCK_PASSWORD";
/// Where Docker, Podman and Kubernetes put secrets, readable by all users of the container.
const SECRETS_OF_CONTAINERS: &str = "/run/secrets";

const EXPECTED: &str = "expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix:///PATH[?db=N]";
const ENCODE: &str = "special characters in a password must be percent-encoded (@ is %40, # is %23, / is %2F, \
                      ? is %3F, a comma is %2C, a blank is %20); or set REDLOCK_PASSWORD instead";

pub(super) fn servers(args: &ServerArgs, sources: Sources<'_>) -> Result<Vec<Server>, Failure> {
    let urls: Vec<&str> = args.redis.iter().flat_map(|urls| split(urls)).collect();
    let name = sources.name("redis");
    if urls.len() > MOST_SERVERS {
        let message = format!("{name}: {} servers given, {MOST_SERVERS} are allowed", urls.len());
        return Err(sources.bad("redis", message));
    }
    // What follows a comma inside a password.
    if urls.iter().skip(1).any(|url| !url.contains("://") && url.contains('@')) {
        return Err(sources.bad("redis", format!("{name}: {ENCODE}")));
    }
    let bad = |at: usize, why: &str| match urls.len() {
        1 => sources.bad("redis", format!("{name}: {why}")),
        _ => sources.bad("redis", format!("{name}, server {}: {why}", at + 1)),
    };
    let password = password(args, sources)?;
    let parse = |(at, url): (usize, &&str)| {
        let server = parse(url).map_err(|why| bad(at, &why))?;
        let has_user = server.has_username();
        let server = server.with_login(args.username.as_deref(), password.as_deref());
        if server.has_username() && server.password().is_none() {
            return Err(if has_user {
                bad(at, "a user without a password; for a password alone write redis://:PASSWORD@HOST")
            } else {
                sources.bad(
                    "username",
                    format!("{} needs a password: {PASSWORD_SOURCES}", sources.name("username")),
                )
            });
        }
        Ok(server)
    };
    urls.iter().enumerate().map(parse).collect()
}

const PASSWORD_SOURCES: &str = "set REDLOCK_PASSWORD or give --password-file";

/// What is wrong with the files that hold passwords.
pub(super) fn warnings(args: &ServerArgs, sources: Sources<'_>) -> Vec<String> {
    let mut files: Vec<&Path> = Vec::new();
    if let Some(path) = &args.password_file
        && (sources.was_typed("password_file")
            || env::var_os(PASSWORD).is_none_or(|password| password.is_empty()))
    {
        files.push(path);
    }
    let has_password = || args.redis.iter().any(|urls| !typed_secrets(urls).is_empty());
    if let Some(Origin::File { path, .. }) = sources.origin("redis")
        && has_password()
    {
        files.push(path);
    }
    files.retain(|path| is_readable_by_all(path));
    let warn = |path: &Path| {
        let path = path.display();
        format!("warning: {path} holds a password, and all users of this host can read it: chmod o-r {path}")
    };
    files.into_iter().map(warn).collect()
}

/// The URLs in this text that may hold a password.
pub(super) fn typed_secrets(urls: &str) -> Vec<&str> {
    let may_hold = |url: &&str| Server::parse(url).map_or(true, |server| server.password().is_some());
    split(urls).filter(may_hold).collect()
}

/// Whether this looks like an address. No command does.
pub(super) fn is_url(word: &OsStr) -> bool {
    let scheme = word.to_str().and_then(|word| word.split_once("://")).map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+')
}

fn split(urls: &str) -> impl Iterator<Item = &str> {
    urls.split(',').map(str::trim).filter(|url| !url.is_empty())
}

fn is_readable_by_all(path: &Path) -> bool {
    let is_of_container = |path: PathBuf| path.starts_with(SECRETS_OF_CONTAINERS);
    let mode = fs::metadata(path).map_or(0, |about| about.permissions().mode());
    mode & 0o004 != 0 && !path.canonicalize().is_ok_and(is_of_container)
}

fn variable() -> Result<Option<String>, Failure> {
    match env::var(PASSWORD) {
        Ok(password) => Ok(Some(password).filter(|password| !password.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(usage(format!("{PASSWORD} is not valid UTF-8"))),
    }
}

/// For all servers whose URL has none: from the file that was typed, else the variable, else the inherited file.
fn password(args: &ServerArgs, sources: Sources<'_>) -> Result<Option<String>, Failure> {
    let id = "password_file";
    match (variable()?, &args.password_file) {
        (Some(_), Some(_)) if matches!(sources.origin(id), Some(Origin::Variable(_))) => {
            Err(usage(format!("{PASSWORD} and {} cannot be used together", sources.name(id))))
        }
        (variable, Some(path)) if variable.is_none() || sources.was_typed(id) => {
            read(path, &sources.name(id)).map(Some)
        }
        (variable, _) => Ok(variable),
    }
}

/// The first line of the file.
fn read(path: &Path, name: &str) -> Result<String, Failure> {
    let bad = |why: String| Failure::new(UNFIT, format!("{name}: {}: {why}", path.display()));
    let text = fs::read_to_string(path)
        .map_err(|error| bad(format!("cannot read the password: {}", io_error(&error))))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(bad("there is no password in the first line".into())),
    }
}

/// What cannot be right is found before the URL is parsed: of "redis://:p@ss#1@host" a parser makes the host "ss".
fn parse(url: &str) -> Result<Server, String> {
    if url.contains(char::is_whitespace) {
        let is_list = !url.contains('@') || url.matches("://").count() > 1;
        return Err(if is_list { "separate several servers by commas" } else { ENCODE }.into());
    }
    let Some((scheme, rest)) = url.split_once("://") else { return Err(without_scheme(url)) };
    match scheme {
        "redis" | "valkey" => {}
        "unix" | "redis+unix" | "valkey+unix" => {
            return Server::parse(url).map_err(|_| format!("not a server's URL: {EXPECTED}"));
        }
        "rediss" | "valkeys" => {
            return Err(
                "TLS (rediss://) is not supported yet: use a tunnel (stunnel, ssh -L) or a unix socket"
                    .into(),
            );
        }
        scheme if scheme.contains("sentinel") => {
            return Err("Sentinel is not supported yet: name the primary".into());
        }
        scheme if scheme.contains("cluster") => {
            return Err("Redis Cluster is not supported yet: name one independent primary".into());
        }
        _ => return Err(format!("not a server's URL: {EXPECTED}")),
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if path.contains('@') {
        return Err(ENCODE.into());
    }
    Server::parse(url).map_err(|_| {
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = host.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if port.is_some_and(|port| is_number(port) && port.parse::<u16>().is_err()) {
            "the port is out of range (1 to 65535)".into()
        } else if path.strip_prefix('/').is_some_and(|db| !db.is_empty() && !is_number(db)) {
            format!("what follows the host must be the number of a database: {EXPECTED}")
        } else {
            format!("not a server's URL: {EXPECTED}")
        }
    })
}

/// redis-cli takes host and port, and people write what they know. What may be a password is not repeated.
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
            ("rediss://h", "TLS"),
            ("redis+sentinel://h", "Sentinel"),
            ("http://h", "expected redis://"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(hint), "{url}: {why}");
        }
        for url in ["redis://:p%40ss@h", "redis://h:1/2", "unix:///run/a@b", "redis://[::1]:7"] {
            assert!(parse(url).is_ok(), "{url}");
        }
    }
}
