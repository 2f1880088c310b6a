//! `redlock history --json`: a line with an object for each run. The fields are those of `--events`.

use std::time::SystemTime;

use super::run::{Phase, Run, runs_of};
use crate::duration::millis;
use crate::lock::{FinishedRun, History, Outcome};
use crate::report::events::{other_run, process, time};
use crate::report::json::Object;
use crate::report::status::{key_object, mode_name};

/// Sorted by their start, current waiters last.
pub(crate) fn history_json(histories: &[History], now: SystemTime) -> String {
    let mut runs: Vec<(Object, Run<'_>)> = Vec::new();
    for history in histories {
        let key = key_object(&history.status.key);
        runs.extend(runs_of(history, now).into_iter().map(|run| (key.clone(), run)));
    }
    runs.sort_by_key(|(_, run)| run.order());
    let lines = runs.iter().map(|(key, run)| object(key, run).text() + "\n");
    lines.collect()
}

fn object(key: &Object, run: &Run<'_>) -> Object {
    let (event, moment, token) = match run.phase {
        Phase::Ended(ended) => ("ended", ended.ended_at, Some(ended.token.as_str())),
        Phase::Running(holder) => ("acquired", run.started(), holder.token.as_deref()),
        Phase::Waiting(_) => ("waiting", run.asked, None),
    };
    let token = token.filter(|token| !token.is_empty());
    let attempts = token.and_then(|token| token.rsplit('.').next()?.parse::<u32>().ok());
    let mut object = key.clone().with("time", time(moment)).with("event", event);
    object = object.with("run", process(run.info));
    if let Phase::Ended(FinishedRun { ended, .. }) = run.phase {
        object = object
            .with("outcome", ended.how.event())
            .with_known("exit", ended.code())
            .with_known("signal", ended.signal());
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
        Phase::Ended(run) => object.and(other_run(&run.ended.how)),
        Phase::Waiting(waiter) => object.with("position", waiter.position),
        Phase::Running(_) => object,
    }
}

/// Whether the run itself released the lock, if it had the lock and this is known.
fn is_released(run: &Run<'_>) -> Option<bool> {
    let Phase::Ended(FinishedRun { ended, .. }) = run.phase else { return None };
    // The record of a run that was broken with --now was written by the client that broke it.
    if matches!(ended.how, Outcome::Broken { .. }) {
        return ended.exit.map(|_| true);
    }
    ended.how.had_lock().then_some(ended.how.is_clean())
}
