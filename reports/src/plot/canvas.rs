//! What all kinds of plots draw on: texts, lines, marks and legends as SVG elements.

use std::fmt::Write;

use crate::text::xml;

/// The width for which a figure is laid out. Letters have one size, so a figure for a page would be unreadable on a phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A page or a screen: names are left of their rows.
    Wide,
    /// A phone: names are above their rows.
    Narrow,
}

impl Layout {
    /// Width of the drawing, in units of about a pixel.
    pub(super) fn width(self) -> f64 {
        match self {
            Self::Wide => 760.0,
            Self::Narrow => 372.0,
        }
    }
}

/// The SVG elements that were drawn so far.
#[derive(Default)]
pub(super) struct Canvas {
    pub width: f64,
    pub height: f64,
    pub body: String,
}

/// Which point of a text is at its place.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{class}>{}</text>", xml(text));
    }

    /// A text that reads upwards, centred here.
    pub fn upward(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(
            self.body,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\" class=\"{class}\">{}</text>",
            xml(text)
        );
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>");
    }

    pub fn path(&mut self, class: &str, path: &str) {
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            width.max(0.0),
            height.max(0.0)
        );
    }

    pub fn circle(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let _ = writeln!(self.body, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\"/>");
    }

    /// Begins a group of marks with this tooltip; [`Self::end`] ends it.
    pub fn begin(&mut self, tooltip: &str) {
        let _ = writeln!(self.body, "<g><title>{}</title>", xml(tooltip));
    }

    pub fn end(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// A mark of one of several shapes, so that series differ without colour.
    pub fn mark(&mut self, x: f64, y: f64, shape: usize, class: &str) {
        let r = 4.5;
        let path = match shape % 6 {
            0 => return self.circle(x, y, r, class),
            1 => format!("M{:.1} {:.1}h{:.1}v{:.1}h-{:.1}z", x - r + 0.5, y - r + 0.5, 8.0, 8.0, 8.0),
            2 => format!("M{x:.1} {:.1}l{:.1} {:.1}h-{:.1}z", y - r - 0.5, r + 0.5, 9.0, 2.0 * r + 1.0),
            3 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
            4 => format!("M{x:.1} {:.1}l{:.1} -{:.1}h-{:.1}z", y + r + 0.5, r + 0.5, 9.0, 2.0 * r + 1.0),
            _ => format!("M{:.1} {:.1}h3v-3h3v3h3v3h-3v3h-3v-3h-3z", x - 4.5, y - 1.5),
        };
        self.path(class, &path);
    }

    /// Draws entries side by side, in as many lines as they need, and returns the place below them. `draw` draws the mark of an
    /// entry, 16 wide, around the middle that it is given.
    pub fn legend(&mut self, top: f64, entries: &[&str], draw: impl Fn(&mut Self, usize, f64, f64)) -> f64 {
        if entries.is_empty() {
            return top;
        }
        let (mut x, mut y) = (4.0, top + 10.0);
        for (place, entry) in entries.iter().enumerate() {
            let entry = shortened(entry, self.width - 40.0);
            let width = 22.0 + breadth(&entry) + 16.0;
            if x > 4.0 && x + width - 16.0 > self.width {
                (x, y) = (4.0, y + 18.0);
            }
            draw(self, place, x + 8.0, y);
            self.text(x + 22.0, y + 4.0, Anchor::Start, "", &entry);
            x += width;
        }
        y + 18.0
    }
}

/// About how wide a text is at 12 units of height: fonts differ, so this is rather too wide.
pub(super) fn breadth(text: &str) -> f64 {
    let of = |symbol: char| match symbol {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 3.8,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | ' ' | '-' => 4.8,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '=' | '+' => 10.2,
        symbol if symbol.is_ascii_uppercase() => 8.4,
        symbol if symbol.is_ascii() => 7.1,
        symbol if (symbol as u32) < 0x1100 => 7.6,
        _ => 12.5,
    };
    text.chars().map(of).sum()
}

/// The text, cut at the end if it is too wide.
pub(super) fn shortened(text: &str, room: f64) -> String {
    if breadth(text) <= room {
        return text.to_string();
    }
    let mut kept = String::new();
    let mut used = breadth("…");
    for symbol in text.chars() {
        used += breadth(symbol.encode_utf8(&mut [0; 4]));
        if used > room {
            break;
        }
        kept.push(symbol);
    }
    kept.trim_end().to_string() + "…"
}

/// The text in at most two lines of that width, broken at a space where there is one.
pub(super) fn two_lines(text: &str, room: f64) -> Vec<String> {
    if breadth(text) <= room {
        return vec![text.to_string()];
    }
    let fits = |&end: &usize| breadth(text[..end].trim_end()) <= room;
    let spaces: Vec<usize> = text.match_indices(' ').map(|(place, _)| place + 1).collect();
    match spaces.into_iter().rfind(fits) {
        Some(end) => vec![text[..end].trim_end().to_string(), shortened(&text[end..], room)],
        None => vec![shortened(text, room)],
    }
}
