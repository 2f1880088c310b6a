//! A real pseudo terminal with a program as its session leader and foreground job.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2};

use super::run::default_signals;
use super::{Done, PATIENCE, Run, all_pids, session};

pub struct Pty {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    /// Open as long as the reader reads.
    reads: Option<File>,
}

impl Pty {
    /// redlock itself leads the session and is the terminal's foreground job.
    pub fn run(run: Run) -> Pty {
        Pty::start(run.command())
    }

    /// redlock below a shell without job control, which then prints `status=N`. Both are in the
    /// terminal's foreground group, as in a script.
    pub fn script(run: Run) -> Pty {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{}; echo status=$?", run.shell_line())]);
        Pty::start(like(&run, command))
    }

    /// An interactive bash with job control; type `Run::shell_line` into it. Its prompt is `$ `,
    /// and it has printed `READY`.
    pub fn shell() -> Pty {
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "--noediting", "-i"]);
        let mut command = like(&Run::bare(), command);
        command.env("PS1", "$ ").env("HISTFILE", "/dev/null");
        let pty = Pty::start(command);
        pty.type_in("echo REA''DY\n");
        pty.wait_for("READY");
        pty
    }

    /// Another program, in the environment of `Run::bare`.
    pub fn program(command: Command) -> Pty {
        let own: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
        let mut command = like(&Run::bare(), command);
        for (name, value) in own {
            command.env(name, value.unwrap_or_default());
        }
        Pty::start(command)
    }

    fn start(mut command: Command) -> Pty {
        let (keyboard, slave) = open();
        set_size(&keyboard, 24, 100);
        let stream = || Stdio::from(slave.try_clone().expect("the terminal"));
        if !command.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm");
        }
        command.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: setsid, ioctl and signal are async-signal-safe, and fd 0 is the terminal by now.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                default_signals()
            });
        }
        let child = command.spawn().expect("the program can be started");
        drop(command);
        drop(slave);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&screen);
        let mut output = keyboard.try_clone().expect("the terminal");
        let (goes_away, reads) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let mut fds =
                    [&output.as_fd(), &goes_away.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
                let _ = poll(&mut fds, PollTimeout::NONE);
                if fds[1].any() != Some(false) {
                    return;
                }
                let Ok(n @ 1..) = output.read(&mut buffer) else { return };
                theirs.lock().expect("the screen").extend(&buffer[..n]);
            }
        });
        Pty { child, keyboard, screen, reader, reads: Some(File::from(reads)) }
    }

    /// The terminal goes away: a closed window, a lost ssh connection.
    pub fn hang_up(&mut self) {
        self.reads = None;
        self.keyboard = File::open("/dev/null").expect("a file");
        super::wait_until("the terminal is closed", || self.reader.is_finished());
    }

    /// The session leader's pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Types keys: "\x03" is ^C, "\x1a" is ^Z, "\x1c" is ^\, "\x04" is ^D.
    pub fn type_in(&self, keys: &str) {
        (&self.keyboard).write_all(keys.as_bytes()).expect("type");
    }

    /// The number after `text` on the screen, once the space after the number is there, too.
    #[track_caller]
    pub fn number_after(&self, text: &str) -> i32 {
        let mut found = None;
        super::wait_until(text, || {
            let screen = self.screen();
            let behind = screen.split(text).nth(1).and_then(|rest| rest.split_once(' '));
            found = behind.and_then(|(number, _)| number.parse().ok());
            found.is_some()
        });
        found.expect("wait_until returned")
    }

    /// Everything that was ever shown, including control sequences.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("the screen")).into_owned()
    }

    /// Waits until `text` is on the screen.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        self.wait_for_times(text, 1);
    }

    /// Waits until `text` has been shown this many times.
    #[track_caller]
    pub fn wait_for_times(&self, text: &str, times: usize) {
        let start = Instant::now();
        while self.screen().matches(text).count() < times {
            assert!(
                start.elapsed() < PATIENCE,
                "not {times} times on the screen: {text:?}\n{}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sets a new size, which sends SIGWINCH to the foreground job.
    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.keyboard, rows, columns);
    }

    /// Waits for the session leader to exit, at most a minute; stdout is everything that was
    /// written to the screen. If other processes keep the terminal open, it is what arrives within
    /// two seconds.
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "still runs\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        };
        let ended = Instant::now();
        while !self.reader.is_finished() && ended.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Done { code: status.code(), signal: status.signal(), stdout: self.screen(), stderr: String::new() }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let leader = self.pid();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in all_pids() {
            if session(pid) == Some(leader) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// Another program with the environment and directory of `run`.
fn like(run: &Run, mut command: Command) -> Command {
    let model = run.command();
    command.env_clear().envs(model.get_envs().filter_map(|(k, v)| Some((k, v?))));
    if let Some(dir) = model.get_current_dir() {
        command.current_dir(dir);
    }
    command
}

/// Both ends of a new terminal. Only the session may keep it open: its end is seen when the last
/// process closes it. So no child of another thread may inherit a descriptor, not even one that is
/// forked right now.
fn open() -> (File, File) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).expect("a pty");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other end");
    let name = ptsname_r(&master).expect("its name");
    let mut options = File::options();
    let slave =
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(name).expect("its other end");
    (File::from(OwnedFd::from(master)), slave)
}

fn set_size(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open and the pointer is to a live winsize.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    assert_eq!(result, 0, "a size");
}
