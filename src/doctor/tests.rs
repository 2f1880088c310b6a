use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::lock::checkup::{
    Config, Found, HostTrial, Info, Marker, SentinelFacts, ServerClock, ServerFacts, ServerKind, Trial,
    TrialFailure, TrialStep,
};
use crate::lock::{Mount, ServerError};
use crate::report::Verbosity;
use crate::settings::{Location, Origins};

const NOW_MS: u64 = 1_800_000_000_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(NOW_MS)
}

const ALONE: Timing = Timing {
    ttl: Some(Duration::from_secs(30)),
    node_timeout: Duration::from_secs(5),
    quarantine: Duration::ZERO,
};
const SEVERAL: Timing = Timing {
    ttl: Some(Duration::from_secs(30)),
    node_timeout: Duration::from_secs(1),
    quarantine: Duration::from_secs(30),
};

fn denied() -> BackendError {
    BackendError::new("a", Problem::Server(ServerError::new("NOPERM", Some("no"), "INFO")))
}

fn info() -> Info {
    Info {
        engine: "Redis".into(),
        version: Some("7.0.15".into()),
        mode: Some("standalone".into()),
        run_id: Some("id".into()),
        replication_id: Some("history".into()),
        uptime: Some(Duration::from_secs(3600)),
        is_replica: Some(false),
        master: None,
        replicas: Some(0),
        demands_replicas: false,
        max_memory: Some(0),
        used_memory: Some(1000),
        eviction_policy: Some("noeviction".into()),
        evicted_keys: Some(0),
        has_append_only_file: Some(true),
        cannot_save: false,
        is_cluster: false,
    }
}

fn found() -> Found {
    Found {
        rtt: Duration::from_millis(1),
        clock: Ok(ServerClock { now_ms: NOW_MS, ahead_ms: 0, uncertainty: Duration::ZERO }),
        info: Ok(info()),
        config: Ok(Config::default()),
        marker: Ok(Some(Marker {
            reign: "id.history".into(),
            since_ms: NOW_MS - 3_600_000,
            longest_ms: 30_000,
            ends_ms: u64::MAX,
            ..Marker::default()
        })),
        certificate_expires: None,
        trial: Some(Ok(Trial { took: Duration::from_millis(1), is_in_history: true })),
    }
}

fn server(configured: usize, kind: ServerKind, found: Result<Found, BackendError>) -> ServerFacts {
    let (name, first_key) = (format!("s{configured}"), "first".to_owned());
    ServerFacts { name, configured, kind, others: None, first_key, found }
}

fn checkup(servers: Vec<ServerFacts>) -> ServersCheckup {
    let configured = servers.iter().map(|server| server.configured + 1).max().unwrap_or(0);
    ServersCheckup { configured, servers, sentinels: Vec::new() }
}

fn host() -> HostFacts {
    HostFacts {
        directory: Some("/run/lock".into()),
        trial: Some(Ok(HostTrial { mount: Mount::OnThisHost, took: Duration::ZERO })),
        has_subreaper: true,
        has_proc: true,
        has_pidfd: true,
        user: nix::unistd::Uid::from_raw(0),
    }
}

fn with(backend: Backend) -> DoctorSettings {
    let location = Location {
        backend,
        prefix: "lock".into(),
        verbosity: Verbosity::Normal,
        config_files: Vec::new(),
        warnings: Vec::new(),
    };
    DoctorSettings { location, directory: None, json: false, origins: Origins::default() }
}

fn on_servers(timing: &Timing) -> DoctorSettings {
    with(Backend::Servers { servers: Vec::new(), timing: *timing })
}

fn on_this_host() -> DoctorSettings {
    with(Backend::Host { directory: PathBuf::new(), is_requested: true })
}

/// The levels that this check gives all servers.
fn levels(checkup: &ServersCheckup, timing: &Timing, check: Check) -> Vec<Level> {
    levels_in(&on_servers(timing), checkup, &host(), check)
}

fn levels_in(
    settings: &DoctorSettings,
    checkup: &ServersCheckup,
    host: &HostFacts,
    check: Check,
) -> Vec<Level> {
    let diagnosis = Diagnosis::from_facts(settings, checkup.clone(), host, now());
    let of_check = diagnosis.findings.iter().filter(|(_, finding)| finding.check == check);
    of_check.map(|(_, finding)| finding.level).collect()
}

/// The levels for one plain server with this change.
fn of_one(check: Check, timing: &Timing, change: impl FnOnce(&mut Found)) -> Vec<Level> {
    of_kind(ServerKind::Plain, check, timing, change)
}

fn of_kind(kind: ServerKind, check: Check, timing: &Timing, change: impl FnOnce(&mut Found)) -> Vec<Level> {
    let mut facts = found();
    change(&mut facts);
    levels(&checkup(vec![server(0, kind, Ok(facts))]), timing, check)
}

fn of_info(check: Check, change: impl FnOnce(&mut Info)) -> Vec<Level> {
    of_one(check, &ALONE, |found| change(found.info.as_mut().unwrap()))
}

use Level::{Ok as Fine, Problem as Bad, Unknown, Warning};

#[test]
fn each_fact_of_info_has_its_level() {
    let text = |text: &str| Some(text.to_owned());
    for (check, change, level) in [
        (
            Check::VERSION,
            Box::new(|info: &mut Info| info.version = text("5.0.14")) as Box<dyn Fn(&mut Info)>,
            Bad,
        ),
        (Check::VERSION, Box::new(|info| info.version = None), Unknown),
        (Check::VERSION, Box::new(|info| info.engine = "Garnet".into()), Warning),
        (
            Check::VERSION,
            Box::new(|info| (info.engine, info.version) = ("Valkey".into(), text("8.1.0"))),
            Fine,
        ),
        (Check::ROLE, Box::new(|info| info.is_replica = Some(true)), Bad),
        (Check::ROLE, Box::new(|info| info.is_replica = None), Unknown),
        (Check::ROLE, Box::new(|info| info.mode = text("sentinel")), Bad),
        (Check::ROLE, Box::new(|info| info.is_cluster = true), Bad),
        (Check::EVICTION, Box::new(|info| info.eviction_policy = text("allkeys-lru")), Fine),
        (
            Check::EVICTION,
            Box::new(|info| (info.eviction_policy, info.max_memory) = (text("volatile-ttl"), Some(1 << 30))),
            Bad,
        ),
        (
            Check::EVICTION,
            Box::new(|info| (info.eviction_policy, info.evicted_keys) = (text("allkeys-lru"), Some(1))),
            Bad,
        ),
        (Check::EVICTION, Box::new(|info| info.eviction_policy = None), Unknown),
        (
            Check::EVICTION,
            Box::new(|info| (info.eviction_policy, info.evicted_keys) = (None, Some(3))),
            Warning,
        ),
        (Check::PERSISTENCE, Box::new(|info| info.has_append_only_file = Some(false)), Warning),
        (Check::PERSISTENCE, Box::new(|info| info.has_append_only_file = None), Unknown),
    ] {
        assert_eq!(of_info(check, change), [level], "{check:?}");
    }
    let full = |info: &mut Info| (info.used_memory, info.max_memory) = (Some(95), Some(100));
    assert_eq!(of_info(Check::MEMORY, full), [Warning]);
    assert_eq!(of_info(Check::PERSISTENCE, |info| info.cannot_save = true), [Fine, Warning]);
}

#[test]
fn a_denied_fact_is_unknown_and_never_ok() {
    let without_info = |found: &mut Found| (found.info, found.config) = (Err(denied()), Err(denied()));
    for check in [Check::VERSION, Check::ROLE, Check::EVICTION, Check::PERSISTENCE] {
        assert_eq!(of_one(check, &ALONE, without_info), [Unknown], "{check:?}");
    }
    assert_eq!(of_one(Check::CLOCK, &ALONE, |found| found.clock = Err(denied())), [Unknown]);
    // Only several servers, and a quarantine, need the identity.
    assert_eq!(of_one(Check::IDENTITY, &ALONE, without_info), []);
    assert_eq!(of_one(Check::IDENTITY, &SEVERAL, without_info), [Bad]);
    assert_eq!(of_one(Check::QUORUM, &SEVERAL, without_info), [Bad]);
}

#[test]
fn the_sync_interval_must_be_known() {
    let fsync = |fsync: &str| Ok(Config { append_fsync: Some(fsync.into()), ..Config::default() });
    for (config, level) in
        [(fsync("everysec"), Fine), (fsync("always"), Fine), (fsync("no"), Warning), (Err(denied()), Unknown)]
    {
        assert_eq!(
            of_one(Check::PERSISTENCE, &ALONE, |found| found.config = config.clone()),
            [level],
            "{config:?}"
        );
    }
}

#[test]
fn a_quarantine_is_computed_as_in_the_scripts() {
    let marker = |reign: &str, age_ms: u64, longest_ms| {
        Ok(Some(Marker {
            reign: reign.into(),
            since_ms: NOW_MS - age_ms,
            longest_ms,
            ends_ms: u64::MAX,
            ..Marker::default()
        }))
    };
    let own = "id.history";
    let off = Timing { quarantine: Duration::ZERO, ..SEVERAL };
    for (marker, timing, level, quorum) in [
        (marker(own, 31_000, 30_000), SEVERAL, Fine, Fine),
        (marker(own, 30_500, 30_000), SEVERAL, Warning, Bad),
        (marker("other.history", 3_600_000, 30_000), SEVERAL, Warning, Bad),
        (marker("id.other", 3_600_000, 30_000), SEVERAL, Warning, Bad),
        // The longest quarantine of any client counts.
        (marker(own, 31_000, 60_000), SEVERAL, Warning, Bad),
        (marker(own, 31_000, 0), SEVERAL, Fine, Fine),
        (Ok(None), SEVERAL, Warning, Warning),
        (Err(denied()), SEVERAL, Bad, Bad),
        (Ok(None), off, Fine, Fine),
    ] {
        let change = |found: &mut Found| found.marker = marker.clone();
        assert_eq!(of_one(Check::QUARANTINE, &timing, change), [level], "{marker:?}");
        assert_eq!(of_one(Check::QUORUM, &timing, change), [quorum], "{marker:?}");
    }
    let both = checkup(vec![
        server(0, ServerKind::Plain, Ok(found())),
        server(1, ServerKind::Plain, Ok(Found { marker: marker(own, 0, 60_000), ..found() })),
    ]);
    assert_eq!(
        levels(&both, &off, Check::QUARANTINE),
        [Fine, Warning],
        "with several servers the marker counts even if off"
    );
}

#[test]
fn a_round_trip_is_measured_against_timeout_and_ttl() {
    let takes = |ms| move |found: &mut Found| found.rtt = Duration::from_millis(ms);
    let short = Timing { ttl: Some(Duration::from_secs(1)), ..ALONE };
    assert_eq!(of_one(Check::LATENCY, &ALONE, takes(300)), [Fine]);
    assert_eq!(of_one(Check::LATENCY, &ALONE, takes(1700)), [Warning]);
    assert_eq!(of_one(Check::LATENCY, &short, takes(150)), [Warning]);
    assert_eq!(of_one(Check::LATENCY, &SEVERAL, takes(400)), [Warning]);
}

#[test]
fn clocks_matter_more_with_several_servers() {
    let ahead = |ahead_ms, uncertainty| {
        let uncertainty = Duration::from_millis(uncertainty);
        let clock = Ok(ServerClock { now_ms: NOW_MS, ahead_ms, uncertainty });
        Ok(Found { clock, ..found() })
    };
    let one = |found| checkup(vec![server(0, ServerKind::Plain, found)]);
    assert_eq!(levels(&one(ahead(-5000, 0)), &ALONE, Check::CLOCK), [Fine]);
    assert_eq!(levels(&one(ahead(-90_000, 0)), &ALONE, Check::CLOCK), [Warning]);
    let two = |a, b| checkup(vec![server(0, ServerKind::Plain, a), server(1, ServerKind::Plain, b)]);
    assert_eq!(levels(&two(ahead(-300, 0), ahead(300, 0)), &SEVERAL, Check::CLOCK), [Fine, Fine, Warning]);
    assert_eq!(levels(&two(ahead(-300, 200), ahead(300, 200)), &SEVERAL, Check::CLOCK), [Fine, Fine]);
    let both_ahead = two(ahead(2000, 0), ahead(2000, 0));
    assert_eq!(levels(&both_ahead, &SEVERAL, Check::CLOCK), [Warning, Warning]);
}

#[test]
fn replicas_matter_if_one_may_take_over() {
    let with = |replicas, demands_replicas| {
        move |found: &mut Found| {
            let info = found.info.as_mut().unwrap();
            (info.replicas, info.demands_replicas) = (replicas, demands_replicas);
        }
    };
    for kind in [ServerKind::OfSentinels, ServerKind::OfCluster] {
        // The allowed lag is unknown.
        assert_eq!(of_kind(kind, Check::REPLICAS, &SEVERAL, with(Some(1), true)), [Unknown]);
        assert_eq!(of_kind(kind, Check::REPLICAS, &SEVERAL, with(Some(1), false)), [Warning]);
        assert_eq!(of_kind(kind, Check::REPLICAS, &SEVERAL, with(Some(0), false)), [Warning]);
        assert_eq!(of_kind(kind, Check::REPLICAS, &SEVERAL, with(None, false)), [Unknown]);
    }
    assert_eq!(of_one(Check::REPLICAS, &ALONE, with(Some(1), false)), []);
}

#[test]
fn an_isolated_master_must_stop_before_another_takes_over() {
    let lag = |seconds| {
        move |found: &mut Found| {
            found.info.as_mut().unwrap().demands_replicas = true;
            found.config = Ok(Config {
                max_lag: Some(Duration::from_secs(seconds)),
                cluster_node_timeout: Some(Duration::from_secs(15)),
                ..Config::default()
            });
        }
    };
    assert_eq!(of_kind(ServerKind::OfCluster, Check::REPLICAS, &SEVERAL, lag(15)), [Fine]);
    assert_eq!(of_kind(ServerKind::OfCluster, Check::REPLICAS, &SEVERAL, lag(16)), [Warning]);
    let denies = |found: &mut Found| {
        found.info.as_mut().unwrap().demands_replicas = true;
        found.config = Err(denied());
    };
    assert_eq!(of_kind(ServerKind::OfCluster, Check::REPLICAS, &SEVERAL, denies), [Unknown]);
    for (seconds, level) in [(5, Fine), (6, Warning)] {
        let mut facts = found();
        lag(seconds)(&mut facts);
        let sentinel = SentinelFacts {
            name: "x".into(),
            configured: 0,
            master: Ok("y".into()),
            down_after: Some(Duration::from_secs(5)),
        };
        let all = ServersCheckup {
            sentinels: vec![sentinel],
            ..checkup(vec![server(0, ServerKind::OfSentinels, Ok(facts))])
        };
        assert_eq!(levels(&all, &SEVERAL, Check::REPLICAS), [level]);
    }
}

#[test]
fn a_majority_is_enough_and_every_failure_is_reported() {
    let other = |id: &str| {
        let mut facts = found();
        let info = facts.info.as_mut().unwrap();
        info.run_id = Some(id.into());
        facts.marker = Ok(Some(Marker { reign: format!("{id}.history"), ..Marker::default() }));
        Ok(facts)
    };
    let down = || Err(BackendError::new("s", Problem::ConnectionRefused));
    let of = |found: Vec<Result<Found, BackendError>>| {
        let servers = found.into_iter().enumerate();
        checkup(servers.map(|(at, found)| server(at, ServerKind::Plain, found)).collect())
    };
    let quorum = |checkup: &ServersCheckup| {
        let settings = on_servers(&SEVERAL);
        let quorum = Diagnosis::from_facts(&settings, checkup.clone(), &host(), now()).quorum.unwrap();
        (levels(checkup, &SEVERAL, Check::QUORUM), quorum.can_vote, quorum.may_fail())
    };
    assert_eq!(quorum(&of(vec![other("a"), other("b"), other("c")])), (vec![Fine], 3, 1));
    assert_eq!(quorum(&of(vec![other("a"), other("b"), down()])), (vec![Warning], 2, 0));
    assert_eq!(quorum(&of(vec![other("a"), down(), down()])), (vec![Bad], 1, 0));
    assert_eq!(quorum(&of(vec![other("a"), other("b")])), (vec![Fine, Warning], 2, 0));
    let twins = of(vec![other("a"), other("a"), other("b")]);
    assert_eq!(levels(&twins, &SEVERAL, Check::IDENTITY), [Fine, Bad, Fine]);
    assert_eq!(quorum(&twins), (vec![Warning], 2, 0));
}

#[test]
fn a_cluster_serves_if_all_its_masters_serve() {
    let master = |found| server(0, ServerKind::OfCluster, found);
    let cluster = |mut second: Found| {
        second.info.as_mut().unwrap().run_id = Some("other".into());
        second.marker = Ok(Some(Marker { reign: "other.history".into(), ..Marker::default() }));
        checkup(vec![master(Ok(found())), master(Ok(second))])
    };
    assert_eq!(levels(&cluster(found()), &SEVERAL, Check::QUORUM), [Fine]);
    let fails = Some(Err(TrialFailure { step: TrialStep::Take, why: denied() }));
    assert_eq!(levels(&cluster(Found { trial: fails, ..found() }), &SEVERAL, Check::QUORUM), [Bad]);
}

/// Its uptime does not matter: slots that were used before may have older markers.
#[test]
fn a_cluster_master_without_a_shard_marker_grants_later() {
    let marker = |reign: &str, age_ms: u64| {
        let now_ms = found().clock.unwrap().now_ms;
        Ok(Some(Marker { reign: reign.to_owned(), since_ms: now_ms - age_ms, ..Marker::default() }))
    };
    for (marker, level, quorum) in [
        (marker("id.history", 31_000), Fine, Fine),
        (marker("id.history", 30_000), Warning, Warning),
        (marker("id.other", 3_600_000), Warning, Warning),
        (marker("", 3_600_000), Warning, Warning),
        (Ok(None), Warning, Warning),
        (Err(denied()), Unknown, Fine),
    ] {
        let change = |found: &mut Found| found.marker = marker.clone();
        assert_eq!(
            of_kind(ServerKind::OfCluster, Check::QUARANTINE, &SEVERAL, change),
            [level],
            "{marker:?}"
        );
        assert_eq!(of_kind(ServerKind::OfCluster, Check::QUORUM, &SEVERAL, change), [quorum], "{marker:?}");
    }
}

#[test]
fn sentinels_are_compared_with_the_current_master() {
    let mut facts = server(0, ServerKind::OfSentinels, Ok(found()));
    facts.name = "redis+sentinel://x/main (10.0.0.1:6379)".into();
    let sentinel = |master: Result<&str, BackendError>| SentinelFacts {
        name: "Sentinel x".into(),
        configured: 0,
        master: master.map(ToOwned::to_owned),
        down_after: None,
    };
    let sentinels =
        vec![sentinel(Ok("10.0.0.1:6379")), sentinel(Ok("10.0.0.2:6379")), sentinel(Err(denied()))];
    let all = ServersCheckup { sentinels, ..checkup(vec![facts]) };
    assert_eq!(levels(&all, &SEVERAL, Check::SENTINEL), [Fine, Warning, Warning]);
}

#[test]
fn this_host_must_work_if_locks_are_on_it() {
    let level = |host: &HostFacts, check| levels_in(&on_this_host(), &ServersCheckup::default(), host, check);
    let fails = HostFacts { trial: Some(Err(denied())), ..host() };
    assert_eq!(level(&host(), Check::LOCK_DIRECTORY), [Fine]);
    assert_eq!(level(&fails, Check::LOCK_DIRECTORY), [Bad]);
    let servers = checkup(vec![server(0, ServerKind::Plain, Ok(found()))]);
    assert_eq!(levels_in(&on_servers(&ALONE), &servers, &fails, Check::LOCK_DIRECTORY), [Warning]);
    let none = HostFacts { directory: None, trial: None, ..host() };
    assert_eq!(level(&none, Check::LOCK_DIRECTORY), [Bad]);
    let bare = HostFacts { has_subreaper: false, has_proc: false, has_pidfd: false, ..host() };
    for check in [Check::SUBREAPER, Check::PROC, Check::PIDFD] {
        assert_eq!(level(&bare, check), [Bad], "{check:?}");
    }
}
