//! A redlock that other clients take for one with another protocol: a proxy between it and a server
//! changes the number in everything that it sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use crate::support::{Nodes, Redis};

/// The field of a record, as it is sent: all of it up to the number.
const FIELD: &[u8] = b"$8\r\nprotocol\r\n$1\r\n";

/// The URLs at which these servers take a client for one with this protocol, in the same order.
pub fn urls(servers: &Nodes, protocol: u8) -> String {
    assert!(protocol < 10, "one digit");
    let mut listeners: Vec<TcpListener> =
        servers.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("its address").port();
    listeners.sort_by_key(port);
    let urls: Vec<String> =
        listeners.iter().map(|listener| format!("redis://127.0.0.1:{}", port(listener))).collect();
    for (listener, server) in listeners.into_iter().zip(servers.iter().map(Redis::port)) {
        thread::spawn(move || {
            listener.incoming().flatten().for_each(|client| relay(client, server, protocol))
        });
    }
    urls.join(",")
}

/// Ends with the connection.
fn relay(client: TcpStream, server: u16, protocol: u8) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
    let (mut replies, mut to_client) =
        (server.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
    thread::spawn(move || {
        let _ = std::io::copy(&mut replies, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let _ = relay_requests(client, &server, protocol);
        let _ = server.shutdown(Shutdown::Both);
    });
}

fn relay_requests(mut client: TcpStream, mut server: &TcpStream, protocol: u8) -> std::io::Result<()> {
    let (mut held_back, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        held_back.extend_from_slice(&buffer[..read]);
        let fields: Vec<usize> = held_back
            .windows(FIELD.len())
            .enumerate()
            .filter(|(_, window)| *window == FIELD)
            .map(|(at, _)| at)
            .collect();
        for number in
            fields.iter().map(|at| at + FIELD.len()).filter(|at| *at < held_back.len()).collect::<Vec<_>>()
        {
            held_back[number] = b'0' + protocol;
        }
        // A field that has only begun to arrive.
        let begun =
            (1..=FIELD.len()).rev().find(|length| held_back.ends_with(&FIELD[..*length])).unwrap_or(0);
        let rest = held_back.split_off(held_back.len() - begun);
        server.write_all(&std::mem::replace(&mut held_back, rest))?;
    }
}
