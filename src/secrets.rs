//! Hides passwords in URLs on the command line from `ps`.
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
    if let Some(at) = url.iter().rposition(|&b| b == b'@').filter(|&at| at >= start) {
        url[start..at].fill(b'*');
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
    let mask_part = |part: &str| {
        let is_advice = part.contains(PLACEHOLDER) && !part.replacen(PLACEHOLDER, "", 1).contains('@');
        let mut bytes = part.as_bytes().to_vec();
        if find(&bytes, b"://").is_some() && !is_advice {
            mask(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    text.split_inclusive([' ', '\n', '\'', ',']).map(mask_part).collect()
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
        let advice = "expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]";
        assert_eq!(without_passwords(advice), advice);
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
