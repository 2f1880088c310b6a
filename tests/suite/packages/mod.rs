//! Installed files run. scripts/check-packages builds and tries the packages of a release, which
//! takes minutes; here they are made from the binary under test.

mod dependencies;
mod workflows;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::documents::blocks::path;
use crate::support::executable;
use crate::support::run::binary;

/// A small program that executes the binary under test, which is large.
fn stand_in(directory: &Path) -> PathBuf {
    let program = directory.join("redlock");
    executable(&program, &format!("#!/bin/sh\nexec '{}' \"$@\"\n", binary().display()));
    program
}

/// The files below a directory, as names relative to it.
fn files_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(directory).expect("below").to_str().expect("UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn redlock_runs_when_installed_below_a_prefix() {
    let work = TempDir::new().unwrap();
    let stage = work.path().join("stage");
    let mut install = Command::new("sh");
    // The umask of the packager's shell must not matter.
    install.args(["-c", "umask 077; exec \"$0\" /opt/locks"]).arg(path("scripts/install"));
    install.env("DESTDIR", &stage).env("BINARY", stand_in(work.path())).current_dir("/");
    assert!(install.status().expect("scripts/install").success());

    let installed = files_below(&stage);
    let mut expected: Vec<String> = [
        "bin/redlock",
        "share/bash-completion/completions/redlock",
        "share/zsh/site-functions/_redlock",
        "share/fish/vendor_completions.d/redlock.fish",
        "share/elvish/lib/redlock.elv",
        "share/doc/redlock/README.md",
        "share/doc/redlock/CHANGELOG.md",
        "share/doc/redlock/CONTRIBUTING.md",
        "share/doc/redlock/SECURITY.md",
        "share/doc/redlock/LICENSE",
        "share/doc/redlock/config.toml",
    ]
    .map(str::to_owned)
    .into();
    expected.extend(files_below(&path("docs")).iter().map(|file| format!("share/doc/redlock/docs/{file}")));
    expected.extend(files_below(&path("man")).iter().map(|page| {
        let section = page.rsplit('.').next().expect("a section");
        format!("share/man/man{section}/{page}")
    }));
    let mut expected: Vec<String> = expected.iter().map(|file| format!("opt/locks/{file}")).collect();
    expected.sort();
    assert_eq!(installed, expected);
    for file in installed {
        let mode = fs::metadata(stage.join(&file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if file.ends_with("bin/redlock") { 0o755 } else { 0o644 }, "{file}");
    }

    let redlock = stage.join("opt/locks/bin/redlock");
    let locks = work.path().join("locks");
    fs::create_dir(&locks).unwrap();
    let mut run = Command::new(&redlock);
    run.env_clear().args(["run", "--local", "--local-dir"]).arg(&locks).args(["--key", "k", "--"]);
    let output = run.arg(&redlock).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), concat!("redlock ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn nothing_is_installed_without_a_binary() {
    let work = TempDir::new().unwrap();
    let stage = work.path().join("stage");
    let mut install = Command::new(path("scripts/install"));
    let output =
        install.arg("/usr").env("DESTDIR", &stage).env("BINARY", work.path().join("none")).output().unwrap();
    assert_eq!(output.status.code(), Some(66), "{output:?}");
    assert!(!stage.exists());
}

/// Built twice with the same bytes, unpacked, installed by dpkg where available, and removed.
#[test]
fn the_packages_install_and_run() {
    let work = TempDir::new().unwrap();
    let mut check = Command::new(path("scripts/check-packages"));
    check.arg("--binary").arg(stand_in(work.path())).env("SOURCE_DATE_EPOCH", "1700000000");
    let output = check.output().expect("scripts/check-packages");
    assert!(output.status.success(), "{output:?}");
}

/// scripts/check-crate also builds and installs it, which takes minutes.
#[test]
fn the_crate_contains_what_it_is_built_and_installed_from() {
    let mut list = Command::new(env!("CARGO"));
    list.args(["package", "--list", "--locked", "--offline", "--allow-dirty"]).current_dir(path("."));
    let output = list.output().expect("cargo package");
    assert!(output.status.success(), "{output:?}");
    let listed = String::from_utf8(output.stdout).expect("UTF-8");
    let listed: Vec<&str> = listed.lines().collect();
    for directory in ["src", "lua", "man", "completions", "docs", "packaging"] {
        for file in files_below(&path(directory)) {
            assert!(listed.contains(&format!("{directory}/{file}").as_str()), "{directory}/{file}");
        }
    }
    for file in ["build.rs", "Cargo.lock", "README.md", "CHANGELOG.md", "LICENSE", "scripts/install"] {
        assert!(listed.contains(&file), "{file}");
    }
}
