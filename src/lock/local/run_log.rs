//! The history in the lock file: the last runs that have ended. Each has its place by its ticket, so it is written by
//! one system call, without the mutex, and a damaged entry takes no other with it. For people only.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::byte_map::TICKETS_END;
use super::format::{LOG, LOGGED_RUNS, number, read_at_most};
use super::lock_file::LockFile;
use super::record::Record;
use crate::lock::{Ended, FinishedRun, HolderInfo, Mode, Outcome, Renewal};

/// Size of an entry: enough for a page of a CI job, unless the run is told with many words.
pub(super) const LOGGED_RUN: usize = 320;

impl LockFile {
    /// Written over the run that had this place before.
    pub(super) fn log(&self, ticket: u64, run: &FinishedRun) -> io::Result<()> {
        self.locks().file().write_all_at(&to_bytes(run, ticket), offset(ticket))
    }

    /// A holder has left without a word: it was killed. Unless its place was given to a later run.
    pub(super) fn log_if_missing(&self, ticket: u64, run: &FinishedRun) -> io::Result<()> {
        let mut logged = [0; 8];
        read_at_most(self, &mut logged, offset(ticket));
        if number(&logged) >= ticket && number(&logged) < TICKETS_END {
            Ok(())
        } else {
            self.log(ticket, run)
        }
    }

    /// The runs that have ended, by their tickets, in no order.
    pub(super) fn logged_runs(&self) -> Vec<(u64, FinishedRun)> {
        let mut bytes = vec![0; LOGGED_RUNS * LOGGED_RUN];
        let read = read_at_most(self, &mut bytes, LOG);
        bytes.truncate(read);
        // The last one may end before its place does.
        bytes.resize(read.next_multiple_of(LOGGED_RUN), 0);
        bytes.chunks_exact(LOGGED_RUN).filter_map(from_bytes).collect()
    }
}

fn offset(ticket: u64) -> u64 {
    LOG + ticket % LOGGED_RUNS as u64 * LOGGED_RUN as u64
}

/// A holder that was killed. When it ended is known if a waiter was woken by that.
pub(super) fn killed(record: &Record, ended: Option<SystemTime>) -> FinishedRun {
    let began = UNIX_EPOCH + Duration::from_millis(record.since_ms);
    let is_slot = matches!(record.mode, Mode::Slot { .. });
    FinishedRun {
        ended_at: ended.unwrap_or(began),
        waited: record.tenure.map(|tenure| tenure.waited),
        held: ended.and_then(|ended| ended.duration_since(began).ok()),
        info: record.info.clone(),
        mode: record.mode.clone(),
        slot: record.tenure.filter(|_| is_slot).map(|tenure| tenure.slot),
        token: record.claim.clone(),
        fence: record.tenure.map(|tenure| tenure.fence),
        ended: Ended::new(Outcome::Expired),
    }
}

/// The ticket, then text. What is long comes last, and is left out if it does not fit.
fn to_bytes(run: &FinishedRun, ticket: u64) -> [u8; LOGGED_RUN] {
    let FinishedRun { info, .. } = run;
    let millis = |time: Option<Duration>| time.map(|time| time.as_millis());
    let by = run.ended.how.by().cloned().unwrap_or_default();
    let fields = [
        text(millis(run.ended_at.duration_since(UNIX_EPOCH).ok())),
        text(millis(run.waited)),
        text(millis(run.held)),
        text(run.fence),
        text(run.slot),
        text(run.ended.code()),
        text(run.ended.signal()),
        run.ended.how.name().into(),
        run.token.clone().into(),
        run.mode.tag(),
    ];
    let people = [&info.host, &info.pid, &info.user, &info.command, &info.label]
        .into_iter()
        .chain([&by.host, &by.pid, &by.user, &by.command, &by.label])
        .chain([&info.job_url, &by.job_url]);
    let mut bytes = [0; LOGGED_RUN];
    bytes[..8].copy_from_slice(&ticket.to_le_bytes());
    let mut end = 8;
    for field in fields.into_iter().chain(people.map(|value| value.clone().into())) {
        let field: Vec<u8> = field.into_iter().filter(|&b| b != 0).collect();
        // With the zero behind it, which is there already.
        if end + field.len() < LOGGED_RUN {
            bytes[end..end + field.len()].copy_from_slice(&field);
            end += field.len();
        }
        end += 1;
    }
    bytes
}

fn text(number: Option<impl ToString>) -> Vec<u8> {
    number.map_or_else(Vec::new, |number| number.to_string().into())
}

/// `None` if there is none, or nothing that we understand.
fn from_bytes(bytes: &[u8]) -> Option<(u64, FinishedRun)> {
    let (ticket, fields) = bytes.split_at_checked(8)?;
    let ticket = number(ticket);
    let mut fields = fields.split(|&b| b == 0);
    let mut next = || fields.next().unwrap_or_default();
    let millis = |field| parsed(field).map(Duration::from_millis);
    let ended_at = UNIX_EPOCH.checked_add(millis(next())?)?;
    let (waited, held) = (millis(next()), millis(next()));
    let (fence, slot) = (parsed(next()), parsed(next()));
    let (exit, signal) = (parsed(next()), parsed(next()));
    let (how, token) = (next(), String::from_utf8_lossy(next()).into_owned());
    let mode = Mode::from_tag(next())?;
    let mut text = || String::from_utf8_lossy(next()).into_owned();
    let mut person = || {
        let [host, pid, user, command, label] = [(); 5].map(|()| text());
        HolderInfo { host, pid, user, command, label, job_url: String::new(), renewal: Renewal::Run }
    };
    let (info, by) = (person(), person());
    let (info, by) = (HolderInfo { job_url: text(), ..info }, HolderInfo { job_url: text(), ..by });
    let ended = Ended::parse(how, exit, signal, by)?;
    (ticket > 0 && ticket < TICKETS_END)
        .then_some((ticket, FinishedRun { ended_at, waited, held, info, mode, slot, token, fence, ended }))
}

fn parsed<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use proptest::prelude::*;

    fn person(text: &str) -> HolderInfo {
        let [host, pid, user, label, command, job_url] =
            ["h", "1", "u", "l", "c", "j"].map(|name| format!("{name}{text}"));
        HolderInfo { host, pid, user, label, command, job_url, renewal: Renewal::Run }
    }

    fn run(how: Outcome) -> FinishedRun {
        FinishedRun {
            ended_at: UNIX_EPOCH + Duration::from_millis(1_794_824_022_857),
            waited: Some(Duration::from_millis(5)),
            held: None,
            info: person(""),
            mode: Mode::Exclusive,
            slot: None,
            token: "3f2b8c1e-9a4d-4c57-8f10-2d6e7a9b0c31.1".into(),
            fence: Some(u64::MAX),
            ended: Ended { how, exit: Some(Exit::Code(3)) },
        }
    }

    #[test]
    fn a_run_reads_back() {
        let by = || Box::new(person("by"));
        let runs = [
            run(Outcome::Released),
            run(Outcome::Broken { by: by() }),
            FinishedRun {
                fence: None,
                ended: Ended { how: Outcome::Superseded { by: by() }, exit: Some(Exit::Signal(15)) },
                ..run(Outcome::Released)
            },
            FinishedRun { mode: Mode::Shared { group: vec![0xff] }, ..run(Outcome::MaxHold) },
            FinishedRun { mode: Mode::Slot { of: 7 }, slot: Some(6), ..run(Outcome::Expired) },
        ];
        for run in runs {
            assert_eq!(from_bytes(&to_bytes(&run, 9)), Some((9, run)));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_rest_is_there() {
        let long = HolderInfo { label: "l".repeat(400), job_url: "https://ci/7".into(), ..person("") };
        let by = Box::new(HolderInfo { job_url: "j".repeat(400), ..person("by") });
        let (_, read) =
            from_bytes(&to_bytes(&FinishedRun { info: long, ..run(Outcome::Broken { by }) }, 9)).unwrap();
        assert_eq!((read.info.label.as_str(), read.info.job_url.as_str()), ("", "https://ci/7"));
        assert_eq!(read.ended.how.by(), Some(&HolderInfo { job_url: String::new(), ..person("by") }));
    }

    #[test]
    fn nothing_is_no_run() {
        assert_eq!(from_bytes(&[0; LOGGED_RUN]), None);
        assert_eq!(from_bytes(&[]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_the_log(bytes in prop::collection::vec(any::<u8>(), 0..LOGGED_RUN)) {
            let _ = from_bytes(&bytes);
        }

        #[test]
        fn no_words_can_upset_the_log(words in prop::collection::vec(any::<String>(), 6), group: Vec<u8>) {
            let [host, pid, user, label, command, job_url] = words.try_into().unwrap();
            let info = HolderInfo { host, pid, user, label, command, job_url, renewal: Renewal::Run };
            let run = FinishedRun { info, mode: Mode::Shared { group }, ..run(Outcome::GaveUp) };
            let (_, read) = from_bytes(&to_bytes(&run, 1)).unwrap();
            prop_assert_eq!((read.fence, read.ended), (run.fence, run.ended));
        }
    }
}
