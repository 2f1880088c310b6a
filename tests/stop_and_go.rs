//! Signals, stops and failures that come at an awkward moment: before the grant, twice at once, to the
//! guardian, while redlock itself is stopped, after the command has ended.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::{self, SIGCONT, SIGINT, SIGSTOP, SIGTERM};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use support::procs::{self, guardian_of, pid_in};
use support::{Pty, Redis, Run, alive, process_state, stays_free, wait_until};

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("signal a process");
}

#[test]
fn an_interrupt_before_the_grant_means_that_the_command_is_never_started() {
    let redis = Redis::start();
    for round in 0..8 {
        let mark = procs::mark();
        redis.stop();
        let run = Run::key(&redis, "k").args(&["--node-timeout", "10s"]).env("TEST_MARK", &mark);
        let job = run.sh("echo ran").spawn();
        // It is forked after the signals are blocked and the server was asked.
        guardian_of(job.pid());
        job.signal(SIGINT);
        redis.cont();
        let done = job.wait();
        assert_eq!((done.code, done.signal), (None, Some(SIGINT as i32)), "round {round}: {done:?}");
        assert_eq!(done.stdout, "", "round {round}: the command ran");
        wait_until("no process is left", || procs::marked(&mark).is_empty());
        wait_until("the key is free", || !redis.held("k"));
    }
    stays_free(&redis);
    let left: Vec<_> = redis.keys().into_iter().filter(|key| key != "lock-fence:k").collect();
    assert_eq!(left, Vec::<String>::new(), "left on the server");
}

/// timeout(1) signals its child and then its whole group, of which the child is one: that is one wish to end.
#[test]
fn a_command_under_timeout_has_the_time_to_clean_up() {
    let redis = Redis::start();
    let script = "trap 'sleep 0.2; echo cleaned > \"$FILE\"; exit 3' TERM
        echo ready; while :; do sleep 0.05; done";
    let dir = tempfile::tempdir().unwrap();
    for batch in 0..3 {
        let jobs: Vec<_> = (0..5)
            .map(|n| {
                let name = format!("{batch}-{n}");
                let run = Run::key(&redis, &name).through(&["timeout", "2"]);
                (dir.path().join(&name), run.env("FILE", dir.path().join(&name)).sh(script).spawn())
            })
            .collect();
        for (file, job) in jobs {
            job.wait_for_line("ready");
            let done = job.wait();
            assert_eq!(done.code, Some(124), "timeout has ended it: {done:?}");
            assert_eq!(fs::read_to_string(&file).unwrap_or_default(), "cleaned\n", "{file:?}: {done:?}");
        }
    }
    wait_until("every key is free", || redis.keys().iter().all(|key| !key.starts_with("lock:")));
}

/// The same at its worst: the second signal comes when the first has been passed on. The nanoseconds from one to
/// the other are printed.
const TWICE: &str = r#"
    "$@" & redlock=$!
    until [ -e "$DIR/ready" ]; do sleep 0.01; done
    before=$(date +%s%N); kill -TERM $redlock
    until [ -e "$DIR/heard" ]; do :; done
    kill -TERM $redlock; echo took=$(($(date +%s%N) - before))
    wait $redlock; echo status=$?"#;

#[test]
fn the_same_wish_to_end_twice_in_a_breath_from_our_own_group_is_one_wish() {
    let redis = Redis::start();
    let script = r#"trap ': > "$DIR/heard"; sleep 0.5; echo cleaned; exit 3' TERM
        : > "$DIR/ready"; while :; do sleep 0.05; done"#;
    let mut judged = 0;
    for _ in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let job = Run::key(&redis, "k").via(TWICE).env("DIR", dir.path()).sh(script).spawn();
        let took =
            job.wait_for_line("took=").trim_start_matches("took=").parse::<u64>().expect("nanoseconds");
        let status = job.wait_for_line("status=");
        // On a busy machine it may not be one breath; then it is to be killed.
        if took < 80_000_000 {
            assert_eq!(status, "status=3", "after {took} ns: {:?}", job.stderr_so_far());
            assert!(job.stdout_so_far().contains("cleaned"), "{:?}", job.stdout_so_far());
            judged += 1;
        }
        assert!(!redis.held("k"));
        if judged == 3 {
            return;
        }
    }
    panic!("this machine is too busy to send two signals in a breath");
}

/// Stops and continues the command faster than anyone reads of it, and for so long that a pipe would fill.
fn stop_and_continue(command: i32) {
    let pid = Pid::from_raw(command);
    let start = Instant::now();
    for _ in 0..700 {
        if start.elapsed() > Duration::from_secs(3) || kill(pid, SIGSTOP).is_err() {
            break;
        }
        while process_state(command).is_some_and(|state| !matches!(state, 'T' | 'Z' | 'X')) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(1)); // the pace: its parent hears of each stop
        if kill(pid, SIGCONT).is_err() {
            break;
        }
    }
}

#[track_caller]
fn assert_gone_when_the_lease_ends(redis: &Redis, command: i32) {
    wait_until("the key expires", || !redis.held("k"));
    assert!(!alive(command), "alive after the lease");
}

#[test]
fn stops_of_the_command_that_redlock_does_not_read_of_do_not_hold_the_guardian_up() {
    let redis = Redis::start();
    let job = Run::key(&redis, "k").args(&["--ttl", "6s"]).sh("echo main $$; exec sleep 60").spawn();
    let main = pid_in(&job.wait_for_line("main"));
    job.signal(SIGSTOP);
    stop_and_continue(main);
    assert_gone_when_the_lease_ends(&redis, main);
    job.signal(SIGCONT);
    assert_eq!(job.wait().code, Some(79));
}

/// There redlock is told of each stop, to stop as well.
#[test]
fn on_a_terminal_they_do_not_either() {
    let redis = Redis::start();
    let pty = Pty::run(Run::key(&redis, "k").args(&["--ttl", "6s"]).sh("echo main $$ up; exec sleep 60"));
    let main = pty.number_after("main ");
    send(pty.pid(), SIGSTOP);
    wait_until("redlock is stopped", || process_state(pty.pid()) == Some('T'));
    stop_and_continue(main);
    assert_gone_when_the_lease_ends(&redis, main);
}

/// The lock becomes a stranger's; `lease` lasts as long as ours would have.
const TAKE_AWAY: &str = "redis.call('SET', 'lease', 'x', 'PX', redis.call('PTTL', KEYS[1]))
    redis.call('DEL', KEYS[1])
    return redis.call('SET', KEYS[1], 'foreign')";

#[test]
fn a_stopped_guardian_does_not_let_the_command_outlive_its_lease() {
    let redis = Redis::start();
    for deaf in ["", "trap '' TERM INT HUP; "] {
        redis.cmd(&["DEL", "lock:k"]);
        let run = Run::key(&redis, "k").args(&["--ttl", "3s", "--node-timeout", "600ms"]);
        let job = run.sh(&format!("{deaf}echo main $$; exec sleep 60")).spawn();
        let main = pid_in(&job.wait_for_line("main"));
        let guardian = guardian_of(job.pid());
        send(guardian, SIGSTOP);
        wait_until("the guardian is stopped", || process_state(guardian) == Some('T'));
        assert_eq!(redis.cmd(&["EVAL", TAKE_AWAY, "1", "lock:k"]), "OK");
        wait_until("the lease is over", || redis.cmd(&["EXISTS", "lease"]) == "0");
        assert!(!alive(main), "alive after the lease");
        let done = job.wait();
        assert!(matches!(done.code, Some(79 | 125)), "{done:?}");
        assert!(done.stderr.starts_with("redlock: "), "{done:?}");
        assert!(!alive(guardian));
        assert_eq!(redis.cmd(&["GET", "lock:k"]), "foreign", "a stranger's lock is not touched");
    }
}

/// In clock ticks, a hundredth of a second each.
fn cpu_used(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    let behind_name = stat.rsplit_once(')').expect("its name").1;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
}

#[test]
fn after_a_loss_that_is_only_told_redlock_sleeps_until_the_command_ends() {
    let redis = Redis::start();
    for foreign in [false, true] {
        let mut job = Run::key(&redis, "k")
            .args(&["--ttl", "1s", "--on-lost", "warn"])
            .stdin_pipe()
            .sh("echo ready; read x; exit 5")
            .spawn();
        job.wait_for_line("ready");
        redis.cmd(&["DEL", "lock:k"]);
        if foreign {
            redis.cmd(&["SET", "lock:k", "foreign"]);
        }
        job.wait_for_stderr("lost");
        let used = |pids: &[i32]| pids.iter().map(|pid| cpu_used(*pid)).sum::<u64>();
        let ours = [job.pid(), guardian_of(job.pid())];
        let before = used(&ours);
        // What is measured: this time, in which the lease ends too.
        std::thread::sleep(Duration::from_millis(1500));
        let ticks = used(&ours) - before;
        assert!(ticks < 8, "{ticks} ticks of 150 with nothing to do");
        drop(job.take_stdin());
        assert_eq!(job.wait().code, Some(5));
        redis.cmd(&["DEL", "lock:k"]);
    }
}

#[test]
fn where_no_thread_can_be_started_the_command_still_runs_to_its_own_end() {
    if !nix::unistd::geteuid().is_root() {
        return; // we cannot become a user whose processes we can count
    }
    let redis = Redis::start();
    // A user of nobody else: its processes are redlock, the guardian and the command, and no more.
    let id = (100_000 + std::process::id()).to_string();
    let wrapper = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "prlimit", "--nproc=3:3"];
    // Nothing but builtins, for longer than redlock waits before it wants a thread.
    let script = "echo ready; read x; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 7";
    let mut job = Run::key(&redis, "k").through(&wrapper).stdin_pipe().sh(script).spawn();
    job.wait_for_line("ready");
    drop(job.take_stdin());
    let mut most = 0;
    while job.is_running() {
        most = procs::status_field(job.pid(), "Threads").parse().unwrap_or(0).max(most);
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = job.wait();
    assert_eq!((done.code, done.signal), (Some(7), None), "{done:?}");
    assert_eq!(most, 1, "the limit has kept it from starting a thread");
    assert!(!redis.held("k"));
}

#[test]
fn with_wait_tree_a_signal_reaches_what_the_command_has_left_behind() {
    let redis = Redis::start();
    let away = [
        "trap \"echo heard; exit 0\" TERM; echo away $$; while :; do sleep 0.05; done",
        "echo away $$; exec sleep 60",
    ];
    for (away, hears) in away.into_iter().zip([true, false]) {
        let script = format!("setsid sh -c '{away}' & echo main $$; exit 4");
        let job = Run::key(&redis, "k").arg("--wait-tree").sh(&script).spawn();
        let [main, away] = ["main", "away"].map(|who| pid_in(&job.wait_for_line(who)));
        wait_until("the command has ended and was collected", || process_state(main).is_none());
        assert!(alive(away) && redis.held("k"), "the lock is held for what it has left");
        job.signal(SIGTERM);
        if hears {
            job.wait_for_line("heard");
        }
        let done = job.wait();
        assert_eq!((done.code, done.signal), (Some(4), None), "the command's own: {done:?}");
        assert!(!alive(away));
        assert!(!redis.held("k"));
    }
}

/// The command as a script file, so that the screen shows its words only when it says them.
fn script(redis: &Redis, options: &[&str], dir: &Path, text: &str) -> String {
    let file = dir.join("job.sh");
    fs::write(&file, text).unwrap();
    Run::key(redis, "k").args(options).cmd(&["sh", file.to_str().unwrap()]).shell_line()
}

#[test]
fn a_command_that_ignores_ctrl_z_keeps_its_lock() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    // Two leases long.
    let text =
        "trap '' TSTP; i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo tick=$i.; sleep 0.1; done; exit 6";
    let line = script(&redis, &["--ttl", "2s"], dir.path(), text);
    let pty = Pty::shell();
    pty.type_in(&format!("{line}; echo sta''tus=$?\n"));
    pty.wait_for("tick=1.");
    pty.type_in("\x1a");
    pty.wait_for("tick=38.");
    assert!(redis.held("k"), "the lock was lost while the command ran on");
    pty.wait_for("status=");
    assert!(pty.screen().contains("status=6"), "{}", pty.screen());
    wait_until("the key is free", || !redis.held("k"));
}
