//! The table of `redlock list`.

use super::format::other_version;
use super::problem::backend_error;
use super::status::{failing_servers, those_that_answer};
use super::text::{cut, sanitize, width};
use crate::duration::format_seconds;
use crate::lock::{BackendError, HolderInfo, Listing, State, Status};

const HEADINGS: [&str; 6] = ["KEY", "STATE", "HOLDER", "SINCE", "EXPIRES", "WAITING"];

/// The headings, a line for each lock and, if not all servers serve, the servers. `columns`: the
/// terminal's; keys and holders are shortened, so that the numbers fit.
pub(crate) fn list_table(listing: &Listing, columns: Option<usize>) -> String {
    let rows = |longest: Longest| -> Vec<[String; 6]> {
        let headings = [HEADINGS.map(str::to_owned)];
        headings.into_iter().chain(listing.locks.iter().map(|lock| row(lock, longest))).collect()
    };
    let mut cells = rows(Longest { key: LONGEST_CELL, holder: LONGEST_CELL });
    if let Some(longest) = columns.and_then(|columns| Longest::within(columns, widths(&cells))) {
        cells = rows(longest);
    }
    let mut table = align(&cells);
    if let (Some(_), Some(first)) = (&listing.undecided, listing.locks.first()) {
        table += &format!("\n? not decided: as far as {} can tell\n", those_that_answer(first));
    }
    table + &failing_servers(&listing.servers)
}

/// A line for each key that is plain text, for a shell's completion.
pub(crate) fn list_keys(listing: &Listing) -> String {
    let plain =
        |key: &[u8]| Some(String::from_utf8(key.to_vec()).ok()?).filter(|text| *text == sanitize(key));
    let keys: Vec<String> = listing.locks.iter().filter_map(|lock| plain(&lock.key)).collect();
    keys.iter().flat_map(|key| [key.as_str(), "\n"]).collect()
}

/// `missing`: servers whose locks are not in the list.
pub(crate) fn incomplete_list(missing: &[BackendError]) -> String {
    let servers: Vec<String> = missing.iter().map(backend_error).collect();
    format!("the list is incomplete: {}", servers.join("; "))
}

/// A longer cell is cut: a key may have 1024 bytes, and the other columns should stay visible.
const LONGEST_CELL: usize = 60;
const SHORTEST_CELL: usize = 8;
const GAP: &str = "  ";

/// How long the cells may be that are shortened.
#[derive(Clone, Copy)]
struct Longest {
    key: usize,
    holder: usize,
}

impl Longest {
    /// `None` if the table fits.
    fn within(columns: usize, widths: [usize; 6]) -> Option<Self> {
        let over = total(widths).checked_sub(columns).filter(|over| *over > 0)?;
        let (key, holder) = (widths[0], widths[2]);
        let room = (key + holder).saturating_sub(over);
        let key = key.min((room / 2).max(room.saturating_sub(holder))).max(SHORTEST_CELL);
        Some(Self { key, holder: room.saturating_sub(key).max(SHORTEST_CELL) })
    }
}

fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    let mut widths = [0; N];
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    widths
}

fn total<const N: usize>(widths: [usize; N]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * (N - 1)
}

/// Shortens the cells at these positions, the first ones first, until the rows fit a terminal of
/// this width.
pub(super) fn shorten<const N: usize>(rows: &mut [[String; N]], positions: &[usize], columns: Option<usize>) {
    let Some(columns) = columns else { return };
    for &at in positions {
        let widths = widths(rows);
        let over = total(widths).saturating_sub(columns);
        let longest = widths[at].saturating_sub(over).max(SHORTEST_CELL);
        for row in &mut *rows {
            row[at] = cut(&row[at], longest);
        }
    }
}

/// Rows of cells, each column as wide as its widest cell.
pub(super) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let widths = widths(rows);
    let line = |cells: &[String; N]| {
        // The width of a format is at most 65535.
        let pad = |(cell, widest): (&String, usize)| cell.clone() + &" ".repeat(widest - width(cell));
        let cells: Vec<String> = cells.iter().zip(widths).map(pad).collect();
        format!("{}\n", cells.join(GAP).trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(status: &Status, longest: Longest) -> [String; 6] {
    let others = match status.holder_count.saturating_sub(1) {
        0 => String::new(),
        others => format!(" (+{others})"),
    };
    let oldest = status.holders.first();
    let expires = status.holders.iter().map(|holder| holder.expires_in);
    let version = oldest.and_then(|holder| other_version(&holder.info));
    let suffix = version.map_or_else(String::new, |version| format!(" [{version}]")) + &others;
    // The last holder frees the lock.
    let expires = expires.max_by_key(|expires| expires.unwrap_or(std::time::Duration::MAX)).flatten();
    [
        cut(&sanitize(&status.key), longest.key),
        state_cell(status),
        if status.is_wrong_type {
            "(not a lock)".into()
        } else {
            let name = oldest.map(|holder| short_name(&holder.info)).unwrap_or_default();
            cut(&name, longest.holder.saturating_sub(suffix.len())) + &suffix
        },
        oldest.and_then(|holder| holder.held_for).map(format_seconds).unwrap_or_default(),
        match expires {
            Some(left) => format_seconds(left),
            // A lock on this host ends with its process.
            None if status.servers.is_empty() => "-".into(),
            None => "never".into(),
        },
        status.waiter_count.to_string(),
    ]
}

fn state_cell(status: &Status) -> String {
    let state = match status.state {
        State::Free => "free".into(),
        State::Held => "held".into(),
        State::Shared => format!("shared {}", status.holder_count),
        State::Slots { of } => format!("{}/{of} slots", status.holder_count),
        State::Kept => "kept".into(),
        State::Foreign => "foreign".into(),
    };
    if status.undecided.is_some() { state + "?" } else { state }
}

/// "ci@runner-3 4711 deploy.sh"
pub(super) fn short_name(info: &HolderInfo) -> String {
    if info.pid.is_empty() {
        return "-".into();
    }
    let about = if info.label.is_empty() { &info.command } else { &info.label };
    sanitize(format!("{}@{} {} {about}", info.user, info.host, info.pid).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_beside_characters_of_two_columns() {
        let cell = |text: &str| text.to_owned();
        assert_eq!(
            align(&[[cell("\u{9375}"), cell("x")], [cell("abc"), cell("y")]]),
            "\u{9375}   x\nabc  y\n"
        );
    }
}
