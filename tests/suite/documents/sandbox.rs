//! A place to try recipes: a server, and programs that only log that they ran.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::run::binary;
use crate::support::{Redis, executable};

/// The server in the documents.
const DOCUMENTED_SERVER: &str = "redis://cache.internal";
/// The directory of programs in the documents.
const DOCUMENTED_BIN: &str = "/usr/local/bin";

pub struct Sandbox {
    pub redis: Redis,
    directory: TempDir,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        let sandbox = Sandbox { redis: Redis::start(), directory: TempDir::new().expect("a directory") };
        fs::create_dir(sandbox.bin()).expect("a directory for programs");
        symlink(binary(), sandbox.bin().join("redlock")).expect("redlock among them");
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn bin(&self) -> PathBuf {
        self.path("bin")
    }

    /// The text with this sandbox's server and programs.
    pub fn localize(&self, text: &str) -> String {
        text.replace(DOCUMENTED_SERVER, &self.redis.url())
            .replace(DOCUMENTED_BIN, self.bin().to_str().unwrap())
    }

    /// The text with these servers instead of a.internal and the next ones.
    pub fn localize_several(&self, text: &str, servers: &[Redis]) -> String {
        let names = ["a", "b", "c"].map(|name| format!("redis://{name}.internal"));
        let text = self.localize(text);
        names.iter().zip(servers).fold(text, |text, (name, server)| text.replace(name, &server.url()))
    }

    /// Creates programs with these names, in bin, or as scripts in the working directory if they
    /// begin with "./".
    pub fn programs<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            let path = name.strip_prefix("./").map_or_else(|| self.bin().join(name), |name| self.path(name));
            let log = self.path("ran");
            executable(&path, &format!("#!/bin/sh\necho {name} >>'{}'\n", log.display()));
        }
    }

    /// Creates the scripts that the text runs as ./NAME; returns their names.
    pub fn scripts_of(&self, text: &str) -> BTreeSet<String> {
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let names = text.match_indices("./").filter(|(at, _)| !text[..*at].ends_with(['.', '/']));
        let names: BTreeSet<String> = names
            .map(|(at, _)| {
                &text[at..at + 2 + text[at + 2..].find(|c| !of_name(c)).unwrap_or(text.len() - at - 2)]
            })
            .map(str::to_owned)
            .collect();
        self.programs(names.iter().map(String::as_str));
        names
    }

    /// The programs that ran, in order.
    pub fn ran(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("ran")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Runs a program in the working directory; its environment has only these variables, a PATH
    /// and this sandbox's server.
    pub fn command(&self, argv: &[&str], variables: &[(&str, &str)]) -> Output {
        let search = format!("{}:/usr/bin:/bin", self.bin().display());
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).current_dir(self.directory.path()).env_clear();
        command.env("PATH", search).env("HOME", self.directory.path());
        command.env("REDLOCK_REDIS", self.redis.url());
        command.envs(variables.iter().copied()).output().unwrap_or_else(|error| panic!("{argv:?}: {error}"))
    }

    /// Runs a shell line, which must succeed and print nothing of its own.
    #[track_caller]
    pub fn shell(&self, line: &str, variables: &[(&str, &str)]) -> String {
        quiet_success(line, &self.command(&["bash", "-euo", "pipefail", "-c", line], variables))
    }
}

/// The output of a program that has exited with 0 and without output on stderr.
#[track_caller]
pub fn quiet_success(what: &str, output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{what}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
