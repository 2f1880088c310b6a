//! Reading what does not fit into one reply, page by page, from all servers at once.

use redis::Value;

use super::super::reply::CommandReply;
use super::super::script::Call;
use super::super::servers::Servers;
use crate::lock::{BackendError, Problem};

/// Reads the page at `first` from every server, then the next one, until there are no more. `read`
/// is called with the index of a server and its reply, and returns the start of the next page,
/// `Some(None)` after the last one, or `None` for a malformed reply. Returns the servers that have
/// failed, and why; an error if there are more than `tolerated`.
pub(super) fn read_pages<At>(
    servers: &mut Servers,
    first: At,
    tolerated: usize,
    call: impl Fn(&At) -> Call,
    mut read: impl FnMut(usize, Value) -> Option<Option<At>>,
) -> Result<Vec<(usize, BackendError)>, BackendError>
where
    At: Clone,
{
    let mut next: Vec<Option<At>> = vec![Some(first); servers.len()];
    let mut failed: Vec<(usize, BackendError)> = Vec::new();
    while next.iter().any(Option::is_some) {
        let pages = next.iter().enumerate();
        let round =
            servers.timed_round(pages.filter_map(|(server, page)| Some((server, call(page.as_ref()?)))));
        for (server, reply) in round.replies::<CommandReply>(servers, None) {
            let read = reply.and_then(|CommandReply(value)| {
                read(server, value).ok_or_else(|| servers[server].node.error(Problem::UnexpectedReply))
            });
            next[server] = read.unwrap_or_else(|error| {
                failed.push((server, error));
                None
            });
        }
        if failed.len() > tolerated {
            let errors = failed.into_iter().map(|(_, error)| error).collect();
            return Err(BackendError::no_majority(errors, servers.len()));
        }
    }
    Ok(failed)
}
