//! A module of src/lock/local.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::admission::{Admission, Admitted, Decision};
use super::byte_map::{QueueLane, ReaderGroup, TICKETS_END, UsageMode};
use super::enter::inspect;
use super::format::{HEADER, LOG, LOGGED_RUNS, NAME, RECORDS, TABLE, WAITERS_START, boot_id, number};
use super::lock_file::LockFile;
use super::record::{RECORD, Record};
use super::request::{LocalMode, LocalRequest};
use super::reservation::{ENTRY, Reservation, ReservationKind, slot_for};
use super::view::HostView;
use crate::clock::BootTime;
use crate::fuzz::{assert_printable, memory};
use crate::lock::{BackendError, HolderInfo, Mode, State, View};
use crate::report;

/// In an input: stands for the id of this boot, which no input can know.
const THIS_BOOT: &[u8] = b"THISBOOT";

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("redlock-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
});

static FILE: LazyLock<LockFile> = LazyLock::new(|| LockFile::open(&DIRECTORY, b"k").expect("a lock file"));

static BOOT_ID: LazyLock<u64> = LazyLock::new(boot_id);

/// The header, as many reservations as the eighth byte from its end says, then records: in the file
/// they are far apart.
pub(crate) fn lock_file(data: &[u8]) {
    let contents = with_boot_id(data);
    let [header, rest] = part(&contents, HEADER);
    let [entries, records] = part(rest, usize::from(header.get(24).copied().unwrap_or(0)) * ENTRY);
    parts(entries, records);
    let file = FILE.locks().file();
    file.set_len(0).expect("emptied");
    let parts = [(header, 0), (records, HEADER as u64), (entries, TABLE)];
    for (bytes, offset) in parts.into_iter().chain([LOG, NAME, WAITERS_START].map(|offset| (records, offset)))
    {
        file.write_all_at(bytes, offset).expect("written");
    }
    check_view();
    whole_file();
}

fn part(bytes: &[u8], length: usize) -> [&[u8]; 2] {
    bytes.split_at(length.min(bytes.len())).into()
}

fn with_boot_id(data: &[u8]) -> Vec<u8> {
    let mut contents = data.to_vec();
    let found: Vec<usize> = (0..data.len()).filter(|&at| data[at..].starts_with(THIS_BOOT)).collect();
    for at in found {
        contents[at..at + THIS_BOOT.len()].copy_from_slice(&BOOT_ID.to_le_bytes());
    }
    contents
}

/// A parsed value is parsed to the same value after it was written.
fn parts(entries: &[u8], records: &[u8]) {
    let mut record = [0; RECORD];
    record.iter_mut().zip(records).for_each(|(to, from)| *to = *from);
    let ticket = number(&record[..8]);
    if let Some(read) = Record::from_bytes(&record, ticket) {
        let written = read.to_bytes(ticket);
        // A value without room is truncated; the fields before it are whole.
        let again = Record::from_bytes(&written, ticket);
        let is_whole = written.ends_with(&[0]);
        assert!(!is_whole || again.as_ref() == Some(&read), "{read:?} {again:?}");
    }
    let reservations: Vec<Option<Reservation>> =
        entries.chunks_exact(ENTRY).map(|entry| Reservation::from_bytes(entry, *BOOT_ID)).collect();
    for reservation in reservations.iter().flatten() {
        let again = Reservation::from_bytes(&reservation.to_bytes(*BOOT_ID), *BOOT_ID);
        assert_eq!(again, Some(*reservation));
        if let ReservationKind::Slot(usage, slot) = reservation.kind {
            assert!(slot < usage.slots());
        }
        if let Some((entry, _)) = slot_for(&reservations, *reservation) {
            assert!(entry <= reservations.len());
        }
    }
}

/// Whatever is in the file, its description is harmless; and the lock is free, or kept.
fn check_view() {
    let mut view = HostView::new(DIRECTORY.clone(), String::new());
    let status = memory::at_most(1024 * 1024, || view.status(b"k").expect("a status"));
    assert!(matches!(status.state, State::Free | State::Kept) && status.waiters.is_empty());
    // Printed as it is, except for line breaks.
    report::status_text(&status, |_| None).lines().for_each(|line| assert!(!line.contains(char::is_control)));
    let runs = memory::at_most(1024 * 1024, || view.history(b"k", None).expect("a history").runs);
    assert!(runs.len() <= LOGGED_RUNS + RECORDS && runs.is_sorted_by_key(|run| run.ended_at));
    FILE.name().iter().for_each(|name| assert_eq!(name, b"k"));
    for ticket in [1, TICKETS_END - 1, u64::MAX] {
        let _ = (FILE.record(ticket), FILE.waiter_record(ticket));
    }
}

/// Whatever is in the file, the lock is free if no process holds it, unless it was reserved in this
/// boot.
fn whole_file() {
    let reserved = memory::at_most(1024 * 1024, || FILE.reservations(&FILE.header()));
    let mut last_fence = 0;
    for mode in [LocalMode::Exclusive, LocalMode::Shared(ReaderGroup::named(b"")), LocalMode::Slot] {
        let usage = if mode == LocalMode::Slot { UsageMode::slots_of(3) } else { UsageMode::PLAIN };
        let request = LocalRequest { usage, lane: QueueLane::Fair, joins: false, mode };
        let file = LockFile::open(&DIRECTORY, b"k").expect("a lock file");
        match memory::at_most(1024 * 1024, || enter(&file, &request)) {
            Ok(Some(admitted)) => {
                assert!(admitted.fence > last_fence && admitted.ticket < TICKETS_END);
                last_fence = admitted.fence;
                // Another process finds it held, and learns the holder.
                if mode == LocalMode::Exclusive {
                    assert!(matches!(enter(&FILE, &request), Ok(None)));
                }
                let blocked = inspect(&FILE, 0, &request, None);
                let text = report::blocker(&blocked.by, |_| None);
                assert!(text.contains("fuzz@host pid 1"), "{text}");
                file.unlock_all();
            }
            Ok(None) => {
                assert!(!reserved.is_empty());
                let blocked = inspect(&FILE, 0, &request, None);
                assert_printable(&report::blocker(&blocked.by, |_| None), false);
            }
            Err(error) => {
                assert!(!reserved.is_empty(), "{error:?}");
                assert_printable(&report::backend_error(&error), false);
            }
        }
    }
}

/// `None` if the request is blocked.
fn enter(file: &LockFile, request: &LocalRequest) -> Result<Option<Admitted>, BackendError> {
    let mut admission = Admission::begin(file)?;
    let info =
        HolderInfo { host: "host".into(), pid: "1".into(), user: "fuzz".into(), ..HolderInfo::default() };
    let (since, mode) = (BootTime::now(), Mode::Exclusive);
    let record = Record { claim: "c.1".into(), since, since_ms: 0, mode, info, tenure: None };
    match admission.check(request, None)? {
        Decision::Free(slot) => admission.admit(request, None, slot, &record),
        Decision::Blocked(_) => Ok(None),
    }
}
