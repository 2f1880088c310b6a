//! What is better done once than at every start.

#[path = "build/scripts.rs"]
mod scripts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        // Before the compiler, which would have dozens of other reasons.
        println!("cargo::error=redlock needs Linux");
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=lua");
    fs::write(out.join("scripts.rs"), lua()?)?;
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|abi| abi == "gnu");
    let is_native = env::var("HOST") == env::var("TARGET");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    if is_gnu && is_native && is_release {
        if !is_static {
            // At a fixed address: the loader would write 4,000 addresses into 17 pages at every start, and each page that
            // is written to costs as much as a hundred allocations. A static binary is told so by its own flags: see
            // scripts/package.
            println!("cargo:rustc-link-arg-bins=-no-pie");
        }
        link_libgcc_statically(&out)?;
    }
    Ok(())
}

/// A Rust constant for each script, with the hash under which servers remember it, and for each constant that the
/// scripts and src/ share.
fn lua() -> io::Result<String> {
    let includes = read_all("lua/include")?;
    let mut used = BTreeSet::new();
    let mut rust = shared_constants(&includes["constants"]);
    for (name, script) in read_all("lua")? {
        let text = scripts::assemble(&script, &includes, &mut used)
            .unwrap_or_else(|mistake| panic!("lua/{name}.lua: {mistake}"));
        let hash = sha1_smol::Sha1::from(&text).digest().to_string();
        let constant = name.to_uppercase();
        rust +=
            &format!("pub(crate) static {constant}: Script = Script {{ text: {text:?}, hash: {hash:?} }};\n");
    }
    for (name, include) in &includes {
        let unused = scripts::defined_in(include).into_iter().find(|defined| !used.contains(defined));
        assert!(unused.is_none(), "lua/include/{name}.lua: `{}` is used by no script", unused.unwrap());
    }
    Ok(rust)
}

/// The Lua files of a directory by name.
fn read_all(directory: &str) -> io::Result<scripts::Includes> {
    let paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let lua = paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "lua"));
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    lua.map(|path| Ok((name(&path), fs::read_to_string(&path)?))).collect()
}

/// `local X_MS = 5` becomes a `Duration` named X, `local Y = '!'` a byte; comments become documentation.
fn shared_constants(include: &str) -> String {
    let mut rust = String::new();
    for paragraph in include.split("\n\n").filter(|paragraph| paragraph.contains("local ")) {
        for line in paragraph.lines() {
            let (name, value) = line.trim_start_matches("local ").split_once(" = ").unwrap_or_default();
            rust += &match (line.strip_prefix("-- "), name.strip_suffix("_MS")) {
                (Some(comment), _) => format!("/// {comment}\n"),
                (None, Some(name)) => {
                    let duration = match value.strip_suffix("000") {
                        Some(seconds) => format!("from_secs({seconds})"),
                        None => format!("from_millis({value})"),
                    };
                    format!("pub(crate) const {name}: Duration = Duration::{duration};\n")
                }
                (None, None) => format!("pub(crate) const {name}: u8 = b{value};\n"),
            };
        }
    }
    rust
}

/// The standard library asks for libgcc_s.so, of which a program that aborts on panic uses next to
/// nothing; loading it costs every start about a tenth of `flock f true`. A linker script of the same
/// name, found first, gives the static parts instead. Where there are none (another libc, another
/// compiler) the usual library is linked.
fn link_libgcc_statically(out: &Path) -> io::Result<()> {
    if has_static_libgcc() {
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
