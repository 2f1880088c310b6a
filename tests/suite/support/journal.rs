//! What the commands of several runs of one lock did, as they wrote it themselves. A killed command
//! cannot write that it ended, so each one looks whether the one before it is gone.

use std::path::Path;

use super::lines_of;

pub struct Journal {
    dir: tempfile::TempDir,
}

impl Journal {
    pub fn new() -> Journal {
        Journal { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// The commands run here.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A shell script that notes its start and its end, prints "ready" and does this work.
    pub fn script(name: &str, work: &str) -> String {
        format!(
            "before=$(cat running 2>/dev/null); echo $$ > running; \
             case \"$(cut -d' ' -f3 /proc/${{before:-none}}/stat 2>/dev/null)\" in ''|Z|X) ;; \
             *) echo overlap {name} >> journal;; esac; \
             echo start {name} $REDLOCK_FENCE >> journal; echo ready; {work}; echo end {name} >> journal"
        )
    }

    /// The commands that started, in order. No two ran at once, and the tokens grow.
    #[track_caller]
    pub fn started(&self) -> Vec<String> {
        let lines = lines_of(&self.dir.path().join("journal"));
        let overlaps: Vec<_> = lines.iter().filter(|line| line.starts_with("overlap ")).collect();
        assert!(overlaps.is_empty(), "these found another command running: {overlaps:?} in {lines:?}");
        let starts = lines.iter().filter_map(|line| line.strip_prefix("start ")?.split_once(' '));
        let starts: Vec<(String, u64)> =
            starts.map(|(name, fence)| (name.to_owned(), fence.parse().expect("a token"))).collect();
        assert!(starts.is_sorted_by(|a, b| a.1 < b.1), "the tokens grow: {starts:?}");
        starts.into_iter().map(|(name, _)| name).collect()
    }

    /// Whether this command ended by itself.
    pub fn has_ended(&self, name: &str) -> bool {
        lines_of(&self.dir.path().join("journal")).contains(&format!("end {name}"))
    }
}
