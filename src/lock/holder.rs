//! What a holder tells waiters about itself.

/// Kept beside the lock for as long as it is held. Never the command's arguments: they may be secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HolderInfo {
    pub host: String,
    pub pid: String,
    pub user: String,
    pub label: String,
    pub command: String,
    /// The CI job's page.
    pub job_url: String,
}

impl HolderInfo {
    pub(crate) fn fields(&self) -> [(&'static str, &str); 6] {
        [
            ("host", &self.host),
            ("pid", &self.pid),
            ("user", &self.user),
            ("label", &self.label),
            ("command", &self.command),
            ("job_url", &self.job_url),
        ]
    }

    /// From names and values in turn, as a server keeps them. Names of a newer version are passed over.
    pub(crate) fn from_fields(fields: &[Vec<u8>]) -> Self {
        let mut info = Self::default();
        for pair in fields.chunks_exact(2) {
            let value = String::from_utf8_lossy(&pair[1]).into_owned();
            match pair[0].as_slice() {
                b"host" => info.host = value,
                b"pid" => info.pid = value,
                b"user" => info.user = value,
                b"label" => info.label = value,
                b"command" => info.command = value,
                b"job_url" => info.job_url = value,
                _ => {}
            }
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back() {
        let info = HolderInfo {
            host: "web1".into(),
            pid: "42".into(),
            job_url: "https://ci/1".into(),
            ..HolderInfo::default()
        };
        let mut flat: Vec<Vec<u8>> = vec![b"newer".to_vec(), b"?".to_vec()];
        for (name, value) in info.fields() {
            flat.extend([name.into(), value.into()]);
        }
        assert_eq!(HolderInfo::from_fields(&flat), info);
    }
}
