//! Links inside the documents lead to a file, and to a heading in it.

use std::path::Path;

use super::blocks::{path, read};

/// The documents of the root directory and of docs/.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["", "docs/"] {
        for entry in std::fs::read_dir(path(directory)).expect("a directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(".md") {
                found.push(format!("{directory}{name}"));
            }
        }
    }
    found
}

/// The targets of `[text](target)`, except those on other machines.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|target| !target.contains("://")).collect()
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(document: &str) -> Vec<String> {
    let headlines = document.lines().filter(|line| line.starts_with('#'));
    headlines.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for document in documents() {
        for target in targets(&read(&document)) {
            let (file, wanted) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => document.clone(),
                file => Path::new(&document).with_file_name(file).to_str().expect("UTF-8").to_owned(),
            };
            assert!(path(&file).exists(), "{document}: {target} leads nowhere");
            assert!(
                wanted.is_empty() || anchors(&read(&file)).iter().any(|found| found == wanted),
                "{document}: {target}"
            );
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} links");
}

#[test]
fn the_contents_of_the_operators_documents_list_every_section() {
    for document in ["docs/install.md", "docs/operations.md", "docs/runbook.md", "docs/wire.md"] {
        let text = read(document);
        let mut contents = targets(text.split("\n## ").next().expect("the head"));
        contents.retain(|target| target.starts_with('#'));
        let sections: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .map(|heading| format!("#{}", anchor(heading)))
            .collect();
        assert_eq!(contents, sections, "{document}");
    }
}

#[test]
fn the_documented_number_of_unsafe_blocks_is_right() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories = vec![root.join("src")];
    let mut blocks = 0;
    while let Some(directory) = directories.pop() {
        for path in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else {
                let found = std::fs::read_to_string(&path).unwrap().matches("unsafe {").count();
                assert!(found == 0 || path.starts_with(root.join("src/child")), "{}", path.display());
                blocks += found;
            }
        }
    }
    let text = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    assert!(text.contains(&format!("\n{blocks} blocks, all in src/child")), "there are {blocks}");
}
