//! The blocks of docs/operations.md that can be pasted.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::blocks::{block_of, blocks_in, path, read};
use super::sandbox::{Sandbox, quiet_success};
use crate::support::{Redis, Run, hold, processes};

const OPERATIONS: &str = "docs/operations.md";

/// A block of the document that begins with this text.
fn block(language: &str, begin: &str) -> String {
    block_of(OPERATIONS, language, begin)
}

#[test]
fn a_monitoring_system_gets_standard_exit_codes() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.path("check_redlock");
    fs::write(&plugin, block("sh", "#!/bin/sh\n# check_redlock")).unwrap();
    let check = |args: &[&str]| {
        let argv = [&["sh", plugin.to_str().unwrap()], args].concat();
        let output = sandbox.command(&argv, &[]);
        let first = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        (output.status.code().unwrap(), first.split(':').next().unwrap_or_default().to_owned())
    };
    assert_eq!(check(&["--quarantine", "30s"]), (0, "WARNING".to_owned()));
    assert_eq!(sandbox.redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]), "OK");
    assert_eq!(sandbox.redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
    assert_eq!(check(&[]), (2, "PROBLEM".to_owned()));
    assert_eq!(check(&["--bad-option"]).0, 3);
}

#[test]
fn config_files_are_accepted() {
    let sandbox = Sandbox::new();
    let shipped = fs::read_to_string(path("packaging/config.toml")).unwrap();
    let examples =
        || shipped.lines().filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')));
    assert!(examples().filter(|line| line.contains(" = ")).count() >= 5, "{shipped}");
    // As shipped, with every example enabled, and each alone.
    let mut files = vec![shipped.clone(), examples().collect::<Vec<_>>().join("\n")];
    files.extend(examples().map(str::to_owned));
    files.extend(blocks_in(OPERATIONS, "toml").into_iter().map(|block| block.text));
    let secret = sandbox.path("password");
    fs::write(&secret, "password\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(sandbox.redis.cmd(&["CONFIG", "SET", "requirepass", "password"]), "OK");
    for text in files {
        let text = text.replace("/etc/redlock/password", secret.to_str().unwrap());
        let file = sandbox.path("config.toml");
        fs::write(&file, &text).unwrap();
        let argv = ["redlock", "run", "--key", "k", "--", "true"];
        // The sandbox's server, in the environment, overrides the servers in the file.
        let has_password = text.lines().any(|line| line.starts_with("password-file"));
        let login = if has_password { "" } else { ":password@" };
        let url = sandbox.redis.url().replace("://", &format!("://{login}"));
        let variables = [("REDLOCK_CONFIG", file.to_str().unwrap()), ("REDLOCK_REDIS", &url)];
        quiet_success(&text, &sandbox.command(&argv, &variables));
    }
}

#[test]
fn the_documented_ways_to_look_work() {
    let sandbox = Sandbox::new();
    let lines = block("sh", "redlock list ").replace("--check free", "--check held");
    let job = hold(Run::key(&sandbox.redis, "deploy").args(&["--label", "nightly"]));
    let (looking, waiting) = lines.rsplit_once("redlock status").expect("the wait comes last");
    let shown = sandbox.shell(looking, &[]);
    assert_eq!(shown.matches("nightly").count(), 2, "{shown}");
    job.wait().expect_code(0);
    assert_eq!(sandbox.shell(&format!("redlock status{waiting}"), &[]), "");
}

#[test]
fn the_check_for_a_monitoring_system_works() {
    if !processes::is_installed("jq") {
        skip!("there is no jq");
    }
    let sandbox = Sandbox::new();
    let block = block("sh", "redlock list --json");
    let line = block.trim_end();
    let _job = hold(Run::key(&sandbox.redis, "deploy"));
    assert_eq!(sandbox.shell(&format!("{line} || [ $? = 4 ]"), &[]), "", "nothing is wrong");
    assert_eq!(sandbox.shell(&line.replace("36e5", "0"), &[]).trim(), "\"deploy\"");
}

#[test]
fn the_hours_waited_are_zero_without_runs() {
    if !processes::is_installed("jq") {
        skip!("there is no jq");
    }
    let sandbox = Sandbox::new();
    let document = read(OPERATIONS);
    let line = document.lines().find(|line| line.contains("# hours waited")).expect("the line");
    assert_eq!(sandbox.shell(line, &[]), "0\n");
    Run::key(&sandbox.redis, "deploy").cmd(&["true"]).done().expect_code(0);
    assert_ne!(sandbox.shell(line, &[]), "");
}

#[test]
fn the_second_run_of_a_migration_prints_the_documented_line() {
    let sandbox = Sandbox::new();
    let document = read(OPERATIONS);
    let line = document.lines().find(|line| line.contains("\"migrate-42\" was done")).expect("the line");
    let run = || Run::key(&sandbox.redis, "migrate-42").args(&["--once", "1d"]).cmd(&["true"]).done();
    run().expect_code(0);
    let printed = run().expect_code(0).stderr;
    let end = |line: &str| line.rsplit(';').next().map(|end| end.trim().to_owned());
    assert_eq!(end(&printed), end(line));
}

#[test]
fn a_script_breaks_the_lock_that_it_has_read() {
    if !processes::is_installed("jq") {
        skip!("there is no jq");
    }
    let sandbox = Sandbox::new();
    let script = block("sh", "token=");
    assert_eq!(sandbox.shell(&script, &[]), "", "the lock is free");
    let job = hold(Run::key(&sandbox.redis, "deploy").args(&["--ttl", "30s"]));
    assert!(sandbox.shell(&script, &[]).contains("its command was stopped"));
    job.wait().expect_code(79);
}

#[test]
fn the_script_for_metrics_replaces_the_file_in_one_step() {
    let sandbox = Sandbox::new();
    let directory = sandbox.path("metrics");
    fs::create_dir(&directory).unwrap();
    let script = block("sh", "#!/bin/sh\n# redlock-metrics");
    let script = script.replace("/var/lib/prometheus/node-exporter", directory.to_str().unwrap());
    let write = || sandbox.command(&["sh", "-c", &script, "redlock-metrics", "k*"], &[]);
    quiet_success("redlock-metrics", &write());
    let names =
        || fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["redlock.prom"]);
    let metrics = fs::read_to_string(directory.join("redlock.prom")).unwrap();
    assert!(metrics.contains("\nredlock_up 1\n") && metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn every_metric_is_documented() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let _holder = hold(Run::key(&redis, "k").args(&["--slots", "2"]));
    let list = Run::bare().args(&["list", "--openmetrics", "-r", &redis.url()]).done().expect_code(0).stdout;
    let text = fs::read_to_string(path(OPERATIONS)).unwrap();
    for name in list.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}
