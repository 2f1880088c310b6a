//! The settings and this host.

use std::path::PathBuf;

use nix::unistd::{Uid, geteuid};

use super::{Check, Finding, Level};
use crate::child::{ProcView, has_pidfd, has_subreaper};
use crate::lock::checkup::{HostTrial, check_directory_for_locks};
use crate::lock::{BackendError, Mount};
use crate::report::{backend_error, cannot_see_processes};
use crate::settings::DoctorSettings;

#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    /// Where locks of this host are; `None` if there is no directory that all users share.
    pub directory: Option<PathBuf>,
    /// A lock that was taken and released there.
    pub trial: Option<Result<HostTrial, BackendError>>,
    /// A process can adopt the orphans of its descendants.
    pub has_subreaper: bool,
    /// /proc shows the processes of this PID namespace.
    pub has_proc: bool,
    /// A signal can be sent to a process instead of a process ID.
    pub has_pidfd: bool,
    /// Whose processes can be signalled.
    pub user: Uid,
}

impl HostFacts {
    pub(super) fn gather(settings: &DoctorSettings) -> Self {
        Self {
            trial: settings.directory.as_deref().map(check_directory_for_locks),
            directory: settings.directory.clone(),
            has_subreaper: has_subreaper(),
            has_proc: ProcView::check() == ProcView::Ours,
            has_pidfd: has_pidfd(),
            user: geteuid(),
        }
    }
}

pub(super) fn check_settings(settings: &DoctorSettings) -> Vec<Finding> {
    let check = Check::SETTINGS;
    let mut findings: Vec<Finding> =
        settings.location.warnings.iter().map(|text| check.warning(text, "", "")).collect();
    findings.extend(settings.origins.unknown_variables.iter().map(|name| {
        check.warning(
            format!("the variable {name} is not a redlock setting"),
            "a misspelled setting has no effect",
            "unset it, or correct its name: redlock run --help lists the options",
        )
    }));
    let backend = &settings.location.backend;
    if backend.is_unconfigured() {
        findings.push(check.warning(
            "no server is configured: locks are on this host only",
            "runs on other hosts are not kept out",
            "set REDLOCK_REDIS, or redis in the config file; if intended, set --local or local = true",
        ));
    } else if backend.ttl().is_none() && !backend.is_this_host() {
        findings.push(check.warning(
            "--ttl is none: locks never expire",
            "a lock whose run was killed stays until redlock break frees it",
            "set a --ttl",
        ));
    }
    findings
}

/// `is_backend`: locks would be on this host.
pub(super) fn check_host(host: &HostFacts, is_backend: bool) -> Vec<Finding> {
    let tree = "processes started by the command might survive it when the lock is lost";
    vec![
        directory(host, if is_backend { Level::Problem } else { Level::Warning }),
        if host.has_subreaper {
            Check::SUBREAPER.ok("subreaper")
        } else {
            let text = "the kernel refuses PR_SET_CHILD_SUBREAPER";
            Check::SUBREAPER.problem(text, tree, "use Linux 3.4 or later, and do not filter this call")
        },
        if host.has_proc {
            Check::PROC.ok("/proc")
        } else {
            Check::PROC.problem(
                "/proc cannot be used",
                "redlock run refuses to start (78)",
                cannot_see_processes(),
            )
        },
        if host.has_pidfd {
            let limited =
                "pidfd, for this user's processes (use sudo redlock run ..., not redlock run ... sudo)";
            Check::PIDFD.ok(if host.user.is_root() { "pidfd" } else { limited })
        } else {
            let text = "the kernel refuses pidfd_open";
            Check::PIDFD.problem(text, tree, "use Linux 5.3 or later, and do not filter this call")
        },
    ]
}

fn directory(host: &HostFacts, failed: Level) -> Finding {
    let check = Check::LOCK_DIRECTORY;
    let path = host.directory.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    match &host.trial {
        None => check.found(
            failed,
            "there is no directory in which all users can share locks",
            "locks on this host cannot be taken",
            "name one with --local-dir",
        ),
        Some(Err(error)) => check.found(
            failed,
            backend_error(error),
            "locks on this host cannot be taken",
            "use --local-dir with a directory that all users can write to and that has the sticky bit",
        ),
        Some(Ok(HostTrial { mount: Mount::OnThisHost, took })) => {
            check.ok(format!("{path}: locks work ({})", super::text::short(*took)))
        }
        Some(Ok(HostTrial { mount: Mount::OverNetwork, .. })) => check.warning(
            format!("{path} is on a network file system"),
            "other hosts may not see locks there, and a lock may be lost with the connection",
            "name a local directory with --local-dir",
        ),
        Some(Ok(HostTrial { mount: Mount::PrivateToService, .. })) => check.warning(
            format!("{path} is private to this service"),
            "runs outside the service are not kept out",
            "set PrivateTmp=no, or name another directory with --local-dir",
        ),
    }
}
