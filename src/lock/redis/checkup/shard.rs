//! On a cluster: since when a master has had its present slots, as in lua/include/marker.lua.

use crate::lock::checkup::Marker;
use crate::lock::redis::Keys;
use crate::lock::redis::discovery::slot_of;

/// The scripts try no higher number.
const LAST_TAG: u32 = 999;

/// A master's description of itself in CLUSTER NODES.
pub(super) struct Shard<'a> {
    /// Its ID, epoch and slots.
    owner: String,
    slots: &'a str,
}

impl<'a> Shard<'a> {
    /// `None` if it has no slots, or if one of them is migrating.
    pub(super) fn parse(nodes: &'a str) -> Option<Self> {
        nodes.lines().find_map(|line| {
            let fields: Vec<&str> = line.splitn(9, ' ').collect();
            let [id, _, flags, _, _, _, epoch, _, slots] = fields[..] else { return None };
            let is_certain = slots.bytes().all(|b| b.is_ascii_digit() || b == b'-' || b == b' ');
            let owner = || format!("{id} {epoch} {slots}");
            (flags.contains("myself,master") && is_certain).then(|| Self { owner: owner(), slots })
        })
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.split(' ').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
        })
    }

    /// The name of its marker. `keys` have the prefix.
    pub(super) fn marker_name(&self, keys: &Keys) -> Option<Vec<u8>> {
        let node = String::from_utf8_lossy(&keys.node);
        let (family, _) = node.rsplit_once("-node:{")?;
        let tag = (0..=LAST_TAG).find(|tag| self.has(slot_of(tag.to_string().as_bytes())))?;
        Some(format!("{family}-shard:{{{tag}}}").into())
    }

    /// "REIGN MILLISECONDS OWNER". The marker of another owner has no reign.
    pub(super) fn parse_marker(&self, text: &[u8]) -> Option<Marker> {
        let text = std::str::from_utf8(text).ok()?;
        let fields: Vec<&str> = text.splitn(3, ' ').collect();
        let [reign, since, owner] = fields[..] else { return None };
        let reign = if owner == self.owner { reign } else { "" };
        Some(Marker { reign: reign.to_owned(), since_ms: since.parse().ok()?, ..Marker::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::redis::Server;

    const NODES: &str = "ab 10.0.0.1:6379@16379 master - 0 1700000000000 1 connected 0-5460\n\
        cd 10.0.0.2:6379@16379,host myself,master - 0 1700000000000 7 connected 5461-10921 10923\n\
        ef 10.0.0.3:6379@16379 slave cd 0 1700000000000 7 connected\n";

    #[test]
    fn a_marker_counts_only_for_its_slots() {
        let shard = Shard::parse(NODES).unwrap();
        assert_eq!(shard.owner, "cd 7 5461-10921 10923");
        assert!([5461, 10921, 10923].iter().all(|slot| shard.has(*slot)));
        assert!([5460, 10922, 10924].iter().all(|slot| !shard.has(*slot)));
        let marker = shard.parse_marker(b"run.history 12 cd 7 5461-10921 10923").unwrap();
        assert_eq!((marker.reign.as_str(), marker.since_ms), ("run.history", 12));
        for other in [&b"run.history 12 cd 7 5461-10921"[..], b"run.history 12 cd 8 5461-10921 10923"] {
            assert_eq!(shard.parse_marker(other).unwrap().reign, "");
        }
        assert_eq!(shard.parse_marker(b"run.history x"), None);
    }

    #[test]
    fn migrating_slots_make_a_shard_uncertain() {
        for slots in [" 5461-10921 [10923->-ab]", " [10923-<-ab]", ""] {
            assert!(Shard::parse(&NODES.replace(" 5461-10921 10923", slots)).is_none(), "{slots}");
        }
        assert!(Shard::parse(&NODES.replace("myself,master", "myself,slave")).is_none());
    }

    #[test]
    fn a_marker_is_in_one_of_its_slots() {
        let cluster = Server::parse("redis+cluster://a").unwrap();
        let keys = |prefix| Keys::new(std::slice::from_ref(&cluster), prefix, b"k");
        let shard = Shard::parse(NODES).unwrap();
        let name = shard.marker_name(&keys("lock")).unwrap();
        assert!(name.starts_with(b"lock-shard:{") && shard.has(slot_of(&name)));
        assert!(shard.marker_name(&keys("")).unwrap().starts_with(b"bare-shard:{"));
        assert_eq!(shard.marker_name(&Keys::new(&[], "lock", b"k")), None);
    }
}
