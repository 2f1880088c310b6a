//! Work done at build time instead of at every start: the Lua scripts are assembled and hashed, and
//! libgcc is linked statically.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        // Before the compiler, which would report dozens of other errors.
        println!("cargo::error=redlock needs Linux");
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=lua");
    let includes = read_all("lua/include")?;
    let mut rust = shared_constants(&includes["constants"]);
    for (name, script) in read_all("lua")? {
        let text = assemble(&script, &includes);
        fs::write(out.join(format!("{name}.lua")), &text)?; // for luacheck: see docs/testing.md
        let (constant, hash) = (name.to_uppercase(), sha1_smol::Sha1::from(&text).digest());
        rust += &format!(
            "pub(crate) static {constant}: Script = Script {{ text: {text:?}, hash: \"{hash}\" }};\n"
        );
    }
    fs::write(out.join("scripts.rs"), rust)?;
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|abi| abi == "gnu");
    let is_native = env::var("HOST") == env::var("TARGET");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_gnu && is_native && is_release && has_static_libgcc() {
        // The standard library asks for libgcc_s.so, of which a program that aborts on panic uses next
        // to nothing; loading it costs every start about a tenth of `flock f true`. A linker script of
        // the same name, found first, names the static parts instead.
        fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
        println!("cargo:rustc-link-search=native={}", out.display());
    }
    Ok(())
}

/// The Lua files of a directory by name.
fn read_all(directory: &str) -> io::Result<BTreeMap<String, String>> {
    let paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let lua = paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "lua"));
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    lua.map(|path| Ok((name(&path), fs::read_to_string(&path)?))).collect()
}

/// A script as it is sent: each include once, where it is first named, without comments and
/// indentation. A paragraph of an include is left out if nothing below it uses a name that it
/// defines, because Redis creates every function again at each call.
fn assemble(script: &str, includes: &BTreeMap<String, String>) -> String {
    let mut paragraphs = Vec::new();
    expand(script, true, includes, &mut BTreeSet::new(), &mut paragraphs);
    let mut used = BTreeSet::new();
    let is_used = |(is_script, text): &(bool, String)| {
        let is_kept = *is_script || definitions(text).any(|name| used.contains(name));
        if is_kept {
            used.extend(text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(String::from));
        }
        is_kept
    };
    let mut kept: Vec<_> = paragraphs.into_iter().rev().filter(is_used).collect();
    kept.reverse();
    let lines = kept.iter().flat_map(|(_, text)| text.lines()).map(str::trim);
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// Appends the paragraphs of a text without comments, each with whether it is the script's own.
fn expand<'a>(
    text: &'a str,
    is_script: bool,
    includes: &'a BTreeMap<String, String>,
    seen: &mut BTreeSet<&'a str>,
    paragraphs: &mut Vec<(bool, String)>,
) {
    for paragraph in text.split("\n\n") {
        let mut code = String::new();
        for line in paragraph.lines().filter(|line| !line.trim().is_empty()) {
            match line.trim().strip_prefix("-- @include ") {
                Some(name) if seen.insert(name) => {
                    paragraphs.push((is_script, std::mem::take(&mut code)));
                    let include = includes.get(name).unwrap_or_else(|| panic!("no lua/include/{name}.lua"));
                    expand(include, false, includes, seen, paragraphs);
                }
                None if !line.trim().starts_with("--") => {
                    code += &format!("{}\n", line.split(" -- ").next().unwrap_or_default());
                }
                _ => {}
            }
        }
        paragraphs.push((is_script, code));
    }
}

/// The names that a paragraph defines: `local function a(...)`, `local b, c = ...`.
fn definitions(paragraph: &str) -> impl Iterator<Item = &str> {
    let locals = paragraph.lines().filter_map(|line| line.strip_prefix("local "));
    locals.flat_map(|names| {
        let names = names.trim_start_matches("function ");
        names[..names.find(['(', '=']).unwrap_or(names.len())].split(',').map(str::trim)
    })
}

/// `local X_MS = 5` becomes a `Duration` named X, `local Y = '!'` a byte; comments become documentation.
fn shared_constants(include: &str) -> String {
    let mut rust = String::new();
    for paragraph in include.split("\n\n").filter(|paragraph| paragraph.contains("local ")) {
        for line in paragraph.lines() {
            let (name, value) = line.trim_start_matches("local ").split_once(" = ").unwrap_or_default();
            rust += &match (line.strip_prefix("-- "), name.strip_suffix("_MS")) {
                (Some(comment), _) => format!("/// {comment}\n"),
                (None, Some(name)) => format!(
                    "#[allow(clippy::duration_suboptimal_units)]\n\
                     pub(crate) const {name}: Duration = Duration::from_millis({value});\n"
                ),
                (None, None) if value.starts_with('\'') => {
                    format!("pub(crate) const {name}: u8 = b{value};\n")
                }
                (None, None) => format!("pub(crate) const {name}: u32 = {value};\n"),
            };
        }
    }
    rust
}

/// The compiler prints a bare name for a file that it does not have.
fn has_static_libgcc() -> bool {
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute())
}
