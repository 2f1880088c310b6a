//! Libraries that are loaded before libc, to simulate what the machine itself would have to do.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory for the libraries. LD_PRELOAD splits at blanks and colons, so a build directory with
/// such a name cannot have them.
fn directory() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if !built.to_string_lossy().contains([' ', ':', '\t', '\n']) {
        return built.to_owned();
    }
    let user = nix::unistd::getuid();
    std::env::temp_dir().join(format!("redlock-tests-of-{user}"))
}

/// The library made from this C source, for LD_PRELOAD. It is compiled once.
pub fn library(name: &str, source: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let directory = directory();
    let library = directory.join(format!("{name}-{:016x}.so", hash.finish()));
    if !library.exists() {
        fs::create_dir_all(&directory).expect("a directory for libraries");
        let work = tempfile::tempdir_in(&directory).expect("a temporary directory");
        let (code, made) = (work.path().join("source.c"), work.path().join("library.so"));
        fs::write(&code, source).expect("write the source");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&made).arg(&code).arg("-ldl");
        assert!(compiler.status().expect("cc, which cargo needs too").success(), "{name} is not C");
        // Renamed as a whole: other tests may be looking for it.
        fs::rename(made, &library).expect("in its place");
    }
    library
}
