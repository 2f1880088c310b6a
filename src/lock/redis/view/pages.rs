//! What is too much for one reply, read page by page from all servers at once.

use redis::Value;

use super::super::reply::CommandReply;
use super::super::script::Call;
use super::super::servers::Servers;
use crate::lock::{BackendError, Problem};

/// Asks every server for the page at `first`, then for the next one, until it has told them all. `read` gets the number
/// of a server and its reply, and returns where the next page begins, `Some(None)` after the last one, or `None` for a
/// reply that it does not understand. Which servers have failed, and why, is returned, if no more than `tolerated` have.
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
