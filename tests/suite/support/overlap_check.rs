//! Detects commands that ran under one lock at the same time, and lost updates.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A command that runs beside another one finds that one's `inside` directory, or makes the count
/// too small.
pub struct OverlapCheck {
    dir: TempDir,
}

impl OverlapCheck {
    pub fn new() -> OverlapCheck {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("counter"), "0\n").expect("the counter");
        OverlapCheck { dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A shell script that enters, increments the counter without any protection, notes its name
    /// and fence, and leaves.
    pub fn script(name: &str) -> String {
        format!(
            "mkdir inside || echo {name} >> overlaps; n=$(cat counter); sleep 0.01; \
             echo $((n + 1)) > counter; echo {name} ${{REDLOCK_FENCE%% *}} >> order; rmdir inside"
        )
    }

    /// The same for a thread of the test.
    pub fn enter(&self, name: &str) {
        if fs::create_dir(self.dir.path().join("inside")).is_err() {
            self.append("overlaps", name);
        }
        let counter = self.dir.path().join("counter");
        let n: u64 = self.count();
        std::thread::sleep(std::time::Duration::from_millis(10)); // long enough to lose an update
        fs::write(counter, format!("{}\n", n + 1)).expect("the counter");
        self.append("order", &format!("{name} 0"));
        let _ = fs::remove_dir(self.dir.path().join("inside"));
    }

    pub fn count(&self) -> u64 {
        let text = fs::read_to_string(self.dir.path().join("counter")).expect("the counter");
        text.trim().parse().unwrap_or_else(|_| panic!("a torn counter: {text:?}"))
    }

    /// Asserts that `runs` commands ran, one after another.
    #[track_caller]
    pub fn assert_clean(&self, runs: u64) {
        let overlaps = fs::read_to_string(self.dir.path().join("overlaps")).unwrap_or_default();
        assert_eq!(overlaps, "", "these commands found another one inside");
        assert_eq!(self.count(), runs, "updates were lost");
    }

    /// The names in the order in which they ran.
    pub fn order(&self) -> Vec<String> {
        self.notes().into_iter().map(|(name, _)| name).collect()
    }

    /// The fences in the order in which they ran.
    pub fn fences(&self) -> Vec<u64> {
        self.notes().into_iter().map(|(_, fence)| fence).collect()
    }

    fn notes(&self) -> Vec<(String, u64)> {
        let text = fs::read_to_string(self.dir.path().join("order")).unwrap_or_default();
        let note = |line: &str| {
            let (name, fence) = line.split_once(' ').expect("name and fence");
            (name.to_owned(), fence.parse().expect("a fence"))
        };
        text.lines().map(note).collect()
    }

    fn append(&self, file: &str, line: &str) {
        use std::io::Write;
        let path = self.dir.path().join(file);
        let mut file = fs::File::options().append(true).create(true).open(path).expect("a note");
        writeln!(file, "{line}").expect("a note");
    }
}
