//! The parts of help and manual pages that are not about options; both print the same.

use super::super::exit::meaning;

/// A section with a heading.
pub(crate) struct Section {
    pub title: &'static str,
    pub blocks: &'static [Block],
}

pub(crate) enum Block {
    /// A paragraph.
    Text(&'static str),
    Terms(&'static [(&'static str, &'static str)]),
    /// Exit codes. An empty text stands for the usual meaning of the code.
    Exits(&'static [(u8, &'static str)]),
    /// Lines that stay as they are.
    Code(&'static str),
}

use Block::{Code, Exits, Terms, Text};

impl Block {
    /// Terms and their meanings, for a block that has any.
    pub(crate) fn terms(&self) -> Vec<(String, &'static str)> {
        match self {
            Terms(terms) => terms.iter().map(|(name, text)| ((*name).to_owned(), *text)).collect(),
            Exits(codes) => codes
                .iter()
                .map(|(code, text)| (code.to_string(), if text.is_empty() { meaning(*code) } else { *text }))
                .collect(),
            Text(_) | Code(_) => Vec::new(),
        }
    }
}

pub(crate) struct CommandText {
    /// How it is called.
    pub usage: &'static [&'static str],
    /// The end of the summary that `-h` prints.
    pub summary_end: &'static str,
    /// The sections after the options.
    pub sections: &'static [Section],
}

/// `command`: a subcommand's name; any other text means the program itself.
pub(crate) fn of(command: &str) -> &'static CommandText {
    match command {
        "run" => &super::run::TEXT,
        "acquire" => &super::acquire::TEXT,
        "extend" => &super::token::EXTEND,
        "release" => &super::token::RELEASE,
        "status" => &super::status::TEXT,
        "list" => &super::list::TEXT,
        "doctor" => &super::doctor::TEXT,
        "history" => &super::history::TEXT,
        "break" => &super::break_lock::TEXT,
        "completions" => &COMPLETIONS,
        "help" => &HELP,
        _ => &REDLOCK,
    }
}

static REDLOCK: CommandText = CommandText {
    usage: &["redlock COMMAND [OPTIONS]"],
    summary_end: "\
Examples:
  redlock run --key deploy -- ./deploy.sh
  redlock run --redis redis://cache.internal --key deploy -- ./deploy.sh

Options of a command: redlock COMMAND -h; in full: redlock help COMMAND",
    sections: &[super::run::EXIT_STATUS, TOP_ENVIRONMENT, FILES, super::run::EXAMPLES],
};

static COMPLETIONS: CommandText = CommandText {
    usage: &["redlock completions bash|zsh|fish|elvish|powershell"],
    summary_end: "",
    sections: &[COMPLETIONS_EXIT_STATUS, COMPLETIONS_EXAMPLES],
};

static HELP: CommandText = CommandText { usage: &["redlock help [COMMAND]"], summary_end: "", sections: &[] };

pub(super) const VALUES: Section = Section {
    title: "Values",
    blocks: &[Terms(&[
        ("DURATION", "90s, 5m, 1h30m, 100ms; a bare number is seconds, fractions allowed (0.5)."),
        (
            "URL",
            "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix:///PATH[?db=N]. Special characters in a password must \
             be percent-encoded: @ is %40, # is %23, / is %2F, a comma is %2C. It is better to keep the password out \
             of the URL: set REDLOCK_PASSWORD or give --password-file.",
        ),
        ("Booleans", "in variables and config files: 1 or 0, true or false, yes or no, on or off."),
    ])],
};

/// Where settings come from, for every command that has any.
pub(super) const SOURCES: Block = Text(
    "Every option has a variable, such as REDLOCK_TTL for --ttl, and a key in the config file, such as ttl, except \
     --key, --command, --config and other options that apply to one invocation. The command line takes precedence \
     over the environment, and the environment over the config file. An empty variable counts as unset.",
);

pub(super) const REDLOCK_CONFIG: (&str, &str) =
    ("REDLOCK_CONFIG", "the only config file to read, as with --config");

pub(super) const REDLOCK_PASSWORD: (&str, &str) = (
    "REDLOCK_PASSWORD",
    "the password for all servers whose URL has none. The command inherits it, like every variable. It never \
     receives a password from an option, a file or a config file.",
);

pub(super) const FILES: Section = Section {
    title: "Files",
    blocks: &[Terms(&[
        ("/etc/redlock/config.toml", "settings for all users"),
        (
            "~/.config/redlock/config.toml",
            "settings of one user, which override those in /etc; in $XDG_CONFIG_HOME instead of ~/.config, if set",
        ),
        (
            "/run/lock/redlock-*",
            "locks on this host; in /var/tmp or /tmp if there is no /run/lock for all users",
        ),
    ])],
};

/// For commands that run no other command.
pub(super) const ENVIRONMENT: Section =
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

const COMPLETIONS_EXIT_STATUS: Section =
    Section { title: "Exit status", blocks: &[Exits(&[(0, "printed"), (64, "")])] };

const COMPLETIONS_EXAMPLES: Section = Section {
    title: "Examples",
    blocks: &[Code(
        "source <(redlock completions bash)   # in ~/.bashrc\n\
         redlock completions zsh > ~/.zfunc/_redlock   # in $fpath\n\
         redlock completions fish > ~/.config/fish/completions/redlock.fish\n\
         redlock completions elvish > ~/.config/elvish/lib/redlock.elv\n\
         redlock completions powershell >> $PROFILE",
    )],
};
