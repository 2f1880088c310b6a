//! Directed comparisons: logins, databases, the script cache, refusals for lack of memory or of a
//! permission, replicas, expired keys.

use super::Compared;
use super::pair::{Pair, info_field, wait_until};
use super::scripts::compare_data;
use super::similar::similar;
use super::waiter::Waiter;
use crate::dice::Dice;
use crate::real_server::RealServer;
use crate::server::reply::Reply;

/// A name, and what counts the replies that it has compared.
type Part = (&'static str, fn() -> Result<usize, String>);

pub fn compare() -> Compared {
    let mut replies = 0;
    let parts: [Part; 7] = [
        ("logins", logins),
        ("databases and unknown commands", databases),
        ("scripts", script_cache),
        ("memory", memory),
        ("permissions", permissions),
        ("replicas", replicas),
        ("expiry", expiry),
    ];
    for (name, part) in parts {
        replies += part().map_err(|difference| format!("{name}: {difference}"))?;
    }
    Ok(format!("{replies} replies"))
}

fn logins() -> Result<usize, String> {
    let mut pair = Pair::start(&[]);
    pair.expect(0, &["AUTH", "secret"], "ERR AUTH <password> called without any password")?;
    pair.expect(0, &["AUTH", "default", "anything"], "OK")?;
    pair.expect(0, &["AUTH", "nobody", "secret"], "WRONGPASS")?;
    pair.admin(&["CONFIG", "SET", "requirepass", "secret"]);
    pair.ours.password = Some(b"secret".to_vec());
    // A connection that was open stays logged in.
    pair.expect(0, &["SET", "k", "v"], "OK")?;
    pair.open(1);
    for words in [
        &["GET", "k"][..],
        &["SELECT", "1"],
        &["EVALSHA", "0", "0"],
        &["EVAL", "return 1", "0"],
        &["BLPOP", "list", "0"],
        &["INFO", "replication"],
        &["PING"],
    ] {
        pair.expect(1, words, "NOAUTH")?;
    }
    pair.expect(1, &["NONSENSE"], "ERR unknown command")?;
    pair.expect(1, &["GET"], "ERR wrong number")?;
    pair.expect(1, &["AUTH", "wrong"], "WRONGPASS")?;
    pair.expect(1, &["AUTH", "default", "wrong"], "WRONGPASS")?;
    pair.expect(1, &["AUTH"], "ERR wrong number")?;
    pair.expect(1, &["AUTH", "a", "b", "c"], "ERR syntax error")?;
    pair.expect(1, &["GET", "k"], "NOAUTH")?;
    // As the client does: all at once.
    pair.send(1, &[&["AUTH", "secret"], &["SELECT", "2"], &["GET", "k"]]);
    for _ in 0..3 {
        pair.same_reply(1)?;
    }
    pair.open(2);
    pair.expect(2, &["AUTH", "default", "secret"], "OK")?;
    // A wrong password does not log out.
    pair.expect(2, &["AUTH", "wrong"], "WRONGPASS")?;
    pair.same(2, &["GET", "k"])?;
    Ok(pair.compared)
}

fn databases() -> Result<usize, String> {
    let mut pair = Pair::start(&[]);
    pair.open(1);
    pair.expect(0, &["SELECT", "15"], "OK")?;
    pair.same(0, &["SET", "k", "in 15"])?;
    pair.same(1, &["GET", "k"])?;
    pair.same(0, &["EVAL", "return redis.call('GET', 'k')", "0"])?;
    for bad in ["16", "-1", "x", "", "99999999999999999999"] {
        pair.same(0, &["SELECT", bad])?;
    }
    pair.same(0, &["SELECT"])?;
    pair.same(0, &["GET", "k"])?;
    let long = "x".repeat(200);
    for words in [
        &["NONSENSE"][..],
        &["nonsense", "a", "b"],
        &["NONSENSE", &long, "b"],
        &["NONSENSE", "a", &long, "c"],
        &["EVAL", "return redis.call('NONSENSE')", "0"],
        &["EVAL", "return redis.call('GET')", "0"],
        &["EVAL", "return redis.pcall('GET', 'a', 'b')", "0"],
        &["EVAL", "return redis.call('BLPOP', 'a', '0')", "0"],
        &["EVAL", "return redis.call('EVAL', 'return 1', '0')", "0"],
        &["EVAL", "return redis.call('CLUSTER', 'KEYSLOT', 'a')", "0"],
        &["CLUSTER", "NODES"],
        &["CLUSTER", "SLOTS"],
        &["CLUSTER", "KEYSLOT", "a"],
        &["PING"],
        &["PING", "text"],
        &["PING", "a", "b"],
        &["ZADD", "z", "1", "a", "2"],
        &["ZADD", "z", "x", "a"],
        &["HSET", "h", "a", "1", "b"],
        &["SET", "k", "v", "NONSENSE"],
        &["SET", "k", "v", "PX", "0"],
        &["SET", "k", "v", "PX", "x"],
        &["XADD", "s", "*", "a"],
        &["SCAN", "0", "MATCH", "k*", "COUNT", "500"],
        &["SCAN", "0", "MATCH", "other*", "COUNT", "500"],
        &["SCAN", "0", "NONSENSE"],
    ] {
        pair.same(0, words)?;
    }
    pair.same(0, &["INFO", "nonsense"])?;
    for section in ["server", "replication", "SERVER"] {
        pair.send(0, &[&["INFO", section]]);
        let (real, ours) = pair.replies(0)?;
        for name in ["redis_version", "run_id", "role", "master_replid"] {
            if info_field(&real, name) != info_field(&ours, name) {
                return Err(format!("INFO {section}: {name}: real {real:?}\nours {ours:?}"));
            }
        }
    }
    Ok(pair.compared)
}

fn script_cache() -> Result<usize, String> {
    let mut pair = Pair::start(&[]);
    let text = "return ARGV[1]";
    let hash = sha1_smol::Sha1::from(text).digest().to_string();
    let by_hash = ["EVALSHA", &hash, "0", "x"];
    pair.expect(0, &by_hash, "NOSCRIPT")?;
    pair.same(0, &["EVAL", text, "0", "x"])?;
    pair.expect(0, &by_hash, "Bulk([120])")?;
    pair.same(0, &["EVALSHA", &hash.to_uppercase(), "0", "x"])?;
    pair.same(0, &["SCRIPT", "EXISTS", &hash, "0"])?;
    pair.expect(0, &["SCRIPT", "FLUSH"], "OK")?;
    pair.expect(0, &by_hash, "NOSCRIPT")?;
    pair.same(0, &["SCRIPT", "EXISTS", &hash, &hash])?;
    pair.same(0, &["SCRIPT", "LOAD", text])?;
    pair.expect(0, &by_hash, "Bulk([120])")?;
    pair.admin(&["SCRIPT", "FLUSH"]);
    pair.ours.forget_scripts();
    pair.expect(0, &by_hash, "NOSCRIPT")?;
    // A pipeline in which the text follows the hash.
    pair.send(0, &[&by_hash, &["EVAL", text, "0", "y"], &by_hash]);
    for _ in 0..3 {
        pair.same_reply(0)?;
    }
    for words in [
        &["SCRIPT", "NONSENSE"][..],
        &["SCRIPT", "LOAD"],
        &["SCRIPT", "EXISTS"],
        &["SCRIPT"],
        &["EVAL", "retu", "0"],
        &["EVAL", text, "x"],
        &["EVAL", text, "-1"],
        &["EVAL", text, "2", "a"],
        &["EVALSHA", &hash, "2", "a"],
        &["EVAL", text],
        &["EVAL", "error('text')", "0"],
        &["EVAL", "error({ err = 'CODE text' })", "0"],
        &["EVAL", "error({ err = 'CODE text' }, 0)", "0"],
        &["EVAL", "local x = nil return x.y", "0"],
        &["EVAL", "return { 1, 2.7, -2.7, 'a', true, false, 'b', nil, 'c' }", "0"],
        &["EVAL", "return { err = 'CODE text' }", "0"],
        &["EVAL", "return { ok = 'fine' }", "0"],
        &["EVAL", "return cjson.encode({ a = 'b/\"\\\\\\1\\127\\r\\n\\t\\8\\12é\\255' })", "0"],
        &["EVAL", "return { cjson.encode({}), cjson.encode({ 1, 2 }), cjson.encode({ 1e15 }) }", "0"],
        &["EVAL", "local ok, why = pcall(cjson.decode, '{') return { ok, type(why) }", "0"],
        &["EVAL", "return { pcall(redis.call, 'GET', {}) }", "0"],
        &["EVAL", "return redis.pcall('GET', true)", "0"],
        &["EVAL", "return redis.call()", "0"],
        &[
            "EVAL",
            "return { type(cjson.decode('[null]')[1]), tostring(cjson.decode('{\"a\":17e11}').a) }",
            "0",
        ],
        &["EVAL", "return { redis.sha1hex('x'), redis.sha1hex('') }", "0"],
        &["EVAL", "return { pcall(redis.call, 'NONSENSE') }", "0"],
        &["EVAL", "return { tostring(1e15), 1e15 .. '', string.format('%d', 2 ^ 53) }", "0"],
        &["EVAL", "return redis.call('SET', 'k', 1700000000000000)", "0"],
        &["EVAL", "return { redis.REDIS_VERSION_NUM > 0, redis.call('GET', 'k') }", "0"],
    ] {
        pair.same(0, words)?;
    }
    Ok(pair.compared)
}

fn memory() -> Result<usize, String> {
    let mut pair = Pair::start(&[]);
    pair.same(0, &["RPUSH", "list", "x", "y"])?;
    pair.same(0, &["SET", "k", "v"])?;
    pair.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    pair.ours.data().is_out_of_memory = true;
    for words in [
        &["SET", "k", "w"][..],
        &["RPUSH", "list", "z"],
        &["HSET", "h", "a", "b"],
        &["ZADD", "z", "1", "a"],
        &["XADD", "s", "*", "a", "b"],
        &["EVAL", "return redis.call('SET', 'k', 'w')", "0"],
    ] {
        pair.expect(0, words, "OOM")?;
    }
    for words in [
        &["GET", "k"][..],
        &["BLPOP", "list", "0"],
        &["PEXPIRE", "k", "60000"],
        // A script may go on after a write that takes no memory.
        &["EVAL", "redis.call('PEXPIRE', 'none', 1) return redis.call('SET', 'k2', 'w')", "0"],
        &[
            "EVAL",
            "local e = redis.pcall('SET', 'k', 'w').err \
             return { e, redis.call('DEL', 'list'), redis.call('SET', 'k', 'u') }",
            "0",
        ],
        &["DEL", "k"],
    ] {
        pair.same(0, words)?;
    }
    compare_data(&mut pair)?;
    pair.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    pair.ours.data().is_out_of_memory = false;
    pair.expect(0, &["SET", "k", "w"], "OK")?;
    Ok(pair.compared)
}

fn permissions() -> Result<usize, String> {
    let mut pair = Pair::start(&[]);
    for (name, words) in [
        ("SET", &["SET", "k", "v"][..]),
        ("EVAL", &["EVAL", "return 1", "0"]),
        ("EVALSHA", &["EVALSHA", "0", "0"]),
        ("BLPOP", &["BLPOP", "list", "0"]),
        ("INFO", &["INFO", "replication"]),
        ("XREVRANGE", &["XREVRANGE", "s", "+", "-"]),
    ] {
        pair.admin(&["ACL", "SETUSER", "default", &format!("-{}", name.to_lowercase())]);
        pair.ours.data().denied.insert(name.into());
        pair.expect(0, words, "NOPERM")?;
        pair.same(0, &words[..1])?;
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let quoted = quoted.join(", ");
        if name != "EVAL" {
            pair.same(0, &["EVAL", &format!("return redis.call({quoted})"), "0"])?;
            pair.same(0, &["EVAL", &format!("return redis.pcall({quoted})"), "0"])?;
            pair.same(0, &["EVAL", &format!("return {{ pcall(redis.call, {quoted}) }}"), "0"])?;
        }
        pair.same(0, &["GET", "k"])?;
        pair.admin(&["ACL", "SETUSER", "default", &format!("+{}", name.to_lowercase())]);
        pair.ours.data().denied.clear();
    }
    pair.expect(0, &["SET", "k", "v"], "OK")?;
    Ok(pair.compared)
}

fn replicas() -> Result<usize, String> {
    let master = RealServer::start(&[]);
    let address = format!("127.0.0.1 {}", master.port);
    let mut pair = Pair::start(&["--replicaof", &address]);
    wait_until("the replica has a link to its master", || {
        let info = pair.admin(&["INFO", "replication"]);
        info_field(&info, "master_link_status").as_deref() == Some("up")
    })?;
    pair.copy_identity();
    if !pair.ours.data().identity.is_replica {
        return Err("the real server is not a replica".into());
    }
    for words in [
        &["SET", "k", "v"][..],
        &["DEL", "k"],
        &["PEXPIRE", "k", "1"],
        &["BLPOP", "list", "0"],
        &["XADD", "s", "*", "a", "b"],
        &["EVAL", "return redis.call('SET', 'k', 'v')", "0"],
        &["EVAL", "return redis.call('ZREM', 'z', 'v')", "0"],
    ] {
        pair.expect(0, words, "READONLY")?;
    }
    let role = "return string.match(redis.call('INFO', 'replication'), 'role:%a+')";
    let id = "return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')";
    let run_id = "return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')";
    for script in [role, id, run_id, "return redis.pcall('SET', 'k', 'v')"] {
        pair.same(0, &["EVAL", script, "0"])?;
    }
    pair.same(0, &["GET", "k"])?;
    pair.same(0, &["XREAD", "STREAMS", "s", "0-0"])?;
    // The scripts of lua/ refuse, or only read.
    let mut dice = Dice::new(1, 4);
    for servers in ["1", "3"] {
        let waiter = Waiter::plain(1, servers, &mut dice);
        let others = [waiter.clone()];
        for call in [
            waiter.acquire_as_gate(),
            waiter.extend(&mut dice),
            waiter.release(&mut dice),
            waiter.heal(),
            waiter.raise(&mut dice),
            waiter.break_lock(&others, "foreign", &mut dice),
            waiter.inspect(&mut dice),
            waiter.watch(),
            waiter.outer(&others),
        ] {
            let (real, ours) = pair.execute(0, &call.words(true))?;
            if !similar(&real, &ours) {
                return Err(format!("{}: real {real:?}\nours {ours:?}", call.script));
            }
        }
    }
    // Memory and permissions on a replica.
    pair.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    pair.ours.data().is_out_of_memory = true;
    pair.same(0, &["SET", "k", "v"])?;
    pair.same(0, &["EVAL", "return redis.call('SET', 'k', 'v')", "0"])?;
    // It becomes a master, with a new replication ID.
    pair.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    pair.ours.data().is_out_of_memory = false;
    let before = pair.ours.data().identity.clone();
    pair.admin(&["REPLICAOF", "NO", "ONE"]);
    pair.copy_identity();
    let after = pair.ours.data().identity.clone();
    if after.run_id != before.run_id || after.replication_id == before.replication_id || after.is_replica {
        return Err(format!("{before:?} became {after:?}"));
    }
    pair.expect(0, &["SET", "k", "v"], "OK")?;
    pair.same(0, &["EVAL", id, "0"])?;
    Ok(pair.compared)
}

/// Each command finds no key that has expired, although nothing has removed it.
fn expiry() -> Result<usize, String> {
    const CREATE: [&[&str]; 5] = [
        &["SET", "K", "v"],
        &["RPUSH", "K", "v"],
        &["HSET", "K", "f", "v"],
        &["ZADD", "K", "1", "v"],
        &["XADD", "K", "*", "f", "v"],
    ];
    const USE: [&[&str]; 29] = [
        &["GET", "K"],
        &["SET", "K", "w", "NX"],
        &["SET", "K", "w", "XX"],
        &["SET", "K", "w", "KEEPTTL"],
        &["DEL", "K"],
        &["EXISTS", "K"],
        &["TYPE", "K"],
        &["PTTL", "K"],
        &["PEXPIRE", "K", "60000"],
        &["PERSIST", "K"],
        &["RPUSH", "K", "w"],
        &["LPOP", "K"],
        &["LRANGE", "K", "0", "-1"],
        &["HSET", "K", "f", "w"],
        &["HGET", "K", "f"],
        &["HMGET", "K", "f"],
        &["HGETALL", "K"],
        &["HLEN", "K"],
        &["HDEL", "K", "f"],
        &["XADD", "K", "*", "f", "w"],
        &["XREVRANGE", "K", "+", "-"],
        &["XREAD", "STREAMS", "K", "0-0"],
        &["ZADD", "K", "2", "v"],
        &["ZREM", "K", "v"],
        &["ZCOUNT", "K", "-inf", "+inf"],
        &["ZSCORE", "K", "v"],
        &["ZRANGEBYSCORE", "K", "-inf", "+inf"],
        &["EVAL", "return redis.call('EXISTS', 'K')", "0"],
        &["EVAL", "return redis.call('DEL', 'K')", "0"],
    ];
    let mut pair = Pair::start(&["--enable-debug-command", "yes"]);
    if pair.admin(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]) != Reply::ok() {
        return Err("keys expire actively".into());
    }
    let named = |words: &[&str], name: &str| -> Vec<String> {
        words
            .iter()
            .map(|word| word.replace('K', name).replace(&"KEEPTTL".replace('K', name), "KEEPTTL"))
            .collect()
    };
    let name = |create: usize, used: usize| format!("k{create}:{used}");
    for (at, create) in CREATE.iter().enumerate() {
        for used in 0..USE.len() {
            let words = named(create, &name(at, used));
            pair.same(0, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
            pair.same(0, &["PEXPIRE", &name(at, used), "1"])?;
        }
    }
    // Time has passed when the last key's moment is over, by the clock that both have.
    let last = super::pair::now_us() + 5000;
    wait_until("the keys expire", || super::pair::now_us() > last)?;
    for at in 0..CREATE.len() {
        for (used, words) in USE.iter().enumerate() {
            let words = named(words, &name(at, used));
            pair.same(0, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
    }
    // A key does not expire while a script runs.
    let busy = "redis.call('SET', 'k', 'v', 'PX', 1) local n = 0 for i = 1, 1000000 do n = n + i end \
                return { redis.call('EXISTS', 'k'), redis.call('GET', 'k') }";
    pair.same(0, &["EVAL", busy, "0"])?;
    compare_data(&mut pair)?;
    Ok(pair.compared)
}
