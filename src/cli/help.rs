//! Help texts, made from the declaration: `-h` is a summary with one line for each option, `--help`
//! explains them.
//!
//! clap's own help is not used: it wraps nothing without another dependency, and its summaries are
//! wider than a terminal.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::text::{self, Block};

/// Column at which the texts of a summary start.
const COLUMN: usize = 31;
/// Lines longer than this are hard to read, however wide the terminal is.
const WIDEST: usize = 100;
const NARROWEST: usize = 40;

/// What `-h` prints for this command.
pub(crate) fn summary(command: &Command) -> String {
    let mut help = begin(command, WIDEST);
    if command.has_subcommands() {
        help += "\nCommands:\n";
        for subcommand in visible_subcommands(command) {
            let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
            help += &format!("  {:<13}{about}\n", subcommand.get_name());
        }
    }
    for (heading, options) in groups(command) {
        help += &format!("\n{heading}:\n");
        for option in options.iter().filter(|option| !option.is_hide_short_help_set()) {
            let about = option.get_help().map(ToString::to_string).unwrap_or_default();
            help += &format!("{:<COLUMN$}{about}\n", format!("  {}", specification(option)));
        }
    }
    let end = text::of(command.get_name()).summary_end;
    if !end.is_empty() {
        help += &format!("\n{end}\n");
    }
    help
}

/// What `--help` prints for this command on a terminal with this many columns.
pub(crate) fn explanation(command: &Command, columns: usize) -> String {
    let width = columns.clamp(NARROWEST, WIDEST);
    let mut help = begin(command, width);
    for paragraph in description(command) {
        help += "\n";
        help += &wrap(&paragraph, 0, width);
    }
    if command.has_subcommands() {
        help += "\nCommands:\n";
        for subcommand in visible_subcommands(command) {
            let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
            term(&mut help, subcommand.get_name(), &about, 15, width);
        }
    }
    for (heading, options) in groups(command) {
        help += &format!("\n{heading}:\n");
        for option in options {
            help += &format!("  {}\n", specification(option));
            help += &wrap(&explained(option), 10, width);
            for (value, meaning) in values(option) {
                help += &wrap(&format!("{value}: {meaning}"), 12, width);
            }
        }
    }
    for section in text::of(command.get_name()).sections {
        help += &format!("\n{}:\n", section.title);
        for (at, block) in section.blocks.iter().enumerate() {
            match block {
                Block::Text(paragraph) => {
                    help += if at > 0 { "\n" } else { "" };
                    help += &wrap(paragraph, 2, width);
                }
                Block::Terms(_) | Block::Exits(_) => {
                    let terms = block.terms();
                    let longest = terms.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
                    let column = (longest + 4).min(22);
                    for (name, meaning) in terms {
                        term(&mut help, &name, meaning, column, width);
                    }
                }
                Block::Code(lines) => lines.lines().for_each(|line| help += &format!("    {line}\n")),
            }
        }
    }
    help
}

fn begin(command: &Command, width: usize) -> String {
    let mut begin = wrap(&command.get_about().map(ToString::to_string).unwrap_or_default(), 0, width);
    begin += "\nUsage: ";
    begin += &text::of(command.get_name()).usage.join("\n       ");
    begin + "\n"
}

/// The paragraphs of the long description after the summary.
pub(crate) fn description(command: &Command) -> Vec<String> {
    let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    paragraphs(&about).skip(1).collect()
}

pub(crate) fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

/// The options by heading, in the order of declaration; those without a heading are "Options".
pub(crate) fn groups(command: &Command) -> Vec<(&str, Vec<&Arg>)> {
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for option in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
        let heading = option.get_help_heading().unwrap_or("Options");
        match groups.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, options)) => options.push(option),
            None => groups.push((heading, vec![option])),
        }
    }
    // An option whose text a command replaces is declared last.
    for (_, options) in &mut groups {
        options.sort_by_key(|option| option.get_id() == "help_short");
    }
    groups
}

/// "-k, --key KEY"
pub(crate) fn specification(option: &Arg) -> String {
    if option.get_id() == "help_short" {
        return "-h, --help".into();
    }
    let mut specification = match (option.get_short(), option.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, long) => format!("    --{}", long.unwrap_or_default()),
    };
    if let Some(value) = value_name(option) {
        let _ = write!(specification, " {value}");
    }
    specification
}

/// `None` for a flag.
pub(crate) fn value_name(option: &Arg) -> Option<&str> {
    let takes_value = matches!(option.get_action(), ArgAction::Set | ArgAction::Append);
    let names = option.get_value_names().filter(|_| takes_value)?;
    names.first().map(clap::builder::Str::as_str)
}

/// The line of the summary and the paragraphs after it, as one text.
pub(crate) fn explained(option: &Arg) -> String {
    let help = option.get_long_help().or(option.get_help()).map(ToString::to_string).unwrap_or_default();
    let join = |text: String, next: String| {
        let end = if next.starts_with('[') || text.ends_with('.') { "" } else { "." };
        format!("{text}{end} {next}")
    };
    paragraphs(&help).reduce(join).unwrap_or_default()
}

/// The values of an option that takes one of a few, and their meanings.
pub(crate) fn values(option: &Arg) -> Vec<(String, String)> {
    if value_name(option).is_none() {
        return Vec::new();
    }
    let meaning = |value: &clap::builder::PossibleValue| {
        Some((value.get_name().to_owned(), value.get_help()?.to_string()))
    };
    option.get_possible_values().iter().filter_map(meaning).collect()
}

fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A name, with its meaning in the column beside it.
fn term(help: &mut String, name: &str, meaning: &str, column: usize, width: usize) {
    let wrapped = wrap(meaning, column, width);
    let name = format!("  {name}");
    if name.len() + 2 > column {
        *help += &format!("{name}\n{wrapped}");
    } else {
        *help += &format!("{name:<column$}{}", wrapped.trim_start());
    }
}

/// Lines of at most `width` columns, indented by `indent` blanks. A longer word gets a line of its
/// own.
fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > width {
            lines += &format!("{:indent$}{line}\n", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &format!("{:indent$}{line}\n", "")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    const SUMMARY_WIDTH: usize = 80;

    fn commands() -> Vec<Command> {
        let top = Cli::command();
        let mut all: Vec<Command> = visible_subcommands(&top).cloned().collect();
        all.push(top);
        all
    }

    #[test]
    fn a_summary_fits_a_small_terminal() {
        for command in commands() {
            let summary = summary(&command);
            let wide = summary.lines().find(|line| line.chars().count() > SUMMARY_WIDTH);
            assert_eq!(wide, None, "{}", command.get_name());
            assert!(
                summary.lines().count() <= 56,
                "{}: {} lines",
                command.get_name(),
                summary.lines().count()
            );
            assert!(summary.lines().all(|line| line == line.trim_end()), "{summary}");
        }
    }

    #[test]
    fn an_explanation_fits_the_terminal() {
        for command in commands() {
            for columns in [60, 80, 100] {
                let text = explanation(&command, columns);
                // Examples and usage lines are not wrapped.
                let is_prose =
                    |line: &&str| !line.trim_start().starts_with("redlock") && !line.starts_with("Usage");
                let wide = text.lines().filter(is_prose).find(|line| line.chars().count() > columns);
                assert_eq!(wide, None, "{} at {columns}", command.get_name());
            }
        }
    }

    #[test]
    fn every_option_is_explained_and_most_are_in_the_summary() {
        for command in commands() {
            let (summary, explanation) = (summary(&command), explanation(&command, 80));
            for option in command.get_arguments().filter_map(Arg::get_long) {
                assert!(explanation.contains(&format!("--{option}")), "--{option}");
            }
            assert!(!explanation.replace("...", "").contains(".."), "{explanation}");
            assert!(summary.contains("-h"), "{summary}");
        }
    }

    #[test]
    fn words_are_never_cut() {
        assert_eq!(wrap("aa bb cc", 2, 7), "  aa bb\n  cc\n");
        assert_eq!(wrap("aaaaaaaaaa b", 0, 4), "aaaaaaaaaa\nb\n");
    }
}
