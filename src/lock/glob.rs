//! Patterns for keys, as in Redis: `*`, `?`, `[a-z]`, `[^a-z]`, and a backslash that escapes the
//! next byte.

/// The time is at most proportional to the product of the lengths.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern_left, mut text_left) = (pattern, text);
    // Where to resume if the rest does not match: the last star then covers one more byte.
    let mut last_star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = pattern_left {
            last_star = Some((after, text_left));
            pattern_left = after;
            continue;
        }
        let matched = match (pattern_left, text_left) {
            ([], []) => return true,
            ([_, ..], [first, rest @ ..]) => one(pattern_left, *first).map(|after| (after, rest)),
            _ => None,
        };
        (pattern_left, text_left) = match (matched, last_star) {
            (Some(left), _) => left,
            (None, Some((after, [_, rest @ ..]))) => {
                last_star = Some((after, rest));
                (after, rest)
            }
            (None, _) => return false,
        };
    }
}

/// Matches the start of the pattern against one byte. Returns the rest of the pattern.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', after @ ..] => Some(after),
        [b'[', b'^', class @ ..] => in_class(class, byte).filter(|(is_in, _)| !is_in).map(|(_, after)| after),
        [b'[', class @ ..] => in_class(class, byte).filter(|(is_in, _)| *is_in).map(|(_, after)| after),
        [b'\\', literal, after @ ..] | [literal, after @ ..] => (*literal == byte).then_some(after),
        [] => None,
    }
}

/// Whether the byte is in the class, and the pattern after the class. An unclosed class extends to
/// the end of the pattern.
fn in_class(class: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (mut left, mut is_in) = (class, false);
    loop {
        left = match left {
            [] => return Some((is_in, left)),
            [b']', after @ ..] => return Some((is_in, after)),
            [b'\\', literal, after @ ..] => {
                is_in |= *literal == byte;
                after
            }
            [from, b'-', to, after @ ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                after
            }
            [literal, after @ ..] => {
                is_in |= *literal == byte;
                after
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let yes = [
            ("*", ""),
            ("*", "deploy"),
            ("d*y", "deploy"),
            ("d?ploy", "deploy"),
            ("d[a-f]ploy", "deploy"),
            ("d[f-a]ploy", "deploy"),
            ("d[^x-z]ploy", "deploy"),
            (r"\*", "*"),
            (r"[\]]", "]"),
            ("*a*b*c", "xxaxxbxxbxxc"),
            ("ab*", "ab"),
            ("**", "x"),
            ("[ab", "a"),
            ("a]", "a]"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no = [
            ("", "x"),
            ("x", ""),
            ("d*x", "deploy"),
            ("?", ""),
            ("deploy", "deploys"),
            ("d[^a-f]ploy", "deploy"),
            (r"\*", "x"),
            ("[]", "x"),
            ("*a*b*c", "xxcxxbxxa"),
        ];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_match_in_polynomial_time() {
        let pattern = "a*".repeat(100) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 1000]));
    }

    proptest! {
        #[test]
        fn an_escaped_key_matches_itself(key: Vec<u8>) {
            let pattern: Vec<u8> = key.iter().flat_map(|byte| [b'\\', *byte]).collect();
            prop_assert!(matches(&pattern, &key));
        }

        #[test]
        fn matching_survives_any_pattern(pattern: Vec<u8>, key: Vec<u8>) {
            let _ = matches(&pattern, &key);
        }
    }
}
