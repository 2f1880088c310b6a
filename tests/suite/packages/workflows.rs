//! The workflows of .github, the GitHub Action and the scripts of a release.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::documents::blocks::{path, read};
use crate::support::executable;
use crate::support::processes::is_installed;

fn workflows() -> Vec<PathBuf> {
    let found = fs::read_dir(path(".github/workflows")).expect("workflows");
    let mut found: Vec<PathBuf> = found.map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    assert!(found.len() >= 3, "{found:?}");
    found
}

/// A tag can be moved; a commit cannot.
#[test]
fn actions_are_pinned_by_commit() {
    let mut checked = 0;
    for file in workflows() {
        for line in fs::read_to_string(&file).unwrap().lines() {
            let Some((_, used)) = line.split_once("uses: ") else { continue };
            checked += 1;
            let commit = used.split_once('@').map_or("", |(_, rest)| rest.split(' ').next().unwrap());
            let is_pinned = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(
                used.starts_with("./") || is_pinned && used.contains(" # v"),
                "{}: {line}",
                file.display()
            );
        }
    }
    assert!(checked > 5, "{checked}");
}

#[test]
fn workflows_call_scripts_that_exist() {
    for file in workflows() {
        let text = fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("scripts/") {
            let name = text[at..].split(|c: char| !(c.is_ascii_alphanumeric() || "-/".contains(c))).next();
            assert!(path(name.unwrap()).exists(), "{}: {name:?}", file.display());
        }
    }
}

/// The linters come from PyPI and npm, so they are not everywhere; CI has them.
#[test]
fn linters_find_nothing() {
    if is_installed("zizmor") {
        let mut zizmor = Command::new("zizmor");
        let output = zizmor.args(["--offline", "--no-progress", ".github", "action"]).current_dir(path("."));
        assert_succeeded(&output.output().unwrap());
    } else {
        eprintln!("skipped: zizmor is not installed");
    }
    if is_installed("action-validator") {
        let work = TempDir::new().unwrap();
        for file in workflows().into_iter().chain([path("action/action.yml")]) {
            let copy = work.path().join(file.file_name().unwrap());
            // A permission that GitHub has, but the linter's schema does not have yet.
            let text = fs::read_to_string(&file).unwrap();
            let known = text.lines().filter(|line| !line.trim_start().starts_with("attestations: write"));
            fs::write(&copy, known.collect::<Vec<_>>().join("\n")).unwrap();
            assert_succeeded(&Command::new("action-validator").arg(copy).output().unwrap());
        }
    } else {
        eprintln!("skipped: action-validator is not installed");
    }
}

#[track_caller]
fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// A directory with a script and the files that it reads.
fn sources(script: &str, changelog: &str) -> TempDir {
    let work = TempDir::new().unwrap();
    fs::create_dir(work.path().join("scripts")).unwrap();
    executable(&work.path().join("scripts").join(script), &read(&format!("scripts/{script}")));
    fs::write(work.path().join("CHANGELOG.md"), changelog).unwrap();
    let manifest = "[package]\nversion = \"1.2.3\"\nrepository = \"https://example.com/redlock\"\n";
    fs::write(work.path().join("Cargo.toml"), manifest).unwrap();
    work
}

#[test]
fn release_notes_are_the_section_of_a_tag_that_fits_the_sources() {
    let notes = |changelog: &str, tag: &str| {
        let work = sources("release-notes", changelog);
        Command::new(work.path().join("scripts/release-notes")).arg(tag).output().unwrap()
    };
    let changelog =
        "# Changelog\n\n## 1.2.3 (2026-11-18)\n\n### Locks\n\n- New.\n\n## 1.2.2 (2026-01-01)\n\n- Old.\n";
    let good = notes(changelog, "v1.2.3");
    assert_succeeded(&good);
    assert_eq!(String::from_utf8_lossy(&good.stdout).trim(), "### Locks\n\n- New.");
    assert_eq!(notes(changelog, "v1.2.2").status.code(), Some(1));
    assert_eq!(notes(changelog, "1.2.3").status.code(), Some(1));
    assert_eq!(notes(&changelog.replace("2026-11-18", "unreleased"), "v1.2.3").status.code(), Some(1));
}

#[test]
fn release_files_have_checksums_and_a_bill_of_materials() {
    let work = sources("release-files", "");
    let bin = work.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // Stands in for `cargo cyclonedx --override-filename NAME`, which writes NAME.json.
    executable(&bin.join("cargo"), "#!/bin/sh\nfor name; do :; done\necho bom >\"$name.json\"\n");
    let dist = work.path().join("dist");
    fs::create_dir(&dist).unwrap();
    for name in ["redlock-1.2.3-x86_64-unknown-linux-musl.tar.gz", "redlock_1.2.3_amd64.deb"] {
        fs::write(dist.join(name), name).unwrap();
    }
    let mut script = Command::new(work.path().join("scripts/release-files"));
    script.arg("dist").env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    assert_succeeded(&script.output().unwrap());
    let check =
        Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&dist).output().unwrap();
    assert_succeeded(&check);
    assert_eq!(String::from_utf8_lossy(&check.stdout).lines().count(), 3);
}

#[test]
fn the_documented_job_uses_the_actions_inputs() {
    let action = read("action/action.yml");
    let declared = action.split("inputs:").nth(1).unwrap().split("outputs:").next().unwrap();
    let document = read("docs/ci.md");
    let used =
        document.split("/action@").nth(1).and_then(|rest| rest.split("with:\n").nth(1)).expect("a job");
    let used: Vec<&str> = used
        .lines()
        .map_while(|line| line.strip_prefix("      "))
        .filter_map(|line| line.split(':').next())
        .collect();
    assert!(used.len() >= 3, "{used:?}");
    for name in used {
        assert!(declared.contains(&format!("\n  {name}:\n")), "{name}");
    }
}
