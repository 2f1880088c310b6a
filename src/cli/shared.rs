//! Groups of options that several commands have. Their comments are plain ones: clap would take a
//! doc comment for the description of the command that flattens the group.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::ONCE;

// Replaces clap's own options, whose texts are not ours: see help.rs.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Print this summary; --help explains every option
    #[arg(short = 'h', action = ArgAction::HelpShort)]
    help_short: Option<bool>,

    #[arg(long = "help", action = ArgAction::HelpLong, hide = true, hide_long_help = ONCE)]
    help_long: Option<bool>,
}

// One key, as an argument or as an option.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Name of the lock
    #[arg(id = "key_argument", value_name = "KEY")]
    pub argument: Option<OsString>,

    /// Name of the lock, as an option
    #[arg(id = "key", short, long, value_name = "KEY", hide_long_help = ONCE)]
    pub options: Vec<OsString>,
}

// Where locks are, and how to log in there.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock backend")]
pub(crate) struct BackendArgs {
    /// A Redis server; repeat (3 or 5) for Redlock
    ///
    /// Several servers may also be separated by commas. With three or five independent servers the
    /// lock survives the loss of a minority of them; the order does not matter.
    #[arg(short, long, value_name = "URL")]
    pub redis: Vec<String>,

    /// User to log in as, if the URL names none
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub username: Option<String>,

    /// File with the password, if it is not in the URL
    ///
    /// Its first line is the password for all servers whose URL has none. REDLOCK_PASSWORD holds
    /// the password itself.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// User to log in to Sentinels as
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub sentinel_username: Option<String>,

    /// File with the Sentinels' own password
    ///
    /// Its first line is the password for the Sentinels; the user and the password in the URL are
    /// for the master. REDLOCK_SENTINEL_PASSWORD holds the password itself.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub sentinel_password_file: Option<PathBuf>,

    /// Authorities to trust for rediss:// servers (PEM)
    ///
    /// Replaces the authorities that this host trusts. A server's certificate is always verified.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,

    /// Client certificate for rediss:// servers (PEM)
    ///
    /// Include the intermediate certificates, if there are any.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// Name in the certificate, if not the URL's host
    ///
    /// For a server behind a tunnel, or one named by an address. Applies to all rediss:// servers.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub tls_server_name: Option<String>,

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
    #[arg(long, value_name = "FILE", hide_long_help = ONCE)]
    pub config: Option<PathBuf>,

    /// Lock on this host even if servers are configured
    #[arg(long)]
    pub local: bool,

    /// Directory for lock files; implies --local
    ///
    /// The default is the first of /run/lock, /var/tmp and /tmp that all users of this host share.
    /// Runs that use different directories do not exclude each other.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub local_dir: Option<PathBuf>,

    /// Fail if no server is configured (exit 78)
    ///
    /// Without this option a run without a server locks on this host only, with a warning.
    #[arg(long)]
    pub require_server: bool,
}

// The lease, for commands that take or renew a lock.
#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    /// Length of the lease [default: 30s]
    ///
    /// On servers the lock expires this long after its last renewal, for example when the machine
    /// has died. redlock run and the keeper of redlock acquire renew it every third of it;
    /// otherwise nothing does. From 100ms to 365d; "none" never expires (with one server only). On
    /// this host a run needs no lease: the kernel frees its lock at once.
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        help_heading = "Lease and hold time"
    )]
    pub ttl: Option<String>,

    /// Keep a restarted server from voting for this long
    ///
    /// Applies to every server that may have lost its data: new, restarted, flushed or promoted.
    /// "off" disables it. With several servers it is at least as long as the --ttl, up to 30s. With
    /// one server, Sentinel or Cluster it must not be shorter than the --ttl. [default: 30s with
    /// several servers, Sentinel or Cluster; off with one server]
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        hide_short_help = true,
        help_heading = "Lock backend"
    )]
    pub quarantine: Option<String>,
}

// How much is printed.
#[derive(Debug, Args)]
pub(crate) struct VerbosityArgs {
    /// Print errors only
    ///
    /// For redlock run a held lock is not an error; see the exit code.
    #[arg(short, long)]
    pub quiet: bool,

    /// Print every step
    ///
    /// For example, which config files were read and which servers were queried.
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub help: HelpArgs,
}

// For every command that looks at locks.
#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Refresh until ^C
    ///
    /// On a terminal the output is redrawn in place; elsewhere a blank line follows each refresh,
    /// except with --json.
    #[arg(long, hide_long_help = ONCE)]
    pub watch: bool,

    /// With --watch: refresh interval
    ///
    /// At least 100ms. [default: 2s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub interval: Option<String>,
}

// For every command that takes a lock.
#[derive(Debug, Args)]
pub(crate) struct TakeArgs {
    /// Name of the lock; repeat to take several at once
    ///
    /// Any bytes, at most 1024. Several locks are taken together or not at all, so the order does
    /// not matter; they have one token.
    #[arg(short, long = "key", value_name = "KEY", help_heading = "Lock", hide_long_help = ONCE)]
    pub keys: Vec<OsString>,

    #[command(flatten)]
    pub mode: ModeArgs,

    #[command(flatten)]
    pub wait: WaitArgs,

    #[command(flatten)]
    pub lease: LeaseArgs,

    /// Keep the lock at least this long
    ///
    /// Counted from the moment it was taken, even if it is released sooner. No process waits for
    /// that.
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        help_heading = "Lease and hold time"
    )]
    pub min_hold: Option<String>,

    #[command(flatten)]
    pub backend: BackendArgs,

    #[command(flatten)]
    pub failure: FailureArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct ModeArgs {
    /// Take the lock in shared mode
    ///
    /// Any number of shared runs may hold the lock at the same time; an exclusive run holds it
    /// alone.
    #[arg(short, long)]
    pub shared: bool,

    /// Take the lock in exclusive mode (default)
    #[arg(short = 'x', short_alias = 'e', long)]
    pub exclusive: bool,

    /// Up to N holders at once; REDLOCK_SLOT is 0 to N-1
    ///
    /// All runs that use the key must give the same N.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub slots: Option<String>,

    /// Queueing order: fair, writers or readers first
    ///
    /// [default: fair]
    #[arg(long, value_name = "POLICY")]
    pub prefer: Option<PreferArg>,

    /// With --shared: share only within this group
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub reader_group: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitArgs {
    /// Fail at once if the lock is held
    #[arg(short, long, aliases = ["nb", "no-wait"])]
    pub nonblock: bool,

    /// Wait at most this long [default: forever]
    ///
    /// 0 means --nonblock.
    #[arg(short, long, alias = "timeout", value_name = "DURATION", allow_negative_numbers = true)]
    pub wait: Option<String>,

    /// Retry up to N times instead of queueing
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub retries: Option<String>,

    /// Pause between retries (+/- 50%) [default: 1s]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub retry_interval: Option<String>,

    /// Newest waiter wins: older ones give up
    ///
    /// A waiter with this option gives up when a newer one arrives that has it too, and exits as if
    /// the lock were held (75, or -E). The holder and waiters without this option are not affected.
    /// Useful for deploys, where only the newest one matters. Has no effect on a run that does not
    /// queue (-n, --retries).
    #[arg(long)]
    pub supersede: bool,

    /// Maximum random delay before the first attempt
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, hide_short_help = true)]
    pub jitter: Option<String>,

    /// Exit code if the lock is held [default: 75]
    ///
    /// With 0, redlock run skips the command without a message, unless nested runs wait for each other.
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Failure handling")]
pub(crate) struct FailureArgs {
    /// If the servers are down: fail, skip, run or wait
    ///
    /// What to do if the servers cannot be reached or cannot serve. A wrong password (77) and
    /// settings that cannot work (78) always fail. [default: fail]
    #[arg(long, value_name = "ACTION")]
    pub on_unavailable: Option<OnUnavailable>,

    /// If the lock is lost: stop the command, or warn
    ///
    /// [default: stop]
    #[arg(long, value_name = "ACTION")]
    pub on_lost: Option<OnLost>,

    /// Signal that stops the command [default: TERM]
    ///
    /// Sent first when the lock is lost or --max-hold has expired. A name or a number.
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Label shown to waiters
    ///
    /// At most 1024 bytes.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Append a JSON line for each event to FILE
    ///
    /// "-" is stderr. The last line of every run is the event "ended".
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,

    /// Run CMD with each event as JSON on its stdin
    ///
    /// The events of --events, passed to /bin/sh -c CMD: one at a time and in order, in the
    /// background, and killed after 10 s. A hook never delays the command, the release or the exit,
    /// and its failure changes no exit code. REDLOCK_EVENT, REDLOCK_KEY, REDLOCK_OUTCOME and
    /// REDLOCK_EXIT have the main fields; the hook gets no other variable of redlock, so no
    /// password.
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    pub hook: Option<String>,

    /// Finished runs to keep for "redlock history"
    ///
    /// The number is approximate; 0 records nothing about this run. On this host the last 256 are
    /// kept, or none, and a label of more than about 200 bytes is left out. [default: 200]
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    pub history: Option<String>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop the command and its descendants before the lease ends, exit 79
    Stop,
    /// Warn and let the command run
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnUnavailable {
    /// Exit 69
    Fail,
    /// Exit 0 without running the command
    Skip,
    /// Run the command without a lock
    Run,
    /// Keep trying until --wait expires, then exit 69 (with -n: at once)
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreferArg {
    /// First in, first out
    Fair,
    /// An exclusive request goes ahead of every waiter without this preference
    Writers,
    /// A shared request joins current readers, even if writers are waiting
    Readers,
}
