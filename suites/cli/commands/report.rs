//! `report`: the comparison of records, as text, as a page, and its plots as files.

use super::{document_text, existing, filter, json_lines, notebook, open, print, print_json, room, shortened};
use crate::png::Painter;
use crate::{Format, Global, ReportArgs};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use zbench_host::exit;
use zbench_reports::document::Block;
use zbench_reports::plot::svg::{self, Theme};
use zbench_reports::record::Status;
use zbench_reports::render::markdown;
use zbench_reports::screen::Room;
use zbench_reports::{Document, IndexEntry, Record, grid_report, units};

/// `zbench report [IDS|FILTER]`.
pub fn report(global: &Global, arguments: &ReportArgs) -> Result<u8> {
    let format = format(global, arguments)?;
    let notebook = existing(global)?;
    let index = notebook::index(&notebook)?;
    let mut chosen = filter::choose(&notebook, &index, &arguments.what, jiff::Timestamp::now())?;
    // Records that are named by id are always reported.
    let names_ids = arguments.what.iter().any(|word| !word.contains('='));
    let left_out = if arguments.other_hardware || names_ids { None } else { leave_out_other_hardware(&mut chosen) };
    if let Some(words) = &left_out {
        zbench_host::say!("{words}");
    }
    if chosen.is_empty() {
        zbench_host::say!("no record is left to report on; `zbench list` shows what there is");
        return Ok(exit::NOT_MEASURED);
    }
    let chosen = notebook.whole(chosen)?;
    let needs_document = format != Format::Json || arguments.figures.is_some();
    let room = room(&Global { format, ..global.clone() });
    let document = if needs_document { comparison(&chosen, left_out, room) } else { Document::default() };
    let pictures = match &arguments.figures {
        Some(folder) => draw(&document, folder, arguments.png)?,
        None => BTreeMap::new(),
    };
    let text = match format {
        Format::Json => json_lines(&chosen)?,
        Format::Markdown if !pictures.is_empty() => {
            let beside = arguments.output.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
            markdown::render_linked(&document, &|figure| Some(link(beside, pictures.get(&figure.name)?)))
        }
        // In a terminal one screen, unless everything was asked for.
        Format::Table if !global.full && arguments.output.is_none() => document_text(global, &shortened(&document)),
        _ => document_text(&Global { format, ..global.clone() }, &document),
    };
    let output = arguments.output.clone().or_else(|| arguments.open.then(|| open::temporary(ending(format))));
    match &output {
        Some(path) => {
            write_whole(path, text.as_bytes())?;
            zbench_host::say!("wrote {}", path.display());
        }
        None if format == Format::Json => print_json(&text)?,
        None => print(&text)?,
    }
    if let (Some(path), true) = (&output, arguments.open) {
        open::open(path);
    }
    Ok(exit::SUCCESS)
}

fn comparison(records: &[Record], left_out: Option<String>, room: Room) -> Document {
    let question = records.iter().find_map(|record| record.extra.get("question").and_then(Value::as_str));
    let mut document = grid_report::comparison_in(records, question, room);
    // Below the question, which is the first block.
    let place = document.blocks.len().min(1);
    document.blocks.splice(place..place, left_out.map(Block::Paragraph));
    document
}

/// Takes out skipped records of a device on which nothing here was measured, so that a mistaken run does not relabel every
/// cell; what to say of it, if there were some.
fn leave_out_other_hardware(records: &mut Vec<&IndexEntry>) -> Option<String> {
    const DEVICE: &str = "hardware.device";
    let mut measured: Vec<Value> = records
        .iter()
        .filter(|record| record.is_measured())
        .filter_map(|record| record.setting(DEVICE).cloned())
        .collect();
    measured.dedup();
    if measured.is_empty() {
        return None;
    }
    let (mut count, mut devices) = (0, BTreeSet::new());
    records.retain(|record| {
        // A combination that is no cell may state no device.
        let device = record.setting(DEVICE).filter(|device| record.status == Status::Skipped && !device.is_null());
        let Some(other) = device.filter(|device| !measured.contains(device)) else { return true };
        count += 1;
        devices.insert(other.to_string());
        false
    });
    let (noun, are) = if count == 1 { ("record", "is") } else { ("records", "are") };
    let devices: Vec<String> = devices.into_iter().collect();
    (count > 0).then(|| {
        format!(
            "{count} skipped {noun} of other hardware ({DEVICE} = {}) {are} left out; --other-hardware reports them, too.",
            units::list(&devices)
        )
    })
}

/// The file extension of a format.
const fn ending(format: Format) -> &'static str {
    match format {
        Format::Html => "html",
        Format::Markdown => "md",
        Format::Csv => "csv",
        Format::Json => "json",
        Format::Table => "txt",
    }
}

/// The format of `--format`, else that of the file's extension.
fn format(global: &Global, arguments: &ReportArgs) -> Result<Format> {
    let Some(path) = arguments.output.as_ref().filter(|_| !global.format_given) else {
        let is_page = arguments.open && !global.format_given;
        return Ok(if is_page { Format::Html } else { global.format });
    };
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    Ok(match ending.as_str() {
        "html" | "htm" => Format::Html,
        "md" | "markdown" => Format::Markdown,
        "csv" => Format::Csv,
        "json" | "jsonl" => Format::Json,
        "txt" => Format::Table,
        _ => bail!(
            "-o {}: the ending does not say which form to write; end it in .html, .md, .csv, .json or .txt, or add --format",
            path.display()
        ),
    })
}

/// Writes every plot. Returns the SVG files by the plots' names.
fn draw(document: &Document, folder: &Path, png: bool) -> Result<BTreeMap<String, PathBuf>> {
    let painter = if png { Some(Painter::new()?) } else { None };
    std::fs::create_dir_all(folder)
        .with_context(|| format!("the folder {} for plots cannot be made", folder.display()))?;
    let mut written = BTreeMap::new();
    for figure in document.figures() {
        let path = folder.join(format!("{}.svg", figure.name));
        write_whole(&path, svg::file(figure).as_bytes())?;
        if let Some(painter) = &painter {
            let picture = painter.paint(&figure.name, &svg::file_in(figure, Theme::Light))?;
            write_whole(&path.with_extension("png"), &picture)?;
        }
        written.insert(figure.name.clone(), path);
    }
    let count = written.len();
    match count {
        0 => zbench_host::say!("these records have no data for plots; {} stays empty", folder.display()),
        _ => zbench_host::say!(
            "wrote {count} plots{} into {}",
            if png { ", as SVG and PNG," } else { "" },
            folder.display()
        ),
    }
    Ok(written)
}

/// How a text in the folder `from` names a file: from there on if it is below, else as it was given.
fn link(from: &Path, file: &Path) -> String {
    let from = from.strip_prefix("./").unwrap_or(from);
    let file = file.strip_prefix("./").unwrap_or(file);
    let below = file.strip_prefix(from).map(Path::to_path_buf);
    let path = below.or_else(|_| std::path::absolute(file)).unwrap_or_else(|_| file.to_path_buf());
    path.to_string_lossy().into_owned()
}

/// Writes a file that is there whole or not at all: beside it first, then under its name. What is no file but a pipe or a
/// device is written to as it is.
///
/// # Errors
/// The folder is not there or may not be written, or the disk is full; then what stood under the name still does.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|kind| !kind.is_file() && !kind.is_dir()) {
        let written = std::fs::OpenOptions::new().write(true).open(path).and_then(|mut device| device.write_all(bytes));
        return written.with_context(|| format!("{} cannot be written", path.display()));
    }
    let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
        bail!("{} is no name of a file to write", path.display());
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("{} cannot be written: there is no folder {}; make it first", path.display(), folder.display());
    }
    let beside = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    });
    if written.is_err() {
        // It may not exist; then there is nothing to remove.
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(|| format!("{} cannot be written", path.display()))
}
