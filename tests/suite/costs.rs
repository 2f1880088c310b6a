//! The costs of one run that can be counted on every machine: processes, connections, requests,
//! server commands, system calls and memory. The figures are bounds: a change that lowers one
//! lowers it here, too.

use std::collections::BTreeMap;
use std::fs;

use crate::support::processes::status_field;
use crate::support::{
    Host, Job, Nodes, Redis, Run, hold, processes, queued, wait_for_sleeping_waiter, wait_until,
};

/// System calls that depend on the allocator and on the C library, not on our code. (A debug build
/// also calls fcntl for each descriptor that it closes.)
const NOT_OURS: [&str; 8] =
    ["brk", "mmap", "munmap", "mprotect", "madvise", "futex", "sched_getaffinity", "restart_syscall"];

/// Each run is counted this often, and the minimum counts: on a busy machine a reply may arrive in
/// two parts, or a timer may expire.
const TRIES: usize = 8;

/// The costs of one run, without the command's own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Costs {
    processes: usize,
    connections: usize,
    /// Writes to servers.
    requests: usize,
    /// In all processes, counted from the moment the settings are read. With several servers some
    /// depend on how many replies arrive together.
    system_calls: usize,
}

/// A line of strace(1): the process, the call, and the rest.
fn parse(line: &str) -> Option<(&str, &str, &str)> {
    let (pid, rest) = line.split_once(' ')?;
    let (call, rest) = rest.trim_start().split_once('(')?;
    let is_name = call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((pid, call, rest))
}

impl Costs {
    fn of(trace: &str) -> Costs {
        let calls: Vec<_> = trace.lines().filter_map(parse).collect();
        let is_exec = |rest: &str| rest.contains("/true");
        // From then on it is the command's process. The call itself is ours.
        let command = calls.iter().rposition(|(_, call, rest)| *call == "execve" && is_exec(rest));
        let command = command.expect("the command is executed");
        let started = calls.iter().position(|(.., rest)| rest.contains("config.toml")).expect("settings");
        let of_ours = |at: &usize| *at <= command || calls[*at].0 != calls[command].0;
        let ours: Vec<_> = (started..calls.len()).filter(of_ours).map(|at| calls[at]).collect();
        let count = |wanted: &dyn Fn(&str, &str) -> bool| {
            ours.iter().filter(|(_, call, rest)| wanted(call, rest)).count()
        };
        let is_clone = |call: &str| ["fork", "vfork", "clone", "clone3"].contains(&call);
        let has_thread = |rest: &str| rest.contains("CLONE_THREAD");
        Costs {
            processes: count(&|call, rest| is_clone(call) && !has_thread(rest)),
            connections: count(&|call, rest| call == "connect" && rest.contains("AF_INET")),
            requests: count(&|call, rest| ["sendto", "write"].contains(&call) && rest.contains("\"*")),
            system_calls: count(&|call, rest| !NOT_OURS.contains(&call) && !rest.contains("F_GETFD")),
        }
    }

    /// None of the costs is larger than its bound.
    #[track_caller]
    fn assert_at_most(&self, bound: &Costs) {
        let of = |costs: &Costs| [costs.processes, costs.connections, costs.requests, costs.system_calls];
        assert!(of(self).iter().zip(of(bound)).all(|(is, most)| *is <= most), "{self:?}, at most {bound:?}");
    }
}

fn can_trace() -> bool {
    processes::is_installed("strace")
        && std::process::Command::new("strace")
            .args(["-o", "/dev/null", "true"])
            .output()
            .is_ok_and(|o| o.status.success())
}

/// Counts runs of `redlock ... -- /bin/true`. `meanwhile` gets the job as soon as it has started.
#[track_caller]
fn count(
    run: &Run,
    mut before: impl FnMut() -> Option<Job>,
    mut meanwhile: impl FnMut(Option<Job>),
) -> Costs {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let strace = ["strace", "-f", "-q", "-s", "24", "-o", trace.to_str().unwrap(), "--"];
    let costs = (0..TRIES).map(|_| {
        let holder = before();
        let job = run.clone().through(&strace).cmd(&["/bin/true"]).spawn();
        meanwhile(holder);
        job.wait().expect_code(0);
        Costs::of(&fs::read_to_string(&trace).unwrap())
    });
    costs.min_by_key(|costs| costs.system_calls).unwrap()
}

#[track_caller]
fn costs_of(run: &Run) -> Costs {
    run.clone().cmd(&["/bin/true"]).done().expect_code(0); // loads the scripts
    count(run, || None, drop)
}

#[test]
fn the_costs_of_a_run_on_this_host_are_bounded() {
    if !can_trace() {
        skip!("strace is missing, or may not trace");
    }
    let host = Host::new();
    costs_of(&host.run()).assert_at_most(&Costs {
        processes: 2,
        connections: 0,
        requests: 0,
        system_calls: 162,
    });
}

#[test]
fn the_costs_of_a_run_on_servers_are_bounded() {
    if !can_trace() {
        skip!("strace is missing, or may not trace");
    }
    for (servers, system_calls) in [(1, 150), (3, 190), (5, 230)] {
        let nodes = Nodes::start(servers);
        let run = if servers == 1 { Run::key(&nodes[0], "k") } else { nodes.run("k") };
        let bound = Costs { processes: 2, connections: servers, requests: 2 * servers, system_calls };
        costs_of(&run).assert_at_most(&bound);
    }
}

#[test]
fn the_costs_of_a_run_that_waits_on_a_server_are_bounded() {
    if !can_trace() {
        skip!("strace is missing, or may not trace");
    }
    let redis = Redis::start();
    let run = Run::key(&redis, "k");
    run.clone().cmd(&["/bin/true"]).done().expect_code(0);
    let costs = count(
        &run,
        || Some(hold(Run::key(&redis, "k"))),
        |holder| {
            queued(&redis, "k", 1);
            wait_for_sleeping_waiter(&redis);
            let mut holder = holder.expect("a holder");
            drop(holder.take_stdin());
            holder.wait().expect_code(0);
        },
    );
    // Acquire, BLPOP, acquire, release; a slightly longer or shorter wait costs a poll or two more
    // or less.
    costs.assert_at_most(&Costs { processes: 2, connections: 1, requests: 4, system_calls: 168 });
}

/// The resident memory of a run and its guardian, in KiB. The tests' binary is not optimized; the
/// release build needs two thirds of it. A waiter has a thread that writes its wait lines, for which
/// about 120 KiB of the C library, shared with every other process, are resident.
const MEMORY: u64 = 6 * 1024 + 512;

#[track_caller]
fn wait_until_small(redlock: i32) {
    let kib = |pid| status_field(pid, "VmRSS").trim_end_matches(" kB").trim().parse::<u64>().expect("a size");
    let guardian = processes::guardian_of(redlock);
    wait_until("the run and its guardian need little memory", || kib(redlock) + kib(guardian) < MEMORY);
}

#[test]
fn a_long_run_and_a_long_wait_need_little_memory() {
    let (redis, host) = (Redis::start(), Host::new());
    for run in [Run::key(&redis, "k"), host.run()] {
        let holder = hold(run.clone());
        wait_until_small(holder.pid());
        let waiter = run.sh("echo served").spawn();
        wait_until_small(waiter.pid());
        holder.wait().expect_code(0);
        waiter.wait().expect_code(0);
    }
}

/// The fewest of several tries, as text: a slow machine adds renewals, and a run that takes longer
/// than half a second also listens for breaks.
fn fewest(tries: impl Iterator<Item = BTreeMap<String, usize>>) -> String {
    let fewest = tries.min_by_key(|commands| commands.values().sum::<usize>()).expect("a try");
    let text: Vec<String> = fewest.iter().map(|(name, count)| format!("{name} {count}")).collect();
    text.join(", ")
}

#[test]
fn a_run_executes_only_these_commands_on_the_server() {
    let redis = Redis::start();
    let run = || Run::key(&redis, "k").cmd(&["/bin/true"]).done().expect_code(0);
    run();
    assert_eq!(
        fewest((0..TRIES).map(|_| redis.commands_during(run).0)),
        "del 1, evalsha 2, exists 2, get 2, hset 1, info 1, pexpire 2, set 2, time 1, xadd 1"
    );
}

/// The marker is read, but INFO is not called.
#[test]
fn a_run_executes_only_these_commands_on_one_of_several_servers() {
    let nodes = Nodes::start(3);
    let run = || nodes.run("k").cmd(&["/bin/true"]).done().expect_code(0);
    run();
    assert_eq!(
        fewest((0..TRIES).map(|_| nodes[1].commands_during(run).0)),
        "del 1, evalsha 2, exists 2, get 3, hset 1, info 1, pexpire 2, set 2, time 1, xadd 1"
    );
}

/// A release that wakes a waiter, the waiter's acquire, and its release.
#[test]
fn a_hand_over_executes_only_these_commands_on_the_server() {
    let redis = Redis::start();
    Run::key(&redis, "k").cmd(&["/bin/true"]).done().expect_code(0);
    let tries = (0..TRIES).map(|_| {
        let holder = hold(Run::key(&redis, "k"));
        let waiter = Run::key(&redis, "k").cmd(&["/bin/true"]).spawn();
        wait_for_sleeping_waiter(&redis);
        let hand_over = || {
            holder.wait().expect_code(0);
            waiter.wait().expect_code(0);
        };
        redis.commands_during(hand_over).0
    });
    assert_eq!(
        fewest(tries),
        "del 2, evalsha 3, exists 5, get 3, hdel 1, hset 1, info 1, pexpire 4, rpush 1, set 2, time 2, xadd 2, zadd 1, \
         zrange 1, zrank 1, zrem 2, zscore 2"
    );
}
