//! Short forms of documents that fit one screen: the answer first, then the evidence, each part with a label.

pub(crate) mod layout;

use serde::Serialize;

use crate::plot::Figure;
use crate::table::Table;

/// Lines of a screen at most.
pub const MOST_LINES: usize = 40;
/// The usual width of a screen.
pub const WIDTH: u16 = 120;

/// The size of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Columns.
    pub width: u16,
    /// Lines.
    pub lines: usize,
}

impl Room {
    /// A screen of usual width.
    pub const SCREEN: Room = Room { width: WIDTH, lines: MOST_LINES };

    /// A screen of this width.
    pub fn wide(width: u16) -> Self {
        Self { width, ..Self::SCREEN }
    }
}

/// The short form of a document.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Screen {
    /// Its parts, in order.
    pub parts: Vec<Part>,
    /// Plots that a page shows beside it; a terminal does not draw them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

/// A part of a screen.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Part {
    /// A label in capitals and its text.
    Said {
        /// The label; empty where the text continues the part before.
        label: String,
        /// Running text.
        text: String,
        /// Lines at most where people read; the rest is cut.
        most_lines: usize,
    },
    /// Columns and rows, without a frame.
    Table(Table),
}

impl Screen {
    /// Adds a text with its label, unless it is empty. It has at most so many lines.
    pub fn said(&mut self, label: &str, text: impl Into<String>, most_lines: usize) {
        let text = text.into();
        if !text.trim().is_empty() {
            self.parts.push(Part::Said { label: label.into(), text, most_lines });
        }
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.parts.push(Part::Table(table));
        }
    }

    /// Takes a line from the longest text; from the answer, which is first, only where no other text has two lines. False where
    /// none has two.
    fn cut_longest(&mut self, width: u16) -> bool {
        let lines = |part: &Part| {
            let alone = Screen { parts: vec![part.clone()], figures: Vec::new() };
            if matches!(part, Part::Said { .. }) { alone.lines(width) } else { 0 }
        };
        let counts: Vec<usize> = self.parts.iter().map(lines).collect();
        let order = |(place, count): &(usize, &usize)| (**count > 1 && *place > 0, **count, *place);
        let Some((place, &count)) = counts.iter().enumerate().max_by_key(order) else { return false };
        match &mut self.parts[place] {
            Part::Said { most_lines, .. } if count > 1 => *most_lines = count - 1,
            _ => return false,
        }
        true
    }

    /// Allows more lines on a narrow terminal, where texts need them.
    fn widen_limits(&mut self, width: u16) {
        for part in &mut self.parts {
            if let Part::Said { most_lines, .. } = part {
                *most_lines = (*most_lines * usize::from(WIDTH)).div_ceil(usize::from(width.clamp(1, WIDTH)));
            }
        }
    }

    /// Number of lines at this width.
    pub fn lines(&self, width: u16) -> usize {
        layout::lines(self, width, false).len()
    }
}

/// The largest screen that fits this room: `compose` makes one with so many rows, from `most` down to `least`. If `least` rows are still
/// too many, the longest texts are cut.
pub fn fitting(room: Room, most: usize, least: usize, compose: impl Fn(usize) -> Screen) -> Screen {
    let compose = |rows| {
        let mut screen = compose(rows);
        screen.widen_limits(room.width);
        screen
    };
    let mut rows = most.max(least);
    let mut screen = compose(rows);
    loop {
        let surplus = screen.lines(room.width).saturating_sub(room.lines);
        if surplus == 0 {
            return screen;
        }
        if rows > least {
            // Fewer rows may also be narrower, so that fewer of them wrap: at most half of the surplus at once.
            rows = rows.saturating_sub(surplus.div_ceil(2)).max(least);
            screen = compose(rows);
        } else if !screen.cut_longest(room.width) {
            return screen;
        }
    }
}
