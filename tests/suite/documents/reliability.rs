//! docs/reliability.md: its counts, and the tests that it names.

use std::process::Command;

use super::blocks::{path, read};

#[test]
fn its_counts_are_those_of_its_rows() {
    let checked = Command::new(path("scripts/ledger")).arg("--check").output().expect("scripts/ledger");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_tests_that_it_names_exist() {
    let listed = Command::new(std::env::current_exe().expect("this program")).arg("--list").output();
    let listed = String::from_utf8(listed.expect("a list of tests").stdout).expect("UTF-8");
    let tests: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let is_inside = |module: &str| tests.iter().any(|test| test.starts_with(&format!("{module}::")));
    let text = read("docs/reliability.md");
    let mut checked = 0;
    for name in text.split('`').filter(|name| name.contains("::") && !name.contains(char::is_whitespace)) {
        let (module, last) = name.rsplit_once("::").expect("a name with a module");
        // Unit tests and those of the model begin with other modules.
        if is_inside(name.split("::").next().unwrap_or(name)) {
            // Between the two may be the kind of lock.
            let is_named = |test: &&str| {
                test.strip_prefix(module).is_some_and(|rest| rest.ends_with(&format!("::{last}")))
            };
            assert!(is_inside(name) || tests.iter().any(is_named), "no test is named {name}");
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} names");
}
