//! `--supersede` on several servers, with latencies and a lost gate: the newest run is the one that
//! reached the gate last.

use crate::support::{
    Job, Links, MS, Nodes, Run, hold, queued, skipped, wait_for_sleeping_waiter, wait_until,
};

/// Waits until this job is the newest on the server.
#[track_caller]
fn wait_until_newest(links: &Links, server: usize, job: &Job) {
    let pid = format!("\"pid\":\"{}\"", job.pid());
    wait_until("the job is the newest", || {
        links.nodes()[server].cmd(&["GET", "lock-newest:k"]).contains(&pid)
    });
}

/// Superseding runs start on these hosts, one after another; only the last one stays, and runs.
fn assert_the_last_one_stays(links: &Links, hosts: &[usize]) {
    let holder = links.nodes().hold(links.run(hosts[0], "k").args(&["--ttl", "60s"]), "k");
    let mut jobs: Vec<Job> = Vec::new();
    for (i, host) in hosts.iter().cycle().take(2 * hosts.len()).enumerate() {
        let run = links.run(*host, "k").args(&["--supersede", "--ttl", "60s"]);
        jobs.push(run.sh(&format!("echo ran {i}")).spawn());
        wait_until_newest(links, 0, &jobs[i]);
    }
    let last = jobs.pop().unwrap();
    for job in jobs {
        let done = job.wait().expect_code(75);
        assert!(done.stdout.is_empty() && done.stderr.contains("superseded by"), "{done:?}");
    }
    queued(&links.nodes()[0], "k", 1);
    holder.wait().expect_code(0);
    assert_eq!(last.wait().expect_code(0).stdout, format!("ran {}\n", 2 * hosts.len() - 1));
    links.nodes().all_free();
}

#[test]
fn the_newest_stays_whatever_the_latencies() {
    let links = Links::start(3, 3);
    links.warm_up();
    for host in 0..3 {
        let lines = links.lines_of(host).iter().enumerate();
        lines.for_each(|(server, line)| line.each_way(if server == host { MS } else { 40 * MS }));
    }
    assert_the_last_one_stays(&links, &[0, 1, 2]);
}

#[test]
fn the_newest_stays_if_one_host_is_far_from_the_gate() {
    let links = Links::start(3, 2);
    links.warm_up();
    links.lines_of(1)[0].each_way(80 * MS);
    assert_the_last_one_stays(&links, &[1, 0]);
}

#[test]
fn many_at_once_on_slow_lines_leave_exactly_one() {
    let links = Links::start(3, 3);
    links.warm_up();
    for host in 0..3 {
        links.lines_of(host).iter().for_each(|line| line.each_way((5 + 20 * host as u32) * MS));
    }
    let holder = links.nodes().hold(links.run(0, "k").args(&["--ttl", "60s"]), "k");
    let run = |host| links.run(host, "k").args(&["--supersede", "--ttl", "60s"]).sh("echo ran");
    let mut jobs: Vec<Job> = (0..9).map(|i| run(i % 3).spawn()).collect();
    wait_until("eight have given up", || {
        jobs.iter_mut().map(Job::is_running).filter(|runs| *runs).count() == 1
    });
    holder.wait().expect_code(0);
    let codes: Vec<Option<i32>> = jobs.into_iter().map(|job| job.wait().code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(75)).count(), 8, "{codes:?}");
    links.nodes().all_free();
}

#[test]
fn the_newest_stays_if_the_gate_is_lost() {
    let mut nodes = Nodes::start(3);
    let holder = hold(nodes.run("k").args(&["--ttl", "60s"]));
    let run = |nodes: &Nodes| nodes.run("k").args(&["--supersede", "--ttl", "60s"]);
    let older = run(&nodes).sh("echo older").spawn();
    // Before its first reply it has no stamp, and would queue behind the newer one elsewhere.
    wait_for_sleeping_waiter(&nodes[0]);
    nodes[0].kill();
    // The older one queues on the next server, or finds the newer one there.
    let newer = run(&nodes).sh("echo newer").spawn();
    let done = older.wait().expect_code(75);
    assert!(done.stdout.is_empty() && done.stderr.contains("superseded by"), "{done:?}");
    queued(&nodes[1], "k", 1);
    holder.wait().expect_code(0);
    assert_eq!(newer.wait().expect_code(0).stdout, "newer\n");
}

#[test]
fn a_run_on_another_host_supersedes_and_is_named() {
    let in_another_host = ["unshare", "--uts", "sh", "-c", "hostname far-away && exec \"$@\"", "sh"];
    let probe = std::process::Command::new(in_another_host[0])
        .args(&in_another_host[1..])
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !probe {
        return skipped("another hostname needs root and unshare");
    }
    let nodes = Nodes::start(3);
    let holder = hold(nodes.run("k").args(&["--ttl", "60s"]));
    let run = || -> Run { nodes.run("k").args(&["--supersede", "--ttl", "60s"]) };
    let older = run().sh("echo older").spawn();
    queued(&nodes[0], "k", 1);
    let newer = run().sh("echo newer").through(&in_another_host).spawn();
    let done = older.wait().expect_code(75);
    assert!(done.stderr.contains("superseded by") && done.stderr.contains("@far-away pid"), "{done:?}");
    holder.wait().expect_code(0);
    assert_eq!(newer.wait().expect_code(0).stdout, "newer\n");
}
