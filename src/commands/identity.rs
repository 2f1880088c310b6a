//! What waiters see of this run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use nix::unistd::{gethostname, getuid};

use crate::lock::{HolderInfo, PROTOCOL, Renewal, VERSION, without_login};

/// Only the name of the command is published: its arguments may be secret.
pub(super) fn describe(argv: &[OsString], label: &str) -> HolderInfo {
    HolderInfo {
        host: gethostname().map_or_else(|_| String::new(), |host| host.to_string_lossy().into_owned()),
        pid: std::process::id().to_string(),
        user: user(),
        label: label.to_owned(),
        command: command_name(argv, Path::is_file),
        job_url: without_login(&ci_job_url(variable).unwrap_or_default()),
        version: VERSION.to_owned(),
        protocol: Some(PROTOCOL),
        renewal: Renewal::Run,
        once: false,
        cancellable: false,
    }
}

/// Interpreters, and the short options after which no script file follows: its text is in the
/// arguments or on stdin.
const INTERPRETERS: [(&[&str], &str); 6] = [
    (&["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"], "cs"),
    (&["python", "pypy"], "cm"),
    (&["perl"], "eE"),
    (&["ruby", "lua", "Rscript", "osascript"], "e"),
    (&["node", "deno", "bun"], "ep"),
    (&["php"], "r"),
];

/// The base name of the program or of the script that it interprets: half of all jobs would be
/// called "sh". Only an existing file counts as a script: an argument may be the value of an
/// option.
fn command_name(argv: &[OsString], is_file: impl Fn(&Path) -> bool) -> String {
    let [program, arguments @ ..] = argv else { return String::new() };
    let program = base_name(program);
    let Some(no_script_after) = no_script_after(&program) else { return program };
    let ends_options = |argument: &&OsString| match argument.as_encoded_bytes() {
        b"-" | b"--eval" | b"--print" | b"--command" => true,
        [b'-', b'-', ..] => false,
        [b'-', options @ ..] => options.iter().any(|option| no_script_after.as_bytes().contains(option)),
        _ => false,
    };
    let mut candidates = arguments.iter().take_while(|argument| !ends_options(argument));
    let script = candidates
        .find(|argument| !argument.as_encoded_bytes().starts_with(b"-") && is_file(Path::new(argument)));
    script.map_or(program, |script| base_name(script))
}

/// `None` if the program is no interpreter. Many names end with a version: "python3.11".
fn no_script_after(program: &str) -> Option<&'static str> {
    let name = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let (_, options) = INTERPRETERS.iter().find(|(names, _)| names.contains(&name))?;
    Some(options)
}

fn base_name(path: &OsStr) -> String {
    Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned()
}

fn user() -> String {
    let named = || ["USER", "LOGNAME"].into_iter().find_map(variable);
    user_name(&getuid().to_string(), &passwd(), named)
}

pub(super) fn name_of_user(uid: u32) -> String {
    user_name(&uid.to_string(), &passwd(), || None)
}

/// getpwuid is avoided: it may query a directory over the network.
fn passwd() -> String {
    std::fs::read_to_string("/etc/passwd").unwrap_or_default()
}

/// A variable, which anyone can set, counts only for a user that the file does not have, and cannot
/// be the name of one that it has.
fn user_name(uid: &str, passwd: &str, variable: impl FnOnce() -> Option<String>) -> String {
    let is_taken = |name: &String| passwd.lines().any(|line| line.split(':').next() == Some(name));
    let named = || variable().filter(|name| !is_taken(name));
    name_of(uid, passwd).or_else(named).unwrap_or_else(|| format!("uid {uid}"))
}

/// From lines of "name:password:uid:...".
fn name_of(uid: &str, passwd: &str) -> Option<String> {
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(uid))?;
    line.split(':').next().map(Into::into)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The page of the CI job that this process runs in.
fn ci_job_url(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let github = || {
        let [server, repository, run] =
            ["GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"].map(&variable);
        Some(format!("{}/{}/actions/runs/{}", server?, repository?, run?))
    };
    // GitLab, Buildkite, CircleCI; Jenkins last, as its name is the least specific.
    let variables = ["CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL"];
    github().or_else(|| variables.into_iter().find_map(&variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(set: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn an_interpreter_is_named_after_its_script() {
        for (argv, name) in [
            (&["/usr/bin/rsync", "-a", "script"][..], "rsync"),
            (&["bash", "/opt/script"], "script"),
            (&["bash", "-e", "-o", "pipefail", "/opt/script", "secret"], "script"),
            (&["/usr/bin/python3.11", "-u", "script", "secret"], "script"),
            (&["python3", "-m", "script"], "python3"),
            (&["sh", "-c", "script"], "sh"),
            (&["sh", "-ec", "script"], "sh"),
            (&["sh", "-s", "script"], "sh"),
            (&["perl", "-e", "script"], "perl"),
            (&["node", "--eval", "script"], "node"),
            (&["php", "-d", "key=secret", "script"], "script"),
            (&["sh", "secret"], "sh"),
            (&["sh"], "sh"),
            (&["shred", "script"], "shred"),
        ] {
            let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
            assert_eq!(command_name(&argv, |path| path.ends_with("script")), name, "{argv:?}");
        }
    }

    #[test]
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:0::/:/bin/sh\n";
        assert_eq!(name_of("1000", passwd).unwrap(), "me");
        assert_eq!(name_of("1", passwd), None);
        let with = |uid: &str, variable: &str| user_name(uid, passwd, || Some(variable.to_owned()));
        assert_eq!([with("1000", "root"), with("1", "root"), with("1", "ann")], ["me", "uid 1", "ann"]);
    }

    #[test]
    fn each_ci_system_has_its_job_url() {
        let github = [
            ("GITHUB_SERVER_URL", "https://github.example"),
            ("GITHUB_REPOSITORY", "a/b"),
            ("GITHUB_RUN_ID", "7"),
        ];
        assert_eq!(ci_job_url(with(&github)).unwrap(), "https://github.example/a/b/actions/runs/7");
        assert_eq!(ci_job_url(with(&github[..2])), None);
        for name in ["CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL"] {
            assert_eq!(ci_job_url(with(&[(name, "https://ci/1")])).unwrap(), "https://ci/1");
        }
        assert_eq!(ci_job_url(with(&[])), None);
    }
}
