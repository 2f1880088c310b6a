//! The timeline, drawn with characters.
//!
//! There is a row for each lane of holders, then rows for waiters, failed runs and runs that did
//! not get the lock, and the time of day. The height of a column shows for how much of its time the
//! lock was held. Consecutive holders alternate between two styles, and are named where there is
//! room.

use std::time::{Duration, SystemTime};

use super::axis::ticks;
use super::timeline::{Bar, Kind, Lane, Row, Span, Timeline, counts};
use super::{Style, between, float};
use crate::report::format::LocalTime;
use crate::report::text::COLUMN;

/// The fewest and the most columns.
const COLUMNS: (usize, usize) = (20, 240);
/// A column in which the lock is held for this part of the time is drawn full.
const FULL: f64 = 0.95;
/// A full row stands for at least this many waiters, so that a single one is not drawn as a wall.
const LOWEST_FULL: usize = 4;

/// The characters of the drawing.
struct Signs {
    /// From the lowest to the highest.
    levels: [char; 8],
    full: char,
    /// For every other holder, if there are no colours.
    odd: char,
    failed: char,
    turned_away: char,
    line: char,
    tick: char,
}

const UNICODE: Signs = Signs {
    levels: ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    full: '█',
    odd: '▓',
    failed: '✗',
    turned_away: '○',
    line: '─',
    tick: '┬',
};
const ASCII: Signs = Signs {
    levels: ['.', '.', '.', ':', ':', ':', ':', '#'],
    full: '#',
    odd: '=',
    failed: 'x',
    turned_away: 'o',
    line: '-',
    tick: '+',
};

/// The parameter of the escape sequence; empty for none.
type Colour = &'static str;

const NO_COLOUR: Colour = "";
const EVEN: Colour = "36";
const ODD: Colour = "34";
const FAILED: Colour = "31";
const RUNNING: Colour = "32";
const WAITING: Colour = "33";
const TURNED_AWAY: Colour = "35";
const FAINT: Colour = "2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    sign: char,
    colour: Colour,
    /// Dark on bright.
    is_inverse: bool,
}

const EMPTY: Cell = Cell { sign: ' ', colour: NO_COLOUR, is_inverse: false };

pub(super) fn draw(timeline: &Timeline, local_time: LocalTime, style: Style) -> String {
    let columns = style.width.saturating_sub(COLUMN + 1).clamp(COLUMNS.0, COLUMNS.1);
    let signs = if style.is_unicode { &UNICODE } else { &ASCII };
    let canvas = Canvas { timeline, columns, signs, style };
    let row = |row| match row {
        Row::Lane(lane) => (lane.label.as_str(), canvas.lane(lane)),
        Row::Crowd(lane) => (lane.label.as_str(), canvas.crowd(&lane.spans(), EVEN)),
        Row::Waiting(spans) => ("waiting", canvas.crowd(spans, WAITING)),
        Row::Failed(moments) => ("failed", canvas.marks(moments, signs.failed, FAILED)),
        Row::TurnedAway(moments) => ("no lock", canvas.marks(moments, signs.turned_away, TURNED_AWAY)),
    };
    let rows = timeline.rows().into_iter().map(row).chain(canvas.axis(local_time));
    rows.map(|(label, cells)| canvas.text(label, &cells)).collect()
}

struct Canvas<'a> {
    timeline: &'a Timeline,
    columns: usize,
    signs: &'static Signs,
    style: Style,
}

impl Canvas<'_> {
    /// The position of a moment, in columns.
    fn x(&self, moment: SystemTime) -> f64 {
        let span = between(self.timeline.from, self.timeline.to).max(Duration::from_millis(1));
        let x = between(self.timeline.from, moment).as_secs_f64() / span.as_secs_f64();
        x.min(1.0) * float(self.columns)
    }

    fn column(&self, moment: SystemTime) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the number of columns"
        )]
        let column = self.x(moment) as usize;
        column.min(self.columns - 1)
    }

    /// The columns that a span touches, at least one.
    fn touched(&self, span: Span) -> std::ops::Range<usize> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the number of columns"
        )]
        let end = self.x(span.to).ceil() as usize;
        let first = self.column(span.from);
        first..end.clamp(first + 1, self.columns)
    }

    fn lane(&self, lane: &Lane) -> Vec<Cell> {
        // For each column: the part of it in which the lock is held, and the bar with most of it.
        let mut covered = vec![0.0; self.columns];
        let mut owners: Vec<Option<(f64, &Bar)>> = vec![None; self.columns];
        for bar in &lane.bars {
            let (from, to) = (self.x(bar.from), self.x(bar.to));
            for column in self.touched(bar.into()) {
                let left = float(column);
                let part = (to.min(left + 1.0) - from.max(left)).max(0.0);
                covered[column] += part;
                if owners[column].is_none_or(|(most, _)| part >= most) {
                    owners[column] = Some((part, bar));
                }
            }
        }
        let cell = |(covered, owner): (&f64, &Option<(f64, &Bar)>)| {
            owner.map_or(EMPTY, |(_, bar)| self.bar_cell(*covered, bar))
        };
        let mut cells: Vec<Cell> = covered.iter().zip(&owners).map(cell).collect();
        for bar in &lane.bars {
            let is_own = |column: &usize| {
                covered[*column] >= FULL && owners[*column].is_some_and(|(_, it)| it.run == bar.run)
            };
            let own: Vec<usize> = self.touched(bar.into()).filter(is_own).collect();
            write_name(bar, &own, &mut cells);
        }
        cells
    }

    fn bar_cell(&self, covered: f64, bar: &Bar) -> Cell {
        let colour = match (bar.kind, bar.is_odd) {
            (Kind::Failed, _) => FAILED,
            (Kind::Running, _) => RUNNING,
            (Kind::Ended, false) => EVEN,
            (Kind::Ended, true) => ODD,
        };
        let sign = match covered >= FULL {
            true if bar.is_odd && !self.style.has_colours => self.signs.odd,
            true => self.signs.full,
            false => {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7")]
                let level = (covered * 8.0) as usize;
                self.signs.levels[level.min(6)]
            }
        };
        Cell { sign, colour, is_inverse: false }
    }

    /// The number of concurrent runs, as heights.
    fn crowd(&self, spans: &[Span], colour: Colour) -> Vec<Cell> {
        let counts = counts(spans);
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let mut heights = vec![0; self.columns];
        for (at, &(from, count)) in counts.iter().enumerate() {
            let to = counts.get(at + 1).map_or(from, |(next, _)| *next);
            for column in self.touched(Span { from, to }) {
                heights[column] = count.max(heights[column]);
            }
        }
        let cell = |height: usize| match height {
            0 => EMPTY,
            _ => Cell { sign: self.height_sign(height, most), colour, is_inverse: false },
        };
        heights.into_iter().map(cell).collect()
    }

    /// In ASCII the number itself.
    fn height_sign(&self, height: usize, most: usize) -> char {
        if self.style.is_unicode {
            let level = (height * 8).div_ceil(most.max(LOWEST_FULL));
            self.signs.levels[level.clamp(1, 8) - 1]
        } else {
            u32::try_from(height).ok().and_then(|height| char::from_digit(height, 10)).unwrap_or('+')
        }
    }

    fn marks(&self, moments: &[SystemTime], sign: char, colour: Colour) -> Vec<Cell> {
        let mut cells = vec![EMPTY; self.columns];
        for moment in moments {
            cells[self.column(*moment)] = Cell { sign, colour, is_inverse: false };
        }
        cells
    }

    /// Two rows: the line, and the labels of its ticks.
    fn axis(&self, local_time: LocalTime) -> [(&'static str, Vec<Cell>); 2] {
        let faint = |sign| Cell { sign, colour: FAINT, is_inverse: false };
        let mut line = vec![faint(self.signs.line); self.columns];
        let mut labels = vec![EMPTY; self.columns];
        let mut free_from = 0;
        for tick in ticks(self.timeline.from, self.timeline.to, self.columns, local_time) {
            let column = self.column(tick.at);
            line[column] = faint(self.signs.tick);
            let length = tick.label.len();
            let start = column.saturating_sub(length / 2).min(self.columns.saturating_sub(length));
            if start >= free_from {
                for (cell, sign) in labels[start..].iter_mut().zip(tick.label.chars()) {
                    *cell = Cell { sign, ..EMPTY };
                }
                free_from = start + length + 1;
            }
        }
        [("", line), ("", labels)]
    }

    fn text(&self, label: &str, cells: &[Cell]) -> String {
        let last = cells.iter().rposition(|cell| *cell != EMPTY).map_or(0, |last| last + 1);
        let mut text = format!("{label:<COLUMN$}");
        for cells in cells[..last].chunk_by(|a, b| (a.colour, a.is_inverse) == (b.colour, b.is_inverse)) {
            let signs: String = cells.iter().map(|cell| cell.sign).collect();
            let Cell { colour, is_inverse, .. } = cells[0];
            text += &match (self.style.has_colours && !colour.is_empty(), is_inverse) {
                (false, _) => signs,
                (true, false) => format!("\x1b[{colour}m{signs}\x1b[0m"),
                (true, true) => format!("\x1b[{colour};7m{signs}\x1b[0m"),
            };
        }
        format!("{}\n", text.trim_end())
    }
}

/// Writes the name into the bar if there is room. A character that is not one column wide would
/// shift the rest.
fn write_name(bar: &Bar, own: &[usize], cells: &mut [Cell]) {
    let is_plain = bar.name.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if !is_plain || bar.name.is_empty() || bar.name.len() + 2 > own.len() {
        return;
    }
    for (sign, &column) in bar.name.chars().zip(&own[1..]) {
        cells[column] = Cell { sign, is_inverse: true, ..cells[column] };
    }
}
