//! RESP2 framing: where a reply ends. The redis crate parses its contents, but its incremental
//! parser does not bound the size that a server may announce.

use std::io::{self, ErrorKind};

/// Longer than any reply to our requests.
pub(super) const LONGEST_REPLY: usize = 1 << 20;

/// The length of the first RESP2 reply in `bytes`, `None` if it is incomplete.
pub(super) fn reply_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    match complete_reply(bytes)? {
        // Many small parts may be too long together.
        None if bytes.len() > LONGEST_REPLY => Err(malformed()),
        length => Ok(length),
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the answer is not Redis protocol")
}

fn complete_reply(bytes: &[u8]) -> io::Result<Option<usize>> {
    let mut position = 0;
    let mut wanted: usize = 1;
    while wanted > 0 {
        let Some(&kind) = bytes.get(position) else {
            return Ok(None);
        };
        if !b"+-:$*".contains(&kind) {
            return Err(malformed());
        }
        // Both characters, as in the redis crate, to which a single one does not end a line.
        let Some(line) = bytes[position..].windows(2).position(|end| end == b"\r\n") else {
            return Ok(None);
        };
        let header = &bytes[position + 1..position + line];
        position += line + 2;
        wanted -= 1;
        if matches!(kind, b'$' | b'*') {
            let count = std::str::from_utf8(header).ok().and_then(|text| text.parse::<i64>().ok());
            let count = count.ok_or_else(malformed)?;
            // -1 is nil, which has no body.
            if let Ok(count) = usize::try_from(count) {
                if count > LONGEST_REPLY {
                    return Err(malformed());
                }
                if kind == b'*' {
                    wanted += count;
                } else {
                    position += count + 2;
                }
            }
        }
        if position > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_a_reply_is_found() {
        for (bytes, length) in [
            (&b"+OK\r\n"[..], 5),
            (b":12\r\n+next", 5),
            (b"$3\r\nabc\r\n-ERR", 9),
            (b"$-1\r\n", 5),
            (b"$0\r\n\r\n", 6),
            (b"*-1\r\n", 5),
            (b"*0\r\n+x\r\n", 4),
            (b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n+z\r\n", 19),
            (b"+a\nb\rc\r\n+z\r\n", 8),
        ] {
            assert_eq!(reply_length(bytes).unwrap(), Some(length), "{bytes:?}");
        }
    }

    #[test]
    fn an_incomplete_reply_has_no_length() {
        let whole = b"*3\r\n$7\r\ngranted\r\n$2\r\n42\r\n*1\r\n:1\r\n";
        for cut in 0..whole.len() {
            assert_eq!(reply_length(&whole[..cut]).unwrap(), None, "cut at {cut}");
        }
    }

    #[test]
    fn other_protocols_are_rejected() {
        assert!(reply_length(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        assert!(reply_length(b"$99999999999\r\n").is_err());
        assert!(reply_length(b"$x\r\n").is_err());
    }

    #[test]
    fn a_reply_of_too_many_parts_is_rejected() {
        let part = [&b"$1000\r\n"[..], &[b'x'; 1000], b"\r\n"].concat();
        let parts = part.repeat(LONGEST_REPLY / part.len());
        let mut endless = [b"*1000000\r\n", parts.as_slice()].concat();
        assert_eq!(reply_length(&endless).unwrap(), None);
        endless.extend(part);
        assert!(reply_length(&endless).is_err());
    }

    proptest! {
        #[test]
        fn the_framing_survives_any_bytes(bytes: Vec<u8>) {
            if let Ok(Some(length)) = reply_length(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
