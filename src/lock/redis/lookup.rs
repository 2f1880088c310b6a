//! From a host and a port to addresses to connect to: at once if the host is given as an address, otherwise by a
//! look-up, one at a time.

use std::io;
use std::os::fd::BorrowedFd;

use socket2::SockAddr;

use super::address::Address;
use crate::world::Resolution;

#[derive(Debug, Default)]
pub(super) struct Lookup(Option<(Address, Resolution)>);

impl Lookup {
    /// The address, or `None` if its name is being resolved now. A look-up of the same name that has not ended goes on.
    pub(super) fn start(&mut self, address: &Address) -> io::Result<Option<SockAddr>> {
        if let Some(literal) = address.literal() {
            self.0 = None;
            return Ok(Some(literal));
        }
        if self.0.as_ref().is_none_or(|(other, _)| other != address) {
            self.0 = Some((address.clone(), Resolution::start(&address.host, address.port)?));
        }
        Ok(None)
    }

    pub(super) fn is_running(&self) -> bool {
        self.0.is_some()
    }

    /// Readable when the look-up has ended.
    pub(super) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|(_, resolution)| resolution.wake_fd())
    }

    /// All addresses of the host, once.
    pub(super) fn result(&mut self) -> Option<io::Result<Vec<SockAddr>>> {
        let result = self.0.as_ref()?.1.result()?;
        self.0 = None;
        Some(result)
    }
}
