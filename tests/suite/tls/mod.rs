//! Locks on servers with TLS.

mod certificates;
mod changed_files;
mod files;
mod line;
mod lock;
