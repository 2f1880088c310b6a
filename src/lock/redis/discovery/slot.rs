//! Hash slots of a Redis Cluster. All keys of a lock must be in one slot, as must all locks that
//! are taken together.

const SLOTS: u16 = 16384;

/// The slot of a name, or of its hash tag: what is between the first '{' and the next '}', if
/// anything.
pub(in crate::lock::redis) fn slot_of(name: &[u8]) -> u16 {
    crc16(tag_of(name).unwrap_or(name)) % SLOTS
}

pub(in crate::lock::redis) fn tag_of(name: &[u8]) -> Option<&[u8]> {
    let start = name.iter().position(|&b| b == b'{')? + 1;
    let length = name[start..].iter().position(|&b| b == b'}')?;
    (length > 0).then(|| &name[start..start + length])
}

/// A hash tag for keys in this slot that belong to no lock: the first number that hashes to it.
pub(in crate::lock::redis) fn tag_in(slot: u16) -> String {
    let mut numbers = (0u32..).map(|number| number.to_string());
    numbers.find(|number| slot_of(number.as_bytes()) == slot).expect("five digits reach every slot")
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_of_the_server() {
        for (name, slot) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}bar", 12182),
            ("foo{}{bar}", 8363),
            ("a{foo}{b}", 12182),
        ] {
            assert_eq!(slot_of(name.as_bytes()), slot, "{name}");
        }
        assert_eq!(tag_of(b"a{{b}}c"), Some(&b"{b"[..]));
        assert_eq!(tag_of(b"a{b"), None);
    }

    #[test]
    fn every_slot_has_a_short_tag() {
        for slot in [0, 1, 8191, 16383] {
            let tag = tag_in(slot);
            assert!(tag.len() <= 6 && slot_of(format!("lock-node:{{{tag}}}").as_bytes()) == slot, "{tag}");
        }
    }
}
