//! Sentences about keys, holders and waits.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::problem::quarantine;
use super::text::sanitize;
use crate::duration::{format, format_seconds};
use crate::lock::{
    Blocked, Blocker, Holder, HolderInfo, Holding, Loss, PROTOCOL, Renewal, Usual, VERSION, WaitPolicy,
};

/// The consequence of a /proc that cannot be used.
pub(crate) fn cannot_see_processes() -> &'static str {
    "/proc is not mounted here, or belongs to another PID namespace: a process that has left the command's \
     process group could not be stopped with the command. Mount it (unshare --mount-proc), or accept \
     this with --on-lost warn"
}

/// `consequence`: what is limited to this host.
pub(super) fn no_server_configured(consequence: &str) -> String {
    format!(
        "warning: no server configured: {consequence} \
         (pass --redis URL or set REDLOCK_REDIS; --local silences this)"
    )
}

/// A line shows at most this many keys.
const MOST_SHOWN: usize = 4;

/// The local wall clock: year, month, day, hour, minute and second of a moment.
pub(crate) type LocalTime = fn(SystemTime) -> Option<[i32; 6]>;

/// "config /etc/redlock/config.toml"
pub(crate) fn config_files(paths: &[PathBuf]) -> String {
    let files: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    if files.is_empty() { "no config file".into() } else { format!("config {}", files.join(", ")) }
}

/// A hook that fails changes nothing else.
pub(crate) fn hook_failed(why: &str) -> String {
    format!("warning: --hook failed: {why} (reported once)")
}

/// `"a", "b"`; if there are many, the first few.
pub(crate) fn quoted(keys: &[impl AsRef<[u8]>]) -> String {
    let shown = if keys.len() > MOST_SHOWN { MOST_SHOWN - 1 } else { keys.len() };
    let quoted: Vec<String> = keys[..shown].iter().map(|key| format!("\"{}\"", sanitize(key))).collect();
    quoted.join(", ") + &and_others(keys.len() - shown)
}

/// The parts of a wait line, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitLine {
    /// The quoted keys.
    pub lock: String,
    pub waited: Duration,
    /// ", place 2 of 5", or empty.
    pub place: String,
    /// The obstacle, and the time until this run gives up.
    pub blocker: String,
    /// Its part, from the beginning, that must stay when the line is shortened: it names the holder.
    pub name_end: usize,
    /// The page of the holder's CI job, or empty.
    pub job_url: String,
}

impl WaitLine {
    pub(super) fn new(
        keys: &[String],
        blocked: &Blocked,
        waited: Duration,
        (usual, gives_up_in): (Option<&Usual>, Option<Duration>),
        local_time: LocalTime,
    ) -> Self {
        let place = blocked.position.map_or_else(String::new, |ahead| {
            format!(", place {} of {}", ahead + 1, blocked.queue_length.max(ahead + 1))
        });
        let by = match &blocked.by {
            Blocker::Holder(holding) if holding.info.once && keys.len() == 1 => doing_it(holding, local_time),
            Blocker::Holder(_)
            | Blocker::Reservation(_)
            | Blocker::Foreign { .. }
            | Blocker::Queue
            | Blocker::Quarantine(_) => blocker(&blocked.by, local_time),
        };
        let mut blocker = blocked_key(keys, blocked) + &by;
        if let (Blocker::Holder(_), Some(usual)) = (&blocked.by, usual) {
            blocker.push_str(&format!(", usually {}", usually(usual)));
        }
        if let Some(left) = gives_up_in {
            blocker.push_str(&format!(", gives up in {}", format_seconds(left)));
        }
        let name = holder_name(&blocked.by);
        let name_end = name.and_then(|name| Some(blocker.find(&name)? + name.len())).unwrap_or_default();
        let (lock, job_url) = (quoted(keys), job_url(&blocked.by).to_owned());
        Self { lock, waited, place, blocker, name_end, job_url }
    }

    /// The keys, the time waited and the place in the queue.
    pub(super) fn head(&self) -> String {
        format!("waiting for {}: waited {}{}", self.lock, format_seconds(self.waited), self.place)
    }

    pub(super) fn text(&self) -> String {
        format!("{}, {}{}", self.head(), self.blocker, after_comma(&self.job_url))
    }
}

/// A wait that ended without the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    pub policy: WaitPolicy,
    pub attempts: u32,
    pub waited: Duration,
}

/// "gave up on "x" after 5 attempts (41s): held by ..."
pub(super) fn gave_up(
    keys: &[String],
    blocked: &Blocked,
    given_up: GivenUp,
    local_time: LocalTime,
) -> String {
    let GivenUp { policy, attempts, waited } = given_up;
    let (by, job_url) = (blocker(&blocked.by, local_time), after_comma(job_url(&blocked.by)));
    let after = match policy {
        WaitPolicy::No => {
            let key = keys.get(blocked.key).map_or(keys, std::slice::from_ref);
            return format!("{} is {by}; not waiting (-n){job_url}", quoted(key));
        }
        WaitPolicy::Queue { .. } => format(waited),
        WaitPolicy::Retry { .. } if attempts == 1 => format!("1 attempt ({})", format(waited)),
        WaitPolicy::Retry { .. } => format!("{attempts} attempts ({})", format(waited)),
    };
    format!("gave up on {} after {after}: {}{by}{job_url}", quoted(keys), blocked_key(keys, blocked))
}

/// The taken key, if there are several keys.
fn blocked_key(keys: &[String], blocked: &Blocked) -> String {
    match (keys.get(blocked.key), &blocked.by) {
        (_, Blocker::Quarantine(_)) => String::new(),
        (Some(key), _) if keys.len() > 1 => format!("\"{key}\" is "),
        _ => String::new(),
    }
}

/// "held by root@web1 pid 42 (nightly, rsync) since 09:14:05 (2m 3s)"
pub(crate) fn blocker(by: &Blocker, local_time: LocalTime) -> String {
    match by {
        Blocker::Holder(holding) => held_by(holding, local_time),
        Blocker::Reservation(Holding { info, expires_in: Some(left), .. }) => {
            let left = format_seconds(*left + Duration::from_millis(999));
            format!("free again in {left} (--min-hold of {})", holder(info))
        }
        Blocker::Reservation(holding) => {
            let since = since(holding.held_for, local_time);
            format!("kept by --min-hold of {}{since}", holder(&holding.info))
        }
        Blocker::Foreign { expires_in } => another_program("", *expires_in, true),
        Blocker::Queue => "free, but others are ahead in the queue".into(),
        Blocker::Quarantine(servers) => quarantine(servers),
    }
}

/// "root@web1 pid 42"
fn holder_name(by: &Blocker) -> Option<String> {
    let (Blocker::Holder(holding) | Blocker::Reservation(holding)) = by else { return None };
    Some(holder(&HolderInfo { label: String::new(), command: String::new(), ..holding.info.clone() }))
}

fn job_url(by: &Blocker) -> &str {
    match by {
        Blocker::Holder(holding) | Blocker::Reservation(holding) => &holding.info.job_url,
        Blocker::Foreign { .. } | Blocker::Queue | Blocker::Quarantine(_) => "",
    }
}

/// ", https://ci/1"; empty if the text is.
pub(super) fn after_comma(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", {}", sanitize(text)) }
}

/// "held by root@web1 pid 42 (rsync) and 2 others since 09:14:05 (2m 3s)"
pub(super) fn held_by(holding: &Holding, local_time: LocalTime) -> String {
    let (who, others) = (holder(&holding.info), and_others(holding.others));
    let when = until(holding, local_time).unwrap_or_else(|| since(holding.held_for, local_time));
    format!("held by {who}{others}{when}")
}

/// "4m (p95 9m)"
pub(super) fn usually(usual: &Usual) -> String {
    format!("{} (p95 {})", format(usual.median), format(usual.p95))
}

/// A run with --once: "root@web1 pid 42 (migrate) is doing it since 09:14:05 (2m 3s)"
fn doing_it(holding: &Holding, local_time: LocalTime) -> String {
    format!("{} is doing it{}", holder(&holding.info), since(holding.held_for, local_time))
}

/// " until 14:00:00", if nothing renews the lease.
fn until(holding: &Holding, local_time: LocalTime) -> Option<String> {
    let left = holding.expires_in.filter(|_| holding.info.renewal == Renewal::Nobody)?;
    let now = SystemTime::now();
    let end = now.checked_add(left).and_then(|end| clock_time(end, now, local_time))?;
    Some(format!(" until {end}"))
}

/// A holder in a line of its own: "root@web1 pid 42 (rsync) since 09:14:05 (2m 3s), lease ends in
/// 21s, being broken by alice@bastion pid 7". `has_lease`: not for a lock on this host, which ends
/// with its process.
pub(super) fn holder_line(held: &Holder, has_lease: bool, local_time: LocalTime) -> String {
    let end = match held.expires_in {
        _ if held.has_ended() => ", has ended".into(),
        Some(left) => format!(", lease ends in {}", format_seconds(left)),
        None if has_lease && held.token.is_some() => ", never expires".into(),
        None => String::new(),
    };
    let broken = held.broken_by.as_ref().map(|by| format!(", being {}", broken_by(by)));
    let since = since(held.held_for, local_time);
    format!("{}{since}{end}{}", holder(&held.info), broken.unwrap_or_default())
}

/// `pid`: empty if it is not known.
pub(super) fn another_program(pid: &str, expires_in: Option<Duration>, has_lease: bool) -> String {
    let about = match expires_in {
        _ if !pid.is_empty() => format!("pid {pid}"),
        Some(left) => format!("expires in {}", format_seconds(left)),
        None if has_lease => "never expires".into(),
        None => String::new(),
    };
    format!("held by another program{}", after_comma(&about))
}

/// " since 09:14:05 (2m 3s)"
fn since(held_for: Option<Duration>, local_time: LocalTime) -> String {
    let Some(held_for) = held_for else { return String::new() };
    let now = SystemTime::now();
    let then = now.checked_sub(held_for).and_then(|then| clock_time(then, now, local_time));
    let held_for = format_seconds(held_for);
    match then {
        Some(then) => format!(" since {then} ({held_for})"),
        None => format!(" for {held_for}"),
    }
}

/// "09:14:05", with the date if that is not today.
pub(super) fn clock_time(moment: SystemTime, now: SystemTime, local_time: LocalTime) -> Option<String> {
    let today = local_time(now)?;
    let [year, month, day, hour, minute, second] = local_time(moment)?;
    let date =
        if today[..3] == [year, month, day] { String::new() } else { format!("{year}-{month:02}-{day:02} ") };
    Some(format!("{date}{hour:02}:{minute:02}:{second:02}"))
}

pub(super) fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and another".into(),
        count => format!(" and {count} others"),
    }
}

/// "root@web1 pid 42 (nightly, rsync)"; "alice@bastion (release freeze)" if no process holds the
/// lock.
pub(super) fn holder(info: &HolderInfo) -> String {
    let pid = match (info.pid.as_str(), info.renewal) {
        (_, Renewal::Nobody) => String::new(),
        ("", Renewal::Run | Renewal::Keeper(_)) if info.label.is_empty() => {
            return "an unknown process".into();
        }
        ("", Renewal::Run | Renewal::Keeper(_)) => {
            return format!("an unknown process ({})", sanitize(&info.label));
        }
        (pid, Renewal::Run | Renewal::Keeper(_)) => format!(" pid {pid}"),
    };
    let mut text = format!("{}@{}{pid}", info.user, info.host);
    let about: Vec<&str> =
        [&info.label, &info.command].into_iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
    if !about.is_empty() {
        text.push_str(&format!(" ({})", about.join(", ")));
    }
    sanitize(text)
}

/// "redlock 0.2.0", with its protocol if that is another one too. `None` if it is our version, or
/// unknown.
pub(super) fn other_version(HolderInfo { version, protocol, .. }: &HolderInfo) -> Option<String> {
    if version.is_empty() || version == VERSION {
        return None;
    }
    let protocol = protocol.filter(|protocol| *protocol != PROTOCOL);
    let protocol = protocol.map_or_else(String::new, |protocol| format!(" (protocol {protocol})"));
    Some(format!("redlock {}{protocol}", sanitize(version)))
}

/// "broken by alice@bastion pid 4711"
pub(super) fn broken_by(info: &HolderInfo) -> String {
    format!("broken by {}", holder(info))
}

/// The reason why a lock is not held any more.
pub(super) fn loss(loss: &Loss) -> String {
    match loss {
        Loss::Expired => "it has expired, or was deleted, evicted or flushed on the server".into(),
        Loss::FileReplaced => "its lock file was deleted, renamed or replaced".into(),
        Loss::Foreign => "another client holds it now".into(),
        Loss::Broken { by } => broken_by(by),
        Loss::Superseded { by } => format!("superseded by {} (--cancel-in-progress)", holder(by)),
        Loss::Released { by } if by.pid.is_empty() => "it was released".into(),
        Loss::Released { by } => format!("released by {} (redlock release)", holder(by)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always the same time of day; an hour ago it was yesterday.
    fn clock(moment: SystemTime) -> Option<[i32; 6]> {
        let was_long_ago = moment.elapsed().unwrap_or_default() > Duration::from_secs(3600);
        Some([2026, 11, if was_long_ago { 15 } else { 16 }, 9, 14, 5])
    }

    fn held(others: usize, held_for: Duration) -> Blocked {
        let info = HolderInfo {
            host: "web1".into(),
            pid: "42".into(),
            user: "root".into(),
            label: "nightly".into(),
            command: "rsync".into(),
            job_url: "https://ci/1".into(),
            ..HolderInfo::default()
        };
        let by = Blocker::Holder(Holding { info, others, held_for: Some(held_for), ..Holding::default() });
        Blocked { key: 0, position: Some(1), queue_length: 5, by }
    }

    const SHORT: Duration = Duration::from_millis(123_456);

    fn line(keys: &[&str], blocked: &Blocked, waited: u64, left: Option<u64>) -> String {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let left = left.map(Duration::from_secs);
        WaitLine::new(&keys, blocked, Duration::from_millis(waited), (None, left), clock).text()
    }

    #[test]
    fn a_wait_line_has_the_time_waited_the_place_the_holder_and_the_time_left() {
        assert_eq!(
            line(&["deploy"], &held(0, SHORT), 33_100, Some(509)),
            "waiting for \"deploy\": waited 33s, place 2 of 5, held by root@web1 pid 42 (nightly, rsync) since \
             09:14:05 (2m 3s), gives up in 8m 29s, https://ci/1"
        );
    }

    #[test]
    fn the_taken_key_is_named_if_there_are_several() {
        let blocked = Blocked { key: 1, ..held(2, SHORT) };
        assert_eq!(
            line(&["a", "b"], &blocked, 0, None),
            "waiting for \"a\", \"b\": waited 0s, place 2 of 5, \"b\" is held by root@web1 pid 42 (nightly, rsync) \
             and 2 others since 09:14:05 (2m 3s), https://ci/1"
        );
    }

    #[test]
    fn a_date_is_shown_for_another_day() {
        let by = held(0, Duration::from_secs(7200)).by;
        assert!(blocker(&by, clock).ends_with(" since 2026-11-15 09:14:05 (2h)"));
        assert!(blocker(&by, |_| None).ends_with(" for 2h"));
    }

    #[test]
    fn giving_up_reports_the_time_or_the_attempts() {
        let sentence = |policy, attempts| {
            let given_up = GivenUp { policy, attempts, waited: Duration::from_millis(41_000) };
            gave_up(&["feed".into()], &held(0, SHORT), given_up, clock)
        };
        let who = "held by root@web1 pid 42 (nightly, rsync) since 09:14:05 (2m 3s)";
        assert_eq!(sentence(WaitPolicy::No, 1), format!("\"feed\" is {who}; not waiting (-n), https://ci/1"));
        assert_eq!(
            sentence(WaitPolicy::Queue { at_most: None }, 1),
            format!("gave up on \"feed\" after 41s: {who}, https://ci/1")
        );
        let retry = WaitPolicy::Retry { count: 4, interval: Duration::ZERO, at_most: None };
        assert_eq!(
            sentence(retry, 5),
            format!("gave up on \"feed\" after 5 attempts (41s): {who}, https://ci/1")
        );
    }

    #[test]
    fn a_reservation_shows_when_it_ends() {
        let Blocker::Holder(holding) = held(0, SHORT).by else { panic!("a holder") };
        let by = Blocker::Reservation(Holding { expires_in: Some(Duration::from_millis(3100)), ..holding });
        assert!(blocker(&by, clock).starts_with("free again in 4s (--min-hold of root@web1 pid 42"));
    }

    #[test]
    fn only_the_first_of_many_keys_are_named() {
        let keys: Vec<String> = (1..=9).map(|n| n.to_string()).collect();
        assert_eq!(quoted(&keys[..4]), r#""1", "2", "3", "4""#);
        assert_eq!(quoted(&keys), r#""1", "2", "3" and 6 others"#);
    }
}
