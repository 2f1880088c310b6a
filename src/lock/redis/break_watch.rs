//! A holder on servers listens for a break: the client that breaks its claim pushes to its list. What was pushed only wakes it:
//! it then asks whether its claim is marked, or gone. A majority decides, as in a renewal, so that a break that reached
//! a minority of the servers stops nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::listening::{Heard, Listening};
use super::reply::{DEED, RELEASED, WatchReply};
use super::{RedisLock, Server};
use crate::clock::BootTime;
use crate::lock::{BreakWatch, Broken, Fields, Grant, HolderInfo, Notice, majority_of};

/// A command that ends sooner opens no connection for this.
const STARTS_AFTER: Duration = Duration::from_millis(500);

/// BLPOP ends after this time, and the mark is looked at: a connection may be dead without a word.
const LISTENS_FOR: Duration = Duration::from_mins(1);

/// A mark that was seen longer ago than this may have been taken back.
const COUNTS_FOR: Duration = Duration::from_secs(10);

pub(super) struct RedisBreakWatch {
    listening: Listening,
    /// `<claim> `, as an element about us begins.
    about_us: Vec<u8>,
    /// The last word of each server, and when it was said.
    servers: Vec<Option<(WatchReply, BootTime)>>,
    /// Who has freed the lock at once, if it was, and how.
    freed: Option<FreedBy>,
    is_over: bool,
}

/// The lock was freed by a client that told us.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FreedBy {
    Broken { by: HolderInfo },
    Released { by: HolderInfo },
}

impl FreedBy {
    fn new(by: HolderInfo, is_release: bool) -> Self {
        if is_release { Self::Released { by } } else { Self::Broken { by } }
    }
}

/// What an element about us tells: who broke the lock; or "released" and who did that; or "extended" and the ms of the
/// lease, 0 = forever.
enum Element {
    Freed(FreedBy),
    Extended(Option<Duration>),
}

impl Element {
    fn parse(text: &[u8]) -> Option<Self> {
        if let Some(who) = text.strip_prefix(b"released ") {
            return HolderInfo::from_json(who).map(|by| Self::Freed(FreedBy::Released { by }));
        }
        if let Some(ttl) = text.strip_prefix(b"extended ") {
            let ttl: u64 = str::from_utf8(ttl).ok()?.parse().ok()?;
            return Some(Self::Extended((ttl > 0).then(|| Duration::from_millis(ttl))));
        }
        let fields = Fields::from_json(text)?;
        let is_release = fields.get(DEED) == RELEASED.as_bytes();
        Some(Self::Freed(FreedBy::new(HolderInfo::from_fields(&fields), is_release)))
    }
}

impl RedisLock {
    pub(super) fn watch_for_break(&self, grant: &Grant, servers: Vec<Server>) -> RedisBreakWatch {
        let listening = Listening::new(
            servers,
            self.servers.node_timeout,
            self.requests.watch(grant.claim, &self.terms),
            self.requests.notify_list(grant.claim.waiter),
            LISTENS_FOR,
            grant.taken_at + STARTS_AFTER,
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
            Heard::Reply(reply) => servers[at] = Some((reply, BootTime::now())),
            Heard::Element(element) => {
                match element.strip_prefix(about_us.as_slice()).and_then(Element::parse) {
                    Some(Element::Freed(how)) => *freed = Some(how),
                    Some(Element::Extended(ttl)) => extended = Some(Notice::Extended { ttl }),
                    None => {}
                }
            }
        });
        let is_recent = |(_, said_at): &&(WatchReply, BootTime)| said_at.elapsed() < COUNTS_FOR;
        let recent = self.servers.iter().flatten().filter(is_recent).map(|(reply, _)| reply);
        let Some(freed) = verdict(recent, self.servers.len(), self.freed.as_ref()) else { return extended };
        self.is_over = true;
        Some(match freed {
            FreedBy::Broken { by } => Notice::Broken(Broken { by, at_once: false }),
            FreedBy::Released { by } => Notice::Released { by },
        })
    }
}

/// Who broke or released the lock, if a majority says so. A claim that is gone was freed by a client only if an element has
/// told it: otherwise the next renewal finds out what has happened.
fn verdict<'a>(
    replies: impl Iterator<Item = &'a WatchReply>,
    servers: usize,
    freed: Option<&FreedBy>,
) -> Option<FreedBy> {
    let mut run_ids = Vec::new();
    let mut how = freed.cloned();
    for reply in replies {
        let run_id = match reply {
            WatchReply::Broken { run_id, by: breaker, is_release } => {
                how = how.or_else(|| Some(FreedBy::new(breaker.clone(), *is_release)));
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
        FreedBy::Broken { by: who(name) }
    }

    fn broken(run_id: &str) -> WatchReply {
        WatchReply::Broken { run_id: run_id.into(), by: who("alice"), is_release: false }
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
