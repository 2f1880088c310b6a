//! Manual pages.

use clap::{Arg, Command};

use super::cli::text::{self, Block};
use super::cli::{help, is_setting};

/// When the text of the pages last changed.
const DATE: &str = "2026-11-18";

pub fn page(command: &Command) -> String {
    let name = match command.get_name() {
        "redlock" => "redlock".to_owned(),
        name => format!("redlock-{name}"),
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut roff = head(&name, 1, &about);
    roff += ".SH SYNOPSIS\n.nf\n";
    for line in text::of(command.get_name()).usage {
        roff += &format!("{}\n", call(line));
    }
    roff += ".fi\n.SH DESCRIPTION\n";
    let description = help::description(command);
    if description.is_empty() {
        roff += &format!("{}.\n", escape(&about));
    }
    roff += &paragraphs(&description);
    if command.has_subcommands() {
        roff += ".SH COMMANDS\n";
        for subcommand in help::visible_subcommands(command) {
            let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
            let name = subcommand.get_name();
            let page = if name == "help" { name.to_owned() } else { format!("redlock-{name}(1)") };
            roff += &term(&bold(&page), &about);
        }
    }
    roff += ".SH OPTIONS\n";
    let groups = help::groups(command);
    for (heading, options) in &groups {
        if groups.len() > 1 {
            roff += &format!(".SS {heading}\n");
        }
        options.iter().for_each(|option| roff += &explained(&specification(option), option));
    }
    for section in text::of(command.get_name()).sections {
        roff += &format!(".SH {}\n", section.title.to_uppercase());
        roff += &blocks(section.blocks);
    }
    roff + &see_also(match command.get_name() {
        "redlock" => &[
            "redlock-run(1)",
            "redlock-break(1)",
            "redlock-doctor(1)",
            "redlock-completions(1)",
            "redlock.toml(5)",
        ],
        "run" => {
            &["redlock(1)", "redlock-break(1)", "redlock.toml(5)", "flock(1)", "timeout(1)", "redis-cli(1)"]
        }
        "break" => &["redlock(1)", "redlock-run(1)", "redlock.toml(5)"],
        _ => &["redlock(1)"],
    })
}

/// redlock.toml(5): every setting, in the order of the help.
pub fn config_page(command: &Command) -> String {
    let mut roff = head("redlock.toml", 5, "Configuration file of redlock");
    roff +=
        ".SH SYNOPSIS\n.nf\n\\fI/etc/redlock/config.toml\\fR\n\\fI~/.config/redlock/config.toml\\fR\n.fi\n";
    roff += ".SH DESCRIPTION\n";
    roff += &blocks(DESCRIPTION);
    roff += ".SH SETTINGS\n";
    let run = command.find_subcommand("run").expect("a subcommand");
    for (heading, options) in help::groups(run) {
        let settings: Vec<&Arg> = options.into_iter().filter(|option| is_setting(option)).collect();
        if settings.is_empty() {
            continue;
        }
        roff += &format!(".SS {heading}\n");
        for setting in settings {
            let value = match help::value_name(setting) {
                None => "BOOLEAN".to_owned(),
                Some("URL") => "URL or list of URLs".to_owned(),
                Some(name) => name.to_owned(),
            };
            let name = setting.get_long().expect("a setting has a name");
            roff += &explained(&format!("{} = {}", bold(name), italic(&value)), setting);
        }
    }
    for (title, text) in
        [("VALUES", VALUES), ("EXIT STATUS", STATUS), ("FILES", FILES), ("EXAMPLES", EXAMPLES)]
    {
        roff += &format!(".SH {title}\n{}", blocks(text));
    }
    roff + &see_also(&["redlock(1)", "redlock-run(1)"])
}

const DESCRIPTION: &[Block] = &[
    Block::Text(
        "Settings that apply unless the command line or the environment overrides them. The file is in TOML: a key, an \
         equals sign and a value on each line; comments begin with #. The keys are the long options without \
         their dashes; every option has one, except --key, --command, --config and others that apply to one invocation.",
    ),
    Block::Text(
        "Both files are read, if they exist, and merged setting by setting: the user's override those in /etc. With \
         --config FILE, or the variable REDLOCK_CONFIG, only that file is read, and it must exist; /dev/null stands \
         for none. \"redlock run -v\" prints which files were read.",
    ),
    Block::Text(
        "Set redis and require-server in /etc/redlock/config.toml to make sure that no job falls back to a lock on \
         this host alone.",
    ),
    Block::Text(
        "A file with a password in a URL should not be readable by all users; redlock warns about it. It is better to \
         use password-file.",
    ),
];

const VALUES: &[Block] = &[Block::Terms(&[
    ("DURATION", "a string such as \"90s\", \"5m\", \"1h30m\"; or a number of seconds"),
    ("N", "a whole number"),
    ("BOOLEAN", "true or false; in quotes also 1 or 0, yes or no, on or off"),
    ("URL", "a string: \"redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]\" or \"unix:///PATH[?db=N]\""),
    ("others", "a string; an empty one counts as unset"),
])];

const STATUS: &[Block] = &[Block::Text(
    "A file that cannot be read, is not TOML, or has an unknown key or a bad value makes redlock exit with 78. The \
     message names the file, the line and the key, and never shows a value that may be a password.",
)];

const FILES: &[Block] = &[Block::Terms(&[
    ("/etc/redlock/config.toml", "settings for all users"),
    ("$XDG_CONFIG_HOME/redlock/config.toml", "settings of one user"),
    ("~/.config/redlock/config.toml", "the same, if XDG_CONFIG_HOME is unset or empty"),
])];

const EXAMPLES: &[Block] = &[
    Block::Text("Three servers for every job on this host, and no fallback:"),
    Block::Code(
        "redis = [\n  \"redis://a.internal\",\n  \"redis://b.internal\",\n  \"redis://c.internal\",\n]\n\
         username = \"locker\"\npassword-file = \"/etc/redlock/password\"\nrequire-server = true\nttl = \"20s\"",
    ),
    Block::Text("A laptop without a server:"),
    Block::Code("local = true"),
];

fn head(name: &str, section: u8, about: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut letters = about.chars();
    let about: String = letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
    let title = name.to_uppercase();
    format!(
        ".\\\" Made from src/cli by tests/suite/cli/generated; do not edit.\n\
         .TH {title} {section} {DATE} \"redlock {version}\" \"redlock manual\"\n.SH NAME\n{} \\- {}\n",
        escape(name),
        escape(&about)
    )
}

fn explained(specification: &str, option: &Arg) -> String {
    let mut roff = term(specification, &help::explained(option));
    let values = help::values(option);
    if !values.is_empty() {
        roff += ".RS\n";
        values.iter().for_each(|(value, meaning)| roff += &term(&bold(value), meaning));
        roff += ".RE\n";
    }
    roff
}

fn specification(option: &Arg) -> String {
    let spellings: Vec<String> = super::spellings(option).iter().map(|name| bold(name)).collect();
    let value = help::value_name(option).map_or_else(String::new, |name| format!(" {}", italic(name)));
    spellings.join(", ") + &value
}

fn blocks(blocks: &[Block]) -> String {
    let mut roff = String::new();
    for block in blocks {
        roff += &match block {
            Block::Text(text) => format!(".PP\n{}\n", filled(text)),
            Block::Terms(_) | Block::Exits(_) => {
                block.terms().iter().map(|(name, meaning)| term(&bold(name), meaning)).collect()
            }
            Block::Code(code) => {
                let lines: String = code.lines().map(|line| guarded(&escape(line)) + "\n").collect();
                format!(".PP\n.RS 4\n.nf\n{lines}.fi\n.RE\n")
            }
        };
    }
    // A section starts a paragraph by itself.
    roff.strip_prefix(".PP\n").map(str::to_owned).unwrap_or(roff)
}

fn paragraphs(texts: &[String]) -> String {
    texts.iter().map(|text| filled(text)).collect::<Vec<_>>().join("\n.PP\n")
        + if texts.is_empty() { "" } else { "\n" }
}

fn term(name: &str, meaning: &str) -> String {
    format!(".TP\n{name}\n{}\n", filled(meaning))
}

fn see_also(pages: &[&str]) -> String {
    let reference = |page: &&str| {
        let (name, section) = page.split_once('(').expect("a section");
        format!("{}({section}", bold(name))
    };
    format!(".SH SEE ALSO\n{}\n", pages.iter().map(reference).collect::<Vec<_>>().join(",\n"))
}

/// Literal text is bold, placeholders are in italics, brackets are neither.
fn call(line: &str) -> String {
    let mut roff = String::new();
    let mut word = String::new();
    for c in line.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() || c == '-' {
            word.push(c);
            continue;
        }
        if word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()) {
            roff += &italic(&word);
        } else if !word.is_empty() {
            roff += &bold(&word);
        }
        word.clear();
        roff.push(c);
    }
    roff.trim_end().to_owned()
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escape(text))
}

fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escape(text))
}

/// Text in lines of a length that people can edit; the typesetter fills them.
fn filled(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in escape(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= 78 => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| guarded(line)).collect::<Vec<_>>().join("\n")
}

/// At the start of a line a period or a quote would be a typesetter command.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
        .replace('~', "\\(ti")
        .replace('^', "\\(ha")
}
