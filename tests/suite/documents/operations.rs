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
fn servers_can_be_asked_about_a_lock() {
    let desk = Desk::new();
    let holder = hold(Run::key(&desk.redis, "deploy").args(&["--label", "release"]));
    let waiter = Run::key(&desk.redis, "deploy").cmd(&["true"]).spawn();
    crate::support::wait_until("it waits", || desk.redis.queue_len("deploy") == 1);
    let lines = block("sh", "redis-cli -h cache.internal --scan");
    let said = desk.shell(&lines.replace("-h cache.internal", &format!("-p {}", desk.redis.port())), &[]);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!((said[0], said[said.len() - 1]), ("lock:deploy", "1"), "{said:?}");
    assert!(said[1].parse::<u32>().is_ok_and(|left| left > 0 && left <= 30_000), "{said:?}");
    assert!(said.contains(&"release"), "{said:?}");
    holder.wait().expect_code(0);
    waiter.wait().expect_code(0);
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
