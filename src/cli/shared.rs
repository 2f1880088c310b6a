//! Groups of options that several subcommands have. They are described in plain comments: clap would take doc
//! comments for the description of the command that flattens them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::tls::TlsArgs;

// Not clap's own, whose texts are not ours: see help.rs.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Print this summary; --help explains every option
    #[arg(short = 'h', action = ArgAction::HelpShort)]
    help_short: Option<bool>,

    #[arg(long = "help", action = ArgAction::HelpLong, hide = true)]
    help_long: Option<bool>,
}

// One key, as an argument or as an option.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Name of the lock
    #[arg(id = "key_argument", value_name = "KEY")]
    pub argument: Option<OsString>,

    /// Name of the lock, as an option
    #[arg(id = "key", short, long, value_name = "KEY")]
    pub option: Option<OsString>,
}

// Where locks on servers are, and how to be let in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct ServerArgs {
    /// A Redis server; repeat (3 or 5) for Redlock
    ///
    /// Several servers may also be separated by commas. With three or five independent servers the lock survives the
    /// loss of a minority of them; the order does not matter.
    #[arg(short, long, value_name = "URL")]
    pub redis: Vec<String>,

    /// User to log in with, if the URL names none
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub username: Option<String>,

    /// File with the password, if it is not in the URL
    ///
    /// Its first line is the password of all servers whose URL has none. The variable REDLOCK_PASSWORD holds the
    /// password itself.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// User to log in to Sentinels with
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub sentinel_username: Option<String>,

    /// File with the Sentinels' own password
    ///
    /// Its first line is the password of the Sentinels; the user and the password in the URL are the master's. The
    /// variable REDLOCK_SENTINEL_PASSWORD holds the password itself.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub sentinel_password_file: Option<PathBuf>,

    #[command(flatten)]
    pub tls: Box<TlsArgs>,

    /// Prefix of the Redis keys [default: lock]
    ///
    /// '' uses the bare KEY as the lock, as other Redlock libraries do.
    #[arg(long, value_name = "PREFIX", hide_short_help = true)]
    pub prefix: Option<String>,

    /// Timeout for one request to a server
    ///
    /// [default: ttl/20 within 200ms to 1s; with one server ttl/3 within 1s to 5s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub node_timeout: Option<String>,

    /// Read this config file and no other
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

// How much is printed, of commands that only look.
#[derive(Debug, Args)]
pub(crate) struct VerbosityArgs {
    /// Print no warnings
    #[arg(short, long)]
    pub quiet: bool,

    /// Print where was looked, too
    #[arg(short, long)]
    pub verbose: bool,
}

// Looking again and again.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Show it again and again, until ^C
    ///
    /// On a terminal it is redrawn in place; elsewhere a blank line follows each time.
    #[arg(long)]
    pub watch: bool,

    /// With --watch: time from one to the next
    ///
    /// At least 100ms. [default: 2s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub interval: Option<String>,
}

// For machines.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

// Where locks on this host are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct HostArgs {
    /// Lock on this host even if servers are configured
    #[arg(long)]
    pub local: bool,

    /// Directory for lock files; implies --local
    ///
    /// The default is the first of /run/lock, /dev/shm and /tmp that all users of this host share. Runs that use
    /// different directories do not exclude each other.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub local_dir: Option<PathBuf>,

    /// Fail if no server is configured (exit 78)
    ///
    /// Without this a run that finds no server locks on this host only, with a warning.
    #[arg(long)]
    pub require_server: bool,
}
