//! Each script gets the parameters that its header lists.

use super::*;
use crate::lock::{Ended, Grant, Votes};

/// The number of arguments that the headers of a script and of include/request.lua list, and
/// whether the holder's fields follow.
fn listed(script: &str) -> (usize, bool) {
    let request = include_str!("../../../../lua/include/request.lua");
    let header = request.lines().chain(script.lines()).filter_map(|line| line.strip_prefix("-- ARGV["));
    let (more, single): (Vec<&str>, Vec<&str>) = header.partition(|line| line.contains("...]"));
    let number = |line: &str| line.split([']', '.']).next().unwrap().parse::<usize>().unwrap();
    let numbers: Vec<usize> = single.iter().chain(&more).map(|line| number(line)).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "each once, in order");
    (single.len(), !more.is_empty())
}

fn calls(of: usize) -> Vec<(&'static str, Call)> {
    let timing = Timing {
        ttl: Some(Duration::from_secs(30)),
        node_timeout: Duration::from_secs(1),
        quarantine: Duration::ZERO,
    };
    let requests = Requests::new(vec![Keys::new(&[], "lock", b"k"); of], 1, timing);
    let claim = Claim { waiter: WaiterId::random(), attempt: 1 };
    let terms = Terms {
        holder: vec![b"?".to_vec(); HolderInfo::default().fields().into_list().len()],
        history: 200,
        ..Terms::default()
    };
    let grant = Grant {
        claim,
        ancestor_locks: Vec::new(),
        fences: vec![7; of],
        slots: Vec::new(),
        lease: None,
        taken_at: BootTime::now(),
        waited: Duration::ZERO,
        votes: Votes::default(),
        outer: Vec::new(),
    };
    vec![
        (
            include_str!("../../../../lua/acquire.lua"),
            requests.acquire(
                claim,
                &terms,
                &Ask::Gate { queues: true, stamp: None, proposed: None, slots: &[] },
            ),
        ),
        (
            include_str!("../../../../lua/break.lua"),
            requests.break_lock(
                (claim.waiter, &HolderInfo::default()),
                BreakAction::Mark,
                &[],
                Reason::Broken,
            ),
        ),
        (
            include_str!("../../../../lua/extend.lua"),
            requests.extend(claim, Some(grant.taken_at), &terms, None),
        ),
        (
            include_str!("../../../../lua/heal.lua"),
            requests.heal(claim, (&grant.fences, &grant.slots, Duration::ZERO), &terms, b"", None),
        ),
        (include_str!("../../../../lua/outer.lua"), requests.outer(claim, &terms, &[claim])),
        (include_str!("../../../../lua/watch.lua"), requests.watch(claim, &terms)),
        (include_str!("../../../../lua/raise.lua"), requests.raise(claim, &terms, &[7])),
        (
            include_str!("../../../../lua/release.lua"),
            requests.release_by_token(
                claim,
                &Terms::of_bearer(&HolderInfo::default()),
                &HolderInfo::default(),
            ),
        ),
        (
            include_str!("../../../../lua/release.lua"),
            requests.release(
                claim,
                &terms,
                Duration::ZERO,
                Duration::ZERO,
                None,
                Some(&LogEntry::of_grant(&grant, &Ended::new(Outcome::Released))),
            ),
        ),
    ]
}

#[test]
fn each_script_gets_the_arguments_that_its_header_lists() {
    for (script, call) in calls(1) {
        let Call::Script { args, .. } = call else { panic!("{call:?}") };
        let (listed, has_fields) = listed(script);
        let fields = if has_fields { HolderInfo::default().fields().into_list().len() } else { 0 };
        assert_eq!(args.len(), listed + fields, "{}", script.lines().next().unwrap());
    }
}

#[test]
fn each_script_gets_the_keys_that_the_header_lists() {
    let request = include_str!("../../../../lua/include/request.lua");
    let names =
        request.lines().filter_map(|line| line.strip_prefix("--   ")).filter(|line| !line.starts_with(' '));
    let (of_one_key, common): (Vec<&str>, Vec<&str>) = names.partition(|name| name.contains(":K "));
    for of in [1, 3] {
        for (script, call) in calls(of) {
            let Call::Script { keys, .. } = call else { panic!("{call:?}") };
            assert_eq!(keys.len(), of * of_one_key.len() + common.len(), "{script}");
        }
    }
}
