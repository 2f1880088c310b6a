//! The runs for machines: an object a line, with the names of `--events`.

use std::time::SystemTime;

use super::run::{Phase, Run, runs_of};
use crate::lock::{FinishedRun, History, HowEnded};
use crate::report::events::{millis, process, time};
use crate::report::json::Object;
use crate::report::status::{key_object, mode_name};

/// The first to start first.
pub(crate) fn history_json(history: &History, now: SystemTime) -> String {
    let key = key_object(&history.status.key);
    let lines = runs_of(history, now).into_iter().map(|run| format!("{}\n", object(&key, &run).text()));
    lines.collect()
}

fn object(key: &Object, run: &Run<'_>) -> Object {
    let (event, moment, token) = match run.phase {
        Phase::Ended(ended) => ("ended", ended.ended, Some(ended.token.as_str())),
        Phase::Running(holder) => ("acquired", run.started(), holder.token.as_deref()),
        Phase::Waiting(_) => ("waiting", run.asked, None),
    };
    let token = token.filter(|token| !token.is_empty());
    let attempts = token.and_then(|token| token.rsplit('.').next()?.parse::<u32>().ok());
    let mut object = key.clone().with("time", time(moment)).with("event", event);
    object = object.with_object("run", &process(run.info));
    if let Phase::Ended(ended) = run.phase {
        object = object
            .with("outcome", outcome(&ended.how))
            .with_known("exit", ended.exit)
            .with_known("signal", ended.signal);
    }
    object = object
        .with_known("waited_ms", run.waited.map(millis))
        .with_known("held_ms", run.held_for().map(millis))
        .with_known("attempts", attempts)
        .with_known("fences", run.fence.map(|fence| vec![fence]))
        .with_known("released", is_released(run))
        .with_known("token", token)
        .with("mode", mode_name(&run.mode))
        .with_known("slot", run.slot);
    match run.phase {
        Phase::Ended(ended) => with_other(object, ended),
        Phase::Waiting(waiter) => object.with("position", waiter.position),
        Phase::Running(_) => object,
    }
}

/// In the words of the event `ended`, and one for a run that could not write it.
fn outcome(how: &HowEnded) -> &'static str {
    match how {
        HowEnded::Released => "ran",
        HowEnded::NotStarted => "not_started",
        HowEnded::Lost | HowEnded::Broken { .. } => "lost",
        HowEnded::Expired => "expired",
        HowEnded::MaxHold => "max_hold",
        HowEnded::GaveUp => "held",
        HowEnded::Superseded { .. } => "superseded",
        HowEnded::Cancelled => "cancelled",
    }
}

/// Whether it has given the lock back itself, if it has had it and that is known.
fn is_released(run: &Run<'_>) -> Option<bool> {
    let Phase::Ended(run) = run.phase else { return None };
    match run.how {
        HowEnded::Released | HowEnded::NotStarted | HowEnded::MaxHold => Some(true),
        HowEnded::Lost | HowEnded::Expired => Some(false),
        // What is known of one that was broken at once is the word of the client that did it.
        HowEnded::Broken { .. } => run.exit.map(|_| true),
        HowEnded::GaveUp | HowEnded::Superseded { .. } | HowEnded::Cancelled => None,
    }
}

fn with_other(object: Object, run: &FinishedRun) -> Object {
    match &run.how {
        HowEnded::Broken { by } => object.with_object("broken_by", &process(by)),
        HowEnded::Superseded { by } => object.with_object("superseded_by", &process(by)),
        HowEnded::Released
        | HowEnded::NotStarted
        | HowEnded::Lost
        | HowEnded::Expired
        | HowEnded::MaxHold
        | HowEnded::GaveUp
        | HowEnded::Cancelled => object,
    }
}
