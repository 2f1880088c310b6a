//! Who holds a lock: what a client says about itself, and what a look at the lock shows of its holder.

use std::time::{Duration, SystemTime};

use super::{Fields, Mode, PROTOCOL, Problem};

/// The version of this redlock.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A holder of a lock, as others see it. What is not known is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    pub kind: HolderKind,
    /// Empty if its record was lost.
    pub info: HolderInfo,
    pub mode: Mode,
    /// What `break` knows it by: its token, or a name for a holder without one.
    pub id: String,
    /// Identifies the grant, as REDLOCK_TOKEN does.
    pub token: Option<String>,
    pub fence: Option<u64>,
    pub slot: Option<u32>,
    pub since: Option<SystemTime>,
    /// How long it waited for the lock.
    pub waited: Option<Duration>,
    pub held_for: Option<Duration>,
    /// `None` if it never expires, too.
    pub expires_in: Option<Duration>,
    /// `redlock break` has told it to release the lock.
    pub broken_by: Option<HolderInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HolderKind {
    #[default]
    Run,
    /// A run that has ended, and whose minimum hold has not.
    Reservation,
    /// A program other than redlock.
    Foreign,
}

impl Holder {
    pub(crate) fn has_ended(&self) -> bool {
        self.kind == HolderKind::Reservation
    }

    /// The number of slots of the lock, if it has slots.
    pub(crate) fn slots(&self) -> Option<u32> {
        match self.mode {
            Mode::Slot { of } => Some(of),
            Mode::Exclusive | Mode::Shared { .. } => None,
        }
    }
}

/// What a client says about itself. Kept beside the lock for as long as it is held or waited for. Never
/// the command's arguments: they may be secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HolderInfo {
    pub host: String,
    pub pid: String,
    pub user: String,
    pub label: String,
    pub command: String,
    /// The CI job's page.
    pub job_url: String,
    /// Of redlock; empty if unknown.
    pub version: String,
    pub protocol: Option<u32>,
    pub renewal: Renewal,
    /// Was started with --once.
    pub once: bool,
    /// Was started with --cancel-in-progress: a newer run may stop it.
    pub cancellable: bool,
}

/// Who keeps the lease of a holder alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Renewal {
    /// The run itself, for as long as its command runs.
    #[default]
    Run,
    /// Nobody: the lock is held until the lease is over, or the token is used.
    Nobody,
    /// A keeper, which is the process with this number, for another process.
    Keeper(u32),
}

impl Renewal {
    /// Whether the lock becomes free although its holder waits for another one.
    pub(crate) fn ends_by_itself(self, expires_in: Option<Duration>) -> bool {
        self == Self::Nobody && expires_in.is_some()
    }

    /// As it is stored; empty for a run.
    fn text(self) -> String {
        match self {
            Self::Run => String::new(),
            Self::Nobody => "none".into(),
            Self::Keeper(pid) => pid.to_string(),
        }
    }

    fn from_text(text: &str) -> Self {
        match text {
            "none" => Self::Nobody,
            text => text.parse().map_or(Self::Run, Self::Keeper),
        }
    }
}

impl HolderInfo {
    /// A run says nothing about its renewal.
    pub(crate) fn fields(&self) -> Fields {
        let fields = Fields::default()
            .with("host", self.host.as_str())
            .with("pid", self.pid.as_str())
            .with("user", self.user.as_str())
            .with("label", self.label.as_str())
            .with("command", self.command.as_str())
            .with("job_url", self.job_url.as_str())
            .with("version", self.version.as_str())
            .with("protocol", self.protocol.map_or_else(String::new, |protocol| protocol.to_string()));
        fields
            .with_number("keeper", Some(self.renewal.text()).filter(|text| !text.is_empty()))
            .with_number("once", self.once.then_some(1))
            .with_number("cancel", self.cancellable.then_some(1))
    }

    pub(crate) fn from_fields(fields: &Fields) -> Self {
        Self {
            host: fields.text("host"),
            pid: fields.text("pid"),
            user: fields.text("user"),
            label: fields.text("label"),
            command: fields.text("command"),
            job_url: without_login(&fields.text("job_url")),
            version: fields.text("version"),
            protocol: fields.parsed("protocol"),
            renewal: Renewal::from_text(&fields.text("keeper")),
            once: !fields.get("once").is_empty(),
            cancellable: !fields.get("cancel").is_empty(),
        }
    }

    /// `None` if this is no JSON object.
    pub(crate) fn from_json(text: &[u8]) -> Option<Self> {
        Fields::from_json(text).map(|fields| Self::from_fields(&fields))
    }

    /// The problem if this client's protocol and ours cannot share a lock. The same rule as in
    /// lua/include/protocol.lua.
    pub(crate) fn protocol_problem(&self) -> Option<Problem> {
        let protocol = self.protocol.filter(|theirs| theirs.abs_diff(PROTOCOL) > 1)?;
        Some(Problem::OtherProtocol { protocol, version: self.version.clone() })
    }
}

/// A URL that is stored and shown: "https://ci/1" for "https://user:token@ci/1".
pub(crate) fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let host_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A token that was not encoded may contain a slash.
    let login_end =
        rest[..host_end].rfind('@').or_else(|| rest.rfind('@').filter(|_| is_login(&rest[..host_end])));
    login_end.map_or_else(|| url.to_owned(), |at| format!("{scheme}://{}", &rest[at + 1..]))
}

/// Whether this, before the first slash, is a user and a part of a password rather than a host.
fn is_login(host: &str) -> bool {
    host.split_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && !port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_url_has_no_login() {
        for (url, shown) in [
            ("https://ci/job/1", "https://ci/job/1"),
            ("https://me:token@ci:8080/job/1", "https://ci:8080/job/1"),
            ("https://token@ci/job@2", "https://ci/job@2"),
            ("https://me:to/ken@ci/job", "https://ci/job"),
            ("https://ci:8080/job@2", "https://ci:8080/job@2"),
            ("ci/1", "ci/1"),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn neighbouring_protocols_share_a_lock() {
        let conflicts =
            |protocol| HolderInfo { protocol, ..HolderInfo::default() }.protocol_problem().is_some();
        for near in [PROTOCOL - 1, PROTOCOL, PROTOCOL + 1] {
            assert!(!conflicts(Some(near)), "{near}");
        }
        assert!(conflicts(Some(PROTOCOL + 2)));
        assert!(!conflicts(None), "unknown is not a conflict");
    }

    #[test]
    fn fields_read_back() {
        let info = HolderInfo {
            host: "web1".into(),
            pid: "42".into(),
            job_url: "https://ci/1".into(),
            version: "0.1.0".into(),
            protocol: Some(PROTOCOL),
            ..HolderInfo::default()
        };
        for renewal in [Renewal::Run, Renewal::Nobody, Renewal::Keeper(42)] {
            let info = HolderInfo { renewal, once: true, cancellable: true, ..info.clone() };
            let fields = Fields::default().with("newer", "?").joined_with(info.fields());
            assert_eq!(HolderInfo::from_fields(&fields), info);
        }
    }
}
