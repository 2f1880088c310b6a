//! Each oracle can detect a violation: substitutes for redlock that break a promise, a saboteur on
//! the servers, and copies of the binary in whose scripts a rule is switched off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use crate::chaos::{self, INTERRUPTED, Moment, Options};
use crate::oracle::Oracle;
use crate::plan::Weather;
use crate::support::{Redis, run};

struct Case {
    name: &'static str,
    oracle: Oracle,
    nodes: usize,
    weather: Weather,
    breaks: Breaks,
    saboteur: Option<fn(&[Redis], Moment)>,
}

enum Breaks {
    Nothing,
    /// A shell script in place of redlock. "$redlock" is the real one, ${args[@]} the arguments
    /// before `--`, "$@" the command.
    StandIn(&'static str),
    /// A copy of the binary with one text of its scripts replaced by another, shorter one.
    Rule(&'static str, &'static str),
}

const CASES: [Case; 12] = [
    Case {
        name: "a program that takes no lock",
        oracle: Oracle::Overlap,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(NO_LOCK),
        saboteur: None,
    },
    Case {
        name: "a program that takes no lock",
        oracle: Oracle::LostUpdate,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(NO_LOCK),
        saboteur: None,
    },
    Case {
        name: "a forged token",
        oracle: Oracle::TokenOrder,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(r#"exec "$redlock" "${args[@]}" -- env REDLOCK_FENCE='7 7 7' "$@""#),
        saboteur: None,
    },
    Case {
        name: "runs that overtake all others",
        oracle: Oracle::ServiceOrder,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(
            r#"case "${args[*]}" in *--prefer*) ;; *--exclusive*) [ $((CHAOS_RUN % 3)) = 0 ] || args+=(--prefer writers);; esac
               exec "$redlock" "${args[@]}" -- "$@""#,
        ),
        saboteur: None,
    },
    Case {
        name: "a process that is left behind",
        oracle: Oracle::Orphan,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(
            r#"exec "$redlock" "${args[@]/--wait-tree/--exclusive}" -- \
               sh -c 'setsid sleep 30 & echo $! >> "$CHAOS_DIRECTORY/pids-$CHAOS_RUN"; exec "$@"' sh "$@""#,
        ),
        saboteur: None,
    },
    Case {
        name: "\"held\" after the command has run",
        oracle: Oracle::ExitCode,
        nodes: 0,
        weather: Weather::Gentle,
        breaks: Breaks::StandIn(
            r#""$redlock" "${args[@]}" -- "$@"; code=$?; [ "$CHAOS_RUN" -ge 800000000 ] || code=75; exit $code"#,
        ),
        saboteur: None,
    },
    Case {
        name: "a lock that is deleted while it is held",
        oracle: Oracle::Overlap,
        nodes: 1,
        weather: Weather::Gentle,
        breaks: Breaks::Nothing,
        saboteur: Some(|servers, _| {
            servers[0].cmd(&["DEL", "lock:a", "lock:b", "lock:p"]);
        }),
    },
    Case {
        name: "a key that stays forever",
        oracle: Oracle::NoTtl,
        nodes: 1,
        weather: Weather::Gentle,
        breaks: Breaks::Nothing,
        saboteur: Some(|servers, moment| {
            if moment == Moment::After {
                servers[0].cmd(&["SET", "lock-tombstone:x", "1"]);
            }
        }),
    },
    Case {
        name: "a lock that is never released",
        oracle: Oracle::Stuck,
        nodes: 1,
        weather: Weather::Gentle,
        breaks: Breaks::Nothing,
        saboteur: Some(|servers, moment| {
            if moment == Moment::After {
                servers[0].cmd(&["SET", "lock:a", "foreign", "PX", "600000"]);
            }
        }),
    },
    Case {
        name: "a build without \"not our turn\"",
        oracle: Oracle::ServiceOrder,
        nodes: 1,
        weather: Weather::Gentle,
        breaks: Breaks::Rule("not is_our_turn(k)", "false"),
        saboteur: None,
    },
    Case {
        name: "a build without the last token",
        oracle: Oracle::TokenOrder,
        nodes: 1,
        weather: Weather::Gentle,
        breaks: Breaks::Rule("math.max(k.last_fence + 1, proposed, clock)", "4102444800000 - NOW_MS"),
        saboteur: None,
    },
    Case {
        name: "a build without quarantine",
        oracle: Oracle::Overlap,
        nodes: 3,
        weather: Weather::Forgetful,
        breaks: Breaks::Rule("return left, NOW_MS - since, int_string(reported)", "return 0, 1e9, '0 0' --"),
        saboteur: Some(all_servers_lose_their_data),
    },
];

const NO_LOCK: &str = r#"n=$(date +%s%N); export REDLOCK_FENCE="$n $n $n" REDLOCK_SLOT=0; exec "$@""#;

/// Every server loses all data. With quarantine no lock is granted until every lease has ended.
fn all_servers_lose_their_data(servers: &[Redis], moment: Moment) {
    for server in servers.iter().filter(|server| moment == Moment::During && server.is_up()) {
        // Not to a server that is stopped at the moment.
        if crate::support::process_state(server.pid()) != Some('T') {
            server.cmd(&["FLUSHALL"]);
        }
    }
}

/// Whether each violation was found, and none where nothing is broken.
pub fn run(is_short: bool) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cases = Mutex::new(CASES.iter().enumerate());
    let is_good = AtomicBool::new(true);
    // They wait more than they work.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some((number, case)) = cases.lock().expect("the cases").next() else { return };
                    let program = directory.path().join(format!("redlock-{number}"));
                    if !INTERRUPTED.load(SeqCst) && !is_noticed(case, program) {
                        is_good.store(false, SeqCst);
                    }
                }
            });
        }
    });
    let mut is_good = is_good.into_inner() && !INTERRUPTED.load(SeqCst);
    // The same sabotage, but with the rule in force.
    if let (false, Some(case)) = (is_short, CASES.last()) {
        let report = chaos::run(&Options { is_quiet: false, wanted: None, ..options(case, run::binary()) });
        println!("self-test: with quarantine: {} violations", report.violations.len());
        is_good &= report.is_good();
    }
    is_good
}

fn is_noticed(case: &Case, program: PathBuf) -> bool {
    if let Err(why) = make(&program, &case.breaks) {
        println!("self-test: {}: {why}", case.name);
        return false;
    }
    let report = chaos::run(&options(case, program));
    let is_noticed = report.has(case.oracle);
    println!(
        "self-test: {} is {} by \"{}\" ({} turns)",
        case.name,
        if is_noticed { "noticed" } else { "NOT NOTICED" },
        case.oracle,
        report.served
    );
    is_noticed
}

fn options(case: &Case, program: PathBuf) -> Options {
    Options {
        weather: Some(case.weather),
        workers: Some(6),
        order_fails: true,
        program,
        saboteur: case.saboteur,
        // Until it is found.
        seconds: match case.oracle {
            Oracle::NoTtl | Oracle::Stuck => 1,
            _ => 50,
        },
        patience: Duration::from_secs(if case.oracle == Oracle::Stuck { 4 } else { 40 }),
        wanted: Some(case.oracle),
        is_quiet: true,
        ..Options::new(case.nodes, 1, 0)
    }
}

fn make(program: &Path, breaks: &Breaks) -> Result<(), String> {
    let redlock = run::binary();
    let contents = match breaks {
        Breaks::Nothing => fs::read(redlock).expect("the binary"),
        Breaks::StandIn(script) => format!(
            "#!/bin/bash\nredlock='{}'; args=(); while [ \"$1\" != -- ]; do args+=(\"$1\"); shift; done; shift\n{script}\n",
            redlock.display()
        )
        .into_bytes(),
        Breaks::Rule(rule, instead) => without(fs::read(redlock).expect("the binary"), rule, instead)?,
    };
    let written = program.with_extension("written");
    fs::write(&written, contents).expect("a program");
    // Another process copies it: a descriptor of ours, inherited by a child of another thread,
    // would make the file busy.
    let install = Command::new("install").args(["-m", "755"]).arg(&written).arg(program).status();
    assert!(install.expect("install").success(), "a program can be copied");
    Ok(())
}

/// The scripts are text in the binary, found by their hashes; no server has a changed script under
/// its old hash, so it is sent as a whole.
fn without(mut binary: Vec<u8>, rule: &str, instead: &str) -> Result<Vec<u8>, String> {
    let (rule, mut instead) = (rule.as_bytes(), instead.as_bytes().to_vec());
    assert!(instead.len() <= rule.len(), "no room for the replacement");
    instead.resize(rule.len(), b' ');
    let places: Vec<usize> =
        binary.windows(rule.len()).enumerate().filter(|(_, text)| *text == rule).map(|(at, _)| at).collect();
    for at in &places {
        binary[*at..at + rule.len()].copy_from_slice(&instead);
    }
    if places.is_empty() {
        let rule = String::from_utf8_lossy(rule);
        return Err(format!("{rule:?} is in no script any more: say in tests/chaos/self_test.rs what is"));
    }
    Ok(binary)
}
