//! Link libgcc statically.
//!
//! The standard library asks for libgcc_s.so, of which a program that aborts on panic uses next to
//! nothing; loading it costs every start about a fifth of a millisecond, a tenth of `flock f true`. A
//! linker script of the same name, found first, gives the static parts instead. Where there are none
//! (another libc, another compiler) the usual library is linked.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|abi| abi == "gnu");
    let is_native = env::var("HOST").is_ok() && env::var("HOST").ok() == env::var("TARGET").ok();
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_gnu && is_native && is_release && has_static_libgcc() {
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        if fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
            println!("cargo:rustc-link-search=native={}", folder.display());
        }
    }
}

/// The compiler answers with a bare name for a file that it does not have.
fn has_static_libgcc() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    asked.is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute())
}
