//! Every recipe runs, as far as its environment exists here.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::signal::Signal;

use super::blocks::{Block, blocks_in};
use super::jobs::{ci_environment, yaml_with};
use super::sandbox::{Sandbox, quiet_success};
use crate::support::{Redis, Run, executable, wait_until};

const RECIPES: &str = "docs/recipes.md";
const DOCUMENTS: [&str; 2] = [RECIPES, "README.md"];

#[test]
fn shell_recipes_run() {
    let recipes: Vec<Block> = DOCUMENTS
        .iter()
        .flat_map(|document| blocks_in(document, "sh"))
        .filter(|block| block.text.contains("redlock run") || block.text.contains("redlock acquire"))
        .filter(|block| !block.text.starts_with("cargo"))
        .collect();
    assert!(recipes.len() >= 5, "{recipes:?}");
    for recipe in recipes {
        let sandbox = Sandbox::new();
        let scripts = sandbox.scripts_of(&recipe.text);
        sandbox.programs(["make"]);
        let servers = [(); 3].map(|()| Redis::start());
        let text = sandbox.localize_several(&recipe.text, &servers);
        let variables = [("SHELL", "/bin/sh"), ("REDLOCK_QUARANTINE", "off")];
        assert_eq!(sandbox.shell(&text, &variables), "");
        let ran: BTreeSet<String> = sandbox.ran().into_iter().filter(|name| name != "make").collect();
        assert_eq!(ran, scripts, "{}", recipe.text);
        assert!(!recipe.text.contains("--events") || sandbox.path("events.jsonl").exists());
        wait_until("no lock is left", || !sandbox.redis.keys().iter().any(|key| key.starts_with("lock:")));
    }
}

/// The lines of a crontab: variables, and commands after five fields.
fn crontab(text: &str) -> (Vec<(&str, &str)>, Vec<&str>) {
    let (mut variables, mut commands) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.split_once('=').filter(|(name, _)| !name.contains(' ')) {
            variables.push((name, value));
            continue;
        }
        let mut rest = line;
        for _ in 0..5 {
            let (field, tail) = rest.split_once(' ').unwrap_or_else(|| panic!("not five fields: {line}"));
            assert!(
                !field.is_empty() && field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c)),
                "{line}"
            );
            rest = tail.trim_start();
        }
        assert!(!rest.contains('%'), "cron ends the command at %: {line}");
        commands.push(rest);
    }
    (variables, commands)
}

#[test]
fn crontabs_run_and_send_no_mail() {
    let documents = DOCUMENTS.iter().chain(&["docs/operations.md"]);
    for block in documents.flat_map(|document| blocks_in(document, "crontab")) {
        let sandbox = Sandbox::new();
        let text = sandbox.localize(&block.text);
        let (variables, commands) = crontab(&text);
        assert!(!commands.is_empty(), "{text}");
        for command in commands {
            let program = command.split_once(" -- ").map(|(_, program)| program);
            sandbox.programs(program);
            // Twice, as on two hosts: with --min-hold the second finds the lock held, with --once the
            // work done.
            let before = sandbox.ran().len();
            for _ in 0..2 {
                let output = sandbox.command(&["/bin/sh", "-c", command], &variables);
                assert_eq!(quiet_success(command, &output), "");
            }
            let is_single = command.contains("--min-hold") || command.contains("--once");
            let times = if is_single { 1 } else { 2 };
            let expected = program.map_or_else(Vec::new, |program| vec![program; times]);
            assert_eq!(sandbox.ran()[before..], expected, "{command}");
        }
    }
}

#[test]
fn the_gitlab_jobs_run() {
    DOCUMENTS.iter().for_each(|document| the_gitlab_job_runs(document));
}

fn the_gitlab_job_runs(document: &str) {
    let sandbox = Sandbox::new();
    let job = yaml_with(document, ".gitlab-ci.yml");
    let job = &job["deploy"];
    let url = sandbox.redis.url();
    let mut variables = ci_environment(&job["variables"], "$LOCK_REDIS_URL", &url);
    variables.extend([("CI_ENVIRONMENT_NAME", "staging"), ("CI_COMMIT_SHORT_SHA", "4437f8c2")]);
    let script = job["script"][0].as_str().expect("a line");
    sandbox.scripts_of(script);
    sandbox.shell(script, &variables);
    assert_eq!(sandbox.ran(), ["./deploy.sh"]);
    assert!(
        sandbox.redis.keys().contains(&"lock-fence:deploy-staging".to_owned()),
        "{:?}",
        sandbox.redis.keys()
    );
}

#[test]
fn the_github_workflow_runs() {
    let sandbox = Sandbox::new();
    let workflow = yaml_with(RECIPES, ".github/workflows");
    let job = &workflow["jobs"]["deploy"];
    assert!(job["runs-on"].as_str().is_some() && !workflow["on"].is_badvalue(), "{workflow:?}");
    let url = sandbox.redis.url();
    let mut variables = ci_environment(&job["env"], "${{ secrets.LOCK_REDIS_URL }}", &url);
    variables.push(("GITHUB_REF_NAME", "main"));
    let steps = job["steps"].as_vec().expect("steps");
    let script = steps.iter().find_map(|step| step["run"].as_str()).expect("a line");
    sandbox.scripts_of(script);
    sandbox.shell(script, &variables);
    assert_eq!(sandbox.ran(), ["./deploy.sh"]);
}

#[test]
fn the_jenkins_step_runs() {
    let sandbox = Sandbox::new();
    let pipeline = &blocks_in(RECIPES, "groovy")[0].text;
    assert_eq!(pipeline.matches('{').count(), pipeline.matches('}').count(), "{pipeline}");
    let script = pipeline.split("sh '").nth(1).and_then(|rest| rest.split('\'').next()).expect("a step");
    sandbox.scripts_of(script);
    sandbox.shell(script, &[("BUILD_TAG", "jenkins-deploy-7"), ("REDLOCK_REQUIRE_SERVER", "1")]);
    assert_eq!(sandbox.ran(), ["./deploy.sh"]);
}

#[test]
fn the_kubernetes_job_runs() {
    let sandbox = Sandbox::new();
    let job = yaml_with(RECIPES, "kind: CronJob");
    assert_eq!(job["spec"]["schedule"].as_str().expect("a schedule").split(' ').count(), 5);
    let container = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    let command = container["command"].as_vec().expect("a command");
    let report = sandbox.bin().join("report");
    sandbox.programs(["report"]);
    let argv: Vec<String> = command
        .iter()
        .map(|word| word.as_str().expect("a string, as Kubernetes wants it"))
        .map(|word| word.replace("/app/report", report.to_str().unwrap()))
        .collect();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    // The server has a password, which is in a secret.
    let mut variables = Vec::new();
    for variable in container["env"].as_vec().expect("variables") {
        let secret = variable["valueFrom"]["secretKeyRef"]["key"].as_str();
        let value = variable["value"].as_str().or(secret).expect("a value");
        variables.push((variable["name"].as_str().expect("a name"), sandbox.localize(value)));
    }
    assert_eq!(sandbox.redis.cmd(&["CONFIG", "SET", "requirepass", "password"]), "OK");
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = sandbox.command(&argv, &variables);
    assert_eq!(quiet_success("the container", &output), "");
    assert_eq!(sandbox.ran(), ["report"]);
}

/// The value of a key in a unit file.
fn unit_value<'a>(unit: &'a str, key: &str) -> &'a str {
    let prefix = format!("{key}=");
    unit.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("no {key} in {unit}"))
}

fn unit_environment(unit: &str) -> Vec<(&str, &str)> {
    unit_value(unit, "Environment").split(' ').filter_map(|pair| pair.split_once('=')).collect()
}

#[test]
fn the_systemd_units_are_valid_and_run() {
    let sandbox = Sandbox::new();
    sandbox.programs(["nightly"]);
    let units = blocks_in(RECIPES, "ini");
    let mut files = Vec::new();
    for unit in &units {
        let path = sandbox.path(unit.file_name());
        // systemd looks for programs in directories of its own only.
        let found = format!("ExecStart={} ", sandbox.path("bin/redlock").display());
        let text = sandbox.localize(&unit.text).replace("ExecStart=redlock ", &found);
        fs::write(&path, text).unwrap();
        files.push(path.to_str().unwrap().to_owned());
    }
    assert_eq!(files.len(), 3);
    // Only where systemd is installed, which is rare in a container.
    if std::path::Path::new("/usr/bin/systemd-analyze").exists() {
        let mut argv = vec!["systemd-analyze", "verify"];
        argv.extend(files.iter().map(String::as_str));
        quiet_success("systemd-analyze verify", &sandbox.command(&argv, &[]));
    }
    let service = sandbox.localize(&units[0].text);
    let line = unit_value(&service, "ExecStart");
    assert!(line.starts_with("redlock run "), "a package may install it elsewhere: {line}");
    let variables = unit_environment(&service);
    sandbox.shell(line, &variables);
    assert_eq!(sandbox.ran(), ["nightly"]);
    // On the second host.
    let again = sandbox.command(&["sh", "-c", line], &variables);
    assert_eq!(
        again.status.code().map(|code| code.to_string()).as_deref(),
        Some(unit_value(&service, "SuccessExitStatus"))
    );
    assert_eq!(sandbox.ran(), ["nightly"]);
}

/// Two hosts with the same unit. systemd is played by this test.
#[test]
fn the_standby_takes_over() {
    let sandbox = Sandbox::new();
    let started = sandbox.path("ran");
    let daemon = format!("#!/bin/sh\necho $REDLOCK_FENCE >>'{}'\nexec sleep 60\n", started.display());
    executable(&sandbox.bin().join("feeder"), &daemon);
    let units = blocks_in(RECIPES, "ini");
    let unit = units.iter().find(|unit| unit.file_name() == "feeder.service").expect("the unit");
    let unit = sandbox.localize(&unit.text);
    assert_eq!(unit_value(&unit, "Restart"), "always");
    let argv: Vec<&str> = unit_value(&unit, "ExecStart").split(' ').skip(1).collect();
    let run =
        unit_environment(&unit).into_iter().fold(Run::bare(), |run, (name, value)| run.env(name, value));
    let run = run.args(&argv);
    let start = |hosts: usize| {
        let job = run.clone().spawn();
        wait_until("it runs or stands by", || {
            sandbox.ran().len() + sandbox.redis.queue_len("feeder") == hosts
        });
        job
    };
    let first = start(1);
    let standby = start(2);
    standby.signal(Signal::SIGTERM);
    assert_eq!(standby.wait().signal, Some(Signal::SIGTERM as i32));
    assert_eq!((sandbox.ran().len(), sandbox.redis.queue_len("feeder")), (1, 0));

    let second = start(2);
    sandbox.shell("redlock break feeder --yes", &[]);
    let lost = first.wait().expect_code(79);
    assert!(lost.stderr.contains("broken by"), "-q hides no error: {lost:?}");
    wait_until("the standby runs it", || sandbox.ran().len() == 2);

    let third = start(3);
    second.signal(Signal::SIGTERM);
    second.wait();
    wait_until("the next one runs it", || sandbox.ran().len() == 3);
    third.signal(Signal::SIGTERM);
    third.wait();
    assert!(sandbox.ran().is_sorted(), "each has a higher fence: {:?}", sandbox.ran());
}

#[test]
fn the_preview_job_runs() {
    let sandbox = Sandbox::new();
    let job = &yaml_with("docs/ci.md", "--cancel-in-progress")["preview"];
    let url = sandbox.redis.url();
    let mut variables = ci_environment(&job["variables"], "$LOCK_REDIS_URL", &url);
    variables.extend([("CI_COMMIT_REF_SLUG", "fix-7"), ("CI_COMMIT_SHORT_SHA", "4437f8c2")]);
    let script = job["script"][0].as_str().expect("a line");
    sandbox.scripts_of(script);
    sandbox.shell(script, &variables);
    assert_eq!(sandbox.ran(), ["./deploy-preview.sh"]);
    assert!(sandbox.redis.keys().contains(&"lock-fence:preview-fix-7".to_owned()));
    assert_eq!(job["allow_failure"]["exit_codes"][1].as_i64(), Some(79), "{job:?}");
}

/// A sandbox with the hooks of the recipes, and with a curl that writes what it would send.
fn sandbox_with_hooks() -> Sandbox {
    let sandbox = Sandbox::new();
    for block in blocks_in(RECIPES, "sh") {
        let mut lines = block.text.lines();
        let name = lines.nth(1).and_then(|line| line.strip_prefix("# /usr/local/bin/"));
        if let Some(name) = name.filter(|_| block.text.contains("REDLOCK_EVENT")) {
            executable(&sandbox.bin().join(name), &block.text);
        }
    }
    let sent = sandbox.path("sent");
    executable(&sandbox.bin().join("curl"), &format!("#!/bin/sh\necho \"$*\" >>'{}'\n", sent.display()));
    sandbox
}

fn wait_for_sent(sandbox: &Sandbox, parts: &[&str]) {
    let sent = || fs::read_to_string(sandbox.path("sent")).unwrap_or_default();
    wait_until("everything is sent", || sent().lines().count() >= parts.len());
    for (line, part) in sent().lines().zip(parts) {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}

#[test]
fn the_monitor_is_pinged_at_the_start_and_with_the_exit_code() {
    for (code, last) in [(0, "/your-uuid-here/0"), (7, "/your-uuid-here/7")] {
        let sandbox = sandbox_with_hooks();
        let line = format!("redlock run --key nightly --hook ping-monitor -- sh -c 'exit {code}'");
        assert_eq!(sandbox.command(&["sh", "-c", &line], &[]).status.code(), Some(code));
        wait_for_sent(&sandbox, &["/your-uuid-here/start", last]);
    }
    let sandbox = sandbox_with_hooks();
    let line = "redlock run --key nightly --hook ping-monitor -- /nonexistent";
    assert_eq!(sandbox.command(&["sh", "-c", line], &[]).status.code(), Some(127));
    wait_for_sent(&sandbox, &["/your-uuid-here/start", "/your-uuid-here/fail"]);
}

#[test]
fn the_chat_is_warned_of_a_loss() {
    let sandbox = sandbox_with_hooks();
    // The command breaks its own lock.
    let line =
        "redlock run --key nightly --hook warn-chat -- sh -c 'redlock break nightly --yes --now; sleep 60'";
    assert_eq!(sandbox.command(&["sh", "-c", line], &[]).status.code(), Some(79));
    wait_for_sent(&sandbox, &["nightly on "]);
}
