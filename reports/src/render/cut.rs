//! A document on one screen. Documents begin with their answer, so the end is cut.

use super::terminal::{Terminal, render};
use crate::document::{Block, Document, Table};
use crate::screen::Room;

/// The beginning of a document for which there is room, and `more` at its end if something was cut. Lists and tables are cut
/// between items and rows, never within a paragraph.
pub fn cut(document: &Document, room: Room, more: &str) -> Document {
    let fits = |document: &Document, lines: usize| height(document, room.width) <= lines;
    if fits(document, room.lines) {
        return document.clone();
    }
    // The last line, and a blank one before it.
    let most = room.lines.saturating_sub(2);
    let mut kept = Document::new(document.title.clone());
    for block in &document.blocks {
        kept.blocks.push(block.clone());
        if fits(&kept, most) {
            continue;
        }
        kept.blocks.pop();
        let items = match block {
            Block::List(items) => items.len(),
            Block::Table(table) => table.rows.len(),
            _ => 0,
        };
        let part = |count: usize| match block {
            Block::List(items) => Block::List(items[..count].to_vec()),
            Block::Table(table) => Block::Table(Table {
                rows: table.rows[..count].to_vec(),
                caption: format!("{} The first {count} of {items}:", table.caption).trim().into(),
                ..table.clone()
            }),
            other => other.clone(),
        };
        for count in (1..items).rev() {
            kept.blocks.push(part(count));
            if fits(&kept, most) {
                break;
            }
            kept.blocks.pop();
        }
        break;
    }
    while matches!(kept.blocks.last(), Some(Block::Heading { .. })) {
        kept.blocks.pop();
    }
    kept.paragraph(more);
    kept
}

/// Number of lines of a document at this width.
pub fn height(document: &Document, width: u16) -> usize {
    render(document, Terminal { width, color: false }).lines().count()
}
