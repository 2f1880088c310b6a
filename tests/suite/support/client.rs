//! A raw client of a server.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

use super::PATIENCE;

/// A raw RESP connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to this port of the loopback address.
    pub fn to_port(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    #[track_caller]
    pub fn cmd(&mut self, args: &[&str]) -> String {
        self.try_cmd(args).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    pub fn try_cmd(&mut self, args: &[&str]) -> io::Result<String> {
        self.send(args)?;
        let reply = self.reply()?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    pub fn keys(&mut self) -> Vec<String> {
        let mut keys = self.all_keys();
        keys.retain(|key| !key.contains("-log:"));
        keys
    }

    fn all_keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.cmd(&["KEYS", "*"]).lines().map(str::to_owned).collect();
        keys.sort();
        keys
    }

    pub fn keys_without_ttl(&mut self) -> Vec<String> {
        let mut keys = self.all_keys();
        keys.retain(|key| self.cmd(&["PTTL", key]) == "-1");
        keys
    }

    /// The server's clock.
    pub fn now_ms(&mut self) -> u64 {
        let time = self.cmd(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').expect("seconds and microseconds");
        seconds.parse::<u64>().expect("seconds") * 1000 + micros.parse::<u64>().expect("microseconds") / 1000
    }

    /// Sends a command; the reply stays in the socket.
    pub fn send(&mut self, args: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend(format!("${}\r\n{arg}\r\n", arg.len()).into_bytes());
        }
        self.stream.get_mut().write_all(&request)
    }

    /// Reads the next reply from the socket.
    pub fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" | "-" | ":" => Ok(rest.as_bytes().to_vec()),
            "$" if count()? < 0 => Ok(Vec::new()),
            "$" => {
                let mut text = vec![0; count()? as usize + 2];
                io::Read::read_exact(&mut self.stream, &mut text)?;
                text.truncate(text.len() - 2);
                Ok(text)
            }
            "*" => {
                let parts: io::Result<Vec<_>> = (0..count()?).map(|_| self.reply()).collect();
                Ok(parts?.join(&b'\n'))
            }
            _ => Err(io::Error::other(format!("not RESP: {line}"))),
        }
    }
}
