//! `redlock extend` of a token: which lease its owner can rely on.

use std::time::Duration;

use super::*;

/// A request to extend the lock of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    asked: u64,
    /// The end of the lease, if it is carried out at once.
    until: u64,
    confirmed_at: Option<u64>,
}

impl Oracle {
    /// A request to extend a token's lock is sent. It may be carried out at any time until it is
    /// confirmed, and the last one of several decides.
    pub fn extension_begins(&mut self, site: SiteId, asked: u64, ttl: Duration) {
        let safe = u64::try_from(ttl.as_micros() * 98 / 100).expect("a short lease");
        let extension = Extension { asked, until: asked + safe, confirmed_at: None };
        self.extensions.entry(site).or_default().push(extension);
        for holding in self.holdings.values_mut().flatten().filter(|holding| holding.site == site) {
            holding.until = holding.until.min(extension.until);
        }
    }

    pub fn extension_ends(&mut self, site: SiteId, asked: u64, until: u64) {
        let (now, mut until) = (self.now_us, until);
        for extension in self.extensions.entry(site).or_default() {
            if extension.asked == asked {
                extension.confirmed_at = Some(now);
            } else if extension.confirmed_at.is_none_or(|at| at >= asked) {
                until = until.min(extension.until);
            }
        }
        self.renewed(site, asked, until);
    }
}
