//! The table.

use std::fs;
use std::time::Duration;

use crate::rig::Rig;
use crate::statistics::Summary;

/// If flock's times vary by more than this, a ratio of medians says more about the machine than
/// about us.
const TOO_NOISY: f64 = 1.3;

/// A figure, and its goal if there is one.
pub struct Row {
    what: String,
    figure: String,
    spread: String,
    ratio: String,
    quiet_ratio: String,
    goal: String,
    verdict: &'static str,
}

impl Row {
    pub fn new(what: impl Into<String>, figure: impl Into<String>) -> Self {
        let empty = String::new;
        Self {
            what: what.into(),
            figure: figure.into(),
            spread: empty(),
            ratio: empty(),
            quiet_ratio: empty(),
            goal: empty(),
            verdict: "",
        }
    }

    /// A time, its interquartile range, and its ratio to flock's.
    pub fn timed(what: impl Into<String>, time: &Summary, flock: &Summary) -> Self {
        let mut row = Self::new(what, ms(time.median));
        row.spread = format!("{} - {}", ms(time.lower_quartile), ms(time.upper_quartile));
        row.ratio = format!("{:.2} x", time.ratio_to(flock));
        row.quiet_ratio = format!("{:.2} x", time.quiet_ratio_to(flock));
        row
    }

    pub fn spread(mut self, spread: String) -> Self {
        self.spread = spread;
        self
    }

    pub fn goal(mut self, goal: impl Into<String>, is_met: bool) -> Self {
        self.goal = goal.into();
        self.verdict = if is_met { "met" } else { "MISSED" };
        self
    }
}

pub fn ms(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1000.0)
}

pub fn heading(rig: &mut Rig) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let version = rig.server.version().unwrap_or_default();
    println!("redis-server {version}, {cores} cores, load {load} at the start");
}

pub fn section(title: &str, rows: &[Row]) {
    println!("\n{title}");
    if rows.iter().any(|row| !row.ratio.is_empty()) {
        println!(
            "  {:<30} {:>11}  {:<21} {:>8} {:>8}  goal",
            "", "median", "middle half", "to flock", "quiet"
        );
    }
    for Row { what, figure, spread, ratio, quiet_ratio, goal, verdict } in rows {
        let line = format!(
            "  {what:<30} {figure:>11}  {spread:<21} {ratio:>8} {quiet_ratio:>8}  {goal:<26} {verdict}"
        );
        println!("{}", line.trim_end());
    }
}

/// Warns if the machine was too busy with other things for the ratios to be meaningful.
pub fn warn_of_noise(flock: &Summary) {
    if flock.noise() > TOO_NOISY {
        println!(
            "\n  NOISY: flock's own upper quartile is {:.1} x its lower one in what follows, so that neither met nor\n  \
             missed means much; \"quiet\", the ratio of the lower quartiles, is disturbed less. Repeat at rest.",
            flock.noise()
        );
    }
}
