//! The redlock binary as a builder, a running job, and its result.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use serde_json::Value;

use super::lines::Lines;
use super::{Redis, all_pids, process_state, processes, session};

/// A job that runs longer than this is killed, and the test fails.
const GUARD: Duration = Duration::from_secs(60);

/// The binary under test.
pub fn binary() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("redlock").to_owned()
}

/// One invocation of redlock in a clean environment, without a controlling terminal.
#[derive(Clone)]
pub struct Run {
    program: PathBuf,
    wrapper: Vec<OsString>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    stdin: Option<Vec<u8>>,
    stdin_open: bool,
}

impl Run {
    /// The binary without arguments.
    pub fn bare() -> Run {
        let kept = ["PATH", "HOME"].map(|name| (name.into(), std::env::var_os(name)));
        let mut env: Vec<(OsString, OsString)> =
            kept.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        // No config file of the user who runs the tests.
        env.push(("XDG_CONFIG_HOME".into(), "/nonexistent".into()));
        Run {
            program: binary(),
            wrapper: Vec::new(),
            args: Vec::new(),
            env,
            dir: None,
            stdin: None,
            stdin_open: false,
        }
    }

    /// `redlock run --redis URL --key KEY`
    pub fn key(redis: &Redis, key: &str) -> Run {
        Run::at(&redis.url(), key)
    }

    /// The same for any server URL, such as a proxy's.
    pub fn at(url: &str, key: &str) -> Run {
        Run::bare().args(&["run", "--redis", url, "--key", key])
    }

    pub fn arg(mut self, a: impl AsRef<OsStr>) -> Run {
        self.args.push(a.as_ref().to_owned());
        self
    }

    pub fn args(mut self, a: &[&str]) -> Run {
        self.args.extend(a.iter().map(OsString::from));
        self
    }

    pub fn env(mut self, k: &str, v: impl AsRef<OsStr>) -> Run {
        self.env.push((k.into(), v.as_ref().to_owned()));
        self
    }

    /// The working directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Run {
        self.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Runs another copy of the binary.
    pub fn program(mut self, path: PathBuf) -> Run {
        self.program = path;
        self
    }

    /// Started as `argv... redlock args...`, for nohup and the like.
    pub fn through(mut self, argv: &[&str]) -> Run {
        self.wrapper = argv.iter().map(OsString::from).collect();
        self
    }

    /// Started by a shell script in which "$@" is the command line: `trap '' INT; exec "$@"`.
    pub fn via(self, script: &str) -> Run {
        self.through(&["sh", "-c", script, "sh"])
    }

    /// Writes these bytes to stdin and closes it. Otherwise stdin is /dev/null.
    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Run {
        self.stdin = Some(bytes.as_ref().to_vec());
        self
    }

    /// stdin is a pipe that stays open until the result of `Job::take_stdin` is dropped.
    pub fn stdin_pipe(mut self) -> Run {
        self.stdin_open = true;
        self
    }

    /// Appends `-- sh -c script`.
    pub fn sh(self, script: &str) -> Run {
        self.cmd(&["sh", "-c", script])
    }

    /// Appends `-- argv...`.
    pub fn cmd(self, argv: &[&str]) -> Run {
        self.arg("--").args(argv)
    }

    /// Runs to the end; killed after a minute.
    #[track_caller]
    pub fn output(self) -> Output {
        let done = self.spawn().wait_raw();
        Output { status: done.0, stdout: done.1, stderr: done.2 }
    }

    /// Whether one attempt is granted.
    #[track_caller]
    pub fn try_acquire(self) -> bool {
        let done = self.arg("-n").cmd(&["true"]).done();
        assert!(matches!(done.code, Some(0 | 75)), "{done:#?}");
        done.code == Some(0)
    }

    /// The fencing token of this run.
    #[track_caller]
    pub fn fence(self) -> u64 {
        let done = self.sh("echo $REDLOCK_FENCE").done().expect_code(0);
        done.stdout.trim().parse().unwrap_or_else(|_| panic!("no fence: {done:?}"))
    }

    /// As a reader with this lease.
    pub fn shared(self, ttl: &str) -> Run {
        self.args(&["--shared", "--ttl", ttl])
    }

    /// Runs to the end; the output is text.
    #[track_caller]
    pub fn done(self) -> Done {
        self.spawn().wait()
    }

    pub fn spawn(self) -> Job {
        let piped = self.stdin.is_some() || self.stdin_open;
        let mut command = self.command();
        command
            .stdin(if piped { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        in_new_session(&mut command);
        let mut child = command.spawn().expect("the binary can be started");
        let mut stdin = child.stdin.take();
        if let Some(bytes) = self.stdin {
            let mut pipe = stdin.take().expect("stdin is a pipe");
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        Job {
            stdout: Lines::of(child.stdout.take().expect("stdout is a pipe")),
            stderr: Lines::of(child.stderr.take().expect("stderr is a pipe")),
            stdin,
            child,
            ended: None,
        }
    }

    /// The plain command; its streams are still to be chosen.
    pub fn command(&self) -> Command {
        let mut argv = self.wrapper.clone();
        argv.push(self.program.clone().into());
        argv.extend(self.args.iter().cloned());
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).env_clear().envs(self.env.iter().map(|(k, v)| (k, v)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// A line for a POSIX shell that does the same.
    pub fn shell_line(&self) -> String {
        let mut words = vec![quoted(self.program.as_os_str())];
        words.extend(self.args.iter().map(|a| quoted(a)));
        words.join(" ")
    }
}

/// The command gets a session of its own, and the default action for every signal.
pub fn in_new_session(command: &mut Command) {
    // SAFETY: setsid and signal are async-signal-safe; nothing else runs between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            default_signals()
        });
    }
}

/// Resets the signals that nohup or a shell without job control ignores in the whole test run. Must
/// be called between fork and exec.
pub fn default_signals() -> io::Result<()> {
    for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        // SAFETY: the default action is not a function of ours.
        unsafe { signal(ignored, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// A word for a POSIX shell.
pub fn quoted(word: &OsStr) -> String {
    let word = String::from_utf8(word.as_bytes().to_vec()).expect("text");
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A running redlock. When it is dropped its whole session is killed at once.
pub struct Job {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines,
    stderr: Lines,
    ended: Option<ExitStatus>,
}

impl Job {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The first stdout line that contains `text`.
    #[track_caller]
    pub fn wait_for_line(&self, text: &str) -> String {
        self.wait_in("stdout", &self.stdout, text)
    }

    /// The first stderr line that contains `text`.
    #[track_caller]
    pub fn wait_for_stderr(&self, text: &str) -> String {
        self.wait_in("stderr", &self.stderr, text)
    }

    /// The stdout so far.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.text()
    }

    /// The stderr so far.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.text()
    }

    /// The pipe of `Run::stdin_pipe`.
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("started with stdin_pipe, taken once")
    }

    pub fn signal(&self, sig: Signal) {
        processes::send(self.pid(), sig);
    }

    /// Sends SIGSTOP and waits until redlock has stopped; its guardian and its command continue.
    #[track_caller]
    pub fn stop(&self) {
        processes::stop(self.pid());
    }

    /// Sends SIGKILL to redlock and its guardian at once: the lease must expire. The command dies
    /// with them.
    pub fn kill_with_guardian(self) {
        drop(self);
    }

    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the job's state");
        }
        self.ended.is_none()
    }

    /// Waits until redlock has exited, and if it died, its guardian, too.
    #[track_caller]
    pub fn wait(self) -> Done {
        let (status, stdout, stderr) = self.wait_raw();
        Done {
            code: status.code(),
            signal: status.signal(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Waits until redlock itself has exited. Another process may still hold its output open, so
    /// the output's end is awaited only briefly.
    #[track_caller]
    fn wait_raw(mut self) -> (ExitStatus, Vec<u8>, Vec<u8>) {
        drop(self.stdin.take());
        let start = Instant::now();
        while self.is_running() {
            assert!(
                start.elapsed() < GUARD,
                "redlock still runs after {GUARD:?}\nstdout: {}\nstderr: {}",
                self.stdout.text(),
                self.stderr.text()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = self.ended.expect("ended");
        (status, self.stdout.finish(), self.stderr.finish())
    }

    #[track_caller]
    fn wait_in(&self, name: &str, lines: &Lines, text: &str) -> String {
        lines.wait_for(text).unwrap_or_else(|| {
            panic!(
                "no line with {text:?} on {name}\nstdout: {}\nstderr: {}",
                self.stdout.text(),
                self.stderr.text()
            )
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let leader = self.pid();
        let in_session = move |pid: &i32| session(*pid) == Some(leader) && *pid != leader;
        let kill_session = || {
            for pid in all_pids().into_iter().filter(in_session) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        };
        if self.is_running() {
            // The guardian first, while redlock cannot react: neither of them releases the lock.
            let _ = kill(Pid::from_raw(leader), Signal::SIGSTOP);
            kill_session();
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            // The guardian of a redlock that died releases the lock.
            let releases = |pid: &i32| {
                in_session(pid)
                    && processes::status_field(*pid, "Name") == "lock-guardian"
                    && matches!(process_state(*pid), Some('S' | 'R' | 'D'))
            };
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(8) && all_pids().iter().any(releases) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        kill_session();
    }
}

/// How a redlock exited.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Fails with the whole output if the exit code is another one.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Done {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// stdout as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// stdout as JSON values, one per line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.stdout.lines().map(parse).collect()
    }

    /// stderr contains one of these texts, ignoring case.
    #[track_caller]
    pub fn expect_stderr(self, any_of: &[&str]) -> Done {
        let stderr = self.stderr.to_lowercase();
        assert!(
            any_of.iter().any(|text| stderr.contains(&text.to_lowercase())),
            "none of {any_of:?}: {self:#?}"
        );
        self
    }
}

/// An argument that is not UTF-8.
pub fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
