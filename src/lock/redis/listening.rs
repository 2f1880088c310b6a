//! Subscriptions to servers: each calls a script, sleeps in BLPOP until something is pushed, and
//! calls the script again. A holder learns of a break in this way, and the client that breaks a
//! lock learns of its release. The connections are separate from those of the lock: they block and
//! are lost independently.

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
use crate::lock::{BackendError, Problem};

/// The pause before a lost connection is reopened: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

pub(super) struct Listening {
    servers: Servers,
    call: Call,
    list: Vec<u8>,
    /// How long BLPOP sleeps before the script is called again.
    at_most: Duration,
    subscriptions: Vec<Subscription>,
}

struct Subscription {
    state: SubscriptionState,
    failures: u32,
}

#[derive(Clone, Copy)]
enum SubscriptionState {
    /// The script is called at this moment.
    Pausing(BootTime),
    /// A reply is due at this moment.
    Waiting(BootTime),
    /// The server refuses us or can never serve this: a retry would not help.
    GivenUp,
}

/// What a subscription received.
pub(super) enum ListenEvent<R> {
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
        let listens = |at: &usize| matches!(self.subscriptions[*at].state, SubscriptionState::Waiting(_));
        self.servers.all().filter(listens).filter_map(|at| self.servers[at].node.poll_for()).collect()
    }

    pub(super) fn next_moment(&self) -> Option<BootTime> {
        let moments = self.servers.all().filter_map(|at| match self.subscriptions[at].state {
            SubscriptionState::Pausing(until) => Some(until),
            SubscriptionState::Waiting(until) => {
                let overdue = self.servers.overdue_at(at, until);
                Some(self.servers[at].node.wake_at().map_or(overdue, |wake_at| wake_at.min(overdue)))
            }
            SubscriptionState::GivenUp => None,
        });
        moments.min()
    }

    /// Processes everything that has arrived or is due. Failures are not reported: the caller has
    /// another way to learn of the event.
    pub(super) fn advance<R: Reply>(&mut self, mut on_event: impl FnMut(usize, ListenEvent<R>)) {
        for at in self.servers.all() {
            while let Some(reply) = self.servers[at].node.reply::<ListenReply<R>>() {
                match reply {
                    Ok(ListenReply::Script(reply)) => {
                        self.subscriptions[at].failures = 0;
                        let pop = Call::BlockingPop { list: self.list.clone(), at_most: self.at_most };
                        self.send(at, pop, self.at_most + BLPOP_SLACK);
                        on_event(at, ListenEvent::Reply(reply));
                    }
                    Ok(ListenReply::Woken(element)) => {
                        self.send(at, self.call.clone(), Duration::ZERO);
                        if let Some(element) = element {
                            on_event(at, ListenEvent::Element(element));
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
                    self.send(at, self.call.clone(), Duration::ZERO);
                }
                SubscriptionState::Waiting(until) if self.servers.overdue_at(at, until).has_passed() => {
                    let error = self.servers[at].node.timed_out();
                    self.pause(at, &error);
                }
                SubscriptionState::Pausing(_)
                | SubscriptionState::Waiting(_)
                | SubscriptionState::GivenUp => {}
            }
        }
    }

    /// `sleeps`: how long the command blocks on the server, in addition to the node timeout.
    fn send(&mut self, at: usize, call: Call, sleeps: Duration) {
        self.subscriptions[at].state =
            SubscriptionState::Waiting(BootTime::now() + sleeps + self.servers.node_timeout);
        if let Err(error) = self.servers[at].node.ask(call) {
            self.pause(at, &error);
        }
    }

    fn pause(&mut self, at: usize, error: &BackendError) {
        self.servers[at].node.disconnect();
        let subscription = &mut self.subscriptions[at];
        subscription.state = if error.may_pass() {
            let (first, most) = PAUSE;
            let pause = (first * 2u32.saturating_pow(subscription.failures.min(10))).min(most);
            SubscriptionState::Pausing(BootTime::now() + pause / 2 + jitter(pause))
        } else {
            SubscriptionState::GivenUp
        };
        subscription.failures += 1;
    }
}

/// The reply of the script, or of BLPOP: an element or nothing.
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
