//! The GitHub Action in action/: its main and post steps with the files and variables of a runner.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use nix::sys::signal::Signal::{SIGINT, SIGKILL};
use tempfile::TempDir;

use super::{Bench, Worker, signal_if_alive};
use crate::documents::blocks::path;
use crate::support::processes::{children, send};
use crate::support::{Run, executable, hold, queued, wait_until};

/// In the PATH of the job.
const NODE: &str = "/usr/bin/node";

macro_rules! needs_node {
    () => {
        if !Path::new(NODE).exists() {
            skip!("there is no {NODE}");
        }
    };
}

/// A job with the action and its inputs.
struct Workflow<'a> {
    bench: &'a Bench,
    worker: Worker,
}

impl Workflow<'_> {
    fn start<'a>(bench: &'a Bench, inputs: &[(&str, &str)]) -> Workflow<'a> {
        let url = bench.sandbox.redis.url();
        let file = |name: &str| bench.sandbox.path(name).to_str().unwrap().to_owned();
        for name in ["state", "environment", "output", "path"] {
            fs::write(file(name), "").unwrap();
        }
        let files = [
            ("GITHUB_STATE", file("state")),
            ("GITHUB_ENV", file("environment")),
            ("GITHUB_OUTPUT", file("output")),
            ("GITHUB_PATH", file("path")),
            ("RUNNER_TEMP", file("")),
        ];
        let mut variables: Vec<(&str, &str)> =
            files.iter().map(|(name, file)| (*name, file.as_str())).collect();
        variables.extend([("INPUT_KEY", bench.key), ("INPUT_REDIS", url.as_str())]);
        // For the steps, which ask whether the lock is held.
        variables.push(("REDLOCK_REDIS", url.as_str()));
        variables.extend(inputs);
        Workflow { bench, worker: Worker::start(bench, &variables) }
    }

    /// What a step has left in one of the runner's files.
    fn left(&self, file: &str) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.bench.sandbox.path(file)).unwrap();
        let mut lines = text.lines();
        let mut found = Vec::new();
        while let Some((name, end)) = lines.next().and_then(|line| line.split_once("<<")) {
            let value: Vec<&str> = lines.by_ref().take_while(|line| *line != end).collect();
            found.push((name.to_owned(), value.join("\n")));
        }
        found
    }

    fn begin_main(&mut self) {
        self.worker.begin(&format!("{NODE} '{}'", path("action/main.js").display()));
    }

    /// Its status; later steps get what it has left.
    fn end_main(&mut self) -> i32 {
        let status = self.worker.end();
        let quoted = |name: String, value: String| format!("{name}='{value}'\n");
        let mut variables: String =
            self.left("environment").into_iter().map(|(name, value)| quoted(name, value)).collect();
        variables.extend(
            self.left("state").into_iter().map(|(name, value)| quoted(format!("STATE_{name}"), value)),
        );
        fs::write(self.bench.sandbox.path("env"), variables).unwrap();
        status
    }

    fn main(&mut self) -> i32 {
        self.begin_main();
        self.end_main()
    }

    fn post(&mut self) -> i32 {
        self.worker.step(&format!("{NODE} '{}'", path("action/post.js").display()))
    }
}

#[test]
fn the_rest_of_the_job_runs_under_the_lock() {
    needs_node!();
    let bench = Bench::new("deploy");
    let mut job = Workflow::start(&bench, &[("INPUT_LABEL", "release 1.4"), ("INPUT_OPTIONS", "--ttl\n6s")]);
    assert_eq!(job.main(), 0);
    let [(token, _), (fence, number)] = &job.left("output")[..] else { panic!("two outputs") };
    assert_eq!([token.as_str(), fence], ["token", "fence"]);
    assert!(number.parse::<u64>().is_ok(), "{number}");
    assert!(bench.sandbox.shell("redlock status deploy", &[]).contains("release 1.4"));
    assert_eq!([job.worker.step("./build.sh"), job.worker.step("./deploy.sh")], [0, 0]);
    assert_eq!(job.worker.step("redlock status deploy --check owned"), 0);
    // The same lock again would wait for itself.
    assert_eq!(job.worker.step("redlock run --key deploy -- true"), 64);
    assert_eq!(job.post(), 0);
    bench.assert_released_beside(&job.worker);
    assert_eq!(bench.sandbox.ran(), ["./build.sh", "./deploy.sh"]);
}

#[test]
fn a_cancelled_job_releases_the_lock() {
    needs_node!();
    let bench = Bench::new("deploy");
    bench.make_deploy_block();
    let mut job = Workflow::start(&bench, &[]);
    assert_eq!(job.main(), 0);
    job.worker.begin("./deploy.sh");
    bench.wait_for_deploy();
    children(job.worker.job.pid()).into_iter().for_each(|pid| signal_if_alive(pid, SIGINT));
    children(job.worker.job.pid()).into_iter().for_each(|pid| signal_if_alive(pid, SIGKILL));
    assert_ne!(job.worker.end(), 0);
    assert_eq!(job.post(), 0);
    bench.assert_released_beside(&job.worker);
}

#[test]
fn a_job_that_is_cancelled_while_it_waits_leaves_the_queue() {
    needs_node!();
    let bench = Bench::new("deploy");
    let holder = hold(Run::key(&bench.sandbox.redis, "deploy"));
    let mut job = Workflow::start(&bench, &[]);
    job.begin_main();
    queued(&bench.sandbox.redis, "deploy", 1);
    let main = children(job.worker.job.pid())[0];
    send(main, SIGINT);
    assert_ne!(job.end_main(), 0);
    queued(&bench.sandbox.redis, "deploy", 0);
    assert_eq!(job.post(), 0);
    holder.wait().expect_code(0);
    bench.assert_released_beside(&job.worker);
}

/// SIGKILL is what a runner sends to a step that does not end; the post step clears up.
#[test]
fn a_main_step_that_is_killed_leaves_nothing() {
    needs_node!();
    let bench = Bench::new("deploy");
    let holder = hold(Run::key(&bench.sandbox.redis, "deploy"));
    let mut job = Workflow::start(&bench, &[]);
    job.begin_main();
    queued(&bench.sandbox.redis, "deploy", 1);
    send(children(job.worker.job.pid())[0], SIGKILL);
    assert_ne!(job.end_main(), 0);
    assert_eq!(job.post(), 0);
    queued(&bench.sandbox.redis, "deploy", 0);
    holder.wait().expect_code(0);
    bench.assert_released_beside(&job.worker);
}

#[test]
fn a_runner_that_dies_releases_the_lock() {
    needs_node!();
    let bench = Bench::new("deploy");
    let mut job = Workflow::start(&bench, &[]);
    assert_eq!(job.main(), 0);
    assert!(bench.sandbox.redis.held("deploy"));
    job.worker.job.signal(SIGKILL);
    bench.assert_released();
}

#[test]
fn no_step_runs_without_the_lock() {
    needs_node!();
    let bench = Bench::new("deploy");
    let holder = hold(Run::key(&bench.sandbox.redis, "deploy"));
    let mut job = Workflow::start(&bench, &[("INPUT_WAIT", "50ms")]);
    assert_eq!(job.main(), 75);
    assert!(job.worker.job.wait_for_line("::error").contains("no lock on \"deploy\""));
    assert_eq!(job.post(), 0);
    holder.wait().expect_code(0);
    bench.assert_released_beside(&job.worker);
}

#[test]
fn a_lock_that_is_lost_stops_the_running_step_and_fails_the_job() {
    needs_node!();
    let bench = Bench::new("deploy");
    bench.make_deploy_block();
    let mut job = Workflow::start(&bench, &[]);
    assert_eq!(job.main(), 0);
    job.worker.begin("./deploy.sh");
    bench.wait_for_deploy();
    bench.sandbox.command(&["redlock", "break", "deploy", "--yes"], &[]);
    assert_ne!(job.worker.end(), 0, "the step continued without the lock");
    // What clears up runs; then the job fails.
    assert_eq!(job.worker.step("true"), 0);
    assert_eq!(job.post(), 1);
    assert!(job.worker.job.wait_for_line("::error").contains("was lost while this job ran"));
    bench.assert_released_beside(&job.worker);
}

#[test]
fn a_lock_that_is_lost_between_two_steps_stops_the_next_one() {
    needs_node!();
    let bench = Bench::new("deploy");
    let mut job = Workflow::start(&bench, &[]);
    assert_eq!(job.main(), 0);
    bench.sandbox.command(&["redlock", "break", "deploy", "--yes"], &[]);
    let directory = job.left("state").into_iter().find(|(name, _)| name == "directory").expect("a state").1;
    wait_until("the loss is known", || Path::new(&directory).join("lost").exists());
    // The step of a real job, which does not ask for the lock.
    assert_ne!(job.worker.step("sleep 300"), 0);
    assert_eq!(job.post(), 1);
    bench.assert_released_beside(&job.worker);
}

/// Serves the files of a directory, once each connection, until the test ends.
fn serve(directory: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let directory = directory.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut request).unwrap();
            let mut header = String::new();
            while reader.read_line(&mut header).unwrap() > 2 {
                header.clear();
            }
            let name = request.split(' ').nth(1).and_then(|target| target.rsplit('/').next()).unwrap();
            let (status, body) = match fs::read(directory.join(name)) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    format!("http://{address}")
}

#[test]
fn a_downloaded_version_is_verified() {
    needs_node!();
    let bench = Bench::new("deploy");
    let work = TempDir::new().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("redlock-{version}-{}-unknown-linux-musl", std::env::consts::ARCH);
    let program = work.path().join(&name).join("bin/redlock");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let real = crate::support::run::binary();
    executable(
        &program,
        &format!(
            "#!/bin/sh\necho \"$1\" >>'{}'\nexec '{}' \"$@\"\n",
            bench.sandbox.path("downloaded").display(),
            real.display()
        ),
    );
    let pack = format!("tar -czf '{name}.tar.gz' '{name}' && sha256sum '{name}.tar.gz' >SHA256SUMS");
    let packed = std::process::Command::new("sh").args(["-c", &pack]).current_dir(work.path()).status();
    assert!(packed.unwrap().success());
    let url = serve(work.path());
    let inputs = [("INPUT_VERSION", version), ("INPUT_DOWNLOAD-URL", url.as_str())];

    let mut job = Workflow::start(&bench, &inputs);
    assert_eq!(job.main(), 0);
    assert_eq!(job.post(), 0);
    assert_eq!(fs::read_to_string(bench.sandbox.path("downloaded")).unwrap(), "acquire\nrelease\n");
    let search = fs::read_to_string(bench.sandbox.path("path")).unwrap();
    assert!(Path::new(search.trim_end()).join("redlock").exists(), "{search}");

    fs::write(work.path().join(format!("{name}.tar.gz")), "something else").unwrap();
    let mut job = Workflow::start(&bench, &inputs);
    assert_eq!(job.main(), 1);
    assert!(job.worker.job.wait_for_line("::error").contains("wrong checksum"));
    assert!(!bench.sandbox.redis.held("deploy"));
}
