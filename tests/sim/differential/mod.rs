//! The virtual server beside a real one: the same commands and scripts give the same replies and
//! leave the same data.
//!
//! - `pair`: both servers, and connections to them; `similar`: what counts as the same
//! - `commands`: random commands, also inside small scripts
//! - `scripts`: random calls of the scripts of lua/, by `waiter`s
//! - `connections`: logins, script cache, refusals, replicas; `blocking`: BLPOP, XREAD, `timeout`

mod blocking;
mod commands;
mod connections;
mod pair;
mod scripts;
mod similar;
mod waiter;

/// What was compared, or the first difference.
type Compared = Result<String, String>;

/// A name, and what compares it.
type Part = (&'static str, fn() -> Compared);

const PARTS: [Part; 5] = [
    ("the_virtual_server_replies_as_a_real_one", commands::compare),
    ("the_scripts_do_the_same_on_a_real_server", scripts::compare),
    ("a_blocked_client_is_served_as_by_a_real_server", blocking::compare),
    ("the_virtual_server_closes_idle_connections_as_a_real_one", blocking::compare_idle),
    ("the_virtual_server_refuses_as_a_real_one", connections::compare),
];

/// Each part at the same time as the others: they mostly wait for their servers.
pub fn all() -> Vec<(&'static str, Compared)> {
    std::thread::scope(|scope| {
        let parts = PARTS.map(|(name, compare)| (name, scope.spawn(compare)));
        let panicked = |_| Err("panicked".to_string());
        parts.into_iter().map(|(name, part)| (name, part.join().unwrap_or_else(panicked))).collect()
    })
}
