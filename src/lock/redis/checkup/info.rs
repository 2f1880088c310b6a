//! Parses INFO, CONFIG GET and the marker. A managed service may leave out any field.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use crate::lock::checkup::{Config, Info, Marker};

/// Compatible servers: the INFO field with their version, and their name.
const ENGINES: [(&str, &str); 5] = [
    ("valkey_version", "Valkey"),
    ("dragonfly_version", "Dragonfly"),
    ("kvrocks_version", "Kvrocks"),
    ("garnet_version", "Garnet"),
    ("keydb_version", "KeyDB"),
];

pub(super) fn parse_info(text: &str) -> Info {
    let fields: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let text = |name: &str| fields.get(name).filter(|value| !value.is_empty()).map(|&value| value.to_owned());
    let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok());
    let engine = ENGINES.iter().find_map(|(line, name)| Some((*name, text(line)?)));
    let (engine, version) = match engine {
        Some((name, version)) => (name, Some(version)),
        None => ("Redis", text("redis_version")),
    };
    let failed = |name: &str| fields.get(name).is_some_and(|status| *status == "err");
    Info {
        engine: engine.to_owned(),
        version,
        mode: text("redis_mode").or_else(|| text("server_mode")),
        run_id: text("run_id"),
        replication_id: text("master_replid"),
        uptime: number("uptime_in_seconds").map(Duration::from_secs),
        is_replica: text("role").map(|role| role == "slave"),
        master: text("master_host").zip(text("master_port")).map(|(host, port)| format!("{host}:{port}")),
        replicas: number("connected_slaves"),
        // Only a server that demands replicas reports this field.
        demands_replicas: fields.contains_key("min_slaves_good_slaves"),
        max_memory: number("maxmemory"),
        used_memory: number("used_memory"),
        eviction_policy: text("maxmemory_policy"),
        evicted_keys: number("evicted_keys"),
        has_append_only_file: number("aof_enabled").map(|enabled| enabled == 1),
        cannot_save: failed("rdb_last_bgsave_status") || failed("aof_last_write_status"),
        is_cluster: number("cluster_enabled") == Some(1),
    }
}

/// Adds the reply of one CONFIG GET: alternating names and values.
pub(super) fn add_config(config: &mut Config, reply: Value) {
    let fields: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
    for pair in fields.chunks_exact(2) {
        let value = pair[1].clone();
        match pair[0].as_str() {
            "appendfsync" => config.append_fsync = Some(value),
            "save" => config.save = Some(value),
            "min-replicas-to-write" => config.min_replicas = value.parse().ok(),
            "min-replicas-max-lag" => config.max_lag = value.parse().ok().map(Duration::from_secs),
            "cluster-node-timeout" => {
                config.cluster_node_timeout = value.parse().ok().map(Duration::from_millis);
            }
            _ => {}
        }
    }
}

/// "REIGN SINCE LONGEST ENDS RAISED", times in ms; the last one may be missing. Any other text counts
/// as no marker: the scripts replace it.
pub(super) fn parse_marker(text: &[u8]) -> Option<Marker> {
    let text = std::str::from_utf8(text).ok()?;
    let fields: Vec<&str> = text.split(' ').collect();
    let ([reign, since, longest, ends] | [reign, since, longest, ends, _]) = fields[..] else { return None };
    Some(Marker {
        reign: reign.to_owned(),
        since_ms: since.parse().ok()?,
        longest_ms: longest.parse().ok()?,
        ends_ms: ends.parse().ok()?,
        raised_ms: fields.get(4).map_or(Ok(0), |raised| raised.parse()).ok()?,
        raised_by: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_of_any_engine_is_parsed() {
        let info = parse_info(
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:standalone\r\n\
             run_id:abc\r\nuptime_in_seconds:90\r\n# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
             # Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_replid:def\r\n\
             # Persistence\r\naof_enabled:1\r\nrdb_last_bgsave_status:err\r\n# Cluster\r\ncluster_enabled:1\r\n",
        );
        assert_eq!((info.engine.as_str(), info.version.as_deref()), ("Valkey", Some("8.0.1")));
        assert_eq!((info.is_replica, info.master.as_deref()), (Some(true), Some("10.0.0.1:6379")));
        assert_eq!(info.uptime, Some(Duration::from_secs(90)));
        assert_eq!((info.has_append_only_file, info.max_memory), (Some(true), Some(0)));
        assert!(info.cannot_save && info.is_cluster && !info.demands_replicas);
        assert_eq!((info.mode.as_deref(), info.run_id.as_deref()), (Some("standalone"), Some("abc")));
    }

    #[test]
    fn a_missing_field_is_unknown() {
        let info = parse_info("");
        assert_eq!(info, Info { engine: "Redis".into(), ..Info::default() });
    }

    #[test]
    fn a_marker_has_four_fields_or_five() {
        let marker = Marker {
            reign: "a.b".into(),
            since_ms: 12,
            longest_ms: 30_000,
            ends_ms: 99,
            raised_ms: 7,
            ..Marker::default()
        };
        assert_eq!(parse_marker(b"a.b 12 30000 99 7"), Some(marker));
        for other in [&b""[..], b"a.b 12", b"a.b x 1", b"a.b 12 1", b"a b 1 2 3 4", b"\xff 1 2 3 4"] {
            assert_eq!(parse_marker(other), None, "{other:?}");
        }
    }

    #[test]
    fn config_is_added_name_by_name() {
        let text = |text: &str| Value::BulkString(text.into());
        let mut config = Config::default();
        add_config(
            &mut config,
            Value::Array(vec![text("min-replicas-to-write"), text("1"), text("x"), text("y")]),
        );
        add_config(&mut config, Value::Array(vec![text("save"), text("")]));
        add_config(&mut config, Value::Nil);
        let known = Config { min_replicas: Some(1), save: Some(String::new()), ..Config::default() };
        assert_eq!(config, known);
    }
}
