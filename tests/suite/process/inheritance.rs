//! redlock keeps what it inherits, and its own setup never reaches the command.

use std::process::Command;

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use crate::support::processes::{self, ignores, pid_in};
use crate::support::run::in_new_session;
use crate::support::{Redis, Run, wait_until};

/// A command that counts USR1, which the tests send after the ignored signal to see that that one
/// had no effect.
const COUNT_USR1: &str =
    "n=0; trap 'n=$((n+1)); echo usr=$n' USR1; echo main $$; while [ $n -lt 2 ]; do sleep 0.02; done; exit 5";

fn assert_stays_ignored(via: &str, signal: Signal) {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").via(via).sh(COUNT_USR1).spawn();
    let child = pid_in(&job.wait_for_line("main"));
    assert!(ignores(job.pid(), signal), "redlock handles {signal}");
    assert!(ignores(child, signal), "the command lost the inherited SIG_IGN of {signal}");
    for n in 1..=2 {
        job.signal(signal);
        job.signal(SIGUSR1);
        job.wait_for_line(&format!("usr={n}"));
    }
    assert_eq!(job.wait().code, Some(5), "{signal} sent twice had an effect");
}

#[test]
fn a_hangup_stays_ignored_under_nohup() {
    assert_stays_ignored("exec nohup \"$@\"", SIGHUP);
}

#[test]
fn an_interrupt_ignored_on_entry_stays_ignored() {
    assert_stays_ignored("trap '' INT; exec \"$@\"", SIGINT);
}

#[test]
fn a_quit_or_term_ignored_on_entry_stays_ignored() {
    assert_stays_ignored("trap '' QUIT; exec \"$@\"", SIGQUIT);
    assert_stays_ignored("trap '' TERM; exec \"$@\"", SIGTERM);
}

#[test]
fn a_background_job_of_a_plain_shell_ignores_int_and_quit() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").via("\"$@\" & wait $!").sh(COUNT_USR1).spawn();
    let child = pid_in(&job.wait_for_line("main"));
    assert!(ignores(child, SIGINT) && ignores(child, SIGQUIT));
    let redlock = processes::children(job.pid());
    assert_eq!(redlock.len(), 1, "{redlock:?}");
    assert!(ignores(redlock[0], SIGINT) && ignores(redlock[0], SIGQUIT));
    let redlock = nix::unistd::Pid::from_raw(redlock[0]);
    for n in 1..=2 {
        nix::sys::signal::kill(redlock, SIGUSR1).unwrap();
        job.wait_for_line(&format!("usr={n}"));
    }
    assert_eq!(job.wait().code, Some(5));
}

#[test]
fn a_waiter_under_nohup_stays_in_the_queue_after_a_hangup() {
    let redis = Redis::start();
    let holder = Run::key(&redis, "k").sh("echo ready; exec sleep 60").spawn();
    holder.wait_for_line("ready");
    let waiter = Run::key(&redis, "k").via("exec nohup \"$@\"").sh("echo in").spawn();
    wait_until("the waiter is queued", || redis.queue_len("k") == 1);
    waiter.signal(SIGHUP);
    holder.signal(SIGTERM);
    waiter.wait_for_line("in");
    assert_eq!(waiter.wait().code, Some(0));
}

/// The output of a command that `via` starts directly, without redlock in between.
fn bare(via: &str, argv: &[&str]) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", via, "sh"]).args(argv);
    in_new_session(&mut command);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn under_redlock(via: &str, argv: &[&str]) -> String {
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via(via).cmd(argv);
    run.done().expect_code(0).stdout
}

fn assert_same_as_bare(via: &str, argv: &[&str]) {
    let expected = bare(via, argv);
    assert!(!expected.is_empty());
    assert_eq!(under_redlock(via, argv), expected, "{argv:?} under {via:?}");
}

/// The sets in `SigBlk: 0..` lines, without 32 and 33, which the C library uses itself.
fn signal_sets(text: &str) -> Vec<u64> {
    let words = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    let sets = words.map(|word| u64::from_str_radix(word, 16).expect("a set") & !(3 << 31));
    sets.collect()
}

fn assert_same_signal_sets(via: &str) {
    let argv = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let expected = signal_sets(&bare(via, &argv));
    assert_eq!(expected.len(), 2);
    assert_eq!(signal_sets(&under_redlock(via, &argv)), expected, "{via}");
}

#[test]
fn the_command_has_the_callers_signal_mask_and_ignored_signals() {
    for via in [
        "exec \"$@\"",
        "exec env --ignore-signal=PIPE \"$@\"",
        "exec env --block-signal=USR1 \"$@\"",
        "exec env --block-signal=TERM,INT,CHLD --ignore-signal=PIPE,HUP,TSTP \"$@\"",
        "exec env --ignore-signal=USR1,USR2,WINCH,TTOU,TTIN \"$@\"",
    ] {
        assert_same_signal_sets(via);
    }
}

#[test]
fn an_ignored_sigchld_neither_blocks_redlock_nor_is_lost_for_the_command() {
    assert_same_signal_sets("exec env --ignore-signal=CHLD \"$@\"");
    assert_same_signal_sets("exec env --ignore-signal=XFSZ \"$@\"");
    let redis = Redis::start();
    let run = Run::key(&redis, "k").via("exec env --ignore-signal=CHLD \"$@\"");
    run.sh("exit 7").done().expect_code(7);
    assert!(!redis.held("k"));
}

#[test]
fn the_command_has_the_callers_descriptors_and_no_others() {
    let list = ["sh", "-c", "ls /proc/$$/fd"];
    assert_same_as_bare("exec \"$@\"", &list);
    assert_same_as_bare("exec 9>/dev/null; exec \"$@\"", &list);
    assert_same_as_bare("exec 3</dev/null 7>/dev/null; exec \"$@\"", &list);
}

#[test]
fn the_command_has_the_callers_limits_directory_umask_and_priority() {
    let via = "cd /; umask 027; ulimit -c 0; ulimit -n 200; exec nice -n 3 \"$@\"";
    assert_same_as_bare(via, &["sh", "-c", "pwd; umask; ulimit -c; ulimit -n; nice"]);
}

#[test]
fn the_command_reads_the_callers_stdin() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").stdin("one\ntwo\n").cmd(&["cat"]).done();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "one\ntwo\n"));
}

#[test]
fn the_command_has_the_callers_environment_and_the_documented_variables() {
    let redis = Redis::start();
    let done = Run::key(&redis, "k").env("MINE", "kept").cmd(&["env"]).done();
    let names = |text: &str| -> Vec<String> {
        let mut names: Vec<String> =
            text.lines().filter_map(|l| Some(l.split_once('=')?.0.to_owned())).collect();
        names.sort();
        names
    };
    let plain = Run::bare().env("MINE", "kept").via("shift $#; exec env").done();
    let mut expected = names(&plain.stdout);
    expected.extend(["ATTEMPTS", "FENCE", "HELD", "KEY", "TOKEN"].map(|name| format!("REDLOCK_{name}")));
    expected.sort();
    // A shell in between may set these itself.
    let own = |name: &String| !["PWD", "OLDPWD", "SHLVL", "_"].contains(&name.as_str());
    let (seen, expected): (Vec<_>, Vec<_>) =
        (names(&done.stdout).into_iter().filter(own).collect(), expected.into_iter().filter(own).collect());
    assert_eq!(seen, expected);
}
