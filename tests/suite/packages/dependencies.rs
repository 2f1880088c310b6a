//! The dependencies of the binary: each has a licence that fits ours and comes from the registry.
//! Advisories change daily and need a network, so they are not tested: CONTRIBUTING.md says how to
//! check them.

use std::fs;
use std::process::Command;

use crate::documents::blocks::path;

/// Licences that a binary under the MIT licence may include.
const ALLOWED: [&str; 8] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];

/// An SPDX expression in the forms that crates use: alternatives, joined by AND.
fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|licence| ALLOWED.contains(&licence)))
}

#[test]
fn an_expression_needs_one_allowed_licence_in_each_part() {
    assert!(is_allowed("MIT/Apache-2.0") && is_allowed("(GPL-2.0 OR MIT) AND Unicode-3.0"));
    assert!(!is_allowed("GPL-3.0") && !is_allowed("MIT AND GPL-3.0") && !is_allowed(""));
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
    tree.args(["--format", "{p}|{l}|"]).current_dir(path("."));
    let output = tree.output().expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("UTF-8");
    let packages: Vec<Vec<&str>> = listed.lines().map(|line| line.split('|').collect()).collect();
    assert!(packages.len() > 30, "{listed}");
    let refused: Vec<_> = packages.iter().filter(|package| !is_allowed(package[1])).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn every_dependency_comes_from_the_registry_with_its_checksum() {
    let lock = fs::read_to_string(path("Cargo.lock")).expect("Cargo.lock");
    let packages: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let foreign: Vec<_> = packages
        .iter()
        .filter(|package| !package.contains("name = \"redlock"))
        .filter(|package| !(package.contains("source = \"registry+") && package.contains("checksum = ")))
        .collect();
    assert!(packages.len() > 30 && foreign.is_empty(), "{foreign:?}");
}
