//! Options, settings, messages and generated files.

mod byte_arguments;
mod config;
mod events;
mod generated;
mod messages;
mod options_rejected;
mod options_sources;
mod settings;
mod unread_output;
