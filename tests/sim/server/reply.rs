//! Replies and requests as they are on the wire (RESP 2).

/// One reply of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    /// The code, then the text.
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    NilArray,
    Array(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub fn bulks(items: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::Array(items.into_iter().map(Self::Bulk).collect())
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) => out.extend(format!("+{text}\r\n").bytes()),
            Self::Error(text) => out.extend(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).bytes()),
            Self::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            Self::Bulk(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).bytes());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Self::Nil => out.extend(b"$-1\r\n"),
            Self::NilArray => out.extend(b"*-1\r\n"),
            Self::Array(items) => {
                out.extend(format!("*{}\r\n", items.len()).bytes());
                items.iter().for_each(|item| item.encode(out));
            }
        }
    }
}

/// A command and its arguments.
pub type Command = Vec<Vec<u8>>;

/// The first complete command, and how many bytes it takes. Clients send arrays of bulk strings only.
pub fn parse_command(bytes: &[u8]) -> Option<(Command, usize)> {
    let mut at = 0;
    let count = number_line(bytes, &mut at, b'*')?;
    let mut command = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number_line(bytes, &mut at, b'$')?;
        command.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then_some((command, at))
}

fn number_line(bytes: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], kind, "a client sent something else than an array of bulk strings");
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()?;
    *at += end + 2;
    Some(number)
}
