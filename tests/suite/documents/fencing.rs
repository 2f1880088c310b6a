//! The code in docs/fencing.md: a table and a file refuse the writer whose lock has passed on.

use std::fs;

use nix::sys::signal::Signal::SIGCONT;

use super::blocks::{Block, blocks, blocks_in};
use super::sandbox::Sandbox;
use crate::support::processes::{children, guardian_of, is_installed, send, stop};
use crate::support::{Job, Run, executable, wait_until};

const FENCING: &str = "docs/fencing.md";

/// The storage's error message for the older writer.
const REFUSED: &str = "refused: a newer holder of the lock has written";

/// A sandbox with the scripts of the document, and its database.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let scripts: Vec<Block> =
        blocks_in(FENCING, "sh").into_iter().filter(|block| block.text.starts_with("#!")).collect();
    assert_eq!(scripts.len(), 2, "{scripts:?}");
    for script in scripts {
        let comment = script.text.lines().nth(1).expect("a file name");
        let name = comment.trim_start_matches("# ").split(':').next().expect("its name");
        let path = sandbox.path(name);
        executable(&path, &script.text);
    }
    sandbox
}

/// The same with the table of the document; None without sqlite3.
fn sandbox_with_table() -> Option<Sandbox> {
    is_installed("sqlite3").then(|| {
        let sandbox = sandbox();
        let schema =
            blocks_in(FENCING, "sql").into_iter().find(|block| block.text.starts_with("-- shop.sql"));
        sql(&sandbox, &schema.expect("the schema").text);
        sandbox
    })
}

/// The output of the document's database.
#[track_caller]
fn sql(sandbox: &Sandbox, statements: &str) -> String {
    sandbox.shell(&format!("sqlite3 -bail shop.db <<'SQL'\n{statements}\nSQL"), &[])
}

fn prices(sandbox: &Sandbox) -> String {
    sql(sandbox, "SELECT cents FROM prices ORDER BY item;")
}

/// `redlock run --key KEY` where the scripts are.
fn run(sandbox: &Sandbox, key: &str) -> Run {
    Run::key(&sandbox.redis, key).dir(sandbox.path(""))
}

/// A holder that was paused with its whole tree before it did something, until its lease ended.
struct Late {
    job: Job,
    redlock: i32,
    guardian: i32,
    command: i32,
}

impl Late {
    #[track_caller]
    fn holder(sandbox: &Sandbox, key: &str, action: &str) -> Late {
        let script = format!("echo ready; read enter; {action}; echo status $?");
        // Enough time to stop it, process by process, before the guardian acts.
        let job = run(sandbox, key).args(&["--ttl", "6s"]).stdin_pipe().sh(&script).spawn();
        job.wait_for_line("ready");
        let (redlock, guardian) = (job.pid(), guardian_of(job.pid()));
        let [command] = children(guardian)[..] else { panic!("not one command") };
        for pid in [redlock, guardian, command] {
            stop(pid);
        }
        wait_until("its lease has ended", || !sandbox.redis.held(key));
        Late { job, redlock, guardian, command }
    }

    /// Continues the holder: its action happens before redlock sees the time. Returns the action's
    /// status and stderr.
    #[track_caller]
    fn resume(mut self) -> (String, String) {
        drop(self.job.take_stdin());
        send(self.command, SIGCONT);
        let status = self.job.wait_for_line("status ");
        send(self.guardian, SIGCONT);
        send(self.redlock, SIGCONT);
        // 79, or the command's own code if it exited before redlock saw that the lock was lost.
        (status, self.job.wait().stderr)
    }

    #[track_caller]
    fn assert_refused_on_resume(self) {
        let (status, stderr) = self.resume();
        assert!(status != "status 0" && stderr.contains(REFUSED), "{status}: {stderr}");
    }
}

#[test]
fn the_table_refuses_the_older_writer() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&sandbox, "prices", "./raise-prices 5");
    run(&sandbox, "prices").cmd(&["./raise-prices", "7"]).done().expect_code(0);
    assert_eq!(prices(&sandbox), "87\n97\n");
    late.assert_refused_on_resume();
    assert_eq!(prices(&sandbox), "87\n97\n");
    run(&sandbox, "prices").cmd(&["./raise-prices", "1"]).done().expect_code(0);
    assert_eq!(prices(&sandbox), "88\n98\n");
}

/// Without a newer holder nothing is lost: the write is as good as one in time.
#[test]
fn the_table_accepts_a_late_writer_without_a_newer_one() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&sandbox, "prices", "./raise-prices 5");
    let (status, _) = late.resume();
    assert_eq!((status.as_str(), prices(&sandbox).as_str()), ("status 0", "85\n95\n"));
}

/// The newer holder has only read, but wrote its fence first.
#[test]
fn a_fence_raised_before_reading_keeps_the_older_writer_out() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&sandbox, "prices", "./raise-prices 5");
    run(&sandbox, "prices").cmd(&["./raise-prices", "0"]).done().expect_code(0);
    late.assert_refused_on_resume();
    assert_eq!(prices(&sandbox), "80\n90\n");
}

#[test]
fn one_holder_can_write_many_times() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let twice =
        "./raise-prices 1 && ./raise-prices 1 && echo a | ./fenced-write f && echo b | ./fenced-write f";
    run(&sandbox, "prices").sh(twice).done().expect_code(0);
    assert_eq!(prices(&sandbox), "82\n92\n");
    assert_eq!(fs::read_to_string(sandbox.path("f")).unwrap(), "b\n");
}

#[test]
fn the_demonstration_works_as_documented() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let lines = |begin: &str| {
        let found = blocks(FENCING).into_iter().find(|block| block.text.starts_with(begin));
        sandbox.localize(&found.unwrap_or_else(|| panic!("no {begin}")).text)
    };
    let argv =
        ["run", "--key", "prices", "--on-lost", "warn", "--", "sh", "-c", "read enter; ./raise-prices 5"];
    let quoted = format!("redlock {} 'read enter; ./raise-prices 5'\n", argv[..argv.len() - 1].join(" "));
    assert_eq!(lines("redlock run --key prices --on-lost"), quoted);
    let first = Run::bare().args(&argv).env("REDLOCK_REDIS", sandbox.redis.url()).dir(sandbox.path(""));
    let mut first = first.stdin_pipe().spawn();
    wait_until("the first terminal has the lock", || sandbox.redis.held("prices"));
    let second = sandbox.command(&["sh", "-euc", &lines("redlock break prices")], &[]);
    assert!(second.status.success(), "{second:?}");
    drop(first.take_stdin());
    first.wait_for_stderr(REFUSED);
    first.wait();
    assert_eq!(prices(&sandbox), "87\n97\n");
}

/// Without a trigger: the result is the number of changed rows.
#[test]
fn a_column_refuses_the_older_writer_of_a_row() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    sql(&sandbox, "ALTER TABLE prices ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;");
    let update = blocks_in(FENCING, "sql").into_iter().find(|block| block.text.contains(":fence"));
    let update = update.expect("the update").text;
    let changed = |fence: u64| {
        sql(&sandbox, &format!("{} SELECT changes();", update.replace(":fence", &fence.to_string())))
    };
    let late = run(&sandbox, "prices").fence();
    let newer = run(&sandbox, "prices").fence();
    assert_eq!([newer, newer, late, newer].map(changed), ["1\n", "1\n", "0\n", "1\n"]);
}

#[test]
fn the_file_refuses_the_older_writer() {
    let sandbox = sandbox();
    let contents = || fs::read_to_string(sandbox.path("rates.json")).unwrap();
    let late = Late::holder(&sandbox, "rates", "echo old | ./fenced-write rates.json");
    run(&sandbox, "rates").sh("echo new | ./fenced-write rates.json").done().expect_code(0);
    late.assert_refused_on_resume();
    assert_eq!(contents(), "new\n");
    run(&sandbox, "rates").sh("echo newest | ./fenced-write rates.json").done().expect_code(0);
    assert_eq!(contents(), "newest\n");
    // Nothing of the refused writer is left.
    let names = fs::read_dir(sandbox.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("rates"));
    names.sort();
    assert_eq!(names, ["rates.json", "rates.json.fence", "rates.json.lock"]);
}

/// Killed after the fence and before the data: the older writer stays out.
#[test]
fn a_crash_while_the_file_is_written_keeps_the_older_writer_out() {
    let sandbox = sandbox();
    let late = Late::holder(&sandbox, "rates", "echo old | ./fenced-write rates.json");
    let script = fs::read_to_string(sandbox.path("fenced-write")).unwrap();
    let crashing = script.replace("mv \"$new\" \"$file\"", "kill -9 $$");
    assert_ne!(script, crashing);
    executable(&sandbox.path("fenced-write"), &crashing);
    run(&sandbox, "rates").sh("echo new | ./fenced-write rates.json").done().expect_code(137);
    executable(&sandbox.path("fenced-write"), &script);
    late.assert_refused_on_resume();
    assert!(!sandbox.path("rates.json").exists());
}

#[test]
fn a_missing_fence_and_several_fences_are_refused() {
    let Some(sandbox) = sandbox_with_table() else { skip!("sqlite3 is missing") };
    let both = "./raise-prices 5; echo $?; echo x | ./fenced-write rates.json; echo $?";
    let unlocked = sandbox.command(&["sh", "-c", both], &[("REDLOCK_FENCE", "")]);
    assert_eq!(String::from_utf8_lossy(&unlocked.stdout), "64\n64\n");
    let two = run(&sandbox, "prices").args(&["--key", "rates"]).sh(both).done().expect_code(0);
    assert_eq!(two.stdout, "64\n64\n");
    assert_eq!(prices(&sandbox), "80\n90\n");
    assert!(!sandbox.path("rates.json").exists());
}
