//! On a real terminal: keys go to the command, and the wait is one live line.

use nix::sys::signal::Signal::{SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1};

use super::CTRL_C;
use crate::support::processes::{send, wait_until_a_signal_counts_again};
use crate::support::{Job, Pty, Redis, Run, alive, wait_until};

const CTRL_BACKSLASH: &str = "\x1c";

/// Like the prompt of an interpreter: it counts interrupts and survives them, until USR1 ends it.
const REPL: &str = "n=0; trap 'n=$((n+1)); echo int=$n' INT; trap 'echo over=$n; exit 9' USR1
    echo main $$ up; while :; do sleep 0.05; done";

fn holder(redis: &Redis, label: &str) -> Job {
    let job = Run::key(redis, "deploy").args(&["--label", label]).sh("echo ready; exec sleep 60").spawn();
    job.wait_for_line("ready");
    job
}

#[test]
fn each_ctrl_c_reaches_the_command_once_and_redlock_does_not_count_it() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh(REPL));
    let main = pty.number_after("main ");
    for n in 1..=5 {
        pty.type_in(CTRL_C);
        pty.wait_for(&format!("int={n}"));
    }
    assert!(redis.held("k"));
    send(main, SIGUSR1);
    let done = pty.wait();
    assert_eq!(done.code, Some(9), "{}", done.stdout);
    assert!(done.stdout.contains("over=5"), "five keys, five signals: {}", done.stdout);
    assert!(!redis.held("k"));
}

#[test]
fn a_command_that_dies_of_ctrl_c_takes_redlock_along_and_frees_the_key() {
    let redis = Redis::start();
    for (key, signal) in [(CTRL_C, SIGINT), (CTRL_BACKSLASH, SIGQUIT)] {
        let run = Run::key(&redis, "k").via("ulimit -c 0; exec \"$@\"");
        let pty = Pty::run(run.sh("echo main $$ up; exec sleep 60"));
        let main = pty.number_after("main ");
        pty.type_in(key);
        let done = pty.wait();
        assert_eq!((done.code, done.signal), (None, Some(signal as i32)), "{}", done.stdout);
        assert!(!alive(main) && !redis.held("k"));
    }
}

#[test]
fn an_interrupt_from_a_process_is_forwarded_on_a_terminal() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh(REPL));
    let main = pty.number_after("main ");
    send(pty.pid(), SIGINT);
    pty.wait_for("int=1");
    // A typed ^C before or after does not count as an interrupt from a process.
    pty.type_in(CTRL_C);
    pty.wait_for("int=2");
    assert!(alive(main) && redis.held("k"));
    send(main, SIGUSR1);
    let done = pty.wait();
    assert_eq!(done.code, Some(9), "{}", done.stdout);
    assert!(done.stdout.contains("over=2"), "{}", done.stdout);
}

#[test]
fn a_second_interrupt_from_a_process_kills_the_command_on_a_terminal() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh(REPL));
    let main = pty.number_after("main ");
    send(pty.pid(), SIGINT);
    pty.wait_for("int=1");
    wait_until_a_signal_counts_again();
    send(pty.pid(), SIGTERM);
    let done = pty.wait();
    assert_ne!(done.code, Some(0));
    assert!(!alive(main) && !redis.held("k"), "{}", done.stdout);
}

#[test]
fn the_command_reads_the_terminal() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").sh("echo ask; read answer; echo got $answer; exit 4"));
    pty.wait_for("ask");
    pty.type_in("hello\n");
    pty.wait_for("got hello");
    assert_eq!(pty.wait().code, Some(4));
}

#[test]
fn the_command_sees_a_terminal_on_all_three_streams_and_its_new_size() {
    let redis = Redis::start();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all three; trap 'stty size; exit 0' WINCH
        echo up; while :; do sleep 0.05; done";
    let pty = Pty::run(Run::key(&redis, "k").sh(script));
    pty.wait_for("up");
    pty.wait_for("all three");
    pty.resize(33, 77);
    pty.wait_for("33 77");
    assert_eq!(pty.wait().code, Some(0));
}

#[test]
fn a_script_on_a_terminal_continues_after_redlock() {
    let redis = Redis::start();
    let pty = Pty::script(Run::key(&redis, "k").sh("exit 5"));
    pty.wait_for("status=5");
    assert_eq!(pty.wait().code, Some(0));
}

#[test]
fn a_terminal_that_goes_away_ends_the_command_and_frees_the_key() {
    let redis = Redis::start();
    let pty =
        Pty::script(Run::key(&redis, "k").args(&["--ttl", "120s"]).sh("echo main $$ up; exec sleep 60"));
    let main = pty.number_after("main ");
    send(pty.pid(), SIGKILL); // when the session leader exits, the terminal hangs up
    wait_until("the command has exited", || !alive(main));
    wait_until("the key is free", || !redis.held("k"));
}

/// The lines that a terminal would show: handles printable text, \r, \n, and the erasing of a line.
fn rendered(bytes: &str) -> Vec<String> {
    let (mut lines, mut column) = (vec![Vec::new()], 0);
    let mut chars = bytes.chars();
    while let Some(c) = chars.next() {
        let line: &mut Vec<char> = lines.last_mut().expect("never empty");
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            '\x1b' => {
                let sequence: String = chars.by_ref().take_while_inclusive_letter();
                match sequence.as_str() {
                    "[K" | "[0K" => line.truncate(column),
                    "[2K" => line.clear(),
                    other => panic!("an unknown control sequence {other:?}"),
                }
            }
            c => {
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

trait TakeSequence {
    /// Takes up to and including the letter that ends a control sequence.
    fn take_while_inclusive_letter(self) -> String;
}

impl<I: Iterator<Item = char>> TakeSequence for I {
    fn take_while_inclusive_letter(self) -> String {
        let mut sequence = String::new();
        for c in self {
            sequence.push(c);
            if c.is_ascii_alphabetic() {
                break;
            }
        }
        sequence
    }
}

#[test]
fn a_wait_on_a_terminal_is_one_live_line_that_is_gone_before_the_command_prints() {
    let redis = Redis::start();
    let first = holder(&redis, "nightly");
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo output of the command"));
    pty.wait_for("waited");
    pty.wait_for_times("waited", 3); // it is live: the time advances
    let live = rendered(&pty.screen());
    assert_eq!(live.len(), 1, "one line, rewritten: {live:?}");
    for part in ["deploy", "place 1", "nightly", &first.pid().to_string()] {
        assert!(live[0].contains(part), "{part:?} is missing in {:?}", live[0]);
    }
    first.signal(SIGTERM);
    let done = pty.wait();
    assert_eq!(done.code, Some(0));
    assert_eq!(rendered(&done.stdout), ["output of the command", ""], "{:?}", done.stdout);
}

#[test]
fn a_live_line_leaves_room_for_a_typed_key_and_shows_that_it_is_truncated() {
    let redis = Redis::start();
    let _first = holder(&redis, &"x".repeat(200));
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo in"));
    pty.wait_for_times("deploy", 2);
    let line = rendered(&pty.screen()).remove(0);
    assert!(line.chars().count() <= 97 && line.ends_with("..."), "on a terminal of 100 columns: {line:?}");
}

#[test]
fn the_live_line_names_the_holder_on_a_terminal_of_80_columns() {
    let redis = Redis::start();
    let key = "deploy-production-eu-west-1";
    let first = Run::key(&redis, key).args(&["--label", "nightly"]).sh("echo ready; exec sleep 60").spawn();
    first.wait_for_line("ready");
    let pty = Pty::run(Run::key(&redis, key).via("stty cols 80; exec \"$@\"").sh("echo in"));
    pty.wait_for("waited");
    let line = rendered(&pty.screen()).remove(0);
    assert!(line.chars().count() <= 77, "{line:?}");
    for part in ["held by ", "@", &format!("pid {}", first.pid()), "place 1 of 1"] {
        assert!(line.contains(part), "{part:?} is missing in {line:?}");
    }
}

#[test]
fn the_live_line_counts_every_second() {
    let redis = Redis::start();
    let _first = holder(&redis, "nightly");
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo in"));
    // A busy machine may be late for one of them, but not for all.
    wait_until("four seconds in a row are shown", || {
        let screen = pty.screen();
        (2..18).any(|first| (first..first + 4).all(|second| screen.contains(&format!("waited {second}s"))))
    });
}

#[test]
fn a_link_without_room_in_the_live_line_is_printed_once() {
    let redis = Redis::start();
    let link = format!("https://ci.example/{}", "job/".repeat(15));
    let run = Run::key(&redis, "deploy").env("CI_JOB_URL", &link).sh("echo ready; exec sleep 60");
    let first = run.spawn();
    first.wait_for_line("ready");
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo in"));
    pty.wait_for_times("waited", 4);
    let screen = rendered(&pty.screen());
    assert!(screen[0].ends_with(&link) && !screen[1].contains("https"), "{screen:?}");
    first.signal(SIGTERM);
    let done = pty.wait();
    let screen = rendered(&done.stdout);
    assert!(screen[1].starts_with("redlock: got \"deploy\" after ") && screen[2] == "in", "{screen:?}");
}

#[test]
fn a_waiter_that_gets_ctrl_c_leaves_a_clean_line() {
    let redis = Redis::start();
    let _first = holder(&redis, &"x".repeat(200));
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo in"));
    pty.wait_for("waited");
    pty.type_in(CTRL_C);
    let done = pty.wait();
    assert_eq!(done.signal, Some(SIGINT as i32));
    assert_eq!(rendered(&done.stdout), [""], "{:?}", done.stdout);
}

#[test]
fn a_live_line_contains_no_control_character_of_the_holder() {
    let redis = Redis::start();
    let _first = holder(&redis, "evil\x1b[31mred\u{7}");
    let pty = Pty::run(Run::key(&redis, "deploy").sh("echo in"));
    pty.wait_for_times("evil", 2);
    let screen = pty.screen();
    assert!(!screen.contains("\x1b[31m") && !screen.contains('\u{7}'), "{screen:?}");
}
