//! The blocks of docs/install.md that can be pasted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use super::blocks::{acl_rules, block_of, blocks_in};
use super::jobs::yaml_with;
use super::sandbox::{Sandbox, quiet_success};
use crate::support::redis::free_port;
use crate::support::{Redis, Run, processes, wait_until};

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
    assert_eq!(rules(block("acl", "user locker")), typed);
}

/// A server that is ended with the test.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_redis_conf_starts_a_server_that_doctor_finds_fit() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let locker = acl_rules("locker").join(" ");
    let users = block("acl", "user default off");
    let users = format!("{users}user locker {locker} +config|get +scan +xrevrange +xread\n");
    fs::write(path("users.acl"), users).unwrap();
    let port = free_port().to_string();
    let conf = block("conf", "# /etc/redis/redis.conf");
    // Tests listen on this host only.
    let conf = [
        ("bind * -::*", "bind 127.0.0.1".to_owned()),
        ("port 6379", format!("port {port}")),
        ("/etc/redis/users.acl", path("users.acl")),
        ("/var/lib/redis", path("")),
    ]
    .iter()
    .fold(conf, |conf, (line, local)| {
        assert!(conf.contains(line), "{line}");
        conf.replace(line, local)
    });
    fs::write(path("redis.conf"), conf).unwrap();
    let url = format!("redis://locker:password@127.0.0.1:{port}");
    let status = || Run::bare().args(&["status", "kept", "--json", "--redis", &url]).done();
    let start = || {
        let mut server = Command::new("redis-server");
        let server =
            Server(server.arg(path("redis.conf")).stdout(Stdio::null()).spawn().expect("redis-server"));
        wait_until("the server serves", || status().code == Some(0));
        server
    };
    let server = start();
    let found = Run::bare().args(&["doctor", "--json", "--redis", &url]).done().expect_code(0).json();
    let counts = ["problems", "warnings", "unknown"].map(|name| found[name].as_u64());
    assert_eq!(counts, [Some(0); 3], "{found:#}");
    Run::at(&url, "k").cmd(&["true"]).done().expect_code(0);
    Run::bare().args(&["list", "--redis", &url]).done().expect_code(0);
    Run::bare().args(&["history", "k", "--redis", &url]).done().expect_code(0);
    // "appendfsync everysec" may lose a second of data if the server is killed: it is shut down.
    Run::bare().args(&["acquire", "--key", "kept", "--ttl", "5m", "--redis", &url]).done().expect_code(0);
    processes::send(server.0.id() as i32, nix::sys::signal::Signal::SIGTERM);
    wait_until("the server has stopped", || status().code == Some(69));
    drop(server);
    let _server = start();
    assert_eq!(status().json()["state"], "held", "the server has kept its data");
}

#[test]
fn the_playbook_installs_settings_that_work() {
    let sandbox = Sandbox::new();
    let plays = yaml_with("docs/install.md", "hosts: job_hosts");
    let play = &plays[0];
    let tasks = play["tasks"].as_vec().expect("tasks");
    assert!(tasks.iter().all(|task| task["name"].as_str().is_some()));
    let content = |file: &str| {
        let copies = tasks.iter().map(|task| &task["ansible.builtin.copy"]);
        let mut copies = copies.filter(|copy| copy["dest"].as_str() == Some(file));
        copies.next().and_then(|copy| copy["content"].as_str()).expect(file).to_owned()
    };
    let password = sandbox.path("password");
    fs::write(&password, content("/etc/redlock/password").replace("{{ vault_lock_password }}", "password"))
        .unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o640)).unwrap();
    let servers: Vec<&str> =
        play["vars"]["lock_servers"].as_vec().unwrap().iter().filter_map(|url| url.as_str()).collect();
    assert_eq!(servers.len(), 3);
    let settings = content("/etc/redlock/config.toml")
        .replace("{{ lock_servers | to_json }}", &format!("[\"{}\"]", sandbox.redis.url()))
        .replace("/etc/redlock/password", password.to_str().unwrap());
    assert!(!settings.contains("{{"), "{settings}");
    let config = sandbox.path("config.toml");
    fs::write(&config, settings).unwrap();
    let mut rules = vec!["ACL".to_owned(), "SETUSER".to_owned(), "locker".to_owned()];
    rules.extend(acl_rules("locker"));
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    assert_eq!(sandbox.redis.cmd(&rules), "OK");
    let check = tasks.iter().find_map(|task| task["ansible.builtin.command"].as_str()).expect("a check");
    for line in [check, "redlock run --key k -- true"] {
        let variables = [("REDLOCK_CONFIG", config.to_str().unwrap())];
        let mut words = vec!["env", "-u", "REDLOCK_REDIS"];
        words.extend(line.split(' '));
        assert_eq!(quiet_success(line, &sandbox.command(&words, &variables)), "");
    }
}

#[test]
fn logrotate_accepts_the_file_for_events() {
    if !processes::is_installed("logrotate") {
        skip!("there is no logrotate");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock");
    // The group exists on hosts with jobs.
    fs::write(&file, block("logrotate", "/var/log/redlock").replace("root redlock", "root root")).unwrap();
    let state = directory.path().join("state");
    let output = Command::new("logrotate").arg("-d").arg("-s").args([&state, &file]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !text.contains("error"), "{text}");
}

/// The commands are real ones: the runbook is read when there is no time to find a mistake in it.
#[test]
fn the_runbook_names_commands_and_options_that_exist() {
    let sandbox = Sandbox::new();
    let mut commands = 0;
    for line in blocks_in("docs/runbook.md", "sh").iter().flat_map(|block| block.text.lines()) {
        let output = sandbox.command(&["sh", "-c", line], &[]);
        assert_ne!(output.status.code(), Some(64), "{line}: {output:?}");
        commands += usize::from(line.starts_with("redlock "));
    }
    assert!(commands >= 7, "only {commands} commands");
}
