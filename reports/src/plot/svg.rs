//! Figures as SVG, written without a library, so that one file serves light and dark themes and the same figure always gives the same
//! bytes (docs/decisions/0006-own-svg.md).
//!
//! Marks have classes and no colours. [`style`] gives the classes their colours: once in a page with many figures, or in each
//! file that stands alone.

use std::fmt::Write;

use super::{Figure, Plot, plane, rows};
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
    fn width(self) -> f64 {
        match self {
            Self::Wide => 760.0,
            Self::Narrow => 372.0,
        }
    }
}

/// Light or dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// Dark ink on light paper.
    Light,
    /// Light ink on dark paper.
    Dark,
}

/// Colours of series: those of Okabe and Ito, which people with any colour vision tell apart, with two more, and lighter ones
/// for dark paper.
const LIGHT: [&str; 10] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31", "#666666", "#aaaaaa"];
const DARK: [&str; 10] =
    ["#4ca6e8", "#ff8c42", "#2fc99a", "#e8a0c8", "#f2b632", "#9ad4f7", "#b48ad6", "#c9a766", "#a0a0a0", "#6f6f6f"];

/// The CSS rules of all classes for a theme, for elements inside `.fig`.
pub fn style(theme: Theme) -> String {
    let (colors, paper, ink, soft, grid) = match theme {
        Theme::Light => (LIGHT, "#ffffff", "#1b1f24", "#57606a", "#d8dee4"),
        Theme::Dark => (DARK, "#14171c", "#e6e9ee", "#9aa4b2", "#333a44"),
    };
    let mut text = format!(
        ".fig .p{{fill:{paper}}}.fig text{{fill:{ink}}}.fig .m{{fill:{soft}}}.fig .g{{stroke:{grid}}}\
         .fig .a{{stroke:{soft}}}.fig .k{{stroke:{ink}}}.fig .e,.fig .h{{stroke:{paper}}}"
    );
    for (place, color) in colors.iter().enumerate() {
        let _ = write!(text, ".fig .f{place}{{fill:{color}}}.fig .s{place}{{stroke:{color}}}");
    }
    text
}

/// The CSS rules that do not depend on the theme.
pub const SHAPES: &str = ".fig text{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Liberation Sans\",\"DejaVu Sans\",\
Arial,sans-serif;font-variant-numeric:tabular-nums}.fig .b{font-weight:600}.fig .g,.fig .a,.fig .k{stroke-width:1;fill:none}\
.fig .e{stroke-width:1}.fig .l{fill:none;stroke-width:2;stroke-linejoin:round}.fig .w{stroke-width:2}\
.fig .d{stroke-dasharray:5 4}.fig .o{fill-opacity:.35}.fig .q{fill-opacity:.5}.fig .n{fill:none;stroke-width:2}.fig .c{stroke-width:1.5;stroke-opacity:.45}.fig .h{stroke-width:4;paint-order:stroke;stroke-linejoin:round}";

/// A file that stands alone. It follows the reader's theme in a browser and is light elsewhere.
pub fn file(figure: &Figure) -> String {
    file_with_style(figure, &format!("@media (prefers-color-scheme:dark){{{}}}", style(Theme::Dark)))
}

/// A file that stands alone and has one theme, for programs that draw it.
pub fn file_in(figure: &Figure, theme: Theme) -> String {
    match theme {
        Theme::Light => file_with_style(figure, ""),
        Theme::Dark => file_with_style(figure, &style(Theme::Dark)),
    }
}

fn file_with_style(figure: &Figure, more: &str) -> String {
    let canvas = draw(figure, Layout::Wide);
    let (width, height) = (canvas.width, canvas.height);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fig\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n<title>{}</title>\n<desc>{}</desc>\n\
         <style>{SHAPES}{}{more}</style>\n<rect class=\"p\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
        xml(&figure.title),
        xml(&figure.title),
        xml(&figure.caption),
        style(Theme::Light),
        canvas.body
    )
}

/// A part of a page that has [`style`] and [`SHAPES`].
pub fn inline(figure: &Figure, layout: Layout) -> String {
    let canvas = draw(figure, layout);
    let class = if layout == Layout::Wide { "fig wide" } else { "fig narrow" };
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
        canvas.width,
        canvas.height,
        xml(&figure.title),
        canvas.body
    )
}

fn draw(figure: &Figure, layout: Layout) -> Canvas {
    let mut canvas = Canvas { width: layout.width(), height: 0.0, body: String::new() };
    match &figure.plot {
        Plot::Intervals(plot) => rows::intervals(&mut canvas, plot, layout),
        Plot::Stacks(plot) => rows::stacks(&mut canvas, plot, layout),
        Plot::Spreads(plot) => rows::spreads(&mut canvas, plot, layout),
        Plot::Waterfalls(plot) => rows::waterfalls(&mut canvas, plot),
        Plot::Lines(plot) => plane::lines(&mut canvas, plot),
        Plot::Scatter(plot) => plane::scatter(&mut canvas, plot),
    }
    canvas
}

/// The SVG elements that were drawn so far.
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
