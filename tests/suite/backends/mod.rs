//! Promises that hold on every backend: one server, three servers, this host.

mod cancel;
mod cron;
mod deadlock;
mod death;
mod jitter;
mod max_hold;
mod min_hold;
mod nested;
mod once;
mod prefer;
mod queue;
mod readers_and_writers;
mod reentrant;
mod retries;
mod several_keys;
mod shared;
mod slots;
mod supersede;
mod under_acquire;
