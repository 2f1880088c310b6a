//! The commands that the virtual server has, as the COMMAND of Redis 7.0 lists them.

use super::reply::Reply;

pub struct CommandKind {
    pub name: &'static str,
    /// The number of words, including the name; negative = at least that many.
    pub arity: i64,
    /// It changes data.
    pub writes: bool,
    /// It may take memory.
    pub grows: bool,
    /// A script must not call it.
    pub is_for_clients: bool,
}

const fn kind(name: &'static str, arity: i64, flags: &str) -> CommandKind {
    let flags = flags.as_bytes();
    let (mut writes, mut grows, mut is_for_clients, mut at) = (false, false, false, 0);
    while at < flags.len() {
        writes |= flags[at] == b'w';
        grows |= flags[at] == b'm';
        is_for_clients |= flags[at] == b's';
        at += 1;
    }
    CommandKind { name, arity, writes, grows, is_for_clients }
}

/// Flags: 'w' = write, 'm' = denyoom, 's' = noscript.
pub const ALL: [CommandKind; 42] = [
    kind("AUTH", -2, "s"),
    kind("BLPOP", -3, "ws"),
    kind("CLUSTER", -2, ""),
    kind("DEL", -2, "w"),
    kind("EVAL", -3, "s"),
    kind("EVALSHA", -3, "s"),
    kind("EXISTS", -2, ""),
    kind("GET", 2, ""),
    kind("HDEL", -3, "w"),
    kind("HGET", 3, ""),
    kind("HGETALL", 2, ""),
    kind("HLEN", 2, ""),
    kind("HMGET", -3, ""),
    kind("HSET", -4, "wm"),
    kind("INFO", -1, ""),
    kind("LPOP", -2, "w"),
    kind("LRANGE", 4, ""),
    kind("PERSIST", 2, "w"),
    kind("PEXPIRE", -3, "w"),
    kind("PING", -1, ""),
    kind("PTTL", 2, ""),
    kind("RPUSH", -3, "wm"),
    kind("SCAN", -2, ""),
    kind("SCRIPT", -2, ""),
    kind("SELECT", 2, ""),
    kind("SET", -3, "wm"),
    kind("TIME", 1, ""),
    kind("TYPE", 2, ""),
    kind("XADD", -5, "wm"),
    kind("XLEN", 2, ""),
    kind("XREAD", -4, ""),
    kind("XREVRANGE", -4, ""),
    kind("ZADD", -4, "wm"),
    kind("ZCARD", 2, ""),
    kind("ZCOUNT", 4, ""),
    kind("ZLEXCOUNT", 4, ""),
    kind("ZRANGE", -4, ""),
    kind("ZRANGEBYLEX", -4, ""),
    kind("ZRANGEBYSCORE", -4, ""),
    kind("ZRANK", 3, ""),
    kind("ZREM", -3, "w"),
    kind("ZSCORE", 3, ""),
];

/// Commands of Redis that the virtual server lacks. It panics, so that no test relies on a reply
/// that a real server would not give.
pub const MISSING: &str = "
    acl append asking bgrewriteaof bgsave bitcount bitfield bitfield_ro bitop bitpos blmove
    blmpop brpop brpoplpush bzmpop bzpopmax bzpopmin client command config copy dbsize debug
    decr decrby discard dump echo eval_ro evalsha_ro exec expire expireat expiretime failover
    fcall fcall_ro flushall flushdb function geoadd geodist geohash geopos georadius
    georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore getbit getdel
    getex getrange getset hello hexists hincrby hincrbyfloat hkeys hmset hrandfield hscan hsetnx
    hstrlen hvals incr incrby incrbyfloat keys lastsave latency lcs lindex linsert llen lmove
    lmpop lolwut lpos lpush lpushx lrem lset ltrim memory mget migrate module monitor move mset
    msetnx multi object pexpireat pexpiretime pfadd pfcount pfdebug pfmerge pfselftest psetex
    psubscribe psync publish pubsub punsubscribe quit randomkey readonly readwrite rename
    renamenx replconf replicaof reset restore restore-asking role rpop rpoplpush rpushx sadd
    save scard sdiff sdiffstore setbit setex setnx setrange shutdown sinter sintercard
    sinterstore sismember slaveof slowlog smembers smismember smove sort sort_ro spop spublish
    srandmember srem sscan ssubscribe strlen subscribe substr sunion sunionstore sunsubscribe
    swapdb sync touch ttl unlink unsubscribe unwatch wait watch xack xautoclaim xclaim xdel
    xgroup xinfo xpending xrange xreadgroup xsetid xtrim zdiff zdiffstore zincrby zinter
    zintercard zinterstore zmpop zmscore zpopmax zpopmin zrandmember zrangestore zremrangebylex
    zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan
    zunion zunionstore";

impl CommandKind {
    fn find(name: &[u8]) -> Option<&'static Self> {
        let found = ALL.iter().find(|kind| name.eq_ignore_ascii_case(kind.name.as_bytes()));
        let is_missing = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        assert!(
            found.is_some() || !MISSING.split_whitespace().any(is_missing),
            "the virtual server does not have {}",
            String::from_utf8_lossy(name)
        );
        found
    }

    fn takes(&self, words: usize) -> bool {
        let words = i64::try_from(words).expect("a short command");
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }

    /// The kind of a command, or the error if there is none, or if words are missing.
    pub fn of(command: &[Vec<u8>], in_script: bool) -> Result<&'static Self, Reply> {
        match (Self::find(&command[0]), in_script) {
            (None, false) => Err(unknown(command)),
            (None, true) => Err(Reply::error("ERR Unknown Redis command called from script")),
            (Some(kind), _) if kind.takes(command.len()) && in_script && kind.is_for_clients => {
                Err(Reply::error("ERR This Redis command is not allowed from script"))
            }
            (Some(kind), _) if kind.takes(command.len()) => Ok(kind),
            (Some(kind), false) => Err(Reply::error(wrong_number(kind.name))),
            (Some(_), true) => {
                Err(Reply::error("ERR Wrong number of args calling Redis command from script"))
            }
        }
    }
}

pub fn wrong_number(name: &str) -> String {
    format!("ERR wrong number of arguments for '{}' command", name.to_lowercase())
}

/// Redis shows the first arguments, up to 128 bytes of them.
fn unknown(command: &[Vec<u8>]) -> Reply {
    let mut shown = String::new();
    for word in &command[1..] {
        if shown.len() >= 128 {
            break;
        }
        let most = word.len().min(128 - shown.len());
        shown += &format!("'{}' ", String::from_utf8_lossy(&word[..most]));
    }
    let name = String::from_utf8_lossy(&command[0]);
    Reply::error(format!("ERR unknown command '{name}', with args beginning with: {shown}"))
}
