//! What each fault does to the simulation.

use super::*;

/// A woken waiter must reply within this time.
const WOKEN_WAITER_US: u64 = 2_000_000;

impl Driver<'_> {
    /// Returns whether anything happened.
    pub(super) fn cause(&mut self, simulation: &mut Simulation, fault: &Fault) -> bool {
        let now = simulation.now();
        match fault {
            Fault::Cut { actor, servers, how, for_us } => {
                let Some((_, site)) = self.process_of(*actor) else { return false };
                let directions = match how {
                    Cut::ToServer => vec![Direction::ToServer],
                    Cut::ToClient => vec![Direction::ToClient],
                    Cut::Both => vec![Direction::ToServer, Direction::ToClient],
                };
                let mut shared = simulation.shared.borrow_mut();
                for &server in servers {
                    shared.oracle.trouble_begins((Some(site), server));
                    for &direction in &directions {
                        shared.network.line(site, server, direction).is_cut = true;
                    }
                }
                drop(shared);
                self.at(now + for_us, Later::MendLine { site, servers: servers.clone(), directions });
            }
            Fault::Slow { actor, servers, latency_us, for_us } => {
                let Some((_, site)) = self.process_of(*actor) else { return false };
                let mut shared = simulation.shared.borrow_mut();
                for &server in servers {
                    shared.oracle.trouble_begins((Some(site), server));
                    for direction in [Direction::ToServer, Direction::ToClient] {
                        shared.network.line(site, server, direction).latency_us = *latency_us;
                    }
                }
                drop(shared);
                self.at(now + for_us, Later::RestoreLatency { site, servers: servers.clone() });
            }
            Fault::Kill { actor, has_guardian } => {
                let Some((process, site)) = self.process_of(*actor) else { return false };
                self.kill(simulation, *actor, process, site, *has_guardian);
            }
            Fault::Pause { actor, for_us } => {
                let Some((process, site)) = self.process_of(*actor) else { return false };
                // A waiter that could do nothing between two short stalls loses its place in the queue.
                let running = self.running.get_mut(&process).expect("it runs");
                let is_tired = self.scenario.is_order_strict() && now < running.wakes_at + WOKEN_WAITER_US;
                if simulation.is_paused(process) || is_tired {
                    return false;
                }
                running.wakes_at = now + for_us;
                simulation.pause_process(process, true);
                for server in 0..self.scenario.servers {
                    simulation.shared.borrow_mut().oracle.trouble_begins((Some(site), server));
                }
                // The guardian goes on: the command is gone when the lease is over.
                self.at(now + for_us, Later::ContinueProcess(process, site));
            }
            Fault::Signal { actor } => {
                let Some((process, site)) = self.process_of(*actor) else { return false };
                simulation.cancel(process);
                simulation.shared.borrow_mut().oracle.stops_waiting(site);
            }
            Fault::PauseServer { server, for_us } => {
                if simulation.hosts[*server].is_paused || self.is_down(simulation, *server) {
                    return false;
                }
                simulation.hosts[*server].is_paused = true;
                simulation.shared.borrow_mut().oracle.trouble_begins((None, *server));
                self.at(now + for_us, Later::ContinueServer(*server));
            }
            Fault::Restart { server, keeps, for_us } => {
                if simulation.hosts[*server].is_paused || self.is_down(simulation, *server) {
                    return false;
                }
                self.stop_server(simulation, *server, *keeps);
                self.at(now + for_us, Later::StartServer(*server));
            }
            Fault::Flush { server } => self.flush(simulation, *server),
            Fault::FlushAll => {
                simulation.shared.borrow_mut().oracle.everything_is_flushed();
                (0..self.scenario.servers).for_each(|server| self.flush(simulation, server));
            }
            Fault::CloseConnections { server } => {
                simulation.close_connections(*server);
                simulation.shared.borrow_mut().oracle.trouble((None, *server));
            }
            Fault::ForgetScripts { server } => simulation.hosts[*server].server.forget_scripts(),
            Fault::NewHistory { server } => {
                let id = identity(&mut self.dice).replication_id;
                simulation.hosts[*server].server.data().identity.replication_id = id;
            }
            Fault::OutOfMemory { server, for_us } => {
                simulation.hosts[*server].server.data().is_out_of_memory = true;
                simulation.shared.borrow_mut().oracle.trouble_begins((None, *server));
                self.at(now + for_us, Later::RestoreMemory(*server));
            }
            Fault::Deny { server, command, for_us } => {
                simulation.hosts[*server].server.data().denied.insert((*command).to_owned());
                simulation.shared.borrow_mut().oracle.trouble_begins((None, *server));
                self.at(now + for_us, Later::Allow(*server, command));
            }
            Fault::StepClock { server, by_us } => {
                simulation.hosts[*server].clock.offset_us += by_us;
                let oracle = &mut simulation.shared.borrow_mut().oracle;
                oracle.trouble((None, *server));
                oracle.is_unreliable(*server);
                if *by_us > 0 {
                    oracle.excuse(None);
                }
            }
        }
        true
    }

    fn flush(&mut self, simulation: &mut Simulation, server: ServerId) {
        simulation.hosts[server].server.data().databases.clear();
        let oracle = &mut simulation.shared.borrow_mut().oracle;
        oracle.forgets(server);
        oracle.trouble((None, server));
        oracle.is_unreliable(server);
    }

    fn is_down(&self, simulation: &Simulation, server: ServerId) -> bool {
        simulation.shared.borrow().network.is_down.get(&server).copied().unwrap_or(false)
    }

    fn stop_server(&mut self, simulation: &mut Simulation, server: ServerId, keeps: Keeps) {
        let now = simulation.now();
        simulation.stop_server(server);
        let mut data = simulation.hosts[server].server.data();
        data.identity = identity(&mut self.dice);
        match keeps {
            Keeps::All => {}
            Keeps::Nothing => data.databases.clear(),
            Keeps::OldCopy(age) => {
                let saved = self.saved[server].iter().rev().find(|(at, _)| at + age <= now);
                data.databases = saved.map(|(_, databases)| databases.clone()).unwrap_or_default();
            }
        }
        drop(data);
        let oracle = &mut simulation.shared.borrow_mut().oracle;
        oracle.trouble_begins((None, server));
        if keeps != Keeps::All {
            oracle.forgets(server);
        }
        // Several servers are quarantined after a restart, whatever they have kept.
        if keeps != Keeps::All || self.scenario.servers > 1 {
            oracle.is_unreliable(server);
        }
    }

    fn kill(
        &mut self,
        simulation: &mut Simulation,
        actor: u64,
        process: ProcessId,
        site: SiteId,
        has_guardian: bool,
    ) {
        simulation.kill(process);
        self.running.remove(&process);
        let is_kept = {
            let mut shared = simulation.shared.borrow_mut();
            let record = shared.records.get_mut(&actor).map(|record| {
                (record.leaves_at, record.is_killed, record.is_over) = (None, true, true);
                &*record
            });
            let has_orphan = record.is_some_and(|record| record.orphan.is_some());
            let is_token = record.is_some_and(|record| record.subject == Some(Subject::Token));
            // A keeper has no guardian, and nothing stops its watched process in time; the command
            // of a run is killed at once. What a token keeps goes on.
            if !is_token {
                shared.oracle.ended(site);
            }
            shared.oracle.process_ended(site);
            has_orphan && has_guardian && !is_token
        };
        let now = simulation.now();
        let is_granted = simulation.shared.borrow().records.get(&actor).is_some_and(|of| of.claim.is_some());
        if let (false, Some(ttl)) = (is_granted, self.actors[&actor].access.timing.ttl) {
            let ends = now + ttl.as_micros() as u64 + EXPIRED_AFTER_US;
            self.at(ends, Later::CheckExpiry { actor });
        }
        if is_kept {
            self.at(now + 2000, Later::Guardian(actor));
        } else {
            self.check_later(simulation, actor, now);
        }
    }
}
