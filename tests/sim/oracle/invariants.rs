//! What every script must leave in order on its server, and the order in which clients are served.

use super::*;

impl Oracle {
    /// A script replaces no claim of another waiter, none by an older one, and revives none. A renewal
    /// concerns the caller's claim, and a holder's own never shortens its lease.
    fn check_changes(&mut self, server: ServerId, script: &str, args: &[Vec<u8>], call: &Executed) {
        let claim = |value: &[u8]| -> Option<(String, u32)> {
            let (waiter, attempt) = std::str::from_utf8(value).ok()?.split_once('.')?;
            Some((waiter.to_owned(), attempt.parse().ok()?))
        };
        let mut found = Vec::new();
        for Change { key, before, after } in &call.changes {
            let shortened_by = match (before, after) {
                (Some(before), Some(after)) if before.value == after.value => {
                    let never = u64::MAX;
                    before.expires.unwrap_or(never).saturating_sub(after.expires.unwrap_or(never))
                }
                _ => 0,
            };
            let [before, after] =
                [before, after].map(|held| held.as_ref().and_then(|held| claim(&held.value)));
            let Some(now) = &after else { continue };
            let caller = args.first().and_then(|word| claim(word));
            let is_anothers = caller.is_some_and(|(waiter, _)| waiter != now.0);
            let kind = match &before {
                Some(old) if old.0 != now.0 => Some("taken-away"),
                Some(old) if old.1 > now.1 => Some("went-back"),
                Some(_) if script == "extend" && is_anothers => Some("renewed-another"),
                // Who has only a token may shorten the lease, if no process relies on it.
                Some(_) if script == "extend" && args[3] != b"?" && shortened_by > 1 => Some("shortened"),
                _ => None,
            };
            let last_released = self.released.get(&(server, now.0.clone()));
            let is_revived = before != after && last_released.is_some_and(|released| *released >= now.1);
            if let Some(kind) = kind.or(is_revived.then_some("revived")) {
                let key = String::from_utf8_lossy(key).into_owned();
                found
                    .push((kind, format!("{script} on server {server}: {key} was {before:?}, is {after:?}")));
            }
        }
        for (kind, text) in found {
            self.violation(kind, text);
        }
        // A client that will ask again takes over what arrives late.
        let is_final = (args.len() > ARGS_WITHOUT_ENTRY || args.get(6).is_some_and(|ttl| ttl != b"0"))
            && !matches!(call.reply, Some(Reply::Error(_)));
        let released = args.first().and_then(|word| claim(word)).filter(|_| is_final);
        if let ("release", Some((waiter, attempt))) = (script, released) {
            let released = self.released.entry((server, waiter)).or_default();
            *released = attempt.max(*released);
        }
    }

    /// No waiter that came earlier, and that this grant keeps out, is passed. Between clients that came
    /// to different gates, whose clocks differ, that is so only in the long run.
    pub(super) fn check_order(&mut self, site: SiteId, key: &str, how: &Held, started: u64) {
        let Some(arrival) = self.arrivals.get(&site).copied() else { return };
        let (is_strict, is_quiet) = (self.is_order_strict, self.is_quiet);
        let mut found = Vec::new();
        for (other, waiting) in &mut self.waiting {
            let came_first = self.arrivals.get(other).is_some_and(|theirs| *theirs < arrival);
            let concerns = waiting.queues && waiting.keys.iter().any(|name| name == key);
            if !came_first || !concerns || !how.excludes(&waiting.how) {
                continue;
            }
            let is_overtaken = is_quiet && !self.has_preferences && waiting.started < started;
            waiting.overtaken += u32::from(is_overtaken);
            // A client that was stalled may queue at another gate, whose clock is another one.
            let is_same_gate = self.arrivals[other].gate == arrival.gate;
            if is_strict && is_same_gate {
                let text = format!("host {site} gets {key} before host {other}, which came earlier");
                found.push(("order", text, *other));
            } else if is_overtaken && waiting.overtaken == MOST_OVERTAKES + 1 {
                let text = format!("host {other} waits for {key} and is overtaken again and again");
                found.push(("starvation", text, *other));
            }
        }
        for (kind, text, passed) in found {
            self.violations.push(Violation { kind, at_us: self.now_us, text, passed: Some(passed) });
        }
    }

    /// A break frees what no process renews. If the servers had confirmed the token before, its client
    /// may hear of that later.
    fn is_broken(&mut self, claim: &str) {
        let is_granted = self.servers == 1
            || self.confirmed.get(claim).is_some_and(|servers| servers.len() >= majority_of(self.servers));
        let waiter = claim.split('.').next().unwrap_or_default();
        let sites = self.waiters.iter().filter(|(_, names)| names.contains(waiter));
        for site in sites.map(|(site, _)| *site) {
            self.holdings.values_mut().for_each(|holdings| holdings.retain(|holding| holding.site != site));
            if let Some(waiting) = self.waiting.get_mut(&site) {
                waiting.is_excused |= is_granted;
                // Those behind it may pass.
                waiting.queues = false;
            }
        }
    }

    pub fn executed(&mut self, server: ServerId, site: Option<SiteId>, call: &Executed) {
        self.note(server, site, call);
        self.look_for_circles();
    }

    fn note(&mut self, server: ServerId, site: Option<SiteId>, call: &Executed) {
        let Some((script, args)) = script_call(&call.command) else { return };
        self.check_changes(server, script, args, call);
        let text =
            |at: usize| args.get(at).and_then(|word| std::str::from_utf8(word).ok()).unwrap_or_default();
        match (script, &call.reply) {
            ("raise", Some(Reply::Array(fields))) if fields.first() == Some(&Reply::bulk("raised")) => {
                self.confirmed.entry(text(0).to_owned()).or_default().insert(server);
            }
            ("break", _) if text(6) == "free" => text(7).split(' ').for_each(|claim| self.is_broken(claim)),
            _ => {}
        }
        let Some(site) = site else { return };
        let waiter = args.first().and_then(|claim| std::str::from_utf8(claim).ok()?.split_once('.'));
        if let ("acquire", Some((waiter, _))) = (script, waiter) {
            self.waiters.entry(site).or_default().insert(waiter.to_owned());
        }
        // With an entry for the history a client gives up; without one it will ask again.
        if script == "release" && args.len() > ARGS_WITHOUT_ENTRY {
            self.stops_waiting(site);
        }
        let ("acquire", Some(Reply::Array(fields))) = (script, &call.reply) else { return };
        let word = |at: usize| match fields.get(at) {
            Some(Reply::Bulk(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        };
        let stamp = match word(0) {
            "granted" => word(4),
            "blocked" => word(8),
            _ => "",
        };
        // The lock is used in another way: if enough servers say so, the client gives up.
        if matches!(word(0), "slots_mismatch" | "different_server_count" | "other_protocol") {
            self.stops_waiting(site);
        }
        // The first gate that queues or grants a request decides its place.
        if args.get(7).is_some_and(|role| role == b"gate")
            && let Ok(stamp) = stamp.parse()
        {
            self.arrivals.entry(site).or_insert(Arrival { stamp, gate: server });
        }
    }
}
