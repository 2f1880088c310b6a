//! What a holder has written about itself, for those who wait.

use crate::lock::{BootTime, Who};

pub const RECORD: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub claim: String,
    pub since: BootTime,
    pub who: Who,
}

impl Record {
    pub fn to_bytes(&self, ticket: u64) -> [u8; RECORD] {
        let since = self.since.as_nanos().to_string();
        let mut text = vec![self.claim.as_str(), &since];
        for (name, value) in self.who.fields() {
            text.extend([name, value]);
        }
        let text = text.iter().flat_map(|part| part.bytes().filter(|&b| b != 0).chain([0]));
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&ticket.to_le_bytes());
        for (place, byte) in bytes[8..].iter_mut().zip(text) {
            *place = byte;
        }
        bytes
    }

    /// `None` if it is another ticket's, or no record at all.
    pub fn from_bytes(bytes: &[u8; RECORD], ticket: u64) -> Option<Self> {
        let (owner, text) = bytes.split_at(8);
        let mut parts = text.split(|&b| b == 0).map(<[u8]>::to_vec);
        let claim = String::from_utf8(parts.next()?).ok()?;
        let since = String::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let fields: Vec<Vec<u8>> = parts.collect();
        (owner == ticket.to_le_bytes()).then(|| Self {
            claim,
            since: BootTime::from_nanos(since),
            who: Who::from_fields(&fields),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_its_tickets() {
        let who = Who { host: "web1".into(), label: "x\0y".into(), ..Who::default() };
        let record = Record { claim: "c.1".into(), since: BootTime::from_nanos(42), who };
        let bytes = record.to_bytes(7);
        assert_eq!(Record::from_bytes(&bytes, 7).unwrap().who.host, "web1");
        assert_eq!(Record::from_bytes(&bytes, 8), None);
        assert_eq!(Record::from_bytes(&[0; RECORD], 0), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_upset_a_record(bytes: Vec<u8>) {
            let mut record = [0; RECORD];
            record.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let _ = Record::from_bytes(&record, 0);
        }
    }
}
