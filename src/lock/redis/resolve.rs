//! A host's addresses. The system's resolver blocks for as long as it likes, so it runs in the [`Background`].

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use socket2::SockAddr;

use crate::lock::background::Background;

/// A look-up in progress.
pub(super) type Resolution = Background<Vec<SockAddr>>;

pub(super) fn resolve(host: &str, port: u16) -> io::Result<Resolution> {
    let host = host.to_owned();
    Background::start("resolve", move || {
        Ok((host.as_str(), port).to_socket_addrs()?.map(SockAddr::from).collect())
    })
}

/// The address itself, if the host is given as one.
pub(super) fn literal(host: &str, port: u16) -> Option<SockAddr> {
    host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port).into())
}
