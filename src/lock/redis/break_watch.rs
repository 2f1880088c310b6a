//! A holder on servers listens for a break: the client that breaks its claim pushes to the holder's
//! list. The pushed element only wakes the holder, which then asks the servers whether its claim is
//! marked or gone. A majority decides, as in a renewal, so that a break that reached a minority of
//! the servers stops nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::listening::{ListenEvent, Listening};
use super::reply::{REASON, WatchReply};
use super::{RedisLock, Server};
use crate::clock::BootTime;
use crate::lock::{BreakWatch, Fields, Grant, HolderInfo, Notice, Reason, majority_of};

/// A command that ends sooner opens no connections for this.
const START_DELAY: Duration = Duration::from_millis(500);

/// BLPOP ends after this time, and the mark is checked: a connection may have died silently.
const BLPOP_TIMEOUT: Duration = Duration::from_mins(1);

/// A mark that was seen longer ago than this may have been withdrawn.
const MARK_MAX_AGE: Duration = Duration::from_secs(10);

pub(super) struct RedisBreakWatch {
    listening: Listening,
    /// `<claim> `, the start of an element about us.
    about_us: Vec<u8>,
    /// The last reply of each server, and when it came.
    servers: Vec<Option<(WatchReply, BootTime)>>,
    /// How the lock was ended, according to an element.
    freed: Option<FreedBy>,
    is_over: bool,
}

/// A client has ended our grant, and notified us.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FreedBy {
    by: HolderInfo,
    reason: Reason,
}

/// An element about us. Its text is a JSON object that describes the breaking client; or "released"
/// and the client that released the lock; or "extended" and the ms of the lease, 0 = forever.
enum Element {
    Ended(FreedBy),
    Extended(Option<Duration>),
}

impl Element {
    fn parse(text: &[u8]) -> Option<Self> {
        if let Some(who) = text.strip_prefix(b"released ") {
            let freed = |by| Self::Ended(FreedBy { by, reason: Reason::Released });
            return HolderInfo::from_json(who).map(freed);
        }
        if let Some(ttl) = text.strip_prefix(b"extended ") {
            let ttl: u64 = str::from_utf8(ttl).ok()?.parse().ok()?;
            return Some(Self::Extended((ttl > 0).then(|| Duration::from_millis(ttl))));
        }
        let fields = Fields::from_json(text)?;
        let reason = Reason::from_name(fields.get(REASON));
        Some(Self::Ended(FreedBy { by: HolderInfo::from_fields(&fields), reason }))
    }
}

impl RedisLock {
    pub(super) fn watch_for_break(&self, grant: &Grant, servers: Vec<Server>) -> RedisBreakWatch {
        let listening = Listening::new(
            servers,
            self.servers.node_timeout,
            self.requests.watch(grant.claim, &self.terms),
            self.requests.notify_list(grant.claim.waiter),
            BLPOP_TIMEOUT,
            grant.taken_at + START_DELAY,
        );
        RedisBreakWatch {
            servers: vec![None; listening.len()],
            listening,
            about_us: format!("{} ", grant.claim).into_bytes(),
            freed: None,
            is_over: false,
        }
    }
}

impl BreakWatch for RedisBreakWatch {
    fn poll_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        if self.is_over { Vec::new() } else { self.listening.poll_for() }
    }

    fn next_moment(&self) -> Option<BootTime> {
        self.listening.next_moment().filter(|_| !self.is_over)
    }

    fn advance(&mut self) -> Option<Notice> {
        if self.is_over {
            return None;
        }
        let Self { servers, about_us, freed, .. } = self;
        let mut extended = None;
        self.listening.advance(|at, heard| match heard {
            ListenEvent::Reply(reply) => servers[at] = Some((reply, BootTime::now())),
            ListenEvent::Element(element) => {
                match element.strip_prefix(about_us.as_slice()).and_then(Element::parse) {
                    Some(Element::Ended(how)) => *freed = Some(how),
                    Some(Element::Extended(ttl)) => extended = Some(Notice::Extended { ttl }),
                    None => {}
                }
            }
        });
        let is_recent = |(_, received_at): &&(WatchReply, BootTime)| received_at.elapsed() < MARK_MAX_AGE;
        let recent = self.servers.iter().flatten().filter(is_recent).map(|(reply, _)| reply);
        let Some(FreedBy { by, reason }) = verdict(recent, self.servers.len(), self.freed.as_ref()) else {
            return extended;
        };
        self.is_over = true;
        Some(Notice::Lost { loss: reason.loss(by), at_once: false })
    }
}

/// How the lock was ended, if a majority confirms it. A claim that is gone was freed by a client
/// only if an element said so: otherwise the next renewal finds out what happened.
fn verdict<'a>(
    replies: impl Iterator<Item = &'a WatchReply>,
    servers: usize,
    freed: Option<&FreedBy>,
) -> Option<FreedBy> {
    let mut run_ids = Vec::new();
    let mut how = freed.cloned();
    for reply in replies {
        let run_id = match reply {
            WatchReply::Broken { run_id, by, reason } => {
                how = how.or_else(|| Some(FreedBy { by: by.clone(), reason: *reason }));
                run_id
            }
            WatchReply::Gone { run_id } if freed.is_some() => run_id,
            WatchReply::Ours | WatchReply::Gone { .. } => continue,
        };
        if !run_ids.contains(&run_id) {
            run_ids.push(run_id);
        }
    }
    how.filter(|_| run_ids.len() >= majority_of(servers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> HolderInfo {
        HolderInfo { user: name.into(), ..HolderInfo::default() }
    }

    fn by(name: &str) -> FreedBy {
        FreedBy { by: who(name), reason: Reason::Broken }
    }

    fn broken(run_id: &str) -> WatchReply {
        WatchReply::Broken { run_id: run_id.into(), by: who("alice"), reason: Reason::Broken }
    }

    fn gone(run_id: &str) -> WatchReply {
        WatchReply::Gone { run_id: run_id.into() }
    }

    #[test]
    fn a_minority_breaks_nothing() {
        let of_three = |replies: &[WatchReply]| verdict(replies.iter(), 3, None);
        assert_eq!(of_three(&[broken("a")]), None);
        assert_eq!(of_three(&[broken("a"), WatchReply::Ours]), None);
        assert_eq!(of_three(&[broken("a"), broken("a")]), None, "listed twice");
        assert_eq!(of_three(&[broken("a"), broken("c")]), Some(by("alice")));
        assert_eq!(verdict([broken("")].iter(), 1, None), Some(by("alice")));
    }

    #[test]
    fn a_claim_that_is_gone_was_broken_only_if_an_element_says_so() {
        let bob = by("bob");
        assert_eq!(verdict([gone("")].iter(), 1, None), None);
        assert_eq!(verdict([gone("")].iter(), 1, Some(&bob)), Some(by("bob")));
        assert_eq!(verdict([gone("a"), WatchReply::Ours].iter(), 3, Some(&bob)), None);
        assert_eq!(verdict([gone("a"), broken("b")].iter(), 3, Some(&bob)), Some(by("bob")));
    }
}
