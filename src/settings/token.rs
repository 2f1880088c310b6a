//! Settings of `redlock extend` and `redlock release`.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use super::backend::{Backend, Location};
use super::look::claim;
use super::sources::Sources;
use super::{usage, validate_keys, verbosity};
use crate::cli::{ExtendArgs, ReleaseArgs, TokenArgs};
use crate::exit::Failure;
use crate::lock::Claim;

const KEY: &str = "REDLOCK_KEY";
const FENCE: &str = "REDLOCK_FENCE";

/// A grant, and where its locks are.
#[derive(Debug)]
pub(crate) struct TokenSettings {
    /// At least one, without duplicates.
    pub keys: Vec<Vec<u8>>,
    pub token: Claim,
    pub location: Location,
}

#[derive(Debug)]
pub(crate) struct ExtendSettings {
    pub grant: TokenSettings,
    /// `None` = forever.
    pub ttl: Option<Duration>,
}

impl TokenSettings {
    fn resolve(args: TokenArgs, location: Location, sources: Sources<'_>) -> Result<Self, Failure> {
        let token = claim(args.token.clone())?;
        let keys = keys(args)?;
        location.check_names(&keys, sources)?;
        Ok(Self { keys, token, location })
    }

    pub(crate) fn of_release(args: ReleaseArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let ReleaseArgs { token, verbosity, backend } = args;
        Self::resolve(token, Location::resolve(&backend, &verbosity, sources)?, sources)
    }
}

impl ExtendSettings {
    pub(crate) fn resolve(args: ExtendArgs, sources: Sources<'_>) -> Result<Self, Failure> {
        let ExtendArgs { token, lease, verbosity: output, backend: place } = args;
        let backend = Backend::resolve(&place, &lease, sources)?;
        let ttl = backend.lease(&lease, sources)?;
        let location = Location::new(backend, &place, verbosity(&output, sources)?, sources)?;
        Ok(Self { grant: TokenSettings::resolve(token, location, sources)?, ttl })
    }
}

/// The keys that were given, or those in the environment.
fn keys(args: TokenArgs) -> Result<Vec<Vec<u8>>, Failure> {
    let TokenArgs { mut arguments, options, .. } = args;
    arguments.extend(options);
    if !arguments.is_empty() {
        return validate_keys(arguments, &[]);
    }
    let (keys, fences) = (env::var_os(KEY).unwrap_or_default(), env::var_os(FENCE).unwrap_or_default());
    let keys = inherited_keys(keys.as_bytes(), fences.as_bytes())?;
    if keys.is_empty() {
        return Err(usage(format!("--key KEY is required, or set {KEY}")));
    }
    validate_keys(keys, &[])
}

/// One key per line. A key may contain line breaks; the number of fences, one for each key, tells.
fn inherited_keys(keys: &[u8], fences: &[u8]) -> Result<Vec<OsString>, Failure> {
    let key = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let lines: Vec<&[u8]> = keys.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
    let fences = fences.split(u8::is_ascii_whitespace).filter(|fence| !fence.is_empty()).count();
    if lines.len() > 1 && fences == 1 {
        return Ok(vec![key(keys)]);
    }
    if lines.len() > 1 && fences > 1 && fences != lines.len() {
        return Err(usage(format!(
            "{KEY} has {} lines, but {FENCE} has {fences} numbers: give each key with --key",
            lines.len()
        )));
    }
    Ok(lines.into_iter().map(key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_contain_line_breaks() {
        let keys = |keys: &str, fences: &str| inherited_keys(keys.as_bytes(), fences.as_bytes()).ok();
        let some = |keys: &[&str]| Some(keys.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(keys("a\nb", "7"), some(&["a\nb"]));
        assert_eq!(keys("a\nb", "7 8"), some(&["a", "b"]));
        assert_eq!(keys("a\nb\n", ""), some(&["a", "b"]), "set by hand");
        assert_eq!(keys("a", "7 8"), some(&["a"]), "set by hand, inside another run");
        assert_eq!(keys("a\nb\nc", "7 8"), None);
        assert_eq!(keys("", "7"), some(&[]));
    }
}
