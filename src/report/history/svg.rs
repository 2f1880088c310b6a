//! The timeline as a picture: one SVG file that needs nothing else, for a report or a web page.
//!
//! It has its own background and follows the reader's choice of light or dark. Everything that a
//! colour shows is also shown by a sign or a row, and by the title and the description, for screen
//! readers.

use std::time::SystemTime;

use super::axis::ticks;
use super::run::Run;
use super::timeline::{Bar, Kind, Lane, Row, Span, Timeline, counts};
use super::{Clock, between, float, moment};
use crate::duration::format;

const WIDTH: usize = 960;
const LEFT: usize = 84;
const RIGHT: usize = 24;
const TOP: usize = 64;
const LANE: usize = 26;
const CROWD: usize = 44;
const MARKS: usize = 20;
const GAP: usize = 6;
const AXIS: usize = 34;
/// The approximate width of a letter.
const LETTER: f64 = 6.6;
/// The width of the axis in characters of its labels.
const AXIS_COLUMNS: usize = 100;

/// Without CSS variables, which some converters to PDF do not support.
const STYLE: &str = "\
text{font:12px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
.ground{fill:#fff}.title{font-size:15px;font-weight:600}.faint{fill:#59636e}.name{fill:#fff;font-size:11px}\
.grid{stroke:#d1d9e0}.even{fill:#0969da}.odd{fill:#54457f}.failed{fill:#c5283d}.running{fill:#1a7f37}\
.waiting{fill:#bf7b00}rect{stroke:#fff;stroke-width:.7}.cross{stroke:#c5283d;stroke-width:2;fill:none}.ring{stroke:#8250df;stroke-width:2;fill:none}\
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.ground{fill:#0d1117}.faint{fill:#9198a1}.name{fill:#fff}\
.grid{stroke:#3d444d}.even{fill:#1f6feb}.odd{fill:#6e5aa8}.failed{fill:#da3633}.running{fill:#238636}\
.waiting{fill:#d29922}rect{stroke:#0d1117}.cross{stroke:#f85149}.ring{stroke:#a371f7}}";

/// A picture with only a sentence: there is nothing to draw.
pub(super) fn sentence(text: &str) -> String {
    let body = format!("<text class=\"title\" x=\"24\" y=\"34\">{}</text>\n", escape(text));
    document(text, "", 56, &body)
}

/// `heading` and `figures`: text about all runs.
pub(super) fn draw(
    heading: &str,
    figures: &str,
    timeline: &Timeline,
    runs: &[Run<'_>],
    clock: Clock,
) -> String {
    let mut picture = Picture { timeline, runs, clock, y: TOP, body: String::new() };
    for row in timeline.rows() {
        match row {
            Row::Lane(lane) => picture.lane(lane),
            Row::Crowd(lane) => picture.crowd(&lane.label, &lane.spans(), "even"),
            Row::Waiting(spans) => picture.crowd("waiting", spans, "waiting"),
            Row::Failed(moments) => picture.marks("failed", moments, "cross"),
            Row::TurnedAway(moments) => picture.marks("no lock", moments, "ring"),
        }
    }
    let body = format!(
        "<text class=\"title\" x=\"24\" y=\"28\">{}</text>\n<text class=\"faint\" x=\"24\" y=\"48\">{}</text>\n\
         {}{}{}",
        escape(heading),
        escape(figures),
        picture.grid(),
        picture.body,
        picture.axis()
    );
    document(heading, figures, picture.y + AXIS, &body)
}

fn document(title: &str, description: &str, height: usize, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title description\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" class=\"ground\"/>\n{body}</svg>\n",
        escape(title),
        escape(description)
    )
}

/// For text and attributes. Sanitized text has no control characters.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

struct Picture<'a> {
    timeline: &'a Timeline,
    runs: &'a [Run<'a>],
    clock: Clock,
    /// Top of the next row.
    y: usize,
    body: String,
}

impl Picture<'_> {
    fn x(&self, moment: SystemTime) -> f64 {
        let span = between(self.timeline.from, self.timeline.to).as_secs_f64().max(0.001);
        let part = (between(self.timeline.from, moment).as_secs_f64() / span).min(1.0);
        float(LEFT) + part * float(WIDTH - LEFT - RIGHT)
    }

    fn label(&mut self, label: &str, height: usize) {
        let y = self.y + height / 2 + 4;
        self.body += &format!("<text class=\"faint\" x=\"24\" y=\"{y}\">{}</text>\n", escape(label));
    }

    fn lane(&mut self, lane: &Lane) {
        self.label(&lane.label, LANE);
        for bar in &lane.bars {
            self.bar(bar);
        }
        self.y += LANE + GAP;
    }

    fn bar(&mut self, bar: &Bar) {
        let class = match (bar.kind, bar.is_odd) {
            (Kind::Failed, _) => "failed",
            (Kind::Running, _) => "running",
            (Kind::Ended, false) => "even",
            (Kind::Ended, true) => "odd",
        };
        let (x, y) = (self.x(bar.from), self.y);
        let width = (self.x(bar.to) - x).max(1.0);
        self.body += &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{LANE}\"><title>{}</title></rect>\n",
            escape(&self.tooltip(bar))
        );
        if !bar.name.is_empty() && float(bar.name.chars().count()) * LETTER + 10.0 <= width {
            self.body += &format!(
                "<text class=\"name\" x=\"{:.1}\" y=\"{}\" pointer-events=\"none\">{}</text>\n",
                x + 5.0,
                y + LANE / 2 + 4,
                escape(&bar.name)
            );
        }
    }

    /// "ci@runner-3 4711 deploy.sh: 2026-11-16 09:14, waited 31s, held 4m 12s, 0"
    fn tooltip(&self, bar: &Bar) -> String {
        let Some(run) = self.runs.get(bar.run) else { return String::new() };
        let started = moment(run.started(), self.clock.local_time).unwrap_or_default();
        let waited = run.waited.map(|waited| format!(", waited {}", format(waited))).unwrap_or_default();
        let held = run.held_for().map(|held| format!(", held {}", format(held))).unwrap_or_default();
        format!("{}: {started}{waited}{held}, exit {}", run.who(), run.exit())
            .replace("exit running", "running")
    }

    /// The number of concurrent runs, as steps.
    fn crowd(&mut self, label: &str, spans: &[Span], class: &str) {
        let counts = counts(spans);
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        self.label(label, CROWD - 14);
        let y = self.y + CROWD / 2 + 12;
        self.body += &format!("<text class=\"faint\" x=\"24\" y=\"{y}\">up to {most}</text>\n");
        let bottom = float(self.y + CROWD);
        let mut path = String::new();
        for (at, &(from, count)) in counts.iter().enumerate() {
            let Some((to, _)) = counts.get(at + 1).filter(|_| count > 0) else { continue };
            let (x, height) = (self.x(from), float(CROWD * count) / float(most));
            let width = (self.x(*to) - x).max(1.0);
            path += &format!("M{x:.1} {bottom}v-{height:.1}h{width:.1}v{height:.1}z");
        }
        self.body += &format!("<path class=\"{class}\" d=\"{path}\"/>\n");
        self.y += CROWD + GAP;
    }

    fn marks(&mut self, label: &str, moments: &[SystemTime], class: &str) {
        self.label(&format!("{label} {}", moments.len()), MARKS);
        let middle = self.y + MARKS / 2;
        for moment in moments {
            let x = self.x(*moment);
            self.body += &match class {
                "ring" => format!("<circle class=\"ring\" cx=\"{x:.1}\" cy=\"{middle}\" r=\"4\"/>\n"),
                _ => format!("<path class=\"{class}\" d=\"M{:.1} {}l8 8m0-8l-8 8\"/>\n", x - 4.0, middle - 4),
            };
        }
        self.y += MARKS + GAP;
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let Timeline { from, to, .. } = *self.timeline;
        let ticks = ticks(from, to, AXIS_COLUMNS, self.clock.local_time);
        ticks.into_iter().map(|tick| (self.x(tick.at), tick.label)).collect()
    }

    /// Behind all rows.
    fn grid(&self) -> String {
        let height = self.y - TOP;
        let line = |(x, _)| format!("<path class=\"grid\" d=\"M{x:.1} {TOP}v{height}\"/>\n");
        self.ticks().into_iter().map(line).collect()
    }

    fn axis(&self) -> String {
        let (y, end) = (self.y, WIDTH - RIGHT);
        let label = |(x, label)| {
            let y = y + 18;
            format!("<text class=\"faint\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>\n")
        };
        let labels: String = self.ticks().into_iter().map(label).collect();
        format!("<path class=\"grid\" d=\"M{LEFT} {y}H{end}\"/>\n{labels}")
    }
}
