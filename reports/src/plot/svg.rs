//! Figures as SVG, written without a library, so that one file serves light and dark themes and the same figure always gives the same
//! bytes (docs/decisions/0006-own-svg.md).
//!
//! Marks have classes and no colours. [`style`] gives the classes their colours: once in a page with many figures, or in each
//! file that stands alone.

use std::fmt::Write;

use super::canvas::Canvas;
pub use super::canvas::Layout;
use super::{Figure, Plot, plane, rows, timelines};
use crate::text::xml;

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
    let mut canvas = Canvas { width: layout.width(), ..Canvas::default() };
    match &figure.plot {
        Plot::Intervals(plot) => rows::intervals(&mut canvas, plot, layout),
        Plot::Stacks(plot) => rows::stacks(&mut canvas, plot, layout),
        Plot::Spreads(plot) => rows::spreads(&mut canvas, plot, layout),
        Plot::Waterfalls(plot) => rows::waterfalls(&mut canvas, plot),
        Plot::Lines(plot) => plane::lines(&mut canvas, plot),
        Plot::Scatter(plot) => plane::scatter(&mut canvas, plot),
        Plot::Timelines(plot) => timelines::draw(&mut canvas, plot),
    }
    canvas
}
