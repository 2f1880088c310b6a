//! The fenced blocks of a document.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Block {
    /// The text after the opening fence.
    pub language: String,
    pub text: String,
}

impl Block {
    /// The file name in the first line, a comment.
    pub fn file_name(&self) -> &str {
        let comment =
            self.text.lines().next().and_then(|line| line.split_once(' ')).map_or("", |(_, path)| path);
        Path::new(comment)
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_else(|| panic!("no name: {self:?}"))
    }
}

/// A file of this repository.
pub fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

pub fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All blocks of a document.
pub fn blocks(file: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in read(file).lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language: language.to_owned(), text: String::new() })
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{file}: {open:?} does not end");
    found
}

/// The blocks in one language, at least one.
pub fn blocks_in(file: &str, language: &str) -> Vec<Block> {
    let blocks: Vec<Block> = blocks(file).into_iter().filter(|block| block.language == language).collect();
    assert!(!blocks.is_empty(), "{file} has no block in {language}");
    blocks
}

/// The text of the first block in one language that begins with this text.
pub fn block_of(file: &str, language: &str, begin: &str) -> String {
    let found = blocks_in(file, language).into_iter().find(|block| block.text.starts_with(begin));
    found.unwrap_or_else(|| panic!("{file} has no {language} that begins with {begin}")).text
}

/// The rules of a user in docs/install.md, in the form for redis-cli.
pub fn acl_rules(user: &str) -> Vec<String> {
    let start = format!("ACL SETUSER {user} ");
    let blocks = blocks_in("docs/install.md", "redis");
    let rules = blocks.iter().find_map(|block| block.text.strip_prefix(&start)).expect("the rules");
    rules.split_ascii_whitespace().map(str::to_owned).collect()
}
