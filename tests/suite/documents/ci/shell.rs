//! Shell scripts that hold a lock until they exit.

use nix::sys::signal::Signal::{SIGINT, SIGKILL, SIGTERM};

use super::{Bench, CI, signal_if_alive, without_waiting};
use crate::documents::blocks::{Block, blocks_in};
use crate::support::processes::send;
use crate::support::{Run, descendants};

/// The scripts of the document, each run by the program in its first line.
fn scripts(bench: &Bench) -> Vec<Run> {
    let is_script = |block: &Block| block.text.contains("# release-shop:");
    let blocks: Vec<Block> = blocks_in(CI, "sh").into_iter().filter(is_script).collect();
    assert_eq!(blocks.len(), 2);
    let url = bench.sandbox.redis.url();
    let run = |(n, block): (usize, &Block)| {
        let path = bench.script(&format!("release-shop-{n}"), &without_waiting(&block.text));
        bench.job(&[path.to_str().unwrap()], &[("REDLOCK_REDIS", &url)])
    };
    blocks.iter().enumerate().map(run).collect()
}

#[test]
fn the_scripts_run_under_the_lock_and_print_nothing() {
    for n in 0..2 {
        let bench = Bench::new("deploy");
        let done = scripts(&bench).remove(n).done().expect_code(0);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
        bench.assert_ran_and_released();
    }
}

#[test]
fn the_lock_is_released_however_a_script_ends() {
    for n in 0..2 {
        for signal in [SIGTERM, SIGINT, SIGKILL] {
            let bench = Bench::new("deploy");
            bench.make_deploy_block();
            let job = scripts(&bench).remove(n).spawn();
            bench.wait_for_deploy();
            // Like ^C or a CI system: signals the script and its child.
            let tree = descendants(job.pid());
            send(job.pid(), signal);
            tree.into_iter().for_each(|pid| signal_if_alive(pid, signal));
            assert_ne!(job.wait().code, Some(0));
            bench.assert_released();
        }
    }
}

#[test]
fn a_failing_step_ends_the_script_and_frees_the_lock() {
    for n in 0..2 {
        let bench = Bench::new("deploy");
        bench.script("build.sh", "#!/bin/sh\nexit 7\n");
        scripts(&bench).remove(n).done().expect_code(7);
        assert_eq!(bench.sandbox.ran(), Vec::<String>::new());
        bench.assert_released();
    }
}

#[test]
fn no_step_runs_without_the_lock() {
    for n in 0..2 {
        let bench = Bench::new("deploy");
        bench.assert_fails_while_held(|| scripts(&bench).remove(n).done().code == Some(0));
    }
}
