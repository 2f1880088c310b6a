//! The history in the lock file: the most recent finished runs, for people. Writing it never makes
//! anything fail.
//!
//! The ticket decides where a run is written, so one system call without the mutex is enough, and a
//! damaged entry leaves the others readable.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::HostLock;
use super::admission::{Admission, Admitted};
use super::byte_map::TICKETS_END;
use super::format::{LOG, LOGGED_RUNS, number};
use super::lock_file::LockFile;
use super::record::Record;
use super::request::LocalRequest;
use crate::clock::BootTime;
use crate::lock::claim::WaiterId;
use crate::lock::holder::without_login;
use crate::lock::{Claim, Ended, Error, FinishedRun, Grant, HolderInfo, Mode, Outcome};

/// Size of an entry: enough for the URL of a CI job, unless the other fields are long.
pub(super) const LOGGED_RUN: usize = 320;

/// What the history needs to know of the last request.
#[derive(Clone, Debug)]
pub(super) struct LastRequest {
    pub record: Record,
    pub local: LocalRequest,
    pub is_logged: bool,
    /// The option, for the mark of success.
    pub once: Option<Duration>,
    /// The exit code if it is not granted.
    pub exit_if_held: u8,
    /// One for each file, once it is granted.
    pub admitted: Vec<Admitted>,
}

impl LastRequest {
    fn finished(&self, ended: &Ended, waited: Duration, held: Option<Duration>) -> FinishedRun {
        FinishedRun {
            ended_at: SystemTime::now(),
            waited: Some(waited),
            held,
            info: self.record.info.clone(),
            mode: self.record.mode.clone(),
            slot: None,
            token: self.record.claim.clone(),
            fence: None,
            ended: ended.clone(),
        }
    }
}

impl HostLock {
    /// To be called before anything is unlocked, so that the next holder finds the entry.
    pub(super) fn log_release(&self, grant: &Grant, ended: &Ended) {
        let Some(request) = &self.last_request else { return };
        let run = request.finished(ended, grant.waited, Some(grant.taken_at.elapsed()));
        for (file, admitted) in self.files.iter().zip(&request.admitted) {
            let Admitted { ticket, fence, slot } = *admitted;
            let slot = matches!(run.mode, Mode::Slot { .. }).then_some(slot);
            let run = FinishedRun { fence: Some(fence), slot, ..run.clone() };
            file.log_or_end_record(ticket, &run, request.is_logged);
        }
    }

    /// For a run that did not get the lock. `tickets`: those drawn so far, one for each file.
    pub(super) fn log_refusal(&self, tickets: &[Option<u64>], error: &Error, started: BootTime) {
        let Some(request) = &self.last_request else { return };
        let Some(ended) = Ended::not_acquired(error, request.exit_if_held) else {
            return self.end_records(tickets);
        };
        let run = request.finished(&ended, started.elapsed(), None);
        for (file, ticket) in self.files.iter().zip(tickets) {
            let draw = || Admission::try_begin(file)?.draw_ticket(&request.local).ok();
            if let Some(ticket) = ticket.or_else(|| request.is_logged.then(draw)?) {
                file.log_or_end_record(ticket, &run, request.is_logged);
            }
        }
    }

    /// Leaves the files that were entered, without an entry in the history.
    pub(super) fn end_records(&self, tickets: &[Option<u64>]) {
        for (file, ticket) in self.files.iter().zip(tickets) {
            if let Some(ticket) = ticket {
                file.end_record(*ticket);
            }
        }
    }
}

/// Called by the guardian after the death of the process with this identity: logs the run if its
/// command had started, else ends its reservation.
pub(super) fn end_orphan(files: &[LockFile], waiter: WaiterId, is_logged: bool, has_run: bool) {
    let is_ours = |record: &Record| record.claim.parse().is_ok_and(|claim: Claim| claim.waiter == waiter);
    for file in files {
        let Some((ticket, record)) = file.open_records().into_iter().find(|(_, record)| is_ours(record))
        else {
            continue;
        };
        let run =
            FinishedRun { ended: Ended::new(Outcome::Killed), ..killed(&record, Some(SystemTime::now())) };
        if !has_run || !is_logged || !file.has_room() || file.log_if_missing(ticket, &run).is_err() {
            file.end_record(ticket);
        }
        if !has_run && let Ok(mut admission) = Admission::begin(file) {
            let _ = admission.end_reservation(ticket);
        }
    }
}

impl LockFile {
    fn log_or_end_record(&self, ticket: u64, run: &FinishedRun, is_logged: bool) {
        if !is_logged || !self.has_room() || self.log(ticket, run).is_err() {
            self.end_record(ticket);
        }
    }

    /// Overwrites the run that had this place before.
    fn log(&self, ticket: u64, run: &FinishedRun) -> io::Result<()> {
        self.write_at(&to_bytes(run, ticket), offset(ticket))
    }

    /// For a holder that was killed, unless a later run has its place in the log.
    pub(super) fn log_if_missing(&self, ticket: u64, run: &FinishedRun) -> io::Result<()> {
        let logged = self.number_at(offset(ticket));
        if (ticket..TICKETS_END).contains(&logged) { Ok(()) } else { self.log(ticket, run) }
    }

    /// Finished runs with their tickets, in no particular order.
    pub(super) fn logged_runs(&self) -> Vec<(u64, FinishedRun)> {
        let mut bytes = vec![0; LOGGED_RUNS * LOGGED_RUN];
        let read = self.read_at_most(&mut bytes, LOG);
        // The file may end within the last entry; the rest of it is zeros.
        bytes.truncate(read.next_multiple_of(LOGGED_RUN));
        bytes.chunks_exact(LOGGED_RUN).filter_map(from_bytes).collect()
    }
}

fn offset(ticket: u64) -> u64 {
    LOG + ticket % LOGGED_RUNS as u64 * LOGGED_RUN as u64
}

/// The run of a holder that was killed. `ended` is known if a process was watching.
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

/// The ticket, then texts. Those that may be long come last, and are left out if they do not fit.
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
        // The zero after it is already there.
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

/// `None` if the entry is empty or invalid.
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
        HolderInfo { host, pid, user, label, command, ..HolderInfo::default() }
    };
    let (info, by) = (person(), person());
    let mut url = || without_login(&text());
    let (info, by) = (HolderInfo { job_url: url(), ..info }, HolderInfo { job_url: url(), ..by });
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
        HolderInfo { host, pid, user, label, command, job_url, ..HolderInfo::default() }
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
    fn a_value_that_does_not_fit_is_left_out_and_the_rest_stays() {
        let long = HolderInfo { label: "l".repeat(400), job_url: "https://ci/7".into(), ..person("") };
        let by = Box::new(HolderInfo { job_url: "j".repeat(400), ..person("by") });
        let (_, read) =
            from_bytes(&to_bytes(&FinishedRun { info: long, ..run(Outcome::Broken { by }) }, 9)).unwrap();
        assert_eq!((read.info.label.as_str(), read.info.job_url.as_str()), ("", "https://ci/7"));
        assert_eq!(read.ended.how.by(), Some(&HolderInfo { job_url: String::new(), ..person("by") }));
    }

    #[test]
    fn an_empty_entry_is_not_a_run() {
        assert_eq!(from_bytes(&[0; LOGGED_RUN]), None);
        assert_eq!(from_bytes(&[]), None);
    }

    proptest! {
        #[test]
        fn reading_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..LOGGED_RUN)) {
            let _ = from_bytes(&bytes);
        }

        #[test]
        fn a_run_with_any_texts_reads_back(words in prop::collection::vec(any::<String>(), 6), group: Vec<u8>) {
            let [host, pid, user, label, command, job_url] = words.try_into().unwrap();
            let info = HolderInfo { host, pid, user, label, command, job_url, ..HolderInfo::default() };
            let run = FinishedRun { info, mode: Mode::Shared { group }, ..run(Outcome::GaveUp) };
            let (_, read) = from_bytes(&to_bytes(&run, 1)).unwrap();
            prop_assert_eq!((read.fence, read.ended), (run.fence, run.ended));
        }
    }
}
