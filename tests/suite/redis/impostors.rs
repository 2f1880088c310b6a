//! Impostors and malicious servers: whatever they send, redlock reports it and exits in time.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Done, Run, impostor};

fn attempt(url: &str) -> Done {
    let done = Run::at(url, "k").args(&["-n", "--node-timeout", "2s"]).sh("echo ran").done();
    assert_eq!(done.stdout, "", "{done:?}");
    done
}

/// A server that sends without end after the first request.
fn flood(first: &'static str, then: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let then = then.clone();
            std::thread::spawn(move || {
                let _ = socket.read(&mut [0; 65536]);
                let _ = socket.write_all(first.as_bytes());
                while socket.write_all(then.as_bytes()).is_ok() {}
            });
        }
    });
    url
}

#[test]
fn redlock_gives_up_on_an_endless_reply() {
    let part = format!("$60000\r\n{:60000}\r\n", "");
    attempt(&flood("*1000000\r\n", part)).expect_code(69).expect_stderr(&["not Redis protocol"]);
}

#[test]
fn redlock_gives_up_on_endless_replies() {
    attempt(&flood("", "*1\r\n$5\r\nstale\r\n".repeat(100))).expect_code(69);
}

#[test]
fn redlock_gives_up_on_a_server_that_never_loads_the_script() {
    let done = attempt(&impostor("-NOSCRIPT No matching script.\r\n"));
    done.expect_code(78).expect_stderr(&["NOSCRIPT"]);
}

#[test]
fn a_reply_about_another_lock_is_unexpected() {
    let blocked = "*9\r\n$7\r\nblocked\r\n:7\r\n:-1\r\n$0\r\n\r\n:-1\r\n:-1\r\n:0\r\n$0\r\n\r\n:-1\r\n";
    attempt(&impostor(blocked)).expect_code(78).expect_stderr(&["unexpected reply"]);
}
