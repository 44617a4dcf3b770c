//! A document on one screen: documents begin with their answer, so what is cut is the end.

use super::terminal::{Terminal, render};
use crate::document::{Block, Document};
use crate::screen::Room;

/// The beginning of a document, as much as there is room for, ending with `more` where something was cut. Lists and tables
/// are cut between their items and rows; nothing is cut within a paragraph.
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
        let part = |count: usize| match block.clone() {
            Block::List(mut items) => {
                items.truncate(count);
                Block::List(items)
            }
            Block::Table(mut table) => {
                table.rows.truncate(count);
                table.caption = [&table.caption[..], &format!("The first {count} of {items}:")].join(" ").trim().into();
                Block::Table(table)
            }
            other => other,
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

/// Lines of a document at so many columns.
pub fn height(document: &Document, width: u16) -> usize {
    render(document, Terminal { width, color: false }).lines().count()
}
