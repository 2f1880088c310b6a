//! Random calls of the scripts of lua/, on a real server and on the virtual one.

use std::collections::BTreeMap;

use super::Compared;
use super::pair::{Each, Pair, command, info_field, now_us, wait_until};
use super::similar::{TOLERANCE_MS, similar, similar_text};
use super::waiter::{KEYS, ScriptCall, Waiter, name_of};
use crate::dice::Dice;
use crate::server::reply::{Command, Reply};

const SEEDS: u64 = 26;
const STEPS: usize = 150;
const WAITERS: u64 = 6;
/// The data are compared after this many steps.
const STEPS_PER_DUMP: usize = 5;

const FOREIGN: &str = "another program's value";

/// Commands of the scripts that a user may lack.
const DENIED: [&str; 20] = [
    "GET", "SET", "DEL", "EXISTS", "PEXPIRE", "PERSIST", "PTTL", "RPUSH", "HSET", "HGET", "HDEL", "HLEN",
    "ZADD", "ZREM", "ZCOUNT", "ZSCORE", "XADD", "INFO", "EVALSHA", "ZRANGE",
];

/// Replies that must occur, or the comparison means little.
const EXPECTED: [&str; 24] = [
    "acquire granted",
    "acquire done",
    "acquire blocked",
    "acquire quarantined",
    "acquire nested",
    "acquire superseded",
    "acquire stale",
    "acquire different_server_count",
    "acquire slots_mismatch",
    "acquire OOM",
    "acquire WRONGTYPE",
    "break holders",
    "extend extended",
    "extend broken",
    "extend ended",
    "heal healed",
    "inspect report",
    "outer outer",
    "raise raised",
    "raise refused",
    "release released",
    "release ended",
    "release run",
    "watch ours",
];

struct Sequence<'a> {
    pair: &'a mut Pair,
    dice: Dice,
    waiters: Vec<Waiter>,
    created: u64,
    servers: &'static str,
    quarantine: &'static str,
    denied: Option<&'static str>,
    is_out_of_memory: bool,
    counts: &'a mut BTreeMap<String, usize>,
}

impl Sequence<'_> {
    fn new_waiter(&mut self) -> Waiter {
        self.created += 1;
        Waiter::new(self.created, self.servers, self.quarantine, &mut self.dice)
    }

    fn run(&mut self, steps: usize) -> Result<(), String> {
        self.prepare();
        for step in 0..steps {
            self.step().map_err(|difference| format!("step {step}: {difference}"))?;
            if step % STEPS_PER_DUMP == 0 {
                compare_data(self.pair).map_err(|difference| format!("after step {step}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Empty servers, of which some have been known for long.
    fn prepare(&mut self) {
        self.pair.flush();
        self.allow_all();
        if self.dice.percent(80) {
            let info = self.pair.admin(&["INFO"]);
            let id = |name: &str| info_field(&info, name).expect("a field of INFO");
            let since = now_us() / 1000 - 3_600_000;
            let marker = format!("{}.{} {since} {}", id("run_id"), id("master_replid"), self.quarantine);
            let _ = self.pair.same(0, &["SET", "lock-node", &marker]);
        }
        self.waiters = (0..WAITERS).map(|_| self.new_waiter()).collect();
    }

    fn step(&mut self) -> Result<(), String> {
        if self.dice.percent(12) {
            return self.disturb();
        }
        if self.denied.is_some() || self.is_out_of_memory {
            if self.dice.percent(15) {
                self.allow_all();
            }
        } else if self.dice.percent(2) {
            self.deny();
        }
        let others = self.waiters.clone();
        let action = self.dice.between(1, 100);
        let at = self.choose(action > 36);
        let (waiter, dice) = (&mut self.waiters[at], &mut self.dice);
        let call = match action {
            1..=36 => waiter.acquire(&others, dice),
            37..=48 => waiter.extend(dice),
            49..=60 => waiter.release(dice),
            61..=64 => waiter.release_by_token(dice),
            65..=69 => waiter.raise(dice),
            70..=75 => waiter.heal(),
            76..=85 => waiter.break_lock(&others, FOREIGN, dice),
            86..=91 => waiter.inspect(dice),
            92..=96 => waiter.watch(),
            _ => waiter.outer(&others),
        };
        let (real, ours) = self.call(&call)?;
        if call.script == "acquire" {
            self.waiters[at].on_reply(&real, &ours);
        }
        if call.script == "release" && self.dice.percent(80) {
            self.waiters[at] = self.new_waiter();
        }
        Ok(())
    }

    /// A waiter, or more often a holder.
    fn choose(&mut self, prefers_holder: bool) -> usize {
        let holders: Vec<usize> = (0..self.waiters.len()).filter(|at| self.waiters[*at].is_holder).collect();
        if prefers_holder && !holders.is_empty() && self.dice.percent(70) {
            return self.dice.one_of(&holders);
        }
        usize::try_from(self.dice.between(0, WAITERS - 1)).expect("small")
    }

    /// As the client: by its hash, then with its text if the server does not know it.
    fn call(&mut self, call: &ScriptCall) -> Result<(Reply, Reply), String> {
        let mut replies = self.compare(&call.words(false))?;
        if matches!(&replies.0, Reply::Error(text) if text.starts_with("NOSCRIPT")) {
            replies = self.compare(&call.words(true))?;
        }
        *self.counts.entry(format!("{} {}", call.script, kind_of(&replies.0))).or_default() += 1;
        Ok(replies)
    }

    fn compare(&mut self, words: &[Each]) -> Result<(Reply, Reply), String> {
        self.pair.next_ms();
        let (real, ours) = self.pair.execute(0, words)?;
        if similar(&real, &ours) {
            return Ok((real, ours));
        }
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(&word.real)).collect();
        Err(format!("{shown:?}\nreal {}\nours {}", text_of(&real), text_of(&ours)))
    }

    fn plain(&mut self, words: &[&str]) -> Result<(), String> {
        let words: Vec<Each> = words.iter().map(|word| Each::same(*word)).collect();
        self.compare(&words).map(drop)
    }

    /// Something else than redlock changes the data, or time passes for one key.
    fn disturb(&mut self) -> Result<(), String> {
        let key = self.dice.one_of(&KEYS);
        let waiter = self.dice.one_of(&self.waiters.iter().collect::<Vec<_>>()).clone();
        let own_key = waiter.keys[0];
        let family =
            self.dice.one_of(&["lock", "queue", "waiters", "fence", "modes", "newest", "log", "who"]);
        let named = name_of(family, key);
        match self.dice.between(1, 12) {
            1 => self.plain(&["DEL", &named]),
            2 => self.plain(&["DEL", &name_of("info", key), &name_of("shared", key)]),
            3 | 4 => self.expire(&name_of("lock", key)),
            5 => self.expire(&named),
            6 => self.plain(&["ZADD", &name_of("waiters", own_key), "1", &waiter.queued()]),
            7 => self.plain(&["ZADD", &name_of("shared", own_key), "1", &waiter.entry()]),
            8 => self.plain(&["SET", &name_of("lock", key), FOREIGN, "PX", "600000"]),
            9 => self.plain(&["HDEL", &name_of("info", own_key), &waiter.name]),
            10 if self.dice.percent(40) => {
                self.plain(&["DEL", &named])?;
                self.plain(&["RPUSH", &named, "of another type"])
            }
            11 => self.plain(&["SCRIPT", "FLUSH"]),
            _ => self.plain(&["LPOP", &format!("lock-notify:{}", waiter.name)]),
        }
    }

    fn expire(&mut self, key: &str) -> Result<(), String> {
        self.plain(&["PEXPIRE", key, "1"])?;
        if self.denied != Some("PEXPIRE") {
            wait_until("a key expires", || matches!(self.pair.admin(&["PTTL", key]), Reply::Int(-2)))?;
        }
        self.plain(&["PTTL", key])
    }

    /// The user loses a permission, or the server has no memory left.
    fn deny(&mut self) {
        if self.dice.percent(40) {
            self.is_out_of_memory = true;
            self.pair.admin(&["CONFIG", "SET", "maxmemory", "1"]);
        } else {
            let name = self.dice.one_of(&DENIED);
            self.denied = Some(name);
            self.pair.admin(&["ACL", "SETUSER", "default", &format!("-{}", name.to_lowercase())]);
            self.pair.ours.data().denied.insert(name.into());
        }
        self.pair.ours.data().is_out_of_memory = self.is_out_of_memory;
    }

    fn allow_all(&mut self) {
        (self.denied, self.is_out_of_memory) = (None, false);
        self.pair.admin(&["CONFIG", "SET", "maxmemory", "0"]);
        self.pair.admin(&["ACL", "SETUSER", "default", "+@all"]);
        self.pair.ours.data().denied.clear();
        self.pair.ours.data().is_out_of_memory = false;
    }
}

/// The first word of a script's reply.
fn kind_of(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => items.first().map_or_else(String::new, kind_of),
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Error(text) => text.split(' ').next().unwrap_or_default().into(),
        Reply::Int(_) => "report".into(),
        Reply::Status(_) | Reply::Nil | Reply::NilArray => format!("{reply:?}"),
    }
}

fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => format!("[{}]", items.iter().map(text_of).collect::<Vec<_>>().join(", ")),
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    }
}

/// Every key of both servers: type, value, and when it expires. A key may expire between the two
/// readings, so a difference is looked at once more.
pub fn compare_data(pair: &mut Pair) -> Result<(), String> {
    compare_data_once(pair).or_else(|_| compare_data_once(pair))
}

fn compare_data_once(pair: &mut Pair) -> Result<(), String> {
    let Reply::Array(keys) = pair.admin(&["KEYS", "*"]) else { return Err("KEYS".into()) };
    let mut keys: Vec<Vec<u8>> = keys
        .into_iter()
        .filter_map(|key| if let Reply::Bulk(key) = key { Some(key) } else { None })
        .collect();
    keys.sort();
    let ours: BTreeMap<Vec<u8>, Option<u64>> = {
        let mut data = pair.ours.data();
        (data.selected, data.now_us) = (0, now_us());
        data.store().expiries().map(|(key, expires)| (key.clone(), expires)).collect()
    };
    if keys.iter().ne(ours.keys()) {
        let shown = |keys: Vec<&Vec<u8>>| {
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
        };
        let ours = shown(ours.keys().collect());
        return Err(format!("keys:\nreal {:?}\nours {ours:?}", shown(keys.iter().collect())));
    }
    let about =
        |word: &str| keys.iter().map(|key| vec![word.as_bytes().to_vec(), key.clone()]).collect::<Vec<_>>();
    let types = pair.admin_all(&about("TYPE"));
    let expiries = pair.admin_all(&about("PEXPIRETIME"));
    let reads: Vec<Command> = keys.iter().zip(&types).map(|(key, of_type)| read_all(key, of_type)).collect();
    let values = pair.admin_all(&reads);
    for (at, key) in keys.iter().enumerate() {
        let name = String::from_utf8_lossy(key);
        let mut data = pair.ours.data();
        let our_type = data.execute(&[b"TYPE".to_vec(), key.clone()]);
        if our_type != types[at] {
            return Err(format!("{name}: real {:?}, ours {our_type:?}", types[at]));
        }
        let expires = ours[key].map_or(-1, |at| i64::try_from(at).expect("a time"));
        let is_near =
            |real: &i64| *real == expires || *real > 0 && u128::from(real.abs_diff(expires)) <= TOLERANCE_MS;
        if !matches!(&expiries[at], Reply::Int(real) if is_near(real)) {
            return Err(format!("{name} expires: real {:?}, ours {expires}", expiries[at]));
        }
        let value = data.execute(&reads[at]);
        if !is_same_value(&reads[at], &values[at], &value) {
            return Err(format!("{name}:\nreal {}\nours {}", text_of(&values[at]), text_of(&value)));
        }
    }
    Ok(())
}

fn read_all(key: &[u8], of_type: &Reply) -> Command {
    let Reply::Status(of_type) = of_type else { panic!("{of_type:?}") };
    let mut words = command(match of_type.as_str() {
        "string" => &["GET"],
        "list" => &["LRANGE", "0", "-1"],
        "hash" => &["HGETALL"],
        "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
        "stream" => &["XREVRANGE", "+", "-"],
        // It has expired.
        _ => &["TYPE"],
    });
    words.insert(1, key.to_vec());
    words
}

fn is_same_value(read: &Command, real: &Reply, ours: &Reply) -> bool {
    let (Reply::Array(real), Reply::Array(ours)) = (real, ours) else { return similar(real, ours) };
    match read[0].as_slice() {
        // In any order.
        b"HGETALL" => {
            let fields = |flat: &[Reply]| -> BTreeMap<String, String> {
                flat.chunks(2).map(|pair| (text_of(&pair[0]), text_of(&pair[1]))).collect()
            };
            let (real, ours) = (fields(real), fields(ours));
            let is_same =
                |((name, value), (our_name, our_value)): ((&String, &String), (&String, &String))| {
                    name == our_name && similar_text(value.as_bytes(), our_value.as_bytes())
                };
            real.len() == ours.len() && real.iter().zip(&ours).all(is_same)
        }
        // The newest first. The virtual server does not trim. Entries of the same ms are numbered.
        b"XREVRANGE" => {
            let fields = |entry: &Reply| match entry {
                Reply::Array(entry) => entry[1].clone(),
                other => other.clone(),
            };
            real.len() <= ours.len() && real.iter().zip(ours).all(|(a, b)| similar(&fields(a), &fields(b)))
        }
        _ => similar(&Reply::Array(real.clone()), &Reply::Array(ours.clone())),
    }
}

pub fn compare() -> Compared {
    let mut pair = Pair::start(&[]);
    let mut counts = BTreeMap::new();
    for seed in 1..=SEEDS {
        let sequence = |pair: &mut Pair| {
            let mut dice = Dice::new(seed, 1);
            let servers = dice.one_of(&["1", "3"]);
            let quarantine = dice.one_of(&["0", "0", "30000"]);
            let mut sequence = Sequence {
                pair,
                dice,
                waiters: Vec::new(),
                created: 0,
                servers,
                quarantine,
                denied: None,
                is_out_of_memory: false,
                counts: &mut counts,
            };
            let result = sequence.run(STEPS);
            sequence.allow_all();
            result
        };
        pair.without_stalls(sequence).map_err(|difference| format!("seed {seed}, {difference}"))?;
    }
    if let Some(missing) = EXPECTED.iter().find(|kind| !counts.contains_key(**kind)) {
        return Err(format!("no reply of the kind {missing}: {counts:?}"));
    }
    Ok(format!("{} calls and commands, {} kinds of replies", pair.compared, counts.len()))
}
