//! Completions in the shells themselves: options and values of redlock, then those of the command.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Job, PATIENCE, Pty, Redis, holder, processes, wait_until};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/completions");

/// A line that ends where TAB is pressed, and the shell's completion of it.
const COMPLETED: [(&str, &str); 14] = [
    ("redlock ru", "redlock run "),
    ("redlock run --conf", "redlock run --conf"), // --config or --conflict-exit-code
    ("redlock run --nonb", "redlock run --nonblock "),
    ("redlock run --prefer wr", "redlock run --prefer writers "),
    ("redlock run --on-unavailable sk", "redlock run --on-unavailable skip "),
    ("redlock run --signal US", "redlock run --signal USR"),
    ("redlock run --local-dir /et", "redlock run --local-dir /etc/"),
    ("redlock run -nk a -- setpri", "redlock run -nk a -- setpriv "),
    ("redlock run -w 5 --key a setpri", "redlock run -w 5 --key a setpriv "),
    ("redlock run --key a -- cat /etc/hostn", "redlock run --key a -- cat /etc/hostname "),
    ("redlock completions fi", "redlock completions fish "),
    ("redlock run -r redis://h:1,redis://i:2 --nonb", "redlock run -r redis://h:1,redis://i:2 --nonblock "),
    ("redlock run -r redis://h:1 -k a setpri", "redlock run -r redis://h:1 -k a setpriv "),
    ("redlock break deploy --ye", "redlock break deploy --yes "),
];

/// After these there is nothing to complete.
const SILENT: [&str; 4] =
    ["redlock run --ttl ", "redlock run --key ", "redlock run -w ", "redlock break --yes "];

/// The same with keys of locks, from `redlock list`: URL is a server's, DEAD that of none.
const KEYS: [(&str, &str); 6] = [
    ("redlock status -r URL dep", "redlock status -r URL deploy-web "),
    ("redlock break --redis=URL --yes dep", "redlock break --redis=URL --yes deploy-web "),
    ("redlock run -r URL --key app:", "redlock run -r URL --key app:db "),
    ("redlock status -r URL app:d", "redlock status -r URL app:db "),
    ("redlock status -r URL my", "redlock status -r URL my\\ key "),
    ("redlock status -r DEAD dep", "redlock status -r DEAD dep"),
];

struct Locks {
    redis: Redis,
    _holders: Vec<Job>,
}

impl Locks {
    fn new() -> Self {
        let redis = Redis::start();
        // A key that cannot be typed is not offered.
        let keys = ["deploy-web", "app:db", "my key", "deploy\n-odd"];
        Self { _holders: keys.map(|key| holder(&redis, key, &[])).into(), redis }
    }

    fn lines(&self) -> Vec<(String, String)> {
        let filled =
            |text: &str| text.replace("URL", &self.redis.url()).replace("DEAD", "redis://127.0.0.1:1");
        KEYS.iter().map(|(typed, completed)| (filled(typed), filled(completed))).collect()
    }
}

/// With the program under test in the PATH. Without a server it finds no locks, whatever other tests
/// have locked on this host.
fn with_redlock(mut shell: Command) -> Command {
    let directory = Path::new(env!("CARGO_BIN_EXE_redlock")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", directory.display())).env("REDLOCK_LOCAL_DIR", DIRECTORY);
    shell
}

/// Whether the line is on the screen. Shells paint a line in pieces, with additional blanks.
fn is_shown(shell: &Pty, line: &str) -> bool {
    let text = shell.screen().replace('\u{8}', "");
    text.split_whitespace().collect::<Vec<_>>().join(" ").contains(line)
}

#[track_caller]
fn wait_until_shown(shell: &Pty, line: &str) {
    wait_until(&format!("{line:?} on the screen"), || is_shown(shell, line));
}

/// How often a line is tried: completion waits only briefly for keys, and a busy machine may exceed
/// that.
const TRIES: usize = 5;

/// Types this and TAB, then a mark, and waits until both are on the screen as expected; ^U clears
/// the line.
#[track_caller]
fn expect_completion(shell: &Pty, typed: &str, completed: &str, mark: &str) {
    let is_completed = (0..TRIES).any(|attempt| {
        let mark = format!("{mark}-{attempt}.");
        let (line, began) = (format!("{completed}{mark}"), Instant::now());
        shell.type_in(&format!("{typed}\t{mark}"));
        while !is_shown(shell, &line) && began.elapsed() < PATIENCE / 2 {
            std::thread::sleep(Duration::from_millis(5)); // only paces the loop
        }
        shell.type_in("\x15");
        is_shown(shell, &line)
    });
    assert!(is_completed, "{typed:?} does not become {completed:?}\n{}", shell.screen());
}

fn check(shell: &Pty) {
    let locks = Locks::new();
    let plain = COMPLETED.map(|(typed, completed)| (typed.to_owned(), completed.to_owned()));
    for (number, (typed, completed)) in plain.into_iter().chain(locks.lines()).enumerate() {
        expect_completion(shell, &typed, &completed, &format!("MARK{number}"));
    }
    for (number, typed) in SILENT.iter().enumerate() {
        let mark = format!("NONE{number}");
        shell.type_in(&format!("{typed}\t\t{mark}"));
        wait_until_shown(shell, &format!("{typed}{mark}"));
        shell.type_in("\x15");
    }
}

#[test]
fn bash_completes_options_values_and_the_command() {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"])
        .env("PS1", "$ ")
        .env("HISTFILE", "/dev/null")
        .env("TERM", "dumb");
    let shell = Pty::program(with_redlock(bash));
    shell.type_in("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'\n");
    shell.type_in(&format!("source '{DIRECTORY}/redlock.bash'; echo REA''DY\n"));
    shell.wait_for("READY");
    check(&shell);
}

#[test]
fn zsh_completes_options_values_and_the_command() {
    if !processes::is_installed("zsh") {
        skip!("zsh is not installed");
    }
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-i"]).env("PS1", "$ ").env("TERM", "dumb");
    let shell = Pty::program(with_redlock(zsh));
    let options =
        "unset zle_bracketed_paste; setopt no_beep no_list_ambiguous no_auto_remove_slash; PROMPT_EOL_MARK=";
    let load = format!("fpath=('{DIRECTORY}' $fpath); autoload -U compinit; compinit -u -D");
    shell.type_in(&format!("{options}; {load}; echo REA''DY\n"));
    shell.wait_for("READY");
    check(&shell);
}

#[test]
fn fish_completes_options_values_and_the_command() {
    if !processes::is_installed("fish") {
        skip!("fish is not installed");
    }
    let home = tempfile::tempdir().unwrap();
    let offered = |line: &str| {
        let script = format!("source '{DIRECTORY}/redlock.fish'; complete -C '{line}'");
        let mut fish = with_redlock(Command::new("fish"));
        let output = fish.args(["-c", &script]).env("HOME", home.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        let offered = String::from_utf8_lossy(&output.stdout).into_owned();
        offered.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let locks = Locks::new();
    for (typed, completed) in locks.lines() {
        let word = completed.trim_start_matches(typed.rsplit_once(' ').unwrap().0).trim().replace('\\', "");
        let is_offered = !typed.contains("127.0.0.1:1 ");
        let as_it_should = (0..TRIES).any(|_| offered(&typed).contains(&word) == is_offered);
        assert!(as_it_should, "{typed:?}: {word:?}");
    }
    for (typed, completed) in COMPLETED {
        let word = completed.trim_end().rsplit(' ').next().unwrap();
        let offered = offered(typed);
        assert!(offered.iter().any(|offer| offer.starts_with(word)), "{typed:?}: {offered:?}");
    }
    for typed in SILENT {
        assert_eq!(offered(typed), Vec::<String>::new(), "{typed:?}");
    }
    assert!(offered("redlock run --key a -- tar --creat").contains(&"--create".to_owned()));
    assert!(
        offered("redlock run --key a -- tar --ttl").is_empty(),
        "redlock's options end before the command"
    );
}
