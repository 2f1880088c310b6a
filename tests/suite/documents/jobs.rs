//! Jobs of CI systems, as the documents show them.

use yaml_rust2::{Yaml, YamlLoader};

use super::blocks::blocks_in;

/// The only document of a YAML text.
fn yaml(text: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

/// The YAML block of a document that contains this text.
pub fn yaml_with(document: &str, mark: &str) -> Yaml {
    let blocks = blocks_in(document, "yaml");
    yaml(&blocks.iter().find(|block| block.text.contains(mark)).expect(mark).text)
}

/// The environment of a CI job: its secret, under either name, is the sandbox's server.
pub fn ci_environment<'a>(declared: &'a Yaml, secret: &str, url: &'a str) -> Vec<(&'a str, &'a str)> {
    let declared = declared.as_hash().expect("variables");
    let value = |text: &'a str| if text == secret { url } else { text };
    let variables: Vec<_> =
        declared.iter().map(|(name, text)| (name.as_str().unwrap(), value(text.as_str().unwrap()))).collect();
    assert!(variables.contains(&("REDLOCK_REDIS", url)), "{variables:?}");
    variables
}
