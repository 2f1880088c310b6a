//! The places where a lock can be, for promises that hold in all of them.

use super::{Host, Job, Nodes, Redis, Run, queued};

/// One server, three servers, or this host; the key is "k" unless said.
pub enum Place {
    One(Redis),
    Three(Nodes),
    Here(Host),
}

impl Place {
    pub fn all() -> [Place; 3] {
        [Place::one(), Place::three(), Place::here()]
    }

    pub fn one() -> Place {
        Place::One(Redis::start())
    }

    pub fn three() -> Place {
        Place::Three(Nodes::start(3))
    }

    pub fn here() -> Place {
        Place::Here(Host::new())
    }

    /// For what a failed assertion says.
    pub fn name(&self) -> &'static str {
        match self {
            Place::One(_) => "one server",
            Place::Three(_) => "three servers",
            Place::Here(_) => "this host",
        }
    }

    /// `redlock run --key k` at this place.
    pub fn run(&self) -> Run {
        self.run_on("k")
    }

    /// The same with another key.
    pub fn run_on(&self, key: &str) -> Run {
        match self {
            Place::One(redis) => Run::key(redis, key),
            Place::Three(nodes) => nodes.run(key),
            Place::Here(host) => host.run_on(key),
        }
    }

    /// The same with a lease so long that it does not matter in the test; this host has none.
    pub fn run_for_long(&self) -> Run {
        match self {
            Place::Here(_) => self.run(),
            _ => self.run().args(&["--ttl", "90s"]),
        }
    }

    /// Whether one attempt finds the key free.
    #[track_caller]
    pub fn is_free(&self) -> bool {
        let done = self.run().arg("-n").cmd(&["true"]).done();
        assert!(matches!(done.code, Some(0 | 75)), "{}: {done:#?}", self.name());
        done.code == Some(0)
    }

    /// Started, and in the queue at this place.
    #[track_caller]
    pub fn waiter(&self, run: Run, place: usize) -> Job {
        let job = run.spawn();
        self.queued(place);
        job
    }

    /// Waits until so many wait for the key.
    #[track_caller]
    pub fn queued(&self, n: usize) {
        match self {
            Place::One(redis) => queued(redis, "k", n),
            Place::Three(nodes) => queued(&nodes[0], "k", n), // the gate
            Place::Here(host) => host.queued(n),
        }
    }
}
