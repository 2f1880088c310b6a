//! What docs/fencing.md gives to paste: a table and a file refuse the writer whose lock has passed on.

use std::fs;

use nix::sys::signal::Signal::SIGCONT;

use super::blocks::{Block, blocks, blocks_in};
use super::desk::Desk;
use crate::support::processes::{children, guardian_of, is_installed, send, stop};
use crate::support::{Job, Run, executable, wait_until};

const FENCING: &str = "docs/fencing.md";

/// What the storage says to the older writer.
const REFUSED: &str = "refused: a newer holder of the lock has written";

/// A desk with the scripts of the document, and its database.
fn desk() -> Desk {
    let desk = Desk::new();
    let scripts: Vec<Block> =
        blocks_in(FENCING, "sh").into_iter().filter(|block| block.text.starts_with("#!")).collect();
    assert_eq!(scripts.len(), 2, "{scripts:?}");
    for script in scripts {
        let comment = script.text.lines().nth(1).expect("what it is");
        let name = comment.trim_start_matches("# ").split(':').next().expect("its name");
        let path = desk.path(name);
        executable(&path, &script.text);
    }
    desk
}

/// The same with the table of the document; None where there is no sqlite3.
fn desk_with_table() -> Option<Desk> {
    is_installed("sqlite3").then(|| {
        let desk = desk();
        let schema =
            blocks_in(FENCING, "sql").into_iter().find(|block| block.text.starts_with("-- shop.sql"));
        sql(&desk, &schema.expect("the schema").text);
        desk
    })
}

/// What the database of the document answers.
#[track_caller]
fn sql(desk: &Desk, statements: &str) -> String {
    desk.shell(&format!("sqlite3 -bail shop.db <<'SQL'\n{statements}\nSQL"), &[])
}

fn prices(desk: &Desk) -> String {
    sql(desk, "SELECT cents FROM prices ORDER BY item;")
}

/// `redlock run --key KEY` where the scripts are.
fn run(desk: &Desk, key: &str) -> Run {
    Run::key(&desk.redis, key).dir(desk.path(""))
}

/// A holder that was paused with its whole tree before it did this, until its lease was over.
struct Late {
    job: Job,
    redlock: i32,
    guardian: i32,
    command: i32,
}

impl Late {
    #[track_caller]
    fn holder(desk: &Desk, key: &str, deed: &str) -> Late {
        let script = format!("echo ready; read enter; {deed}; echo status $?");
        // Time enough to be stopped, process by process, before the guardian acts.
        let job = run(desk, key).args(&["--ttl", "6s"]).stdin_pipe().sh(&script).spawn();
        job.wait_for_line("ready");
        let (redlock, guardian) = (job.pid(), guardian_of(job.pid()));
        let [command] = children(guardian)[..] else { panic!("not one command") };
        for pid in [redlock, guardian, command] {
            stop(pid);
        }
        wait_until("its lease is over", || !desk.redis.held(key));
        Late { job, redlock, guardian, command }
    }

    /// It goes on: what it was about to do is on its way before redlock sees what time it is. The end of the deed, and
    /// what was said.
    #[track_caller]
    fn goes_on(mut self) -> (String, String) {
        drop(self.job.take_stdin());
        send(self.command, SIGCONT);
        let status = self.job.wait_for_line("status ");
        send(self.guardian, SIGCONT);
        send(self.redlock, SIGCONT);
        // 79, or the command's own code if it had ended before redlock saw that the lock was lost.
        (status, self.job.wait().stderr)
    }

    #[track_caller]
    fn goes_on_and_is_refused(self) {
        let (status, said) = self.goes_on();
        assert!(status != "status 0" && said.contains(REFUSED), "{status}: {said}");
    }
}

#[test]
fn the_table_refuses_the_older_writer() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&desk, "prices", "./raise-prices 5");
    run(&desk, "prices").cmd(&["./raise-prices", "7"]).done().expect_code(0);
    assert_eq!(prices(&desk), "87\n97\n");
    late.goes_on_and_is_refused();
    assert_eq!(prices(&desk), "87\n97\n");
    run(&desk, "prices").cmd(&["./raise-prices", "1"]).done().expect_code(0);
    assert_eq!(prices(&desk), "88\n98\n");
}

/// Without a newer holder nothing is lost: the write is as good as one in time.
#[test]
fn the_table_accepts_a_late_writer_that_no_other_has_overtaken() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&desk, "prices", "./raise-prices 5");
    let (status, _) = late.goes_on();
    assert_eq!((status.as_str(), prices(&desk).as_str()), ("status 0", "85\n95\n"));
}

/// The newer holder has only read, but wrote its fence first.
#[test]
fn a_fence_that_is_raised_before_reading_keeps_the_older_writer_out() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let late = Late::holder(&desk, "prices", "./raise-prices 5");
    run(&desk, "prices").cmd(&["./raise-prices", "0"]).done().expect_code(0);
    late.goes_on_and_is_refused();
    assert_eq!(prices(&desk), "80\n90\n");
}

#[test]
fn one_holder_writes_many_times() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let twice =
        "./raise-prices 1 && ./raise-prices 1 && echo a | ./fenced-write f && echo b | ./fenced-write f";
    run(&desk, "prices").sh(twice).done().expect_code(0);
    assert_eq!(prices(&desk), "82\n92\n");
    assert_eq!(fs::read_to_string(desk.path("f")).unwrap(), "b\n");
}

#[test]
fn the_demonstration_goes_as_told() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let lines = |begin: &str| {
        let found = blocks(FENCING).into_iter().find(|block| block.text.starts_with(begin));
        desk.localize(&found.unwrap_or_else(|| panic!("no {begin}")).text)
    };
    let argv =
        ["run", "--key", "prices", "--on-lost", "warn", "--", "sh", "-c", "read enter; ./raise-prices 5"];
    let quoted = format!("redlock {} 'read enter; ./raise-prices 5'\n", argv[..argv.len() - 1].join(" "));
    assert_eq!(lines("redlock run --key prices --on-lost"), quoted);
    let first = Run::bare().args(&argv).env("REDLOCK_REDIS", desk.redis.url()).dir(desk.path(""));
    let mut first = first.stdin_pipe().spawn();
    wait_until("the first terminal has the lock", || desk.redis.held("prices"));
    let second = desk.command(&["sh", "-euc", &lines("redlock break prices")], &[]);
    assert!(second.status.success(), "{second:?}");
    drop(first.take_stdin());
    first.wait_for_stderr(REFUSED);
    first.wait();
    assert_eq!(prices(&desk), "87\n97\n");
}

/// Not by a trigger: the answer is the number of changed rows.
#[test]
fn a_column_refuses_the_older_writer_of_a_row() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    sql(&desk, "ALTER TABLE prices ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;");
    let update = blocks_in(FENCING, "sql").into_iter().find(|block| block.text.contains(":fence"));
    let update = update.expect("the update").text;
    let changed = |fence: u64| {
        sql(&desk, &format!("{} SELECT changes();", update.replace(":fence", &fence.to_string())))
    };
    let late = run(&desk, "prices").fence();
    let newer = run(&desk, "prices").fence();
    assert_eq!([newer, newer, late, newer].map(changed), ["1\n", "1\n", "0\n", "1\n"]);
}

#[test]
fn the_file_refuses_the_older_writer() {
    let desk = desk();
    let contents = || fs::read_to_string(desk.path("rates.json")).unwrap();
    let late = Late::holder(&desk, "rates", "echo old | ./fenced-write rates.json");
    run(&desk, "rates").sh("echo new | ./fenced-write rates.json").done().expect_code(0);
    late.goes_on_and_is_refused();
    assert_eq!(contents(), "new\n");
    run(&desk, "rates").sh("echo newest | ./fenced-write rates.json").done().expect_code(0);
    assert_eq!(contents(), "newest\n");
    // Nothing of the refused one is left.
    let names = fs::read_dir(desk.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("rates"));
    names.sort();
    assert_eq!(names, ["rates.json", "rates.json.fence", "rates.json.lock"]);
}

/// Killed after the fence and before the data: the older writer stays out.
#[test]
fn a_crash_while_the_file_is_written_keeps_the_older_writer_out() {
    let desk = desk();
    let late = Late::holder(&desk, "rates", "echo old | ./fenced-write rates.json");
    let script = fs::read_to_string(desk.path("fenced-write")).unwrap();
    let crashing = script.replace("mv \"$new\" \"$file\"", "kill -9 $$");
    assert_ne!(script, crashing);
    executable(&desk.path("fenced-write"), &crashing);
    run(&desk, "rates").sh("echo new | ./fenced-write rates.json").done().expect_code(137);
    executable(&desk.path("fenced-write"), &script);
    late.goes_on_and_is_refused();
    assert!(!desk.path("rates.json").exists());
}

#[test]
fn no_fence_or_more_than_one_goes_on_and_is_refused() {
    let Some(desk) = desk_with_table() else { skip!("sqlite3 is missing") };
    let both = "./raise-prices 5; echo $?; echo x | ./fenced-write rates.json; echo $?";
    let unlocked = desk.command(&["sh", "-c", both], &[("REDLOCK_FENCE", "")]);
    assert_eq!(String::from_utf8_lossy(&unlocked.stdout), "64\n64\n");
    let two = run(&desk, "prices").args(&["--key", "rates"]).sh(both).done().expect_code(0);
    assert_eq!(two.stdout, "64\n64\n");
    assert_eq!(prices(&desk), "80\n90\n");
    assert!(!desk.path("rates.json").exists());
}
