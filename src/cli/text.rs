//! What help and manual pages say beside the options, for both the same.

/// A section with a heading.
pub(crate) struct Section {
    pub title: &'static str,
    pub blocks: &'static [Block],
}

pub(crate) enum Block {
    /// A paragraph.
    Text(&'static str),
    /// Terms, each with what it means.
    Terms(&'static [(&'static str, &'static str)]),
    /// Lines that stay as they are.
    Code(&'static str),
}

use Block::{Code, Terms, Text};

/// How a command is called.
pub(crate) fn usage(command: &str) -> &'static [&'static str] {
    match command {
        "run" => &[
            "redlock run [OPTIONS] --key KEY [--] COMMAND [ARG]...",
            "redlock run [OPTIONS] --key KEY -c STRING",
        ],
        "break" => &["redlock break [OPTIONS] KEY [--yes]"],
        "completions" => &["redlock completions bash|zsh|fish"],
        "help" => &["redlock help [COMMAND]"],
        _ => &["redlock COMMAND [OPTIONS]"],
    }
}

/// The end of the summary that `-h` prints.
pub(crate) fn summary_end(command: &str) -> &'static str {
    match command {
        "run" => {
            "\
DURATION is 90s, 5m, 1h30m or seconds; URL is redis://HOST[:PORT][/DB].
Every option is also a variable (REDLOCK_TTL) and a config file key (ttl).
More options, exit codes and examples: redlock run --help"
        }
        "break" => "More options and exit codes: redlock break --help",
        "completions" | "help" => "",
        _ => {
            "\
Examples:
  redlock run --key deploy -- ./deploy.sh
  redlock run --redis redis://cache.internal --key deploy -- ./deploy.sh

Options of a command: redlock COMMAND -h; in full: redlock help COMMAND"
        }
    }
}

/// The sections after the options.
pub(crate) fn sections(command: &str) -> Vec<Section> {
    match command {
        "run" => vec![VALUES, EXIT_STATUS, ENVIRONMENT, FILES, EXAMPLES],
        "break" => vec![VALUES, BREAK_EXIT_STATUS, BREAK_ENVIRONMENT, FILES, BREAK_EXAMPLES],
        "completions" => vec![COMPLETIONS_EXIT_STATUS, COMPLETIONS_EXAMPLES],
        "help" => vec![],
        _ => vec![EXIT_STATUS, TOP_ENVIRONMENT, FILES, EXAMPLES],
    }
}

const VALUES: Section = Section {
    title: "Values",
    blocks: &[Terms(&[
        ("DURATION", "90s, 5m, 1h30m, 100ms; a bare number is seconds, with a fraction if need be (0.5)."),
        (
            "URL",
            "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix:///PATH[?db=N]. Special characters in a password must \
             be percent-encoded: @ is %40, # is %23, / is %2F, a comma is %2C. Better keep the password out of the \
             URL: set REDLOCK_PASSWORD or give --password-file.",
        ),
        ("Booleans", "in variables and config files: 1 or 0, true or false, yes or no, on or off."),
    ])],
};

const EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[
        Text("The command's own; if a signal killed it, redlock dies by the same signal. Otherwise:"),
        Terms(&[
            ("64", "usage error, or a nested run on a key that is already held (see --reentrant)"),
            ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
            (
                "75",
                "the lock is held by another run or program, or a newer run took our place (-E changes it)",
            ),
            ("77", "a server or the file system refused us: password, permissions"),
            (
                "78",
                "servers or settings that cannot work: a bad config file, a replica, the same server twice, something \
                 else at the key, another --slots",
            ),
            ("79", "the lock was lost while the command ran, and the command was stopped"),
            ("124", "--max-hold expired, and the command was stopped"),
            ("125", "redlock itself failed"),
            ("126", "the command cannot be executed"),
            ("127", "the command was not found"),
        ]),
    ],
};

const BREAK_EXIT_STATUS: Section = Section {
    title: "Exit status",
    blocks: &[Terms(&[
        ("0", "the lock was free, or was broken"),
        ("64", "usage error; or the lock is held, and --yes is missing"),
        ("69", "the servers, or a majority of them, cannot be reached or cannot serve now"),
        ("77", "a server refused us: password, permissions"),
        ("78", "servers or settings that cannot work"),
    ])],
};

const COMPLETIONS_EXIT_STATUS: Section =
    Section { title: "Exit status", blocks: &[Terms(&[("0", "printed"), ("64", "usage error")])] };

/// What every command that has settings says about their sources.
const SOURCES: Block = Text(
    "Every option has a variable, such as REDLOCK_TTL for --ttl, and a key in the config file, such as ttl; except \
     --key, --command, --config and --yes. The command line comes before the environment, and the environment before \
     the config file. An empty variable counts as unset.",
);

const REDLOCK_CONFIG: (&str, &str) =
    ("REDLOCK_CONFIG", "the config file to read, and no other, as with --config");

const REDLOCK_PASSWORD: (&str, &str) = (
    "REDLOCK_PASSWORD",
    "the password of all servers whose URL has none. The command inherits it, like every variable; a password that \
     came by an option, a file or a config file it never gets.",
);

const ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[REDLOCK_CONFIG, REDLOCK_PASSWORD]),
        Text("Set for the command:"),
        Terms(&[
            ("REDLOCK_KEY", "the key; of several, one a line"),
            (
                "REDLOCK_FENCE",
                "a number that grows with every grant, for storage that can refuse stale writers; of several keys one \
                 each, separated by spaces",
            ),
            ("REDLOCK_TOKEN", "identifies this grant"),
            ("REDLOCK_ATTEMPTS", "number of attempts"),
            ("REDLOCK_SLOT", "which of the --slots it has, 0 to N-1"),
            ("REDLOCK_HELD", "locks held by this run and its ancestors (for nested runs)"),
        ]),
    ],
};

const BREAK_ENVIRONMENT: Section =
    Section { title: "Environment", blocks: &[SOURCES, Terms(&[REDLOCK_CONFIG, REDLOCK_PASSWORD])] };

const TOP_ENVIRONMENT: Section = Section {
    title: "Environment",
    blocks: &[
        SOURCES,
        Terms(&[
            ("REDLOCK_REDIS", "the servers, separated by commas; without any, locks are on this host"),
            REDLOCK_CONFIG,
            REDLOCK_PASSWORD,
        ]),
    ],
};

const FILES: Section = Section {
    title: "Files",
    blocks: &[Terms(&[
        ("/etc/redlock/config.toml", "settings for all users"),
        (
            "~/.config/redlock/config.toml",
            "settings of one user, each before that in /etc; in $XDG_CONFIG_HOME instead of ~/.config, if that is set",
        ),
        (
            "/run/lock/redlock-*",
            "locks on this host; in /dev/shm or /tmp where there is no /run/lock for all users",
        ),
    ])],
};

const EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[
        Text(
            "On this host, no server needed; then on all hosts that use the same server, or the same three:",
        ),
        Code(
            "redlock run --key deploy -- ./deploy.sh\n\
             redlock run --redis redis://cache --key deploy -- ./deploy.sh\n\
             redlock run -r redis://a,redis://b,redis://c -k deploy ./deploy.sh",
        ),
        Text("Skip this run without a message if the last one is still going:"),
        Code("redlock run --key backup -n -E 0 -- pg_dump -f db.sql app"),
        Text("Wait at most five minutes, then exit 75:"),
        Code("redlock run --key migrate --wait 5m -- ./migrate"),
        Text("From cron on every host, once a minute on one of them:"),
        Code("redlock run --key tick -n -E 0 --min-hold 55s -- ./tick"),
        Text("Four at once; which of the four is in REDLOCK_SLOT:"),
        Code("redlock run --key gpu --slots 4 -- ./train"),
        Text("A shell line:"),
        Code("redlock run --key nightly -c 'sync && purge'"),
    ],
};

const BREAK_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[Code(
        "redlock break deploy                   # who holds it?\n\
         redlock break deploy --yes",
    )],
};

const COMPLETIONS_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[Code(
        "source <(redlock completions bash)   # in ~/.bashrc\n\
         redlock completions zsh > ~/.zfunc/_redlock   # in $fpath\n\
         redlock completions fish > ~/.config/fish/completions/redlock.fish",
    )],
};
