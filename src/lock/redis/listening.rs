//! Asking each server with a script, sleeping there in BLPOP until something is pushed, and asking again: for a holder
//! that is to hear of a break, and for the client that breaks and is to hear of the release. On connections of its own,
//! which block and are lost independently of those of the lock.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;
use redis::Value;

use super::Server;
use super::reply::Reply;
use super::script::Call;
use super::servers::Servers;
use super::waiting::BLPOP_SLACK;
use crate::clock::{BootTime, jitter};
use crate::lock::{BackendError, Fault, Problem};

/// The pause before a lost connection is opened anew: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

pub(super) struct Listening {
    servers: Servers,
    call: Call,
    list: Vec<u8>,
    /// How long BLPOP sleeps before the script is asked again.
    at_most: Duration,
    subscriptions: Vec<Subscription>,
}

struct Subscription {
    state: SubscriptionState,
    failures: u32,
}

#[derive(Clone, Copy)]
enum SubscriptionState {
    /// To be asked at this moment.
    Pausing(BootTime),
    /// A reply is due at this moment.
    Asked(BootTime),
    /// The server refuses us, or cannot serve this: trying again would not help.
    GivenUp,
}

/// What a server has said.
pub(super) enum Heard<R> {
    /// The script's reply.
    Reply(R),
    /// An element of the list.
    Element(Vec<u8>),
}

impl Listening {
    /// Nothing is connected before `starts_at`.
    pub(super) fn new(
        servers: Vec<Server>,
        node_timeout: Duration,
        call: Call,
        list: Vec<u8>,
        at_most: Duration,
        starts_at: BootTime,
    ) -> Self {
        let servers = Servers::new(servers, node_timeout);
        let subscriptions = servers
            .all()
            .map(|_| Subscription { state: SubscriptionState::Pausing(starts_at), failures: 0 })
            .collect();
        Self { servers, call, list, at_most, subscriptions }
    }

    pub(super) fn len(&self) -> usize {
        self.servers.len()
    }

    pub(super) fn poll_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let listens = |at: &usize| matches!(self.subscriptions[*at].state, SubscriptionState::Asked(_));
        self.servers.all().filter(listens).filter_map(|at| self.servers[at].node.poll_for()).collect()
    }

    pub(super) fn next_moment(&self) -> Option<BootTime> {
        let moments = self.servers.all().filter_map(|at| match self.subscriptions[at].state {
            SubscriptionState::Pausing(until) => Some(until),
            SubscriptionState::Asked(until) => {
                let overdue = self.servers.overdue_at(at, until);
                Some(self.servers[at].node.wake_at().map_or(overdue, |wake_at| wake_at.min(overdue)))
            }
            SubscriptionState::GivenUp => None,
        });
        moments.min()
    }

    /// Go on wherever something has happened, or is due. Failures are kept to ourselves: the listener has another way
    /// to learn what it listens for.
    pub(super) fn advance<R: Reply>(&mut self, mut hear: impl FnMut(usize, Heard<R>)) {
        for at in self.servers.all() {
            while let Some(said) = self.servers[at].node.reply::<ListenReply<R>>() {
                match said {
                    Ok(ListenReply::Script(reply)) => {
                        self.subscriptions[at].failures = 0;
                        let pop = Call::BlockingPop { list: self.list.clone(), at_most: self.at_most };
                        self.ask(at, pop, self.at_most + BLPOP_SLACK);
                        hear(at, Heard::Reply(reply));
                    }
                    Ok(ListenReply::Woken(element)) => {
                        self.ask(at, self.call.clone(), Duration::ZERO);
                        if let Some(element) = element {
                            hear(at, Heard::Element(element));
                        }
                    }
                    Err(error) => {
                        self.pause(at, &error);
                        break;
                    }
                }
            }
            match self.subscriptions[at].state {
                SubscriptionState::Pausing(until) if until.has_passed() => {
                    self.ask(at, self.call.clone(), Duration::ZERO);
                }
                SubscriptionState::Asked(until) if self.servers.overdue_at(at, until).has_passed() => {
                    let error = self.servers[at].node.timed_out();
                    self.pause(at, &error);
                }
                SubscriptionState::Pausing(_) | SubscriptionState::Asked(_) | SubscriptionState::GivenUp => {}
            }
        }
    }

    /// `sleeps`: what the server takes beside the time for an answer.
    fn ask(&mut self, at: usize, call: Call, sleeps: Duration) {
        self.subscriptions[at].state =
            SubscriptionState::Asked(BootTime::now() + sleeps + self.servers.node_timeout);
        if let Err(error) = self.servers[at].node.ask(call) {
            self.pause(at, &error);
        }
    }

    fn pause(&mut self, at: usize, error: &BackendError) {
        self.servers[at].node.disconnect();
        let subscription = &mut self.subscriptions[at];
        subscription.state = if error.fault() == Fault::Unavailable {
            let (first, most) = PAUSE;
            let pause = (first * 2u32.saturating_pow(subscription.failures.min(10))).min(most);
            SubscriptionState::Pausing(BootTime::now() + pause / 2 + jitter(pause))
        } else {
            SubscriptionState::GivenUp
        };
        subscription.failures += 1;
    }
}

/// The reply to the script, or that of BLPOP: an element, or nothing.
enum ListenReply<R> {
    Script(R),
    Woken(Option<Vec<u8>>),
}

impl<R: Reply> Reply for ListenReply<R> {
    fn is_reply_to(call: &Call) -> bool {
        matches!(call, Call::BlockingPop { .. }) || R::is_reply_to(call)
    }

    fn parse(call: &Call, value: &Value) -> Result<Self, Problem> {
        match (call, value) {
            (Call::BlockingPop { .. }, Value::Array(items)) => match items.as_slice() {
                [_, Value::BulkString(element)] => Ok(Self::Woken(Some(element.clone()))),
                _ => Err(Problem::UnexpectedReply),
            },
            (Call::BlockingPop { .. }, _) => Ok(Self::Woken(None)),
            _ => R::parse(call, value).map(Self::Script),
        }
    }
}
