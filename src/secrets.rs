//! Hides passwords in URLs: on the command line from `ps`, and in messages.
//!
//! Every user of the host can read a process's arguments in /proc, so they are overwritten before
//! any other process is started.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use crate::arguments;

/// Mask these URLs in our own argument list. The last `of_the_command` arguments belong to the
/// command.
pub(crate) fn hide(urls: &[&OsStr], of_the_command: usize) -> io::Result<()> {
    if urls.is_empty() {
        return Ok(());
    }
    arguments::overwrite(|bytes| hide_in(bytes, urls, of_the_command))
}

fn hide_in(bytes: &mut [u8], urls: &[&OsStr], of_the_command: usize) {
    let ours = length_without_last(bytes, of_the_command);
    for url in urls {
        let url = url.as_bytes();
        let mut from = 0;
        while let Some(at) = find(&bytes[from..ours], url) {
            let end = from + at + url.len();
            mask(&mut bytes[from + at..end]);
            from = end;
        }
    }
}

/// Number of bytes before the last `count` arguments, each of which ends with a zero.
fn length_without_last(bytes: &[u8], count: usize) -> usize {
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, b)| **b == 0).map(|(at, _)| at + 1).collect();
    ends.len().checked_sub(count + 1).map_or(0, |last| ends[last])
}

/// Replace user and password, before the last @ and in a query, with stars. The length stays the
/// same.
fn mask(url: &mut [u8]) {
    let start = find(url, b"://").map_or(0, |at| at + 3);
    mask_login(&mut url[start..]);
}

/// The same in a URL without its scheme.
fn mask_login(url: &mut [u8]) {
    if let Some(at) = url.iter().rposition(|&b| b == b'@') {
        url[..at].fill(b'*');
    }
    if let Some(at) = find(url, b"pass=") {
        let value = &mut url[at + b"pass=".len()..];
        let end = value.iter().position(|&b| b == b'&').unwrap_or(value.len());
        value[..end].fill(b'*');
    }
}

/// Stands for a password in our own hints.
const PLACEHOLDER: &str = ":PASSWORD@";

/// For messages that repeat what was typed: a URL may be anywhere in them.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, url) = rest.split_at(scheme + 3);
        let (url, after) = url.split_at(url_length(before, url));
        out.push_str(before);
        out.push_str(&without_login_and_query(url));
        rest = after;
    }
    out + rest
}

/// Bytes of a URL, without its scheme, in a message: up to the closing quote, or else the next blank.
/// If the login is not over by then, it contains blanks.
fn url_length(before: &str, url: &str) -> usize {
    let line = url.find('\n').unwrap_or(url.len());
    let name =
        before.trim_end_matches("://").trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '+');
    if name.ends_with('"') {
        let mut is_escaped = false;
        let closing = url.find(|c| {
            let closes = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            closes
        });
        return closing.unwrap_or(line);
    }
    let word = url.find(char::is_whitespace).unwrap_or(url.len());
    // A host may be followed by a port, not by a word.
    let is_login = url[..word].split_once(':').is_some_and(|(host, port)| {
        !port.starts_with(|c: char| c.is_ascii_digit()) && !port.is_empty() && !host.starts_with("HOST")
    });
    if is_login && !url[..word].contains('@') && url[..line].contains('@') { line } else { word }
}

fn without_login_and_query(url: &str) -> String {
    let is_advice = url.contains(PLACEHOLDER) && !url.replacen(PLACEHOLDER, "", 1).contains('@');
    if is_advice {
        return url.to_owned();
    }
    let mut bytes = url.as_bytes().to_vec();
    mask_login(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len().max(1)).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_url_has_no_password() {
        assert_eq!(
            without_passwords("unexpected argument 'redis://:secret@h' found\nUsage: x"),
            "unexpected argument 'redis://*******@h' found\nUsage: x"
        );
        for url in
            ["redis://:se,cret@h", "redis://:se'cret@h", "redis://me:se://cret@h", "unix:///s?pass=secret@h"]
        {
            let shown = without_passwords(&format!("not \"{url}\", or redis://{url}: failed for root@vm"));
            assert!(!shown.contains("cret") && shown.ends_with("@h: failed for root@vm"), "{shown}");
        }
        for spaced in
            ["not \"redis://:my \\\"secret@h\"", "open redis://:my secret@h", "open redis://me:my secret@h"]
        {
            let shown = without_passwords(&format!("{spaced}: no"));
            assert!(!shown.contains("my") && !shown.contains("cret"), "{shown}");
        }
        for harmless in [
            "expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]",
            "redis://h:6379: held by root@vm",
            "use redis+sentinel://HOST:PORT/SERVICE, not root@vm",
        ] {
            assert_eq!(without_passwords(harmless), harmless);
        }
    }

    #[test]
    fn the_commands_arguments_are_left_alone() {
        assert_eq!(length_without_last(b"redlock\0-r\0u\0cmd\0a\0", 2), b"redlock\0-r\0u\0".len());
        assert_eq!(length_without_last(b"a\0b\0", 0), 4);
        assert_eq!(length_without_last(b"a\0", 5), 0);
    }

    #[test]
    fn only_the_login_is_masked() {
        for (url, masked) in [
            ("redis://me:p@ss@host:1/2", "redis://*******@host:1/2"),
            ("redis://host/1", "redis://host/1"),
            ("unix:///s?pass=abc&db=1", "unix:///s?pass=***&db=1"),
            ("me:secret@host", "*********@host"),
        ] {
            let mut bytes = url.as_bytes().to_vec();
            mask(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), masked);
        }
    }
}
