//! What waiters are told about this run.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use nix::unistd::{gethostname, getuid};

use crate::lock::HolderInfo;

/// `program` is the command's name. Its arguments are not shown: they may be secret.
pub(super) fn describe(program: &OsStr, label: &str) -> HolderInfo {
    let program = Path::new(program).file_name().unwrap_or(program);
    HolderInfo {
        host: gethostname().map_or_else(|_| "?".into(), |host| host.to_string_lossy().into_owned()),
        pid: std::process::id().to_string(),
        user: user(),
        label: label.to_owned(),
        command: program.to_string_lossy().into_owned(),
        job_url: ci_job_url(variable).unwrap_or_default(),
    }
}

/// Services may set neither variable. Not by getpwuid, which may ask a directory over the network.
fn user() -> String {
    let uid = getuid().to_string();
    let named = ["USER", "LOGNAME"].into_iter().find_map(variable);
    let from_file = || name_of(&uid, &std::fs::read_to_string("/etc/passwd").ok()?);
    named.or_else(from_file).unwrap_or_else(|| format!("uid {uid}"))
}

/// From lines of "name:password:uid:...".
fn name_of(uid: &str, passwd: &str) -> Option<String> {
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(uid))?;
    line.split(':').next().map(Into::into)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The page of the CI job that we run in.
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
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:0::/:/bin/sh\n";
        assert_eq!(name_of("1000", passwd).unwrap(), "me");
        assert_eq!(name_of("1", passwd), None);
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
