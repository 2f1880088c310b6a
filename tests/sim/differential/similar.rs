//! Replies that are the same, apart from the time that passes between two servers.

use crate::server::reply::Reply;

/// Times may differ by this much. A sequence in which a reply takes about as long is repeated.
pub const TOLERANCE_MS: u128 = 200;

/// Smaller numbers are counts, positions and slots, which must be equal.
const SMALLEST_TIME_MS: u128 = 1000;
/// Larger ones are times in microseconds.
const LARGEST_TIME_MS: u128 = 1_000_000_000_000_000;

/// The number of digits of the present time in ms.
const NOW_DIGITS: usize = 13;

/// Fields whose values are short times.
const SHORT_TIMES: [&[u8]; 3] = [b"held", b"waited", b"held_for"];

/// Whether these replies are the same, apart from times and the line in a script's error.
pub fn similar(real: &Reply, ours: &Reply) -> bool {
    match (real, ours) {
        (Reply::Array(real), Reply::Array(ours)) => {
            real.len() == ours.len()
                && (0..real.len()).all(|at| {
                    similar(&real[at], &ours[at]) || is_short_time(real, at) && are_near(&real[at], &ours[at])
                })
        }
        (Reply::Bulk(real), Reply::Bulk(ours)) => similar_text(real, ours),
        (Reply::Int(real), Reply::Int(ours)) => {
            similar_text(real.to_string().as_bytes(), ours.to_string().as_bytes())
        }
        (Reply::Error(real), Reply::Error(ours)) => without_line(real) == without_line(ours),
        (real, ours) => real == ours,
    }
}

/// Errors of scripts end with the number of a line.
fn without_line(error: &str) -> &str {
    match error.rsplit_once(":") {
        Some((before, line)) if before.ends_with(", on @user_script") && line.ends_with('.') => before,
        _ => error,
    }
}

/// Whether a script's reply has numbers of ms here, which may be small.
fn is_short_time(reply: &[Reply], at: usize) -> bool {
    let Some(Reply::Bulk(first)) = reply.first() else { return false };
    let by_position = match first.as_slice() {
        b"granted" => at == 5 || at == 6,
        b"blocked" => at == 5 || at == 10,
        b"done" => at == 1,
        b"quarantined" => at == 1 || at == 2,
        b"extended" => at == 2,
        b"outer" => at > 2 && at % 5 == 1,
        b"lock" => at == 9,
        _ => false,
    };
    let before = at.checked_sub(1).map(|before| &reply[before]);
    by_position || matches!(before, Some(Reply::Bulk(name)) if SHORT_TIMES.contains(&name.as_slice()))
}

fn are_near(real: &Reply, ours: &Reply) -> bool {
    let numbers = |reply: &Reply| match reply {
        Reply::Bulk(text) => {
            String::from_utf8_lossy(text).split(' ').map(|number| number.parse::<u128>().ok()).collect()
        }
        _ => None,
    };
    let near = |(real, ours): (&u128, &u128)| real.abs_diff(*ours) <= TOLERANCE_MS;
    let both: Option<(Vec<u128>, Vec<u128>)> = numbers(real).zip(numbers(ours));
    both.is_some_and(|(real, ours)| real.len() == ours.len() && real.iter().zip(&ours).all(near))
}

/// Texts of which only numbers differ, and only those that are times.
pub fn similar_text(real: &[u8], ours: &[u8]) -> bool {
    if real == ours {
        return true;
    }
    let (real, ours) = (pieces(real), pieces(ours));
    // The ID of a stream's entry: the ms, and a number among those of the same ms.
    let is_id = matches!(real[..], [ms, b"-", _] if ms.len() == NOW_DIGITS);
    real.len() == ours.len()
        && (0..real.len()).all(|at| {
            let is_short = is_id || at > 0 && real[at - 1].ends_with(b"\"held_for\":\"");
            real[at] == ours[at] || similar_numbers(real[at], ours[at], is_short)
        })
}

fn similar_numbers(real: &[u8], ours: &[u8], is_short: bool) -> bool {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u128>().ok();
    let (Some(real), Some(ours)) = (number(real), number(ours)) else { return false };
    let tolerance = match real.max(ours) {
        largest if largest >= LARGEST_TIME_MS => TOLERANCE_MS * 1000,
        largest if largest >= SMALLEST_TIME_MS || is_short => TOLERANCE_MS,
        _ => 0,
    };
    real.abs_diff(ours) <= tolerance
}

/// The runs of digits, and the texts between them.
fn pieces(text: &[u8]) -> Vec<&[u8]> {
    text.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit()).collect()
}
