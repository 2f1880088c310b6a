//! The scripts as the client sends them: build.rs has assembled them from lua/.

use std::sync::LazyLock;

macro_rules! assembled {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))),*]
    };
}

/// Name and text.
pub static ALL: [(&str, &str); 9] =
    assembled!("acquire" "break" "extend" "heal" "inspect" "outer" "raise" "release" "watch");

static HASHES: LazyLock<Vec<String>> =
    LazyLock::new(|| ALL.iter().map(|(_, text)| sha1_smol::Sha1::from(text).digest().to_string()).collect());

/// The name of a script, by its text or its hash.
pub fn name_of(text_or_hash: &[u8]) -> Option<&'static str> {
    let is_it = |at: &usize| ALL[*at].1.as_bytes() == text_or_hash || HASHES[*at].as_bytes() == text_or_hash;
    (0..ALL.len()).find(is_it).map(|at| ALL[at].0)
}
