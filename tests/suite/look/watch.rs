//! `--watch`: redraws in place, and restores the terminal.

use nix::sys::signal::Signal;

use super::look;
use crate::support::{Pty, Redis, holder, wait_until};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

fn list(redis: &Redis) -> crate::support::Run {
    look("list", &redis.url(), &["--watch", "--interval", "100ms"])
}

#[test]
fn changes_are_shown_and_ctrl_c_restores_the_terminal() {
    let redis = Redis::start();
    let pty = Pty::run(list(&redis));
    pty.wait_for("KEY");
    let first = holder(&redis, "deploy", &[]);
    pty.wait_for("deploy  held");
    first.wait().expect_code(0);
    let frames = |text: &str| pty.screen().matches(text).count();
    let before = frames("KEY");
    wait_until("the watch continues", || frames("KEY") > before + 2);
    let last = pty.screen().rsplit("\u{1b}[H").next().unwrap().to_owned();
    assert!(!last.contains("deploy"), "{last:?}");
    pty.type_in("\u{3}");
    let done = pty.wait();
    assert_eq!(done.signal, Some(Signal::SIGINT as i32), "{done:?}");
    assert_eq!((done.stdout.matches(ENTER).count(), done.stdout.matches(LEAVE).count()), (1, 1), "{done:?}");
    assert!(done.stdout.trim_end_matches("^C").ends_with(LEAVE), "{done:?}");
}

#[test]
fn a_frame_follows_the_size_of_the_terminal_and_full_lines_stay_whole() {
    let redis = Redis::start();
    let _holder = holder(&redis, "a-key-with-a-long-name", &[]);
    let pty = Pty::run(look("list", &redis.url(), &["--watch", "--interval", "60s"]));
    pty.wait_for("a-key-with-a-long-name");
    pty.resize(10, 12);
    // On a full line the cursor stays at the last character: erasing there would erase it.
    pty.wait_for("KEY         \r");
    pty.resize(3, 80);
    pty.wait_for("a-key-with-a\u{1b}[H");
    pty.wait_for("and 2 more lines");
}

#[test]
fn a_signal_ends_a_watch_cleanly_and_a_stopped_one_continues() {
    let redis = Redis::start();
    let shell = Pty::shell();
    shell.type_in(&format!("{}\n", list(&redis).shell_line()));
    shell.wait_for("KEY");
    shell.type_in("\u{1a}");
    shell.wait_for("Stopped");
    assert_eq!(shell.screen().matches(LEAVE).count(), 1);
    shell.type_in("fg\n");
    shell.wait_for_times(ENTER, 2);
    shell.type_in("\u{3}");
    shell.wait_for_times(LEAVE, 2);
    shell.type_in("echo status=$?\n");
    shell.wait_for("status=130");
    let pty = Pty::run(list(&redis));
    pty.wait_for("KEY");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pty.pid()), Signal::SIGTERM).unwrap();
    let done = pty.wait();
    assert_eq!(done.signal, Some(Signal::SIGTERM as i32));
    assert!(done.stdout.ends_with(LEAVE), "{done:?}");
}

#[test]
fn a_server_that_goes_away_and_returns_is_shown() {
    let mut redis = Redis::start();
    let pty = Pty::run(look("status", &redis.url(), &["k", "--watch", "--interval", "100ms"]));
    pty.wait_for("k: free");
    redis.kill();
    pty.wait_for("cannot look at \"k\"");
    let before = pty.screen().matches("k: free").count();
    redis.restart();
    pty.wait_for_times("k: free", before + 1);
    // The first query must succeed.
    redis.kill();
    Pty::run(list(&redis)).wait().expect_code(69);
}

#[test]
fn a_watch_into_a_pipe_prints_snapshots_until_the_reader_leaves() {
    let redis = Redis::start();
    let _holder = holder(&redis, "k", &[]);
    let done = list(&redis).arg("--json").via("\"$@\" | head -n 3").done().expect_code(0);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.starts_with("{\"key\":\"k\"")), "{done:?}");
    assert!(!done.stdout.contains('\u{1b}'));
    let status = look("status", &redis.url(), &["k", "--watch", "--interval", "100ms"]);
    let done = status.clone().arg("--json").via("\"$@\" | head -n 3").done().expect_code(0);
    assert_eq!(done.json_lines().len(), 3, "one object a line");
    let done = status.via("\"$@\" | head -n 9").done().expect_code(0);
    assert!(done.stdout.contains("\n\nk: held"), "people see a blank line between two looks: {done:?}");
}

#[test]
fn a_watch_into_a_pipe_notices_a_reader_that_leaves_without_output() {
    let redis = Redis::start();
    let watch = look("list", &redis.url(), &["--watch", "--interval", "600s", "--json"]);
    watch.via("\"$@\" | sleep 0.2").done().expect_code(0);
}

#[test]
fn a_terminal_of_80_columns_shows_the_numbers_and_shortens_the_names() {
    let redis = Redis::start();
    let key = "deploy-production-eu-west-1-and-some-more";
    let _holder = holder(&redis, key, &["--label", "a label of the release team"]);
    for args in [&["--watch", "--interval", "60s"][..], &[]] {
        let pty = Pty::run(look("list", &redis.url(), args).via("stty cols 80; exec \"$@\""));
        pty.wait_for("WAITING");
        pty.wait_for("deploy-p");
        let plain =
            ["\u{1b}[H", "\u{1b}[K", "\u{1b}[J"].iter().fold(pty.screen(), |s, code| s.replace(code, ""));
        let line = |start: &str| plain.lines().find(|line| line.contains(start)).expect(start).trim_end();
        let (headings, row) = (line("KEY "), line("deploy-p"));
        assert_eq!(headings.chars().count().max(row.chars().count()), 80, "{headings:?} {row:?}");
        let cell = |heading: &str| row[headings.find(heading).expect(heading)..].chars().next();
        assert_eq!(
            [cell("STATE"), cell("HOLDER"), cell("WAITING")],
            [Some('h'), Some('r'), Some('0')],
            "{row:?}"
        );
        assert!(cell("SINCE") == Some('0') && matches!(cell("EXPIRES"), Some('2' | '3')), "{row:?}");
    }
}
