//! Text for a terminal: what is harmless there, and how wide it is.

/// Column at which the text starts, after the label.
pub(super) const COLUMN: usize = 9;

pub(super) const ELLIPSIS: &str = "...";

/// Replaces control characters and invalid bytes by visible escapes, so that no terminal obeys
/// them. Text that was sanitized before does not change.
pub(crate) fn sanitize(text: impl AsRef<[u8]>) -> String {
    let text = text.as_ref();
    let mut out = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_unsafe(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Characters that a terminal obeys, that reverse or break a line, that are invisible, or that are
/// none (U+FFFE): the categories Cc, Cf, Zl and Zp of Unicode, and its noncharacters.
pub(super) fn is_unsafe(c: char) -> bool {
    let is_noncharacter = matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
    let is_invisible = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}');
    c.is_control() || is_invisible || is_noncharacter
}

/// Lines of which the first has a label.
pub(crate) fn labelled(label: &str, lines: impl IntoIterator<Item = String>) -> String {
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    let line = |(label, line): (&str, String)| format!("{label:<COLUMN$}{line}\n");
    labels.zip(lines).map(line).collect()
}

/// Text of at most this many columns.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut shortened, mut left) = (String::new(), columns.saturating_sub(ELLIPSIS.len()));
    for c in text.chars() {
        match left.checked_sub(columns_of(c)) {
            Some(rest) => left = rest,
            None => break,
        }
        shortened.push(c);
    }
    shortened + &ELLIPSIS[..columns.min(ELLIPSIS.len())]
}

/// The columns of a text that is sanitized.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Chinese, Japanese and Korean characters and most emoji take two columns. An overestimate is
/// harmless.
fn columns_of(c: char) -> usize {
    let is_wide = matches!(u32::from(c),
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f
        | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f000..=0x1faff | 0x20000..=0x3fffd);
    if is_wide { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(sanitize(b"a\x1b[31m\nb\xff\xc3\xa9"), "a\\u{1b}[31m\\nb\\xff\u{e9}");
        let hidden = "\u{61c}\u{2028}\u{200b}\u{fffe}";
        assert_eq!(sanitize(hidden), r"\u{61c}\u{2028}\u{200b}\u{fffe}");
    }

    proptest! {
        #[test]
        fn sanitized_text_is_harmless_and_stays_as_it_is(bytes: Vec<u8>) {
            let text = sanitize(&bytes);
            prop_assert!(!text.chars().any(is_unsafe));
            prop_assert_eq!(sanitize(&text), text);
        }
    }
}
