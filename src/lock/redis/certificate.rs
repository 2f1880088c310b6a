//! When a certificate expires. rustls verifies that it has not, but does not tell; this reads as much of its DER
//! (X.509, RFC 5280) as is needed.

use std::time::SystemTime;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `None` if it cannot be read.
pub(super) fn expires(certificate: &[u8]) -> Option<SystemTime> {
    let (whole, _) = element(certificate, Some(SEQUENCE))?;
    let (mut fields, _) = element(whole, Some(SEQUENCE))?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields, None)?.1;
    }
    // Serial number, signature, issuer.
    for _ in 0..3 {
        fields = element(fields, None)?.1;
    }
    let (validity, _) = element(fields, Some(SEQUENCE))?;
    let not_after = element(validity, None)?.1;
    let (text, _) = element(not_after, None)?;
    let kind = *not_after.first()?;
    moment(kind, std::str::from_utf8(text).ok()?)
}

/// The contents of the first element, which has this tag, and what follows it.
fn element(bytes: &[u8], tag: Option<u8>) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // So many bytes have the length; four are more than any certificate has.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    tag.is_none_or(|tag| tag == found).then(|| rest.split_at_checked(length)).flatten()
}

/// "YYMMDDHHMMSSZ" or "YYYYMMDDHHMMSSZ".
fn moment(kind: u8, text: &str) -> Option<SystemTime> {
    let digits = text.strip_suffix('Z')?;
    let (year, rest) = match kind {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year: u64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let numbers: Vec<u64> = rest
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok()?.parse().ok())
        .collect::<Option<_>>()?;
    let [month, day, hour, minute, second] = numbers[..] else { return None };
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    humantime::parse_rfc3339(&date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2001, 2, 3), date_time_ymd(year, 2, 3));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_is_read_in_both_forms_of_a_date() {
        for (year, expected) in [(2031, "2031-02-03T00:00:00Z"), (2121, "2121-02-03T00:00:00Z")] {
            let end = expires(&certificate(year)).unwrap();
            assert_eq!(humantime::format_rfc3339(end).to_string(), expected);
        }
        assert_eq!(moment(UTC_TIME, "991231235959Z"), humantime::parse_rfc3339("1999-12-31T23:59:59Z").ok());
        assert_eq!(moment(UTC_TIME, "991331235959Z"), None);
    }

    #[test]
    fn a_certificate_that_was_cut_has_no_end() {
        let whole = certificate(2031);
        for length in 0..60 {
            assert_eq!(expires(&whole[..length]), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(bytes: Vec<u8>) {
            let _ = expires(&bytes);
        }
    }
}
