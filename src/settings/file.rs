//! Config files. Keys are spelled like the long options. No message shows a value: it may be a
//! password.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::unistd::geteuid;
use toml::de::{DeTable, DeValue};

use crate::exit::{Failure, UNFIT};
use crate::report::io_error;

const OF_ALL_USERS: &str = "/etc/redlock/config.toml";
const OF_THE_USER: &str = "redlock/config.toml";

pub(crate) struct ConfigFile {
    pub path: PathBuf,
    pub entries: Vec<ConfigEntry>,
}

/// One setting of a file.
pub(crate) struct ConfigEntry {
    pub key: String,
    pub line: usize,
    /// As on the command line.
    pub values: Vec<String>,
}

/// The files in the order in which they are read: a later one overrides an earlier one. A named
/// file must exist, and is the only one.
pub(super) fn read_all(named: Option<PathBuf>) -> Result<Vec<ConfigFile>, Failure> {
    if let Some(path) = named {
        let text = read(&path)?.map_err(|error| cannot_read(&path, &error))?;
        return Ok(vec![parse(path, &text)?]);
    }
    let mut files = Vec::new();
    for path in [Some(PathBuf::from(OF_ALL_USERS)), of_the_user()].into_iter().flatten() {
        match read(&path)? {
            Ok(text) => files.push(parse(path, &text)?),
            Err(error) if is_missing(&path, &error) => {}
            Err(error) => return Err(cannot_read(&path, &error)),
        }
    }
    Ok(files)
}

/// A file that another user can change is refused: it decides which servers hold the locks, and to
/// which file events are appended.
fn read(path: &Path) -> Result<io::Result<String>, Failure> {
    let read = || {
        let mut file = File::open(path)?;
        let about = file.metadata()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok((about, text))
    };
    let (about, text) = match read() {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    let refuse = |why: &str| Err(Failure::new(UNFIT, format!("the config file {} {why}", path.display())));
    let is_foreign = about.uid() != 0 && about.uid() != geteuid().as_raw();
    match about.is_file() {
        true if is_foreign => refuse(&format!(
            "belongs to uid {}, who could change it: make it yours or root's, or name another with --config",
            about.uid()
        )),
        true if about.mode() & 0o002 != 0 => refuse("can be changed by every user: chmod o-w"),
        // A pipe of the shell.
        true | false => Ok(Ok(text)),
    }
}

/// According to the XDG base directory specification, an unset, empty or relative variable means
/// ~/.config.
fn of_the_user() -> Option<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join(OF_THE_USER))
}

/// A home directory that cannot be searched is another user's, and so is the file: runuser and
/// setpriv do not change HOME.
fn is_missing(path: &Path, error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || kind == io::ErrorKind::PermissionDenied && fs::symlink_metadata(path).is_err()
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::new(UNFIT, format!("cannot read the config file {}: {}", path.display(), io_error(error)))
}

fn parse(path: PathBuf, text: &str) -> Result<ConfigFile, Failure> {
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let bad = |line: usize, why: &str| Failure::new(UNFIT, format!("{}:{line}: {why}", path.display()));
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let why = error.message().lines().next().unwrap_or_default();
        bad(line_of(at), &format!("{}{why}", key_at(text, at)))
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        let key = key.get_ref().to_string();
        if matches!(value.get_ref(), DeValue::Table(_)) {
            return Err(bad(
                line,
                &format!("{key}: sections are not supported; put settings at the top level"),
            ));
        }
        let values = values(value.get_ref());
        let values = values.ok_or_else(|| bad(line, &format!("{key}: write the value as a string")))?;
        entries.push(ConfigEntry { key, line, values });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(ConfigFile { path, entries })
}

/// "ttl: " if the line starts with a setting of that name.
fn key_at(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = text[before.rfind('\n').map_or(0, |end| end + 1)..].lines().next().unwrap_or_default();
    let key = line.split('=').next().unwrap_or_default().trim();
    let is_key = !key.is_empty()
        && line.contains('=')
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_key { format!("{key}: ") } else { String::new() }
}

/// As on the command line. `None` for a value that no option takes.
fn values(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Integer(number) => Some(vec![number.to_string()]),
        DeValue::Float(number) => Some(vec![number.to_string()]),
        DeValue::Boolean(flag) => Some(vec![flag.to_string()]),
        DeValue::Array(items) => {
            items.iter().map(|item| item.get_ref().as_str().map(ToOwned::to_owned)).collect()
        }
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}
