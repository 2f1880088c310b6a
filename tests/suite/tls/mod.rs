//! Locks on servers that speak TLS.

mod certificates;
mod files;
mod line;
mod lock;
