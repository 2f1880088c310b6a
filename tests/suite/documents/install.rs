//! The blocks of docs/install.md that can be pasted.

use std::fs;
use std::process::{Command, Stdio};

use super::blocks::block_of;
use super::sandbox::{Sandbox, quiet_success};
use crate::support::{Redis, Run};

/// A block of the document that begins with this text.
fn block(language: &str, begin: &str) -> String {
    block_of("docs/install.md", language, begin)
}

/// The documented user can lock on this server, and cannot do other things.
fn assert_documented_user_works(redis: &Redis) {
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
fn the_user_for_redis_cli_works() {
    let redis = Redis::start();
    let file = redis.dir().join("typed");
    fs::write(&file, block("redis", "ACL")).unwrap();
    let mut client = Command::new("redis-cli");
    client.args(["-p", &redis.port().to_string()]).stdin(Stdio::from(fs::File::open(file).unwrap()));
    assert_eq!(quiet_success("redis-cli", &client.output().expect("redis-cli")).trim(), "OK");
    assert_documented_user_works(&redis);
}

#[test]
fn the_user_for_a_shell_works() {
    let sandbox = Sandbox::new();
    let line = block("sh", "redis-cli -h cache.internal ACL");
    let line = line.replace("-h cache.internal", &format!("-p {}", sandbox.redis.port()));
    assert_eq!(sandbox.shell(&line, &[]).trim(), "OK");
    assert_documented_user_works(&sandbox.redis);
}

#[test]
fn the_user_for_an_acl_file_works() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users.acl");
    fs::write(&file, block("acl", "user locker")).unwrap();
    assert_documented_user_works(&Redis::start_with(&["--aclfile", file.to_str().unwrap()]));
}

#[test]
fn the_three_forms_of_the_user_are_the_same() {
    let rules = |text: String| -> Vec<String> {
        let words = text.split_ascii_whitespace().map(|word| word.trim_matches('\'').to_owned());
        words.skip_while(|word| word != "locker").collect()
    };
    let typed = rules(block("redis", "ACL"));
    assert_eq!(rules(block("sh", "redis-cli -h cache.internal ACL")), typed);
    assert_eq!(rules(block("acl", "user")), typed);
}
