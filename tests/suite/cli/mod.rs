//! Options, settings, messages and generated files.

mod byte_arguments;
mod completions;
mod config;
mod events;
mod generated;
mod messages;
mod mistakes;
mod options_rejected;
mod options_sources;
mod passwords;
mod settings;
mod unread_output;
