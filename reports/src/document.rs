//! Documents without a format: reports make them, renderers turn them into text for a terminal, Markdown, CSV, JSON or HTML.

use serde::Serialize;

use crate::plot::Figure;
use crate::screen::Screen;
pub use crate::table::{Align, Column, Entry, Table, Tone};

/// A titled sequence of blocks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Document {
    /// What it is about.
    pub title: String,
    /// Its short form, which comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub screen: Option<Screen>,
    /// Its parts, in order; the details where there is a screen.
    pub blocks: Vec<Block>,
}

/// A part of a document. Kinds may be added, so a renderer outside of this crate needs a default arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", content = "content", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Block {
    /// A heading below the title; level 1 is the highest.
    Heading {
        /// From 1.
        level: u8,
        /// The words.
        text: String,
    },
    /// Running text.
    Paragraph(String),
    /// Items of a list.
    List(Vec<String>),
    /// Columns and rows.
    Table(Table),
    /// Preformatted text: a command, a configuration.
    Code(String),
    /// A plot with its title and caption.
    Figure(Figure),
}

impl Document {
    /// An empty document.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), screen: None, blocks: Vec::new() }
    }

    /// Adds a heading of the first level.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Heading { level: 1, text: text.into() });
    }

    /// Adds running text.
    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph(text.into()));
    }

    /// Adds running text, a paragraph for each of these.
    pub fn paragraphs(&mut self, texts: impl IntoIterator<Item = String>) {
        self.blocks.extend(texts.into_iter().map(Block::Paragraph));
    }

    /// Adds a list, unless it is empty.
    pub fn list(&mut self, items: Vec<String>) {
        if !items.is_empty() {
            self.blocks.push(Block::List(items));
        }
    }

    /// Adds a list under a heading, unless it is empty.
    pub fn headed_list(&mut self, heading: &str, items: Vec<String>) {
        if !items.is_empty() {
            self.heading(heading);
            self.list(items);
        }
    }

    /// Adds a table, if there is one.
    pub fn table(&mut self, table: impl Into<Option<Table>>) {
        self.blocks.extend(table.into().map(Block::Table));
    }

    /// Adds a table under a heading, unless it has no rows.
    pub fn headed_table(&mut self, heading: &str, table: impl Into<Option<Table>>) {
        if let Some(table) = table.into().and_then(Table::non_empty) {
            self.heading(heading);
            self.table(table);
        }
    }

    /// Adds preformatted text.
    pub fn code(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Code(text.into()));
    }

    /// Adds a plot, if there is one.
    pub fn figure(&mut self, figure: Option<Figure>) {
        self.blocks.extend(figure.map(Block::Figure));
    }

    /// The short form alone, or the whole document where there is none.
    pub fn short(mut self) -> Self {
        if self.screen.is_some() {
            self.blocks.clear();
        }
        self
    }

    /// The plots, in order.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        let first = self.screen.iter().flat_map(|screen| &screen.figures);
        first.chain(self.blocks.iter().filter_map(|block| match block {
            Block::Figure(figure) => Some(figure),
            _ => None,
        }))
    }

    /// The tables, in order.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(table),
            _ => None,
        })
    }
}
