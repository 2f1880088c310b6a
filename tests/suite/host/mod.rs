//! Locks on this host: files, the kernel's locks on them, and their users.

mod choice;
mod directory;
mod exhausted;
mod file_tampering;
mod holder;
mod look;
mod min_hold;
mod modes;
mod neighbours;
mod queue;
mod several_keys;
mod shared;
