//! What docs/operations.md gives to paste.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use super::blocks::{blocks_in, path};
use super::desk::{Desk, quiet_success};
use crate::support::{Redis, Run, hold};

const OPERATIONS: &str = "docs/operations.md";

/// A block of the document that begins with this.
fn block(language: &str, begin: &str) -> String {
    let found = blocks_in(OPERATIONS, language).into_iter().find(|block| block.text.starts_with(begin));
    found.unwrap_or_else(|| panic!("no {language} that begins with {begin}")).text
}

/// The documented user may lock on this server, and may not do other things.
fn locks_as_the_documented_user(redis: &Redis) {
    let url = format!("redis://locker:password@127.0.0.1:{}", redis.port());
    Run::at(&url, "k").cmd(&["true"]).done().expect_code(0);
    let client = |args: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &redis.port().to_string(), "--user", "locker", "--pass", "password"]).args(args);
        String::from_utf8_lossy(&command.output().expect("redis-cli").stdout).into_owned()
    };
    assert!(client(&["FLUSHALL"]).contains("NOPERM"));
    assert!(client(&["GET", "other"]).contains("NOPERM"));
}

#[test]
fn the_user_for_redis_cli() {
    let redis = Redis::start();
    let file = redis.dir().join("typed");
    fs::write(&file, block("redis", "ACL")).unwrap();
    let mut client = Command::new("redis-cli");
    client.args(["-p", &redis.port().to_string()]).stdin(Stdio::from(fs::File::open(file).unwrap()));
    assert_eq!(quiet_success("redis-cli", &client.output().expect("redis-cli")).trim(), "OK");
    locks_as_the_documented_user(&redis);
}

#[test]
fn the_user_for_a_shell() {
    let desk = Desk::new();
    let line = block("sh", "redis-cli -h cache.internal ACL");
    let line = line.replace("-h cache.internal", &format!("-p {}", desk.redis.port()));
    assert_eq!(desk.shell(&line, &[]).trim(), "OK");
    locks_as_the_documented_user(&desk.redis);
}

#[test]
fn the_user_for_an_acl_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users.acl");
    fs::write(&file, block("acl", "user locker")).unwrap();
    locks_as_the_documented_user(&Redis::start_with(&["--aclfile", file.to_str().unwrap()]));
}

#[test]
fn the_three_forms_of_the_user_are_one() {
    let rules = |text: String| -> Vec<String> {
        let words = text.split_ascii_whitespace().map(|word| word.trim_matches('\'').to_owned());
        words.skip_while(|word| word != "locker").collect()
    };
    let typed = rules(block("redis", "ACL"));
    assert_eq!(rules(block("sh", "redis-cli -h cache.internal ACL")), typed);
    assert_eq!(rules(block("acl", "user")), typed);
}

#[test]
fn a_monitoring_system_gets_the_codes_that_it_knows() {
    let desk = Desk::new();
    let plugin = desk.path("check_redlock");
    fs::write(&plugin, block("sh", "#!/bin/sh\n# check_redlock")).unwrap();
    let check = |args: &[&str]| {
        let argv = [&["sh", plugin.to_str().unwrap()], args].concat();
        let output = desk.command(&argv, &[]);
        let first = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        (output.status.code().unwrap(), first.split(':').next().unwrap_or_default().to_owned())
    };
    assert_eq!(check(&["--quarantine", "30s"]), (0, "WARNING".to_owned()));
    assert_eq!(desk.redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]), "OK");
    assert_eq!(desk.redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
    assert_eq!(check(&[]), (2, "PROBLEM".to_owned()));
    assert_eq!(check(&["--bad-option"]).0, 3);
}

#[test]
fn config_files_are_accepted() {
    let desk = Desk::new();
    let shipped = fs::read_to_string(path("packaging/config.toml")).unwrap();
    let examples =
        || shipped.lines().filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')));
    assert!(examples().filter(|line| line.contains(" = ")).count() >= 5, "{shipped}");
    // As it is shipped, with every example in force, and each alone.
    let mut files = vec![shipped.clone(), examples().collect::<Vec<_>>().join("\n")];
    files.extend(examples().map(str::to_owned));
    files.extend(blocks_in(OPERATIONS, "toml").into_iter().map(|block| block.text));
    let secret = desk.path("password");
    fs::write(&secret, "password\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(desk.redis.cmd(&["CONFIG", "SET", "requirepass", "password"]), "OK");
    for text in files {
        let text = text.replace("/etc/redlock/password", secret.to_str().unwrap());
        let file = desk.path("config.toml");
        fs::write(&file, &text).unwrap();
        let argv = ["redlock", "run", "--key", "k", "--", "true"];
        // The desk's server, in the environment, comes before the servers in the file.
        let has_password = text.lines().any(|line| line.starts_with("password-file"));
        let login = if has_password { "" } else { ":password@" };
        let url = desk.redis.url().replace("://", &format!("://{login}"));
        let variables = [("REDLOCK_CONFIG", file.to_str().unwrap()), ("REDLOCK_REDIS", &url)];
        quiet_success(&text, &desk.command(&argv, &variables));
    }
}

fn has_jq() -> bool {
    Command::new("jq").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn looking_as_it_is_documented() {
    let desk = Desk::new();
    let lines = block("sh", "redlock list ").replace("--check free", "--check held");
    let job = hold(Run::key(&desk.redis, "deploy").args(&["--label", "nightly"]));
    let (looking, waiting) = lines.rsplit_once("redlock status").expect("the wait comes last");
    let shown = desk.shell(looking, &[]);
    assert_eq!(shown.matches("nightly").count(), 2, "{shown}");
    job.wait().expect_code(0);
    assert_eq!(desk.shell(&format!("redlock status{waiting}"), &[]), "");
}

#[test]
fn the_check_of_a_monitoring_system() {
    if !has_jq() {
        skip!("there is no jq");
    }
    let desk = Desk::new();
    let block = block("sh", "redlock list --json");
    let line = block.trim_end();
    let _job = hold(Run::key(&desk.redis, "deploy"));
    assert_eq!(desk.shell(&format!("{line} || [ $? = 4 ]"), &[]), "", "nothing is wrong");
    assert_eq!(desk.shell(&line.replace("36e5", "0"), &[]).trim(), "\"deploy\"");
}

#[test]
fn a_script_breaks_what_it_has_looked_at() {
    if !has_jq() {
        skip!("there is no jq");
    }
    let desk = Desk::new();
    let script = block("sh", "token=");
    assert_eq!(desk.shell(&script, &[]), "", "it is free");
    let job = hold(Run::key(&desk.redis, "deploy").args(&["--ttl", "30s"]));
    assert!(desk.shell(&script, &[]).contains("its command was stopped"));
    job.wait().expect_code(79);
}
