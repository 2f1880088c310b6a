//! One question to several servers at once, and their answers as they come.

use std::ops::ControlFlow;

use crate::lock::answer::Answer;
use crate::lock::node::{Call, Node};
use crate::lock::wait::{Wait, wait};
use crate::lock::{BootTime, NodeError, Observer};

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The listener had heard enough, or everyone has answered.
    Heard,
    TimeOver,
    Cancelled,
}

/// Send to all of these without waiting. Those that cannot even be asked are reported to the listener.
pub fn ask(
    nodes: &mut [Node],
    whom: impl Iterator<Item = usize>,
    mut call: impl FnMut(usize, &Node) -> Call,
    mut failed: impl FnMut(usize, NodeError),
) -> Vec<usize> {
    let mut asked = Vec::new();
    for at in whom {
        let call = call(at, &nodes[at]);
        match nodes[at].ask(call) {
            Ok(()) => asked.push(at),
            Err(error) => failed(at, error),
        }
    }
    asked
}

/// Hand the answers of these to the listener as they come, until it has heard enough.
pub fn listen(
    nodes: &mut [Node],
    mut asked: Vec<usize>,
    until: BootTime,
    mut observer: Option<&mut dyn Observer>,
    mut listener: impl FnMut(usize, Result<Answer, NodeError>) -> ControlFlow<()>,
) -> Round {
    loop {
        let mut enough = false;
        asked.retain(|&at| match nodes[at].answer() {
            Some(answer) => {
                enough |= listener(at, answer).is_break();
                false
            }
            None => true,
        });
        if enough || asked.is_empty() {
            return Round::Heard;
        }
        if until.has_passed() {
            return Round::TimeOver;
        }
        let watched: Vec<_> = asked.iter().filter_map(|&at| nodes[at].poll_for()).collect();
        if wait(&watched, until, observer.as_deref_mut()) == Wait::Cancelled {
            return Round::Cancelled;
        }
    }
}

pub fn stop_if(enough: bool) -> ControlFlow<()> {
    if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
