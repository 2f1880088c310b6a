//! `redlock list --openmetrics`: what a monitoring system reads is true and well-formed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use yaml_rust2::YamlLoader;

use super::look;
use crate::support::{Backend, Job, Nodes, Redis, Run, hold, processes, wait_until};

on_backends!(
    one_server, three_servers, this_host: metrics_show_locks_waiters_and_finished_runs;
    one_server, this_host: metrics_show_slots;
);

/// Reads both text formats, and compares them.
const PARSER: &str = r#"
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as new
from prometheus_client.parser import text_string_to_metric_families as old
text = sys.stdin.read()
new, old = ([[s.name, s.labels, float(s.value)] for f in parse(text) for s in f.samples] for parse in (new, old))
assert sorted(map(str, new)) == sorted(map(str, old)), (new, old)
json.dump(new, sys.stdout)
"#;

/// The samples by their names, each with its labels.
type Samples = BTreeMap<String, Vec<(BTreeMap<String, String>, f64)>>;

/// As the Python client for Prometheus reads them; `None` without it.
fn parsed(text: &str) -> Option<Samples> {
    let python = |code: &str| {
        // The distribution's, for which its package is.
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if !python("import prometheus_client").output().is_ok_and(|done| done.status.success()) {
        return None;
    }
    let mut child = python(PARSER).spawn().expect("python3");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}\n{text}", String::from_utf8_lossy(&done.stderr));
    let mut samples = Samples::new();
    for sample in
        serde_json::from_slice::<Vec<(String, BTreeMap<String, String>, f64)>>(&done.stdout).unwrap()
    {
        samples.entry(sample.0).or_default().push((sample.1, sample.2));
    }
    Some(samples)
}

fn value(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    samples.get(name)?.iter().find(|(found, _)| *found == labels).map(|(_, value)| *value)
}

/// A failed and a successful run of `k`, then a holder and a waiter.
fn busy(backend: &Backend) -> (Job, Job) {
    backend.run().sh("exit 3").done().expect_code(3);
    backend.run().cmd(&["true"]).done().expect_code(0);
    let holder = hold(backend.run());
    let waiter = backend.run().cmd(&["true"]).spawn();
    backend.queued(1);
    (holder, waiter)
}

fn metrics_show_locks_waiters_and_finished_runs(backend: &Backend) {
    let _jobs = busy(backend);
    let odd = "a \"quoted\" \\ key\nof two lines";
    let _odd = hold(backend.run_on(&[odd]));
    let text = backend.subcommand("list").arg("--openmetrics").done().expect_code(0).stdout;
    assert!(text.ends_with("\n# EOF\n") && !text.contains("\n\n"), "{text}");
    let Some(samples) = parsed(&text) else { skip!("python3-prometheus-client is not installed") };
    let of_k = |name: &str| value(&samples, name, &[("key", "k")]);
    assert_eq!(value(&samples, "redlock_up", &[]), Some(1.0));
    assert_eq!((of_k("redlock_lock_holders"), of_k("redlock_lock_waiters")), (Some(1.0), Some(1.0)));
    assert!(of_k("redlock_lock_held_seconds").unwrap() >= of_k("redlock_lock_oldest_wait_seconds").unwrap());
    assert_eq!(value(&samples, "redlock_history_runs", &[("key", "k"), ("outcome", "ran")]), Some(2.0));
    assert_eq!(of_k("redlock_history_failures"), Some(1.0));
    let ended =
        ["failure", "success"].map(|how| of_k(&format!("redlock_last_{how}_timestamp_seconds")).unwrap());
    assert!(
        ended[0] <= ended[1] && Some(ended[1]) == of_k("redlock_last_run_timestamp_seconds"),
        "{ended:?}"
    );
    assert_eq!(of_k("redlock_lock_slots"), None);
    // A line feed in a key is escaped as in all output of redlock.
    let label = odd.replace('\n', "\\n");
    assert_eq!(value(&samples, "redlock_lock_holders", &[("key", &label)]), Some(1.0), "{text}");
    let count = |name: &str| samples.get(name).map_or(0, Vec::len);
    assert_eq!(count("redlock_server_up") == 0, backend.is_this_host());
    assert_eq!(count("redlock_server_up"), count("redlock_server_rtt_seconds"));
    // A pattern limits the labels.
    let limited = backend.subcommand("list").args(&["--openmetrics", "other*"]).done().expect_code(0).stdout;
    assert!(!limited.contains("key="), "{limited}");
}

fn metrics_show_slots(backend: &Backend) {
    let _holder = hold(backend.run().args(&["--slots", "3"]));
    let text = backend.subcommand("list").arg("--openmetrics").done().expect_code(0).stdout;
    for line in ["redlock_lock_slots_used{key=\"k\"} 1", "redlock_lock_slots{key=\"k\"} 3"] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
    }
}

#[test]
fn servers_that_are_down_are_in_the_metrics() {
    let (redis, dead) = (Redis::start(), "redis://127.0.0.1:1");
    let urls = format!("{},{dead},redis://127.0.0.1:2", redis.url());
    let done = look("list", &urls, &["--openmetrics"]).done().expect_code(69);
    for line in ["redlock_up 0", &format!("redlock_server_up{{server=\"{dead}\"}} 0")] {
        assert!(done.stdout.lines().any(|found| found == line), "{line} is missing in {done:?}");
    }
    let done = look("list", dead, &["--openmetrics"]).done().expect_code(69);
    assert!(done.stdout.contains("\nredlock_up 0\n") && done.stdout.ends_with("# EOF\n"), "{done:?}");
    assert!(!done.stderr.is_empty());
}

#[test]
fn servers_that_are_quarantined_are_not_up() {
    let nodes = Nodes::start(3);
    nodes.iter().for_each(|server| drop(server.cmd(&["FLUSHALL"])));
    nodes.run_quarantined("k").arg("-n").cmd(&["true"]).done().expect_code(69);
    let done = look("list", &nodes.urls().join(","), &["--openmetrics"]).done().expect_code(0);
    let is_down = |line: &&str| line.ends_with(" 0");
    let up: Vec<&str> = done.stdout.lines().filter(|line| line.contains("_up")).filter(is_down).collect();
    assert_eq!(up.len(), 4, "{done:?}");
}

#[test]
fn metrics_exclude_other_forms_of_the_list_and_name_no_password() {
    for other in ["--json", "--keys", "--watch", "--waiting"] {
        Run::bare().args(&["list", "--local", "--openmetrics", other]).done().expect_code(64);
    }
    let redis = Redis::start_with(&["--requirepass", "s3cret"]);
    let url = format!("redis://:s3cret@127.0.0.1:{}", redis.port());
    let done = look("list", &url, &["--openmetrics"]).done().expect_code(0);
    assert!(done.stdout.contains("redlock_server_up{") && !done.stdout.contains("s3cret"), "{done:?}");
}

/// The queries of a document: its metrics of redlock and the labels that it names.
fn queries() -> Vec<String> {
    let read = |name: &str| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring").join(name)).unwrap()
    };
    let rules = YamlLoader::load_from_str(&read("alerts.yml")).expect("YAML").remove(0);
    let rules = rules["groups"][0]["rules"].as_vec().expect("rules").clone();
    let mut queries: Vec<String> =
        rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).expect("JSON");
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        queries.extend(targets.iter().map(|target| target["expr"].as_str().unwrap().to_owned()));
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    queries.extend(variables.iter().map(|variable| variable["query"].as_str().unwrap().to_owned()));
    assert!(queries.len() > 15, "{queries:?}");
    queries
}

/// Words of a query: names of metrics, functions and labels.
fn words(query: &str) -> Vec<&str> {
    let quoted: Vec<&str> = query.split('"').step_by(2).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = quoted.iter().flat_map(|part| part.split(move |c: char| !is_part(c)));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

#[test]
fn the_documented_queries_name_metrics_and_labels_that_exist() {
    const OF_PROMETHEUS: [&str; 22] = [
        "time",
        "min",
        "max",
        "sum",
        "without",
        "by",
        "or",
        "and",
        "unless",
        "delta",
        "max_over_time",
        "offset",
        "h",
        "node_textfile_mtime_seconds",
        "file",
        "label_values",
        "prometheus",
        "instance",
        "job",
        "on",
        "rate",
        "avg",
    ];
    let redis = Redis::start();
    Run::key(&redis, "k").sh("exit 3").done().expect_code(3);
    Run::key(&redis, "k").cmd(&["true"]).done().expect_code(0);
    let slot = || Run::key(&redis, "k").args(&["--slots", "2"]);
    let _holders = [hold(slot()), hold(slot())];
    let _waiter = slot().cmd(&["true"]).spawn();
    wait_until("it queues", || redis.queue_len("k") == 1);
    let text = look("list", &redis.url(), &["--openmetrics"]).done().expect_code(0).stdout;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeSet<&str> = samples.flat_map(words).collect();
    for query in queries() {
        for word in words(&query) {
            assert!(known.contains(word) || OF_PROMETHEUS.contains(&word), "{word:?} in {query}");
        }
    }
    if processes::is_installed("promtool") {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring/alerts.yml");
        let checked = Command::new("promtool").args(["check", "rules"]).arg(rules).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// The first loss of a lock, and a later one, for an hour each.
const LOSSES: &str = r#"
rule_files: [RULES]
tests:
  - interval: 1m
    input_series:
      - { series: 'redlock_history_runs{key="first",outcome="lost"}', values: '_x90 1x100' }
      - { series: 'redlock_history_runs{key="next",outcome="lost"}', values: '1x90 2x100' }
      - { series: 'redlock_history_runs{key="long ago",outcome="lost"}', values: '3x190' }
    promql_expr_test:
      - expr: count(ALERTS{alertname="RedlockLockLost"})
        eval_time: 100m
        exp_samples: [{ labels: '{}', value: 2 }]
      - expr: count(ALERTS{alertname="RedlockLockLost"})
        eval_time: 170m
"#;

#[test]
fn every_loss_is_an_alert() {
    if !processes::is_installed("promtool") {
        skip!("promtool is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let (tests, rules) = (directory.path().join("losses.yml"), "/docs/monitoring/alerts.yml");
    let rules = format!("{}{rules}", env!("CARGO_MANIFEST_DIR"));
    fs::write(&tests, LOSSES.replace("RULES", &rules)).unwrap();
    let tested = Command::new("promtool").args(["test", "rules"]).arg(tests).output().unwrap();
    assert!(tested.status.success(), "{tested:?}");
}
