//! What is better done once than at every start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=lua");
    fs::write(out.join("scripts.rs"), scripts()?)?;
    link_libgcc_statically(&out)
}

/// A constant for each script: the library in front, comments and indentation left out, and the hash
/// under which servers remember it.
fn scripts() -> io::Result<String> {
    let mut library = String::new();
    for part in ["common", "holders", "queue"] {
        library += &fs::read_to_string(format!("lua/lib/{part}.lua"))?;
    }
    let mut constants = String::new();
    for name in ["acquire", "break", "extend", "heal", "raise", "release"] {
        let script = fs::read_to_string(format!("lua/{name}.lua"))?;
        let text = strip(&format!("{library}\n{script}"));
        let hash = sha1_smol::Sha1::from(&text).digest().to_string();
        let constant = name.to_uppercase();
        constants +=
            &format!("pub static {constant}: Script = Script {{ text: {text:?}, hash: {hash:?} }};\n");
    }
    Ok(constants)
}

fn strip(script: &str) -> String {
    let code = script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.collect::<Vec<_>>().join("\n")
}

/// The standard library asks for libgcc_s.so, of which a program that aborts on panic uses next to
/// nothing; loading it costs every start about a tenth of `flock f true`. A linker script of the same
/// name, found first, gives the static parts instead. Where there are none (another libc, another
/// compiler) the usual library is linked.
fn link_libgcc_statically(out: &Path) -> io::Result<()> {
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|abi| abi == "gnu");
    let is_native = env::var("HOST") == env::var("TARGET");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_gnu && is_native && is_release && has_static_libgcc() {
        fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
        println!("cargo:rustc-link-search=native={}", out.display());
    }
    Ok(())
}

/// The compiler answers with a bare name for a file that it does not have.
fn has_static_libgcc() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    asked.is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute())
}
