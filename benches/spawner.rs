//! Starts commands in turn and prints how long each took, from start to exit.
//!
//! A separate small static program, built by scripts/bench with rustc alone: started from the
//! benchmark itself, which is large and has threads, every command would pay for the benchmark's
//! memory, and the differences between the commands would seem smaller than they are.
//!
//! spawner ROUNDS COMMAND [ARG...] [::: COMMAND [ARG...]]...
//!
//! Prints a line for each run: the command's number from 0 on, and the nanoseconds that it took.

use std::ffi::{CString, OsString, c_char, c_int, c_uint};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::ptr::null;
use std::time::{Duration, Instant};

const SEPARATOR: &str = ":::";
/// What a command leaves for the servers to do is not its successor's cost.
const PAUSE: Duration = Duration::from_millis(1);
/// A command that takes longer hangs: the alarm then ends the spawner, and the benchmark with it.
const PATIENCE_SECONDS: c_uint = 30;

unsafe extern "C" {
    fn posix_spawnp(
        pid: *mut c_int,
        file: *const c_char,
        file_actions: *const u8,
        attributes: *const u8,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn alarm(seconds: c_uint) -> c_uint;
    static environ: *const *const c_char;
}

fn main() -> ExitCode {
    match run() {
        Ok(lines) => {
            let written = std::io::stdout().write_all(lines.as_bytes());
            ExitCode::from(u8::from(written.is_err()))
        }
        Err(error) => {
            eprintln!("spawner: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, String> {
    let mut words = std::env::args_os().skip(1);
    let rounds = words.next().and_then(|word| word.to_str()?.parse().ok());
    let rounds: usize = rounds.ok_or("usage: spawner ROUNDS COMMAND [ARG...] [::: COMMAND [ARG...]]...")?;
    let words: Vec<OsString> = words.collect();
    let commands: Vec<Vec<CString>> = words.split(|word| word == SEPARATOR).map(to_argv).collect();
    if commands.iter().any(Vec::is_empty) {
        return Err("a command is empty".into());
    }
    let mut lines = String::new();
    for round in 0..rounds {
        for place in 0..commands.len() {
            // Another command starts each round: to be first, or to follow a certain other one, may
            // matter.
            let turn = (round + place) % commands.len();
            std::thread::sleep(PAUSE);
            let took = time(&commands[turn])?;
            let _ = writeln!(lines, "{turn} {}", took.as_nanos());
        }
    }
    Ok(lines)
}

fn to_argv(words: &[OsString]) -> Vec<CString> {
    words.iter().map(|word| CString::new(word.clone().into_vec()).expect("arguments have no NUL")).collect()
}

fn time(command: &[CString]) -> Result<Duration, String> {
    let argv: Vec<*const c_char> = command.iter().map(|word| word.as_ptr()).chain([null()]).collect();
    let (mut pid, mut status) = (0, 0);
    // SAFETY: takes a number.
    unsafe { alarm(PATIENCE_SECONDS) };
    let began = Instant::now();
    // SAFETY: `argv` and the strings that it points to live until this returns, and both lists end
    // with a null pointer; null for the actions and the attributes is allowed.
    let error = unsafe { posix_spawnp(&mut pid, argv[0], null(), null(), argv.as_ptr(), environ) };
    if error != 0 {
        return Err(format!("cannot start {:?}: {}", command[0], std::io::Error::from_raw_os_error(error)));
    }
    // SAFETY: `status` is ours.
    let ended = unsafe { waitpid(pid, &mut status, 0) };
    let took = began.elapsed();
    if ended != pid || status != 0 {
        return Err(format!("{command:?} failed (wait status {status})"));
    }
    Ok(took)
}
