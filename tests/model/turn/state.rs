//! The state of servers, clients and the network in `turn`.

/// A set of clients or of servers: one bit for each.
pub type Set = u8;

pub fn only(member: usize) -> Set {
    1 << member
}

pub fn has(set: Set, member: usize) -> bool {
    set & only(member) != 0
}

pub fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..Set::BITS as usize).filter(move |&member| has(set, member))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Has sent no request yet, or has left no trace of its last one.
    #[default]
    Away,
    /// Has sent its request to all servers at once, without a reply of the gate yet.
    Newcomer,
    /// Waits in the queue of its gate.
    Queued,
    /// Has the gate's vote.
    Voting,
    Holding,
    /// Has released or given up; its releases are in flight.
    Leaving,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    /// The server whose queue it is or was in.
    pub gate: u8,
    /// The servers whose votes it counts.
    pub votes: Set,
    /// The servers that have not replied to the newcomer's request.
    pub unanswered: Set,
    /// When it was first queued or granted: 1 = before all others; 0 = unknown.
    pub stamp: u8,
    /// The server that gave the stamp, where clocks differ.
    pub stamped_at: u8,
    /// It has been granted the lock at least once.
    pub was_served: bool,
    /// How often a younger client was granted the lock since a majority has known this one.
    pub overtaken: u8,
}

/// The requests in flight from one client to one server, in this order, on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Link {
    #[default]
    Clear,
    Release,
    RequestAndRelease {
        /// The request registers the client if it is refused; a newcomer's does not.
        registers: bool,
    },
}

/// The data that one server has about one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    pub link: Link,
    /// The gate in the holder's record or in the queue.
    pub gate: u8,
    /// The holder's record has the stamp.
    pub has_stamp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server<const CLIENTS: usize> {
    /// The clients that have this server's vote.
    pub held: Set,
    /// The clients that are registered as waiters.
    pub queue: Set,
    pub known: [Known; CLIENTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const SERVERS: usize, const CLIENTS: usize> {
    pub servers: [Server<CLIENTS>; SERVERS],
    pub clients: [Client; CLIENTS],
    /// A client was granted the lock before another that had arrived at the gate earlier.
    pub inverted: bool,
    pub has_lapsed: bool,
}

impl<const SERVERS: usize, const CLIENTS: usize> State<SERVERS, CLIENTS> {
    pub const MAJORITY: usize = SERVERS / 2 + 1;

    pub fn new() -> Self {
        let server = Server { held: 0, queue: 0, known: [Known::default(); CLIENTS] };
        State {
            servers: [server; SERVERS],
            clients: [Client::default(); CLIENTS],
            inverted: false,
            has_lapsed: false,
        }
    }

    pub fn has_majority(&self, client: usize) -> bool {
        self.clients[client].votes.count_ones() as usize >= Self::MAJORITY
    }

    pub fn holders(&self) -> impl Iterator<Item = usize> {
        (0..CLIENTS).filter(|&client| self.clients[client].phase == Phase::Holding)
    }

    pub fn waits(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Newcomer | Phase::Queued | Phase::Voting)
    }

    /// No client can be granted the lock without a server that knows this client: one that voted
    /// for it or has it registered.
    pub fn is_known_to_a_majority(&self, client: usize) -> bool {
        let knows = |server: &&Server<CLIENTS>| has(server.held | server.queue, client);
        self.servers.iter().filter(knows).count() >= Self::MAJORITY
    }

    pub fn is_older(&self, one: usize, than: usize) -> bool {
        let (one, than) = (self.clients[one].stamp, self.clients[than].stamp);
        one != 0 && (than == 0 || one < than)
    }

    /// The stamps that a server can give now: later than its earlier ones, whatever the clocks of
    /// other servers show.
    pub fn next_stamps(&self, server: usize, clocks_differ: bool) -> std::ops::RangeInclusive<u8> {
        let given = |client: &&Client| !clocks_differ || client.stamped_at == server as u8;
        let all = self.clients.iter().map(|client| client.stamp).max().unwrap_or(0);
        let here = self.clients.iter().filter(given).map(|client| client.stamp).max().unwrap_or(0);
        here + 1..=all + 1
    }

    pub fn give_stamp(&mut self, client: usize, stamp: u8, server: usize) {
        for later in self.clients.iter_mut().filter(|other| other.stamp >= stamp) {
            later.stamp += 1;
        }
        self.clients[client].stamp = stamp;
        self.clients[client].stamped_at = server as u8;
    }

    /// Removes everything that no longer has an effect.
    pub fn tidy(&mut self) {
        for server in &mut self.servers {
            let present = server.held | server.queue;
            for (client, known) in server.known.iter_mut().enumerate() {
                if !has(present, client) {
                    *known = Known { link: known.link, ..Known::default() };
                }
            }
        }
        for client in 0..CLIENTS {
            let untouched = |server: &Server<CLIENTS>| {
                !has(server.held | server.queue, client) && server.known[client].link == Link::Clear
            };
            if self.clients[client].phase == Phase::Leaving && self.servers.iter().all(untouched) {
                let gone = self.clients[client];
                for later in
                    self.clients.iter_mut().filter(|other| other.stamp > gone.stamp && gone.stamp > 0)
                {
                    later.stamp -= 1;
                }
                self.clients[client] = Client { was_served: gone.was_served, ..Client::default() };
            }
        }
    }
}
