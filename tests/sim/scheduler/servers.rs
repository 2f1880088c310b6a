//! The servers, and what reaches them.

use super::*;

/// A server and its host.
pub struct Host {
    pub server: VirtualServer,
    pub clock: Clock,
    /// Stopped: connections and data wait.
    pub is_paused: bool,
    pub(super) waiting: Vec<Delivered>,
}

impl Host {
    /// The reading of the server's clock this long after the beginning.
    pub fn now(&self, elapsed: u64) -> u64 {
        self.clock.reads(EPOCH_US, elapsed)
    }
}

impl Simulation {
    pub(super) fn next_server_moment(&self) -> Option<u64> {
        let moment = |host: &Host| {
            let shown = host.server.next_moment().filter(|_| !host.is_paused)?;
            Some(host.clock.moment_of(EPOCH_US, shown))
        };
        self.hosts.iter().filter_map(moment).min()
    }

    pub(super) fn deliver(&mut self, delivered: Delivered) {
        let server = match &delivered {
            Delivered::Nothing => return,
            Delivered::Opened(server, _) | Delivered::Data(server, ..) | Delivered::Closed(server, ..) => {
                *server
            }
        };
        let now = self.now();
        if let Delivered::Opened(_, id) | Delivered::Closed(_, id, _) = delivered {
            let shared = &mut *self.shared.borrow_mut();
            let site = shared.network.site_of(id).unwrap_or_default();
            let what = if matches!(delivered, Delivered::Opened(..)) { "opens" } else { "closes" };
            shared.trace.note(now, || format!("server {server} <- host {site}: {what} connection {id}"));
        }
        let host = &mut self.hosts[server];
        if host.is_paused {
            host.waiting.push(delivered);
            return;
        }
        let shown = host.now(now);
        match delivered {
            Delivered::Opened(_, id) => host.server.open(id, shown),
            Delivered::Closed(_, id, _) => host.server.close(id),
            Delivered::Data(_, id, bytes) => {
                let outputs = host.server.receive(id, &bytes, shown);
                self.send_outputs(server, outputs);
            }
            Delivered::Nothing => {}
        }
    }

    pub(super) fn send_outputs(&mut self, server: ServerId, outputs: Vec<Output>) {
        let executed = std::mem::take(&mut self.hosts[server].server.executed);
        let mut shared = self.shared.borrow_mut();
        let Shared { trace, oracle, network, now_us: now, .. } = &mut *shared;
        for call in executed {
            let site = network.site_of(call.connection);
            trace.executed(*now, server, site, &call);
            oracle.executed(server, site, &call);
        }
        for output in outputs {
            match output {
                Output::Send(id, bytes) => network.send(id, Direction::ToClient, Segment::Data(bytes), *now),
                Output::Close(id) => {
                    trace.note(*now, || format!("server {server} closes connection {id}"));
                    network.close_by_server(id, false, *now);
                }
            }
        }
    }

    /// A paused server reads what has arrived meanwhile. A reset drops what was not read before it.
    pub fn continue_server(&mut self, server: ServerId) {
        self.hosts[server].is_paused = false;
        let waiting = std::mem::take(&mut self.hosts[server].waiting);
        let reset: Vec<ConnectionId> = waiting
            .iter()
            .filter_map(|delivered| match delivered {
                Delivered::Closed(_, id, true) => Some(*id),
                _ => None,
            })
            .collect();
        for delivered in waiting {
            let is_lost = matches!(&delivered, Delivered::Data(_, id, _) if reset.contains(id));
            if !is_lost {
                self.deliver(delivered);
            }
        }
        self.collect_events();
    }

    /// As CLIENT KILL, or a proxy with an idle limit.
    pub fn close_connections(&mut self, server: ServerId) {
        let now = self.now();
        for id in self.hosts[server].server.stop() {
            self.shared.borrow_mut().network.close_by_server(id, false, now);
        }
        self.collect_events();
    }

    /// The server's process ends.
    pub fn stop_server(&mut self, server: ServerId) {
        self.hosts[server].is_paused = false;
        self.hosts[server].waiting.clear();
        self.close_connections(server);
        self.hosts[server].server.forget_scripts();
        self.shared.borrow_mut().network.is_down.insert(server, true);
    }

    pub fn start_server(&mut self, server: ServerId) {
        self.shared.borrow_mut().network.is_down.insert(server, false);
    }
}
