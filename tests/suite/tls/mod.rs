//! Locks on servers with TLS.

mod certificates;
mod files;
mod line;
mod lock;
