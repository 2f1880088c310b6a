//! One server, three servers or this host: the backends on which the same promises are tested.

use std::path::Path;

use tempfile::TempDir;

use super::tls::{Authority, TlsRedis, url};
use super::{HOLD, Host, Job, Nodes, Redis, Run, queued, wait_until};

/// A backend for the locks of one test, with a directory for the notes that its commands write. The
/// key is "k" unless a test names another one.
pub struct Backend {
    pub locks: Locks,
    /// Clients reach the one server over TLS, on this port.
    tls: Option<(Authority, u16)>,
    notes: TempDir,
}

pub enum Locks {
    OneServer(Redis),
    ThreeServers(Nodes),
    ThisHost(Host),
}

impl Backend {
    pub fn one_server() -> Backend {
        Backend::of(Locks::OneServer(Redis::start()))
    }

    pub fn tls_server() -> Backend {
        let authority = Authority::new();
        let TlsRedis { plain, port } = authority.serve();
        Backend { tls: Some((authority, port)), ..Backend::of(Locks::OneServer(plain)) }
    }

    pub fn three_servers() -> Backend {
        Backend::of(Locks::ThreeServers(Nodes::start(3)))
    }

    pub fn this_host() -> Backend {
        Backend::of(Locks::ThisHost(Host::new()))
    }

    pub fn of(locks: Locks) -> Backend {
        Backend { locks, tls: None, notes: tempfile::tempdir().expect("a temporary directory") }
    }

    /// The server of `one_server`.
    #[track_caller]
    pub fn server(&self) -> &Redis {
        let Locks::OneServer(redis) = &self.locks else { panic!("not one server") };
        redis
    }

    pub fn is_this_host(&self) -> bool {
        matches!(self.locks, Locks::ThisHost(_))
    }

    /// `redlock run --key k`, with its command in the notes directory.
    pub fn run(&self) -> Run {
        self.run_on(&["k"])
    }

    /// The same, with the given keys.
    pub fn run_on(&self, keys: &[&str]) -> Run {
        let first = match (&self.locks, &self.tls) {
            (_, Some((authority, port))) => authority.run(&url(*port), keys[0]),
            (Locks::OneServer(redis), None) => Run::key(redis, keys[0]),
            (Locks::ThreeServers(nodes), None) => nodes.run(keys[0]),
            (Locks::ThisHost(host), None) => host.run_on(keys[0]),
        };
        keys[1..].iter().fold(first.dir(self.notes()), |run, key| run.args(&["--key", key]))
    }

    /// `redlock COMMAND` with the backend as options, for commands that inspect or break locks.
    pub fn subcommand(&self, command: &str) -> Run {
        match &self.locks {
            Locks::OneServer(redis) => Run::bare().args(&[command, "--redis", &redis.url()]),
            Locks::ThreeServers(nodes) => Run::bare().args(&[command, "--redis", &nodes.urls().join(",")]),
            Locks::ThisHost(host) => host.subcommand(command),
        }
    }

    /// `redlock ARGS`, with the backend in its environment.
    pub fn command(&self, args: &[&str]) -> Run {
        let variables = self.variables().into_iter();
        variables.fold(Run::bare().dir(self.notes()), |run, (name, value)| run.env(name, value)).args(args)
    }

    /// The environment variables that a script needs to use the locks of this test.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        match &self.locks {
            Locks::OneServer(redis) => vec![("REDLOCK_REDIS", redis.url())],
            Locks::ThreeServers(nodes) => {
                vec![("REDLOCK_REDIS", nodes.urls().join(",")), ("REDLOCK_QUARANTINE", "off".to_owned())]
            }
            Locks::ThisHost(host) => {
                let directory = host.path().to_str().expect("UTF-8").to_owned();
                vec![("REDLOCK_LOCAL", "1".to_owned()), ("REDLOCK_LOCAL_DIR", directory)]
            }
        }
    }

    /// `redlock run` on "k" as a reader.
    pub fn reader(&self) -> Run {
        self.run().arg("--shared")
    }

    /// `redlock run` with a lease longer than any test. There are no leases on this host.
    pub fn run_for_long(&self) -> Run {
        if self.is_this_host() { self.run() } else { self.run().args(&["--ttl", "90s"]) }
    }

    /// Options for a run that will be killed: with a short lease it does not block the others for
    /// long. There are no leases on this host.
    pub fn short_ttl(&self) -> &'static [&'static str] {
        if self.is_this_host() { &[] } else { &["--ttl", "3s"] }
    }

    /// Starts a run and waits until it is in the queue of "k" at this position.
    #[track_caller]
    pub fn waiter(&self, run: Run, position: usize) -> Job {
        let job = run.spawn();
        self.queued(position);
        job
    }

    /// The same, with a command that holds the lock until its stdin is closed.
    #[track_caller]
    pub fn holding_waiter(&self, run: Run, position: usize) -> Job {
        self.waiter(run.stdin_pipe().sh(HOLD), position)
    }

    /// The same, with a command that appends `word` to the notes.
    #[track_caller]
    pub fn noting_waiter(&self, run: Run, word: &str, position: usize) -> Job {
        self.waiter(run.sh(&format!("echo {word} >> order")), position)
    }

    /// The only server, or the first of three, which is the gate; none on this host.
    pub fn gate(&self) -> Option<&Redis> {
        match &self.locks {
            Locks::OneServer(redis) => Some(redis),
            Locks::ThreeServers(nodes) => Some(&nodes[0]),
            Locks::ThisHost(_) => None,
        }
    }

    /// Waits until `n` waiters are in the queue of "k".
    #[track_caller]
    pub fn queued(&self, n: usize) {
        match &self.locks {
            Locks::OneServer(redis) => queued(redis, "k", n),
            Locks::ThreeServers(nodes) => queued(&nodes[0], "k", n), // the gate
            Locks::ThisHost(host) => host.queued(n),
        }
    }

    /// The directory in which the commands run.
    pub fn notes(&self) -> &Path {
        self.notes.path()
    }

    /// The lines that the commands have appended to this file in the notes directory.
    pub fn noted(&self, file: &str) -> Vec<String> {
        super::lines_of(&self.notes().join(file))
    }

    /// The words of the noting waiters, in the order in which they ran.
    pub fn order(&self) -> Vec<String> {
        self.noted("order")
    }

    /// Waits until none of these keys is held.
    #[track_caller]
    pub fn all_free(&self, keys: &[&str]) {
        match &self.locks {
            Locks::OneServer(redis) => {
                wait_until("all keys are free", || !keys.iter().any(|key| redis.held(key)))
            }
            Locks::ThreeServers(nodes) => nodes.all_free(),
            Locks::ThisHost(host) => {
                assert!(self.run_on(keys).try_acquire(), "not free: {keys:?}");
                host.assert_nothing_is_locked();
            }
        }
    }

    /// Whether one attempt on "k" is granted.
    #[track_caller]
    pub fn is_free(&self) -> bool {
        self.run().try_acquire()
    }
}

/// `on_backends!(one_server, this_host: a, b; one_server: c)` turns the functions `a`, `b` and `c`
/// into tests: the first two run on a new `Backend::one_server()` and on a new
/// `Backend::this_host()`, the third on one server only. Their names are `one_server::a`,
/// `this_host::a` and so on.
macro_rules! on_backends {
    (@sort [$($one:ident)*] [$($three:ident)*] [$($host:ident)*]) => {
        on_backends!(@tests one_server $($one)*);
        on_backends!(@tests three_servers $($three)*);
        on_backends!(@tests this_host $($host)*);
    };
    (@sort [$($one:ident)*] [$($three:ident)*] [$($host:ident)*]
        one_server, three_servers, this_host: $($new:ident),+ $(,)? $(; $($more:tt)*)?) => {
        on_backends!(@sort [$($one)* $($new)+] [$($three)* $($new)+] [$($host)* $($new)+] $($($more)*)?);
    };
    (@sort [$($one:ident)*] [$($three:ident)*] $host:tt
        one_server, three_servers: $($new:ident),+ $(,)? $(; $($more:tt)*)?) => {
        on_backends!(@sort [$($one)* $($new)+] [$($three)* $($new)+] $host $($($more)*)?);
    };
    (@sort [$($one:ident)*] $three:tt [$($host:ident)*]
        one_server, this_host: $($new:ident),+ $(,)? $(; $($more:tt)*)?) => {
        on_backends!(@sort [$($one)* $($new)+] $three [$($host)* $($new)+] $($($more)*)?);
    };
    (@tests $backend:ident) => {};
    (@tests $backend:ident $($promise:ident)+) => {
        mod $backend {
            $(
                #[test]
                fn $promise() {
                    super::$promise(&$crate::support::Backend::$backend());
                }
            )+
        }
    };
    ($backend:ident $($more:tt)+) => {
        on_backends!(@sort [] [] [] $backend $($more)+);
    };
}
