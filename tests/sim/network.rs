//! Virtual TCP between clients and servers, by the kernel's rules.
//!
//! - What is written arrives in order, after the line's latency. What a cut line loses is sent
//!   again after 200 ms, 400 ms, 800 ms and so on, and what was written since waits behind it.
//! - A connection that is being opened over a cut line tries again after 1 s, 3 s, 7 s and so on.
//! - A process that ends closes its sockets: what it has written still arrives, unless a reply
//!   meets the closed socket first. Then the other side gets a reset, and loses what it has not
//!   read.
//! - A connection that is aborted loses what has not arrived at the server's host.
//! - A server that is paused accepts connections and data, and reads them when it goes on.

use std::collections::{BTreeMap, VecDeque};

use crate::dice::Dice;

pub type ConnectionId = u64;
/// A host of clients.
pub type SiteId = usize;
pub type ProcessId = usize;
pub type ServerId = usize;

const FIRST_RETRANSMISSION_US: u64 = 200_000;
const LONGEST_RETRANSMISSION_US: u64 = 60_000_000;
const FIRST_SYN_RETRY_US: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// What travels.
#[derive(Clone, Debug, PartialEq)]
pub enum Segment {
    Data(Vec<u8>),
    /// The sender writes no more.
    End,
    Reset,
}

/// One direction of a line.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub latency_us: u64,
    pub is_cut: bool,
}

/// A socket as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    Connecting,
    Open,
    Refused,
    Reset,
    /// Closed by its owner: the process may be gone.
    Closed,
}

#[derive(Debug)]
struct Flow {
    /// What a cut line has lost, or what waits behind that.
    backlog: VecDeque<Segment>,
    retry_us: u64,
    /// Nothing arrives before what was sent earlier.
    last_arrival: u64,
}

impl Default for Flow {
    fn default() -> Self {
        Self { backlog: VecDeque::new(), retry_us: FIRST_RETRANSMISSION_US, last_arrival: 0 }
    }
}

#[derive(Debug)]
pub struct Connection {
    pub site: SiteId,
    pub server: ServerId,
    /// The client's side.
    pub state: SocketState,
    /// What has arrived at the client and was not read.
    pub incoming: VecDeque<u8>,
    pub has_ended: bool,
    /// The client's kernel forgets what has not arrived.
    is_aborted: bool,
    /// The server's kernel knows the connection.
    pub is_accepted: bool,
    /// When bytes last arrived that had left before the client knew that the server had closed it.
    crossed_at: Option<u64>,
    /// When the SYN that replaces a lost one is sent.
    delayed_until: Option<u64>,
    to_server: Flow,
    to_client: Flow,
}

/// What the world has to do next for the network.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first packet of a connection leaves, for the nth time.
    Syn(ConnectionId, u32),
    SynArrives(ConnectionId),
    /// `true` = accepted, `false` = refused.
    SynAnswered(ConnectionId, bool),
    Arrives(ConnectionId, Direction, Segment),
    Retransmit(ConnectionId, Direction),
}

/// What a server's process gets to see.
#[derive(Debug, PartialEq)]
pub enum Delivered {
    Nothing,
    Opened(ServerId, ConnectionId),
    Data(ServerId, ConnectionId, Vec<u8>),
    /// Closed, or reset: `true`.
    Closed(ServerId, ConnectionId, bool),
}

pub struct Network {
    seed: u64,
    pub connections: BTreeMap<ConnectionId, Connection>,
    pub lines: BTreeMap<(SiteId, ServerId, Direction), Line>,
    /// Servers whose host answers, but where no process listens.
    pub is_down: BTreeMap<ServerId, bool>,
    next_id: ConnectionId,
    /// New events, with the moments at which they happen. The world takes them.
    pub scheduled: Vec<(u64, Event)>,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            connections: BTreeMap::new(),
            lines: BTreeMap::new(),
            is_down: BTreeMap::new(),
            next_id: 0,
            scheduled: Vec::new(),
        }
    }

    pub fn line(&mut self, site: SiteId, server: ServerId, direction: Direction) -> &mut Line {
        let line = Line { latency_us: 100, is_cut: false };
        self.lines.entry((site, server, direction)).or_insert(line)
    }

    pub fn site_of(&self, id: ConnectionId) -> Option<SiteId> {
        self.connections.get(&id).map(|connection| connection.site)
    }

    /// Whether a request to this server has met a connection that was being closed since this moment, or
    /// one that is late because its first SYN was lost.
    pub fn has_crossed(&self, site: SiteId, server: ServerId, since: u64) -> bool {
        let mut ours = self.connections.values().filter(|of| of.site == site && of.server == server);
        let met = |connection: &Connection| connection.crossed_at.max(connection.delayed_until);
        ours.any(|connection| met(connection).is_some_and(|at| at >= since))
    }

    fn line_of(&mut self, id: ConnectionId, direction: Direction) -> Line {
        let (site, server) = (self.connections[&id].site, self.connections[&id].server);
        *self.line(site, server, direction)
    }

    pub fn connect(&mut self, site: SiteId, server: ServerId, now: u64) -> ConnectionId {
        self.next_id += 1;
        let connection = Connection {
            site,
            server,
            state: SocketState::Connecting,
            incoming: VecDeque::new(),
            has_ended: false,
            is_aborted: false,
            is_accepted: false,
            crossed_at: None,
            delayed_until: None,
            to_server: Flow::default(),
            to_client: Flow::default(),
        };
        self.connections.insert(self.next_id, connection);
        self.scheduled.push((now, Event::Syn(self.next_id, 0)));
        self.next_id
    }

    /// Bytes, the end or a reset, from one side to the other.
    pub fn send(&mut self, id: ConnectionId, direction: Direction, segment: Segment, now: u64) {
        let line = self.line_of(id, direction);
        // No two packets take exactly the same time.
        let jitter = Dice::new(self.seed ^ now, id).next();
        let latency = line.latency_us + jitter % (line.latency_us / 4 + 1);
        let flow = self.flow(id, direction);
        if !flow.backlog.is_empty() {
            flow.backlog.push_back(segment);
            return;
        }
        let arrival = (now + latency).max(flow.last_arrival);
        flow.last_arrival = arrival;
        self.scheduled.push((arrival, Event::Arrives(id, direction, segment)));
    }

    fn flow(&mut self, id: ConnectionId, direction: Direction) -> &mut Flow {
        let connection = self.connections.get_mut(&id).expect("a known connection");
        match direction {
            Direction::ToServer => &mut connection.to_server,
            Direction::ToClient => &mut connection.to_client,
        }
    }

    /// The client closes its socket, or its process ends.
    pub fn close_by_client(&mut self, id: ConnectionId, now: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let was = std::mem::replace(&mut connection.state, SocketState::Closed);
        if was == SocketState::Open {
            // What was received and not read makes the kernel send a reset.
            let is_orderly = connection.incoming.is_empty() && !connection.is_aborted;
            let segment = if is_orderly { Segment::End } else { Segment::Reset };
            self.send(id, Direction::ToServer, segment, now);
        }
    }

    /// What the server's host has not received is forgotten. The client closes its socket next.
    pub fn abort_by_client(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_aborted = true;
            connection.to_server.backlog.clear();
        }
    }

    /// The server closes the connection, or its process ends.
    pub fn close_by_server(&mut self, id: ConnectionId, has_unread: bool, now: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_accepted = false;
        let segment = if has_unread { Segment::Reset } else { Segment::End };
        self.send(id, Direction::ToClient, segment, now);
    }

    pub fn happen(&mut self, event: Event, now: u64) -> Delivered {
        match event {
            Event::Syn(id, times) => self.on_syn(id, times, now),
            Event::SynArrives(id) => self.on_syn_arrival(id, now),
            Event::SynAnswered(id, is_accepted) => self.on_syn_answer(id, is_accepted),
            Event::Arrives(id, direction, segment) => self.on_arrival(id, direction, segment, now),
            Event::Retransmit(id, direction) => self.retransmit(id, direction, now),
        }
    }

    fn on_syn(&mut self, id: ConnectionId, times: u32, now: u64) -> Delivered {
        if self.connections[&id].state != SocketState::Connecting {
            return Delivered::Nothing;
        }
        let there = self.line_of(id, Direction::ToServer);
        if !there.is_cut {
            self.scheduled.push((now + there.latency_us, Event::SynArrives(id)));
        }
        let next = now + (FIRST_SYN_RETRY_US << times.min(6));
        self.scheduled.push((next, Event::Syn(id, times + 1)));
        if there.is_cut {
            self.connections.get_mut(&id).expect("a known connection").delayed_until = Some(next);
        }
        Delivered::Nothing
    }

    fn on_syn_arrival(&mut self, id: ConnectionId, now: u64) -> Delivered {
        let (there, back) = (self.line_of(id, Direction::ToServer), self.line_of(id, Direction::ToClient));
        if there.is_cut {
            return Delivered::Nothing;
        }
        let server = self.connections[&id].server;
        let is_down = self.is_down.get(&server).copied().unwrap_or(false);
        if !back.is_cut {
            self.scheduled.push((now + back.latency_us, Event::SynAnswered(id, !is_down)));
        }
        let connection = self.connections.get_mut(&id).expect("a known connection");
        if is_down || std::mem::replace(&mut connection.is_accepted, true) {
            return Delivered::Nothing;
        }
        Delivered::Opened(server, id)
    }

    fn on_syn_answer(&mut self, id: ConnectionId, is_accepted: bool) -> Delivered {
        if self.line_of(id, Direction::ToClient).is_cut {
            return Delivered::Nothing;
        }
        let connection = self.connections.get_mut(&id).expect("a known connection");
        if connection.state != SocketState::Connecting {
            return Delivered::Nothing;
        }
        connection.state = if is_accepted { SocketState::Open } else { SocketState::Refused };
        Delivered::Nothing
    }

    fn on_arrival(
        &mut self,
        id: ConnectionId,
        direction: Direction,
        segment: Segment,
        now: u64,
    ) -> Delivered {
        if self.line_of(id, direction).is_cut {
            if direction == Direction::ToServer && self.connections[&id].is_aborted {
                return Delivered::Nothing;
            }
            let flow = self.flow(id, direction);
            if flow.backlog.is_empty() {
                flow.retry_us = FIRST_RETRANSMISSION_US;
                self.scheduled.push((now + FIRST_RETRANSMISSION_US, Event::Retransmit(id, direction)));
            }
            self.flow(id, direction).backlog.push_back(segment);
            return Delivered::Nothing;
        }
        match direction {
            Direction::ToServer => self.arrive_at_server(id, segment, now),
            Direction::ToClient => self.arrive_at_client(id, segment, now),
        }
    }

    fn arrive_at_server(&mut self, id: ConnectionId, segment: Segment, now: u64) -> Delivered {
        let connection = self.connections.get_mut(&id).expect("a known connection");
        let server = connection.server;
        if !connection.is_accepted {
            // The server has restarted or closed the connection since: it knows nothing of it.
            if segment != Segment::Reset {
                connection.crossed_at = (!connection.has_ended).then_some(now).or(connection.crossed_at);
                self.send(id, Direction::ToClient, Segment::Reset, now);
            }
            return Delivered::Nothing;
        }
        match segment {
            Segment::Data(bytes) => Delivered::Data(server, id, bytes),
            Segment::End | Segment::Reset => {
                connection.is_accepted = false;
                Delivered::Closed(server, id, segment == Segment::Reset)
            }
        }
    }

    fn arrive_at_client(&mut self, id: ConnectionId, segment: Segment, now: u64) -> Delivered {
        let connection = self.connections.get_mut(&id).expect("a known connection");
        match (connection.state, segment) {
            (SocketState::Closed, Segment::Data(_)) => {
                self.send(id, Direction::ToServer, Segment::Reset, now);
                return Delivered::Nothing;
            }
            (SocketState::Closed | SocketState::Refused | SocketState::Reset, _) => {
                return Delivered::Nothing;
            }
            (SocketState::Open | SocketState::Connecting, Segment::Data(bytes)) => {
                connection.incoming.extend(bytes);
            }
            (SocketState::Open | SocketState::Connecting, Segment::End) => connection.has_ended = true,
            (SocketState::Open | SocketState::Connecting, Segment::Reset) => {
                // The kernel forgets what was not read.
                connection.incoming.clear();
                connection.state = SocketState::Reset;
            }
        }
        Delivered::Nothing
    }

    fn retransmit(&mut self, id: ConnectionId, direction: Direction, now: u64) -> Delivered {
        let line = self.line_of(id, direction);
        let flow = self.flow(id, direction);
        if line.is_cut {
            flow.retry_us = (flow.retry_us * 2).min(LONGEST_RETRANSMISSION_US);
            let next = now + flow.retry_us;
            self.scheduled.push((next, Event::Retransmit(id, direction)));
            return Delivered::Nothing;
        }
        let backlog = std::mem::take(&mut flow.backlog);
        for segment in backlog {
            self.send(id, direction, segment, now);
        }
        Delivered::Nothing
    }
}
