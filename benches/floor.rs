//! The minimum that a Redis lock around a command can cost: connect, SET NX PX, run, compare and
//! delete.
//!
//! For scripts/bench only: no queue, no refresh, no signals, and the command is not stopped when
//! the lock is lost. It uses only the standard library.
//!
//! floor HOST:PORT KEY COMMAND [ARG...]

use std::error::Error;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, process};

const LEASE_MS: &str = "30000";
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("floor: {error}");
        ExitCode::from(125)
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let [server, key, program, arguments @ ..] = words.as_slice() else {
        return Err("usage: floor HOST:PORT KEY COMMAND [ARG...]".into());
    };
    let key = format!("lock:{}", key.to_string_lossy());
    let token = token()?;
    let mut redis = TcpStream::connect(&*server.to_string_lossy())?;
    redis.set_nodelay(true)?;
    if ask(&mut redis, &["SET", &key, &token, "NX", "PX", LEASE_MS])? != "+OK\r\n" {
        return Err("held by someone else".into());
    }
    let ended = Command::new(program).args(arguments).status();
    if ask(&mut redis, &["EVAL", COMPARE_AND_DELETE, "1", &key, &token])? != ":1\r\n" {
        return Err("the lock was no longer ours".into());
    }
    Ok(ended?.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}

fn token() -> Result<String, Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(format!("{}-{}", process::id(), now.as_nanos()))
}

/// One command, one line of reply.
fn ask(redis: &mut TcpStream, words: &[&str]) -> Result<String, Box<dyn Error>> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    redis.write_all(request.as_bytes())?;
    let mut reply = String::new();
    while !reply.ends_with("\r\n") {
        let mut part = [0; 256];
        match redis.read(&mut part)? {
            0 => return Err("the server closed the connection".into()),
            length => reply += str::from_utf8(&part[..length])?,
        }
    }
    Ok(reply)
}
