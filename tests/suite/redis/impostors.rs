//! Servers that are none, or mean harm: whatever they send, redlock says so and ends in time.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Done, Run, impostor};

fn attempt(url: &str) -> Done {
    let done = Run::at(url, "k").args(&["-n", "--node-timeout", "2s"]).sh("echo ran").done();
    assert_eq!(done.stdout, "", "{done:?}");
    done
}

/// A server that sends without end, once it was asked.
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
fn a_reply_without_end_is_given_up() {
    let part = format!("$60000\r\n{:60000}\r\n", "");
    attempt(&flood("*1000000\r\n", part)).expect_code(69).expect_stderr(&["not Redis protocol"]);
}

#[test]
fn replies_without_end_are_given_up() {
    attempt(&flood("", "*1\r\n$5\r\nstale\r\n".repeat(100))).expect_code(69);
}

#[test]
fn a_server_that_never_knows_the_script_is_given_up() {
    let done = attempt(&impostor("-NOSCRIPT No matching script.\r\n"));
    done.expect_code(78).expect_stderr(&["NOSCRIPT"]);
}

#[test]
fn a_reply_about_a_lock_that_was_not_asked_for_is_unexpected() {
    let blocked = "*9\r\n$7\r\nblocked\r\n:7\r\n:-1\r\n$0\r\n\r\n:-1\r\n:-1\r\n:0\r\n$0\r\n\r\n:-1\r\n";
    attempt(&impostor(blocked)).expect_code(78).expect_stderr(&["unexpected reply"]);
}
