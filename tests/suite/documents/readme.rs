//! What README.md shows is true: the first command, the config file, exit codes, names, outputs.

use std::collections::BTreeSet;
use std::fs;

use super::blocks::{blocks_in, read};
use super::sandbox::{Sandbox, quiet_success};
use crate::support::{Redis, Run, hold};

const README: &str = "README.md";

/// The version of this repository.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_first_command_runs_without_a_server() {
    let blocks = blocks_in(README, "sh");
    let first = blocks.iter().find(|block| block.text.starts_with("cargo run")).expect("the first command");
    let line = first.text.replace("cargo run --release --", "redlock");
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["bash", "-c", &line], &[("REDLOCK_REDIS", "")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "nobody else deploys now\n", "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// One server and three, on addresses of this host.
#[test]
fn the_lists_of_servers_work() {
    let blocks = blocks_in(README, "sh").into_iter().filter(|block| block.text.starts_with("export "));
    let mut counts = Vec::new();
    for block in blocks {
        let sandbox = Sandbox::new();
        let servers = [(); 3].map(|()| Redis::start());
        let line = sandbox.localize_several(&block.text, &servers);
        counts.push(line.matches("redis://127.0.0.1").count());
        sandbox.shell(&format!("{line}redlock run --quarantine off --key k -- true"), &[]);
    }
    assert_eq!(counts, [1, 3]);
}

#[test]
fn the_history_and_its_picture_are_there() {
    let sandbox = Sandbox::new();
    let block = blocks_in(README, "sh").into_iter().find(|block| block.text.starts_with("redlock history"));
    sandbox.shell("redlock run --key deploy -- true", &[]);
    sandbox.shell(&block.expect("the command").text, &[]);
    let picture = fs::read_to_string(sandbox.path("deploy.svg")).expect("a picture");
    assert!(picture.contains("1 run"), "{picture}");
}

/// Commands that are named in the text and need an answer of the server, or of a person.
#[test]
fn the_commands_in_the_text_work() {
    let readme = read(README);
    let sandbox = Sandbox::new();
    for command in ["redlock doctor", "redlock break deploy", "redlock run --help", "scripts/test"] {
        assert!(readme.contains(command), "{command}");
    }
    let doctor = sandbox.command(&["redlock", "doctor"], &[]);
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    let holder = hold(Run::key(&sandbox.redis, "deploy"));
    let broken = sandbox.command(&["redlock", "break", "deploy", "--yes"], &[]);
    assert_eq!(broken.status.code(), Some(0), "{broken:?}");
    holder.wait().expect_code(79);
    assert!(sandbox.shell("redlock run --help", &[]).contains("--once"));
    assert!(super::blocks::path("scripts/test").exists());
}

#[test]
fn the_config_file_forbids_locks_on_this_host() {
    let sandbox = Sandbox::new();
    let config = sandbox.path("config.toml");
    let block = &blocks_in(README, "toml")[0].text;
    let run = |config: &std::path::Path| {
        let argv = ["redlock", "run", "--key", "k", "--", "true"];
        sandbox.command(&argv, &[("REDLOCK_REDIS", ""), ("REDLOCK_CONFIG", config.to_str().unwrap())])
    };
    fs::write(&config, sandbox.localize(block)).unwrap();
    quiet_success("with the server", &run(&config));
    let without: String = block.lines().filter(|line| !line.starts_with("redis")).collect();
    fs::write(&config, without).unwrap();
    assert_eq!(run(&config).status.code(), Some(78));
}

#[test]
fn the_package_names_are_those_that_the_scripts_create() {
    let readme = read(README);
    for name in [
        format!("redlock-{VERSION}-x86_64-unknown-linux-musl.tar.gz"),
        format!("redlock_{VERSION}_amd64.deb"),
        format!("redlock-{VERSION}-1.x86_64.rpm"),
        format!("Rust {} or later", env!("CARGO_PKG_RUST_VERSION")),
    ] {
        assert!(readme.contains(&name), "README.md does not mention {name}");
    }
}

#[test]
fn the_exit_codes_are_those_of_the_program() {
    let number = |text: &str| text.trim().parse::<u8>().ok();
    let table = read(README);
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let documented: BTreeSet<u8> = rows.flat_map(|row| row.split(',')).filter_map(number).collect();
    let source = read("src/exit.rs");
    let constants = source.lines().filter(|line| line.contains("const ") && line.contains(": u8 = "));
    let real: BTreeSet<u8> =
        constants.filter_map(|line| number(line.rsplit('=').next()?.trim_end_matches(';'))).collect();
    assert!(real.len() >= 10, "{real:?}");
    assert_eq!(documented, real);
}

#[test]
fn the_exit_codes_in_the_questions_are_right() {
    let sandbox = Sandbox::new();
    let holder = hold(Run::key(&sandbox.redis, "deploy"));
    let held = |args: &[&str]| Run::key(&sandbox.redis, "deploy").args(args).cmd(&["true"]).done();
    held(&["-n"]).expect_code(75);
    held(&["-w", "50ms"]).expect_code(75);
    held(&["-n", "-E", "0"]).expect_code(0);
    holder.wait().expect_code(0);
    let down = format!("redis://127.0.0.1:{}", crate::support::redis::free_port());
    Run::at(&down, "deploy").cmd(&["true"]).done().expect_code(69);
    Run::at(&down, "deploy").args(&["--on-unavailable", "skip"]).cmd(&["false"]).done().expect_code(0);
}

/// The output of `redlock list` and `redlock status` has this form.
#[test]
fn the_example_outputs_have_the_real_form() {
    let shown =
        blocks_in(README, "console").into_iter().find(|block| block.text.starts_with("$ redlock list"));
    let shown = shown.expect("the examples").text;
    let sandbox = Sandbox::new();
    let holder = Run::key(&sandbox.redis, "deploy").args(&["--label", "release 1.4"]);
    let _holder = hold(holder.env("CI_JOB_URL", "https://ci.example/job/17").env("GITLAB_CI", "true"));
    let _waiter = Run::key(&sandbox.redis, "deploy").cmd(&["true"]).spawn();
    crate::support::queued(&sandbox.redis, "deploy", 1);
    let real = sandbox.shell("redlock list; redlock status deploy", &[]);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let heading = |text: &str| text.lines().find(|line| line.starts_with("KEY")).map(words);
    assert_eq!(heading(&shown), heading(&real));
    for part in [
        "\ndeploy: held\nholder   ",
        "(release 1.4, ",
        " since ",
        "), lease ends in ",
        "\n         https://ci.example/job/17\n         fence ",
        ", token ",
        "\nqueue    1  ",
        "), waiting ",
    ] {
        assert!(shown.contains(part) && real.contains(part), "{part:?}: {real}");
    }
}
