//! What a holder tells the others of itself.

/// Kept beside the lock for as long as it is held. Never the command's arguments: they may be secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    pub host: String,
    pub pid: String,
    pub user: String,
    pub label: String,
    pub command: String,
    /// The CI job's page.
    pub link: String,
}

impl Who {
    pub fn fields(&self) -> [(&'static str, &str); 6] {
        [
            ("host", &self.host),
            ("pid", &self.pid),
            ("user", &self.user),
            ("label", &self.label),
            ("command", &self.command),
            ("link", &self.link),
        ]
    }

    /// From names and values in turn, as a server keeps them. Names of a newer version are passed over.
    pub fn from_fields(fields: &[Vec<u8>]) -> Self {
        let mut who = Self::default();
        for pair in fields.chunks_exact(2) {
            let value = String::from_utf8_lossy(&pair[1]).into_owned();
            match pair[0].as_slice() {
                b"host" => who.host = value,
                b"pid" => who.pid = value,
                b"user" => who.user = value,
                b"label" => who.label = value,
                b"command" => who.command = value,
                b"link" => who.link = value,
                _ => {}
            }
        }
        who
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back() {
        let who =
            Who { host: "web1".into(), pid: "42".into(), link: "https://ci/1".into(), ..Who::default() };
        let mut flat: Vec<Vec<u8>> = vec![b"newer".to_vec(), b"?".to_vec()];
        for (name, value) in who.fields() {
            flat.extend([name.into(), value.into()]);
        }
        assert_eq!(Who::from_fields(&flat), who);
    }
}
