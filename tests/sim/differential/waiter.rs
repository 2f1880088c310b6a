//! A client that calls the scripts, with the arguments that src/lock/redis/requests builds.

use super::pair::{Each, now_us};
use crate::dice::Dice;
use crate::scripts;
use crate::server::reply::Reply;

pub const KEYS: [&str; 3] = ["a", "b", "c d"];
const FAMILIES: [&str; 10] =
    ["queue", "waiters", "info", "fence", "shared", "modes", "newest", "log", "who", "done"];

/// One request and its grant.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub name: String,
    attempt: u64,
    pub keys: Vec<&'static str>,
    servers: &'static str,
    pub mode: String,
    flags: String,
    ttl: &'static str,
    min_hold: &'static str,
    history: &'static str,
    quarantine: &'static str,
    keeper: &'static str,
    marker: &'static str,
    stamp: Option<Each>,
    fences: Option<Each>,
    slots: Vec<u8>,
    /// It was granted its locks, and has not released them.
    pub is_holder: bool,
}

/// The script, its keys and its arguments.
pub struct ScriptCall {
    pub script: &'static str,
    pub keys: Vec<String>,
    pub args: Vec<Each>,
}

impl ScriptCall {
    /// As EVALSHA, or as EVAL.
    pub fn words(&self, in_full: bool) -> Vec<Each> {
        let (_, text) = scripts::ALL.iter().find(|(name, _)| *name == self.script).expect("a script");
        let (command, script) = if in_full {
            ("EVAL", (*text).to_string())
        } else {
            ("EVALSHA", sha1_smol::Sha1::from(text).digest().to_string())
        };
        let head = [command.to_string(), script, self.keys.len().to_string()];
        let head = head.into_iter().chain(self.keys.iter().cloned()).map(Each::same);
        head.chain(self.args.iter().cloned()).collect()
    }
}

/// The name of a server's key for the user's key.
pub fn name_of(family: &str, key: &str) -> String {
    if family == "lock" { format!("lock:{key}") } else { format!("lock-{family}:{key}") }
}

fn field(list: &[Reply], at: usize) -> Option<Vec<u8>> {
    match list.get(at)? {
        Reply::Bulk(text) => Some(text.clone()),
        _ => None,
    }
}

impl Waiter {
    pub fn new(number: u64, servers: &'static str, quarantine: &'static str, dice: &mut Dice) -> Self {
        let first = usize::try_from(dice.between(0, 2)).expect("small");
        let count = if dice.percent(25) { 2 } else { 1 };
        let modes = [(45, ""), (25, "shared:g"), (8, "shared:other"), (22, "slots:2"), (5, "slots:3")];
        let mode = dice.weighted(&modes).to_string();
        let mut flags = String::new();
        if mode.is_empty() && dice.percent(20) {
            flags.push('!');
        }
        if mode.starts_with("shared") && dice.percent(30) {
            flags.push('+');
        }
        if count > 1 {
            flags.push('&');
        }
        if dice.percent(15) {
            flags.push('^');
        }
        Self {
            // Begins with a letter, so that no number before it becomes another one.
            name: format!("{}{number:07x}-0000-4000-8000-000000000000", dice.one_of(&['a', 'c', 'f'])),
            attempt: 1,
            keys: (0..count).map(|at| KEYS[(first + at) % KEYS.len()]).collect(),
            servers: if dice.percent(3) { dice.one_of(&["1", "3"]) } else { servers },
            mode,
            flags,
            ttl: dice.weighted(&[(6, "300000"), (2, "900000"), (1, "0")]),
            min_hold: dice.weighted(&[(6, "0"), (1, "600000")]),
            history: dice.weighted(&[(2, "0"), (3, "200"), (1, "5")]),
            quarantine,
            keeper: dice.weighted(&[(4, ""), (2, "none"), (2, "4711")]),
            marker: if dice.percent(1) { "lock-node:{5}" } else { "lock-node" },
            stamp: None,
            fences: None,
            slots: Vec::new(),
            is_holder: false,
        }
    }

    /// A waiter for one exclusive lock, the same for all.
    pub fn plain(number: u64, servers: &'static str, dice: &mut Dice) -> Self {
        let (keys, mode, flags) = (vec![KEYS[0]], String::new(), String::new());
        let waiter = Self::new(number, servers, "0", dice);
        Self { keys, mode, flags, min_hold: "0", servers, marker: "lock-node", keeper: "", ..waiter }
    }

    /// The first request of a client with one server.
    pub fn acquire_as_gate(&self) -> ScriptCall {
        let mut more: Vec<Each> =
            [self.ttl, "gate", "1", "", "", "0", "", self.history, "", ""].map(Each::same).into();
        more.extend(self.grant_fields());
        self.call("acquire", &self.mode, self.stamp.as_ref(), more)
    }

    pub fn claim(&self) -> String {
        format!("{}.{}", self.name, self.attempt)
    }

    /// Its name in queues.
    pub fn queued(&self) -> String {
        let terms = format!("{}{}", self.flags, self.mode);
        if terms.is_empty() { self.name.clone() } else { format!("{} {terms}", self.name) }
    }

    /// Its entry in shared:K.
    pub fn entry(&self) -> String {
        let slot = self.slots.split(|byte| *byte == b' ').next().unwrap_or_default();
        format!("{}/{}", self.claim(), String::from_utf8_lossy(slot))
    }

    fn fields(&self, with_empty: bool) -> Vec<Each> {
        let pairs = [
            ("host", "web1"),
            ("pid", "42"),
            ("user", "me/\"you\"\\"),
            ("label", if self.ttl == "0" { "" } else { "nächtlich\n\t\u{1}\u{7f}" }),
            ("command", "make all"),
            ("job_url", ""),
            ("keeper", self.keeper),
        ];
        let is_sent = |(name, value): &(&str, &str)| !value.is_empty() || with_empty && *name != "keeper";
        let words = pairs.into_iter().filter(is_sent).flat_map(|(name, value)| [name, value]);
        words.map(Each::same).collect()
    }

    /// The holder's fields, and those of the grant.
    fn grant_fields(&self) -> Vec<Each> {
        let mut words = self.fields(false);
        if self.min_hold != "0" {
            words.extend(["min_hold", self.min_hold].map(Each::same));
        }
        if self.keys.len() > 1 && !self.keeper.is_empty() {
            words.extend(["locks".to_string(), self.keys.len().to_string()].map(Each::same));
        }
        words
    }

    fn call(&self, script: &'static str, mode: &str, stamp: Option<&Each>, more: Vec<Each>) -> ScriptCall {
        let mut keys = Vec::new();
        for key in &self.keys {
            keys.push(name_of("lock", key));
            keys.extend(FAMILIES.iter().map(|family| name_of(family, key)));
        }
        keys.extend([format!("lock-tombstone:{}", self.name), self.marker.into()]);
        let claim = if script == "break" { format!("{}.0", self.name) } else { self.claim() };
        let flags = if mode == self.mode { &self.flags } else { "" };
        let mut args: Vec<Each> = [&claim, "lock-notify:", self.servers, mode, flags].map(Each::same).into();
        args.push(stamp.cloned().unwrap_or(Each::same("")));
        args.extend(more);
        ScriptCall { script, keys, args }
    }

    pub fn acquire(&mut self, others: &[Self], dice: &mut Dice) -> ScriptCall {
        if dice.percent(25) {
            self.attempt += 1;
        }
        let role = dice.weighted(&[(7, "gate"), (1, "newcomer"), (2, "vote")]);
        let ahead_ms = dice.one_of(&[-100_000_i64, 500, 3_600_000]);
        let guess = (now_us() / 1000).saturating_add_signed(ahead_ms).to_string();
        let guesses = Each::same(vec![guess; self.keys.len()].join(" "));
        let proposed = match role {
            "gate" if dice.percent(70) => Each::same(""),
            "vote" => self.fences.clone().unwrap_or(guesses),
            _ => guesses,
        };
        let stamp = if role == "newcomer" { None } else { self.stamp.clone() };
        let queues = if role != "newcomer" && dice.percent(75) { "1" } else { "0" };
        let ancestor = if dice.percent(20) {
            dice.one_of(&others.iter().collect::<Vec<_>>()).name.clone()
        } else {
            String::new()
        };
        let gate = if role == "vote" { "0123456789abcdef" } else { "" };
        let words = [self.ttl, role, queues, gate].map(Each::same);
        let mut more: Vec<Each> = words.into_iter().chain([proposed]).collect();
        more.extend([self.quarantine, &ancestor, self.history].map(Each::same));
        let is_vote = role == "vote" && self.mode.starts_with("slots:");
        let slots = vec![dice.one_of(&["0", "1"]); if is_vote { self.keys.len() } else { 0 }];
        more.push(Each::same(slots.join(" ")));
        more.push(Each::same(dice.weighted(&[(8, ""), (1, "1"), (1, "3600000")])));
        more.push(Each::same(self.ttl));
        more.extend(self.grant_fields());
        self.call("acquire", &self.mode, stamp.as_ref(), more)
    }

    pub fn extend(&self, dice: &mut Dice) -> ScriptCall {
        let has_place = self.stamp.is_some() && dice.percent(30);
        let gate = if has_place { "0123456789abcdef" } else { "" };
        let stamp = self.stamp.as_ref().filter(|_| has_place);
        let is_bearer = dice.percent(30);
        let mode = if is_bearer { "?" } else { &self.mode };
        let history = if is_bearer { "0" } else { self.history };
        let more = [self.ttl, self.quarantine, gate, history, self.ttl].map(Each::same).into();
        if is_bearer {
            return self.with_fewer_locks(dice).call("extend", mode, stamp, more);
        }
        self.call("extend", mode, stamp, more)
    }

    /// Sometimes names only the first lock, or another number of servers.
    fn with_fewer_locks(&self, dice: &mut Dice) -> Self {
        let mut other = self.clone();
        if dice.percent(30) {
            other.keys.truncate(1);
        }
        if dice.percent(10) {
            other.servers = dice.one_of(&["1", "3"]);
        }
        other
    }

    pub fn heal(&self) -> ScriptCall {
        let fences = self.fences.clone().unwrap_or(Each::same(vec!["7"; self.keys.len()].join(" ")));
        let mut more = vec![Each::same(self.ttl), fences];
        more.extend(["12345", "0123456789abcdef", self.history].map(Each::same));
        more.push(Each::same(String::from_utf8_lossy(&self.slots).into_owned()));
        more.extend(self.grant_fields());
        self.call("heal", &self.mode, self.stamp.as_ref(), more)
    }

    pub fn raise(&self, dice: &mut Dice) -> ScriptCall {
        let by = dice.one_of(&[0_i64, 100_000, -100_000]);
        let raised = |fences: &[u8]| {
            let numbers = String::from_utf8_lossy(fences).into_owned();
            let numbers = numbers.split(' ').filter_map(|number| number.parse::<u64>().ok());
            numbers.map(|number| number.saturating_add_signed(by).to_string()).collect::<Vec<_>>().join(" ")
        };
        let fences = self.fences.clone().unwrap_or(Each::same(vec!["200000"; self.keys.len()].join(" ")));
        let fences = Each { real: raised(&fences.real).into(), ours: raised(&fences.ours).into() };
        self.call("raise", &self.mode, None, vec![fences])
    }

    pub fn release(&self, dice: &mut Dice) -> ScriptCall {
        let tombstone = dice.one_of(&["0", "60000"]);
        let mark = dice.weighted(&[(3, ""), (1, r#"2592000000 {"host":"web1"}"#)]);
        let mut more: Vec<Each> = [tombstone, self.min_hold, mark, self.history].map(Each::same).into();
        if self.history != "0" && dice.percent(80) {
            more.push(self.fences.clone().unwrap_or(Each::same("")));
            more.push(Each::same(self.slots.clone()));
            let how = dice.one_of(&["released", "broken", "killed", "timeout"]);
            let by = if how == "broken" { r#"{"host":"web2","pid":"7"}"# } else { "" };
            let exit = dice.one_of(&["0", "75", ""]);
            more.extend([how, exit, "", "12", "345", by].map(Each::same));
            more.extend(self.fields(true));
        }
        self.call("release", &self.mode, None, more)
    }

    /// By a client that has only the token, and may name too few of its locks.
    pub fn release_by_token(&self, dice: &mut Dice) -> ScriptCall {
        let by = r#"{"host":"web3","pid":"8"}"#;
        let mut more: Vec<Each> =
            ["0", "0", "", "0", "", "", "released", "", "", "", "", by].map(Each::same).into();
        more.extend(self.fields(true));
        self.with_fewer_locks(dice).call("release", "?", None, more)
    }

    pub fn outer(&self, others: &[Self]) -> ScriptCall {
        let claims: Vec<String> = others.iter().map(Self::claim).collect();
        self.call("outer", &self.mode, None, vec![Each::same(claims.join(" "))])
    }

    pub fn watch(&self) -> ScriptCall {
        self.call("watch", &self.mode, None, Vec::new())
    }

    /// Breaks claims of the others.
    pub fn break_lock(&self, others: &[Self], foreign: &str, dice: &mut Dice) -> ScriptCall {
        let mut claims: Vec<String> =
            others.iter().filter(|other| other.is_holder || dice.percent(30)).map(Self::claim).collect();
        if dice.percent(30) {
            claims.push(format!("foreign:{}", sha1_smol::Sha1::from(foreign).digest()));
        }
        let action = dice.weighted(&[(5, "mark"), (3, "unmark"), (2, "free"), (1, "forget")]);
        let mut more = vec![Each::same(action), Each::same(claims.join(" "))];
        more.extend(self.fields(true));
        if dice.percent(20) {
            more.extend(["reason", "released"].map(Each::same));
        }
        let one = Self { keys: vec![self.keys[0]], ..self.clone() };
        one.call("break", "", None, more)
    }

    pub fn inspect(&self, dice: &mut Dice) -> ScriptCall {
        let mut keys = Vec::new();
        for key in &self.keys {
            let families = ["lock", "queue", "waiters", "info", "fence", "shared", "who", "log", "done"];
            keys.extend(families.map(|family| name_of(family, key)));
        }
        keys.push(self.marker.into());
        let counts = [dice.one_of(&["1", "100"]), dice.one_of(&["0", "1", "100"])];
        let args = [counts[0], counts[1], dice.one_of(&["0", "1"]), dice.one_of(&["0", "50"])];
        ScriptCall { script: "inspect", keys, args: args.map(Each::same).into() }
    }

    /// Remembers the stamp, the tokens and the slots in a reply to `acquire`.
    pub fn on_reply(&mut self, real: &Reply, ours: &Reply) {
        let (Reply::Array(real), Reply::Array(ours)) = (real, ours) else { return };
        let each = |at: usize| Some(Each { real: field(real, at)?, ours: field(ours, at)? });
        match field(real, 0).as_deref() {
            Some(b"granted") => {
                (self.fences, self.stamp, self.is_holder) = (each(2), each(4), true);
                self.slots = field(real, 3).unwrap_or_default();
            }
            Some(b"blocked") => {
                self.stamp = each(8).filter(|stamp| stamp.real != b"-1").or(self.stamp.take())
            }
            _ => {}
        }
    }
}
