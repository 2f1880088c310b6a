//! Direct script calls: what does a request cost the server beside many sharers and waiters?

use redis::Value;

use crate::crowd::{self, Scenario, Server};
use crate::report::Row;
use crate::rig::Rig;

const OTHERS: [usize; 3] = [50, 500, 5000];
/// The time beside the most of them, divided by that beside the fewest.
const GOAL: f64 = 2.0;

/// A row for each kind of request, with the server's time beside each number of others.
pub fn measure(rig: &mut Rig) -> anyhow::Result<Vec<Row>> {
    let scenarios: [&[Scenario]; 6] = [
        &crowd::LOCKS,
        &crowd::SHARERS,
        &crowd::SLOTS,
        &crowd::WRITERS,
        &crowd::READERS,
        &crowd::READERS_OF_TWO,
    ];
    beside(rig, &scenarios.concat())
}

/// The same for some of them.
pub fn beside(rig: &mut Rig, scenarios: &[Scenario]) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (who, measure) in scenarios {
        let mut beside = Vec::new();
        for others in OTHERS {
            rig.server.command(&["FLUSHALL"])?;
            let send = |words: &[&str]| text(rig.server.command(words).expect("the server replies"));
            beside.push(measure(&mut Server::new(send), others));
        }
        for (at, (what, fewest)) in beside[0].iter().enumerate() {
            let micros: Vec<u64> = beside.iter().map(|rows| rows[at].1).collect();
            let most = micros[micros.len() - 1];
            let figure = micros.iter().map(u64::to_string).collect::<Vec<_>>().join(" / ");
            rows.push(
                Row::new(format!("{who} {what}"), format!("{figure} us"))
                    .goal(format!("flat (<= {GOAL} x)"), most as f64 <= GOAL * *fewest as f64),
            );
        }
    }
    Ok(rows)
}

/// An array as lines.
pub fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::SimpleString(line) => line,
        Value::VerbatimString { text, .. } => text,
        Value::Int(number) => number.to_string(),
        Value::Array(values) => values.into_iter().map(text).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}
