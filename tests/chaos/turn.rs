//! The request of one run of redlock: mode, keys, options. Generated from the dice alone, so that a
//! seed reproduces the same turns.

use std::fmt;

use crate::dice::Dice;

/// Keys with readers, writers and several keys; the last of them with preferences, too.
pub const KEYS: [&str; 3] = ["a", "b", "p"];
/// The key that is used with `--slots` only.
pub const SLOTS_KEY: &str = "s";
pub const SLOTS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared(&'static str),
    Slots(u32),
}

/// The groups of readers; "" is the one without a name.
pub const GROUPS: [&str; 3] = ["", "red", "blue"];

impl Mode {
    /// Whether two commands may be inside together.
    pub fn admits(self, other: Mode) -> bool {
        self != Mode::Exclusive && self == other
    }

    pub fn parse(word: &str) -> Option<Mode> {
        match word.split_once(':') {
            None => (word == "exclusive").then_some(Mode::Exclusive),
            Some(("shared", name)) => GROUPS.into_iter().find(|group| *group == name).map(Mode::Shared),
            Some(("slots", n)) => n.parse().ok().map(Mode::Slots),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Mode::Exclusive => write!(f, "exclusive"),
            Mode::Shared(group) => write!(f, "shared:{group}"),
            Mode::Slots(n) => write!(f, "slots:{n}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    Fair,
    Writers,
    Readers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Forever,
    Nonblock,
    WaitMs(u64),
    Retries { times: u64, interval_ms: u64 },
}

/// The processes of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    Alone,
    /// With a child in a session of its own that the command ends before itself.
    Child,
    /// The same, but the child outlives the command for a moment; the run has `--wait-tree`.
    Survivor,
}

#[derive(Clone, Debug)]
pub struct Turn {
    pub id: u64,
    pub keys: Vec<&'static str>,
    pub mode: Mode,
    pub prefer: Prefer,
    pub patience: Patience,
    pub ttl_ms: u64,
    pub min_hold_ms: Option<u64>,
    pub max_hold_ms: Option<u64>,
    /// How long the command is inside.
    pub inside_ms: u64,
    pub tree: Tree,
    /// Ignores SIGTERM.
    pub ignores_term: bool,
    /// The links through which it reaches the servers.
    pub host: usize,
    /// Before it starts.
    pub pause_ms: u64,
}

/// What the turns of one chaos run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub nodes: usize,
    pub hosts: usize,
    pub shortest_ttl_ms: u64,
    /// The longest lease, and the quarantine of clients that use one.
    pub longest_ttl_ms: u64,
}

impl Turn {
    pub fn draw(id: u64, dice: &mut Dice, terms: &Terms) -> Turn {
        let mut turn = Turn::plain(id, dice.one_of(&KEYS), terms);
        #[derive(Clone, Copy)]
        enum Kind {
            Writer,
            Reader,
            Slot,
            Several,
            Preferring,
        }
        let slots = if terms.nodes <= 1 { 12 } else { 0 };
        match dice.weighted(&[
            (40, Kind::Writer),
            (20, Kind::Reader),
            (slots, Kind::Slot),
            (14, Kind::Several),
            (14, Kind::Preferring),
        ]) {
            Kind::Writer => {}
            Kind::Reader => turn.mode = Mode::Shared(dice.one_of(&GROUPS)),
            Kind::Slot => (turn.keys, turn.mode) = (vec![SLOTS_KEY], Mode::Slots(SLOTS)),
            Kind::Several => {
                turn.keys =
                    dice.one_of(&[&["a", "b"][..], &["b", "a"], &["b", "p"], &["a", "b", "p"]]).to_vec();
                if dice.percent(30) {
                    turn.mode = Mode::Shared("");
                }
            }
            Kind::Preferring => {
                turn.keys = vec!["p"];
                if dice.percent(50) {
                    turn.prefer = Prefer::Writers;
                } else {
                    (turn.prefer, turn.mode) = (Prefer::Readers, Mode::Shared(dice.one_of(&GROUPS)));
                }
            }
        }
        turn.patience = match dice.between(1, 100) {
            1..=10 => Patience::Nonblock,
            11..=20 => Patience::WaitMs(dice.between(100, 2500)),
            21..=28 => Patience::Retries { times: dice.between(1, 5), interval_ms: dice.between(30, 250) },
            _ => Patience::Forever,
        };
        turn.ttl_ms = match dice.between(1, 10) {
            1..=3 => terms.shortest_ttl_ms,
            4..=7 => 2000,
            8..=9 => 3000.min(terms.longest_ttl_ms),
            _ => terms.longest_ttl_ms,
        };
        turn.inside_ms = match dice.between(1, 100) {
            1..=70 => dice.between(1, 40),
            71..=96 => dice.between(40, 200),
            _ => dice.between(800, 2500), // with renewals, and past the shorter leases
        };
        if dice.percent(5) {
            turn.min_hold_ms = Some(dice.between(100, 700));
        }
        if dice.percent(6) {
            turn.max_hold_ms = Some(dice.between(60, 400));
        }
        turn.tree = dice.weighted(&[(7, Tree::Alone), (2, Tree::Child), (1, Tree::Survivor)]);
        turn.ignores_term = dice.percent(10);
        turn.host = dice.between(0, terms.hosts as u64 - 1) as usize;
        turn.pause_ms = if dice.percent(30) { dice.between(1, 150) } else { 0 };
        turn
    }

    /// A run that waits for one key, exclusively, without a time limit.
    pub fn plain(id: u64, key: &'static str, terms: &Terms) -> Turn {
        let mode = if key == SLOTS_KEY { Mode::Slots(SLOTS) } else { Mode::Exclusive };
        Turn {
            id,
            keys: vec![key],
            mode,
            prefer: Prefer::Fair,
            patience: Patience::Forever,
            ttl_ms: terms.longest_ttl_ms,
            min_hold_ms: None,
            max_hold_ms: None,
            inside_ms: 5,
            tree: Tree::Alone,
            ignores_term: false,
            host: 0,
            pause_ms: 0,
        }
    }

    /// The options of `redlock run`, except those of the backend.
    pub fn args(&self) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
        self.keys.iter().for_each(|key| add(&["--key", key]));
        match self.mode {
            Mode::Exclusive => add(&["--exclusive"]),
            Mode::Shared("") => add(&["--shared"]),
            Mode::Shared(group) => add(&["--shared", "--reader-group", group]),
            Mode::Slots(n) => add(&["--slots", &n.to_string()]),
        }
        match self.prefer {
            Prefer::Fair => {}
            Prefer::Writers => add(&["--prefer", "writers"]),
            Prefer::Readers => add(&["--prefer", "readers"]),
        }
        let ms = |ms: u64| format!("{ms}ms");
        match self.patience {
            Patience::Forever => {}
            Patience::Nonblock => add(&["-n"]),
            Patience::WaitMs(wait) => add(&["-w", &ms(wait)]),
            Patience::Retries { times, interval_ms } => {
                add(&["--retries", &times.to_string(), "--retry-interval", &ms(interval_ms)]);
            }
        }
        if let Some(hold) = self.min_hold_ms {
            add(&["--min-hold", &ms(hold)]);
        }
        if let Some(hold) = self.max_hold_ms {
            add(&["--max-hold", &ms(hold)]);
        }
        if self.tree == Tree::Survivor {
            add(&["--wait-tree"]);
        }
        args
    }

    /// The arguments of section.rs: how long, which tree, whether it ignores SIGTERM.
    pub fn section_args(&self) -> [String; 5] {
        [
            self.mode.to_string(),
            self.keys.join(","),
            self.inside_ms.to_string(),
            format!("{:?}", self.tree),
            self.ignores_term.to_string(),
        ]
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "run {}: {} --ttl {}ms", self.id, self.args().join(" "), self.ttl_ms)?;
        write!(f, " (inside {} ms, {:?}", self.inside_ms, self.tree)?;
        if self.ignores_term {
            write!(f, ", ignores SIGTERM")?;
        }
        write!(f, ", host {})", self.host)
    }
}
