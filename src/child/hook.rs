//! Runs a hook for each event, in a process of its own that outlives redlock.
//!
//!     redlock  --events-->  hook runner  --parent of-->  /bin/sh -c HOOK
//!              <--failure--
//!
//! The runner is forked before anything is opened, so it has none of the lock, and twice, so it is
//! not in the tree that redlock or its guardian stops. It takes every event at once, so redlock never
//! waits for a hook. The end of the channel is the end of redlock: what is queued then still runs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio, exit};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};
use serde_json::{Map, Value};

use super::channel::Channel;
use super::detach::{close_all_but, restore_default_signals};
use super::host::nowhere;
use super::process_tree::{ProcView, ProcessTree, Reaped, reap};
use super::signal_state::set_default;
use super::signals::ENDING;
use crate::clock::BootTime;
use crate::exit::Exit;
use crate::moment::printable;
use crate::poll::Poll;

/// A hook, with everything that it has started, is killed after this time.
const LONGEST: Duration = Duration::from_secs(10);
/// Events that wait for a hook. Of more the oldest are dropped: the last one counts most.
const QUEUE: usize = 100;
/// The process name in `ps`.
pub(super) const NAME: &std::ffi::CStr = c"redlock-hook";

/// redlock's end of the channel.
#[derive(Debug)]
pub(crate) struct HookRunner {
    channel: Channel,
}

impl HookRunner {
    /// Start the process that runs this shell command for each event. The calling process must have
    /// one thread, and must not have opened anything. `without_redlock` reports a failure when
    /// redlock has exited.
    pub(crate) fn start(command: &str, without_redlock: impl Fn(&str)) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        // SAFETY: there is one thread, so the child may run any code.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                while waitpid(child, None) == Err(Errno::EINTR) {}
                Ok(Self { channel: ours })
            }
            ForkResult::Child => {
                drop(ours);
                // SAFETY: as above. The parent of the runner exits at once.
                match unsafe { fork() } {
                    Ok(ForkResult::Child) => {
                        let runner = detach(&theirs).and_then(|()| Runner::new(theirs, command));
                        let _ = runner.map(|runner| runner.serve(&without_redlock));
                    }
                    Ok(ForkResult::Parent { .. }) => {}
                    Err(error) => drop(theirs.send(format!("cannot start its process: {error}").as_bytes())),
                }
                exit(0)
            }
        }
    }

    /// Never blocks. An event is lost if the runner was stopped or killed, or if it is longer than the
    /// socket's buffer.
    pub(crate) fn send(&self, event: &[u8]) {
        let _ = self.channel.send(event);
    }

    /// The first failure of a hook, if one was reported since the last call.
    pub(crate) fn failure(&self) -> Option<String> {
        let text = self.channel.try_receive().ok()??;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Leave the caller's session, descriptors and signals. The working directory stays, as the command
/// may be a relative path.
fn detach(channel: &Channel) -> io::Result<()> {
    setsid()?;
    set_name(NAME)?;
    let null = nowhere()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    close_all_but(&[channel.as_fd().as_raw_fd(), null.as_raw_fd()]);
    restore_default_signals();
    for signal in [Signal::SIGCHLD, Signal::SIGXFSZ] {
        set_default(signal);
    }
    // Everything that a hook starts stays below this process.
    set_child_subreaper(true)?;
    Ok(())
}

struct Runner<'a> {
    channel: Channel,
    command: &'a str,
    children: SignalFd,
    queue: VecDeque<Vec<u8>>,
    running: Option<Running>,
    /// The last event that was received.
    last: Map<String, Value>,
    is_closed: bool,
    failure_reported: bool,
}

struct Running {
    pid: Pid,
    until: BootTime,
}

impl<'a> Runner<'a> {
    fn new(channel: Channel, command: &'a str) -> io::Result<Self> {
        let mask = SigSet::from(Signal::SIGCHLD);
        mask.thread_block()?;
        // Signals for all processes of a job, or for all with redlock's arguments, must not prevent the
        // last hook. Hooks start with no signal blocked.
        ENDING.into_iter().collect::<SigSet>().thread_block()?;
        let children = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self {
            channel,
            command,
            children,
            queue: VecDeque::new(),
            running: None,
            last: Map::new(),
            is_closed: false,
            failure_reported: false,
        })
    }

    fn serve(mut self, without_redlock: &dyn Fn(&str)) {
        loop {
            if self.running.is_none() {
                match self.queue.pop_front() {
                    Some(event) => {
                        let failure = self.start(&event).err();
                        self.report(
                            failure.map(|error| format!("cannot start /bin/sh: {error}")),
                            without_redlock,
                        );
                    }
                    None if self.is_closed => return,
                    None => {}
                }
            }
            self.wait();
            self.receive();
            let failure = self.check();
            self.report(failure, without_redlock);
        }
    }

    /// Until an event, the end of a child, or the end of a hook's time.
    fn wait(&self) {
        let mut poll = Poll::new();
        poll.readable(self.children.as_fd(), ());
        if !self.is_closed {
            poll.readable(self.channel.as_fd(), ());
        }
        match &self.running {
            None if self.is_closed || !self.queue.is_empty() => poll.until(Some(BootTime::now())),
            None => {}
            Some(running) => poll.until(Some(running.until)),
        }
        poll.wait();
    }

    fn receive(&mut self) {
        while let Ok(Some(_)) = self.children.read_signal() {}
        while !self.is_closed {
            match self.channel.try_receive() {
                Ok(Some(event)) => self.add(event),
                Ok(None) => {
                    self.is_closed = true;
                    self.add_end_of_killed();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_closed = true,
            }
        }
    }

    fn add(&mut self, event: Vec<u8>) {
        if let Ok(Value::Object(fields)) = serde_json::from_slice(&event) {
            self.last = fields;
        }
        if self.queue.len() >= QUEUE {
            self.queue.pop_front();
        }
        self.queue.push_back(event);
    }

    /// redlock was killed if its last event is not the end.
    fn add_end_of_killed(&mut self) {
        if self.last.is_empty() || self.last.get("event").is_some_and(|event| event == "ended") {
            return;
        }
        let now = humantime::format_rfc3339_millis(printable(SystemTime::now())).to_string();
        let mut end = Map::new();
        for (name, value) in std::mem::take(&mut self.last) {
            match name.as_str() {
                "time" => end.insert(name, now.clone().into()),
                "event" => end.insert(name, "ended".into()),
                "v" | "keys" | "run" => end.insert(name, value),
                _ => None,
            };
        }
        end.insert("outcome".into(), "killed".into());
        self.add(format!("{}\n", Value::Object(end)).into());
    }

    #[allow(clippy::zombie_processes, reason = "check() reaps it")]
    fn start(&mut self, event: &[u8]) -> io::Result<()> {
        let mut stdin = File::from(memfd_create(c"redlock-event", MFdFlags::MFD_CLOEXEC)?);
        stdin.write_all(event)?;
        stdin.rewind()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", self.command]).stdin(Stdio::from(stdin)).process_group(0);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"REDLOCK_"))
        {
            command.env_remove(name);
        }
        command.envs(variables(event));
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id().try_into().map_err(|_| ErrorKind::InvalidData)?);
        self.running = Some(Running { pid, until: BootTime::now() + LONGEST });
        Ok(())
    }

    /// Reap, and end a hook whose time is over. Returns how it failed.
    fn check(&mut self) -> Option<String> {
        let mut failure = None;
        let mut note = |running: &Running, ended: Pid, exit: Exit| {
            if ended == running.pid && exit != Exit::Code(0) {
                failure = Some(match exit {
                    Exit::Code(code) => format!("it exited with {code}"),
                    Exit::Signal(number) => format!("it was killed by signal {number}"),
                });
            }
        };
        let running = self.running.as_ref()?;
        loop {
            match reap() {
                Reaped::Ended(pid, exit) => note(running, pid, exit),
                Reaped::Paused(..) | Reaped::Continued(_) => {}
                Reaped::NothingNew => break,
                Reaped::NoChildren => {
                    self.running = None;
                    return failure;
                }
            }
        }
        if running.until.has_passed() {
            ProcessTree::new(ProcView::check()).kill(Some(BootTime::now()), |_, _| {});
            self.running = None;
            failure = Some("it was killed after 10s".into());
        }
        failure
    }

    /// The first failure only.
    fn report(&mut self, failure: Option<String>, without_redlock: &dyn Fn(&str)) {
        let Some(failure) = failure.filter(|_| !self.failure_reported) else { return };
        self.failure_reported = true;
        if self.channel.send(failure.as_bytes()).is_err() {
            without_redlock(&failure);
        }
    }
}

/// What a shell needs from the event.
fn variables(event: &[u8]) -> Vec<(&'static str, String)> {
    let event: Value = serde_json::from_slice(event).unwrap_or_default();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    let keys: Vec<String> = event["keys"].as_array().into_iter().flatten().map(text).collect();
    let exit =
        event["signal"].as_i64().map_or_else(|| text(&event["exit"]), |signal| (128 + signal).to_string());
    vec![
        ("REDLOCK_EVENT", text(&event["event"])),
        ("REDLOCK_KEY", keys.join("\n")),
        ("REDLOCK_OUTCOME", text(&event["outcome"])),
        ("REDLOCK_EXIT", exit),
    ]
}
