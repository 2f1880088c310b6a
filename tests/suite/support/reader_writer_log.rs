//! Readers, writers and groups of readers: who was inside together, by what they wrote down themselves.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One file to which every command appends a line when it comes in and another before it goes. Appended lines
/// have an order, so no clock is needed. Beside it a file that is locked by flock(1) as long as any process
/// of the command lives: the kernel sees what a killed one can no longer write down.
pub struct ReaderWriterLog {
    file: PathBuf,
    random: RandomState,
}

/// The role of a command. Two may be inside together if they are readers of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Writer,
    Reader(&'static str),
}

impl Role {
    /// The options for it; "" is the group without a name.
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
    /// In this directory, in which the commands must run.
    pub fn new(dir: &Path) -> ReaderWriterLog {
        ReaderWriterLog { file: dir.join("history"), random: RandomState::new() }
    }

    /// The script of number `id`: in, `inside` seconds, out.
    pub fn script(id: usize, role: Role, inside: f64) -> String {
        let (word, mode) = (role.word(), if role == Role::Writer { "-x" } else { "-s" });
        format!(
            "exec 9>>flocked; flock -n {mode} 9 || echo clash {id} {word} >> history; \
             echo in {id} {word} >> history; echo inside; sleep {inside}; echo out {id} {word} >> history"
        )
    }

    /// To be called right before number `id` is killed: from now on it may be gone at any moment.
    pub fn kills(&self, id: usize, role: Role) {
        let mut file = fs::File::options().append(true).create(true).open(&self.file).expect("the history");
        file.write_all(format!("killed {id} {}\n", role.word()).as_bytes()).expect("a line");
    }

    /// Any of these, by the dice.
    pub fn any<T: Copy>(&self, id: usize, what: &str, of: &[T]) -> T {
        of[(self.random.hash_one((id, what)) % of.len() as u64) as usize]
    }

    /// Panics if two were inside together who may not be. Returns the largest number that was inside
    /// together, and how many came in.
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
                    assert_eq!(with, None, "line {number}, {line:?}, found somebody inside: {text}");
                    inside.insert(id, role);
                    came += 1;
                }
                "out" | "killed" => drop(inside.remove(id)),
                _ => panic!("line {number} is {line:?}: {text}"),
            }
            most = most.max(inside.len());
        }
        assert!(inside.is_empty(), "these never went out: {inside:?}");
        (most, came)
    }
}
