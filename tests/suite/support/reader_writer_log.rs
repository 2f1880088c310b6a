//! Readers, writers and groups of readers: checks from their own log which of them were inside
//! together.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One file to which every command appends a line when it enters and another before it leaves.
/// Appended lines have an order, so no clock is needed. Beside it is a file that flock(1) locks for
/// as long as any process of the command lives, since a killed command cannot log that it left.
pub struct ReaderWriterLog {
    file: PathBuf,
    random: RandomState,
}

/// The role of a command. Two commands may be inside together if they are readers of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Writer,
    Reader(&'static str),
}

impl Role {
    /// The options for this role; "" is the group without a name.
    pub fn args(self) -> Vec<&'static str> {
        match self {
            Role::Writer => vec!["--exclusive"],
            Role::Reader("") => vec!["--shared"],
            Role::Reader(group) => vec!["--shared", "--reader-group", group],
        }
    }

    fn word(self) -> String {
        match self {
            Role::Writer => "writer".to_owned(),
            Role::Reader(group) => format!("reader-{group}"),
        }
    }
}

impl ReaderWriterLog {
    /// The log in this directory, in which the commands must run.
    pub fn new(dir: &Path) -> ReaderWriterLog {
        ReaderWriterLog { file: dir.join("history"), random: RandomState::new() }
    }

    /// The script of command `id`: it enters, stays for `inside` seconds and leaves.
    pub fn script(id: usize, role: Role, inside: f64) -> String {
        let (word, mode) = (role.word(), if role == Role::Writer { "-x" } else { "-s" });
        format!(
            "exec 9>>flocked; flock -n {mode} 9 || echo clash {id} {word} >> history; \
             echo in {id} {word} >> history; echo inside; sleep {inside}; echo out {id} {word} >> history"
        )
    }

    /// Must be called right before command `id` is killed: from now on it may be gone at any
    /// moment.
    pub fn log_kill(&self, id: usize, role: Role) {
        let mut file = fs::File::options().append(true).create(true).open(&self.file).expect("the history");
        file.write_all(format!("killed {id} {}\n", role.word()).as_bytes()).expect("a line");
    }

    /// A random choice from `of`.
    pub fn any<T: Copy>(&self, id: usize, what: &str, of: &[T]) -> T {
        of[(self.random.hash_one((id, what)) % of.len() as u64) as usize]
    }

    /// Panics if two commands were inside together that must not be. Returns the largest number
    /// that was inside together, and how many entered.
    #[track_caller]
    pub fn check(&self) -> (usize, usize) {
        let text = fs::read_to_string(&self.file).expect("the history");
        let (mut inside, mut most, mut came) = (BTreeMap::new(), 0, 0);
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, id, role] = words[..] else { panic!("line {number} is {line:?}") };
            match what {
                "in" => {
                    let with = inside.iter().find(|(_, other)| **other != role || role == "writer");
                    assert_eq!(with, None, "line {number}, {line:?}, found another command inside: {text}");
                    inside.insert(id, role);
                    came += 1;
                }
                "out" | "killed" => drop(inside.remove(id)),
                _ => panic!("line {number} is {line:?}: {text}"),
            }
            most = most.max(inside.len());
        }
        assert!(inside.is_empty(), "these commands never left: {inside:?}");
        (most, came)
    }
}
