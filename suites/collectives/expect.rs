//! Published figures of machines, and what a measurement makes beside them.

use serde::Deserialize;
use zbench_config::units;
use zbench_reports::collectives::{Section, Settings};
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::units as text;

const TABLE: &str = include_str!("../../configs/interconnects.toml");

/// A measurement passes from this share of the published figure, as nccl-tests' own limit has it.
pub const PASS: f64 = 0.9;
/// What is normal of a link's one-way rating, by the ML Engineering book.
pub const NORMAL_OF_RATED: f64 = 0.8;

/// The sources by their short names.
const SOURCES: [(&str, &str); 2] = [
    ("mle", "Stas Bekman, ML Engineering, network (github.com/stas00/ml-engineering at 744d01e1)"),
    ("slides", "NVIDIA's NCCL talks, GTC 2024 and 2025, as reproduced in ML Engineering"),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    machine: Vec<Machine>,
}

/// A machine that others have measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What `--expect` calls it.
    pub name: String,
    /// What it is.
    pub about: String,
    /// One-way bandwidth of a link by its maker, GB/s.
    pub rated_gb_s: Option<f64>,
    /// What was measured.
    pub figures: Vec<Figure>,
}

/// One published number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Of which collective.
    pub collective: String,
    /// Over how many ranks, if the source says.
    pub ranks: Option<usize>,
    /// On how many nodes.
    pub nodes: Option<usize>,
    /// For messages of this size; large ones where absent.
    pub size: Option<String>,
    /// Bus bandwidth, GB/s.
    pub busbw: Option<f64>,
    /// Time of a call.
    pub time_us: Option<f64>,
    /// Whether the switch reduced.
    #[serde(default)]
    pub in_switch: bool,
    /// `duplex`: both directions added up.
    pub bound: Option<String>,
    /// How the number is known.
    pub provenance: String,
    /// Where it was published.
    pub source: String,
}

impl Figure {
    fn source_name(&self) -> &str {
        SOURCES.iter().find(|(short, _)| *short == self.source).map_or(self.source.as_str(), |(_, long)| long)
    }
}

/// All machines.
///
/// # Errors
/// The compiled-in table is broken; a test sees to it that it is not.
pub fn machines() -> Result<Vec<Machine>, String> {
    toml::from_str::<File>(TABLE)
        .map(|file| file.machine)
        .map_err(|error| format!("configs/interconnects.toml: {error}"))
}

/// The machine of that name, whatever its case.
///
/// # Errors
/// The names that there are.
pub fn machine(name: &str) -> Result<Machine, String> {
    let all = machines()?;
    let names: Vec<String> = all.iter().map(|machine| machine.name.clone()).collect();
    let found = all.into_iter().find(|machine| machine.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("--expect `{name}`: there are {} (`--expect list` shows them)", text::list(&names)))
}

/// Everything in the table.
pub fn list(machines: &[Machine]) -> Document {
    let mut document = Document::new("Published figures of interconnects");
    let columns = vec![
        Column::words("machine"),
        Column::words("collective"),
        Column::numbers("ranks", ""),
        Column::words("size"),
        Column::numbers("busbw", "GB/s"),
        Column::numbers("rated one way", "GB/s"),
        Column::numbers("of rated", "fraction"),
        Column::numbers("time", "us"),
        Column::words("remark"),
        Column::words("known by"),
        Column::words("source").for_machines(),
    ];
    let mut table = Table::new("interconnects", columns);
    for machine in machines {
        for figure in &machine.figures {
            let remark = match (figure.in_switch, figure.bound.as_deref()) {
                (true, _) => "reduced in the switch",
                (_, Some(bound)) => bound,
                _ => "",
            };
            let share = figure.busbw.zip(machine.rated_gb_s).map(|(busbw, rated)| busbw / rated);
            table.row(vec![
                Entry::words(machine.name.clone()),
                Entry::words(figure.collective.clone()),
                figure.ranks.map_or_else(Entry::nothing, |ranks| Entry::whole(ranks as u64, ranks.to_string())),
                Entry::words(figure.size.clone().unwrap_or_else(|| "large".into())),
                Entry::maybe(figure.busbw, text::number),
                Entry::maybe(machine.rated_gb_s, text::number),
                Entry::maybe(share, text::percent),
                Entry::maybe(figure.time_us, text::number),
                Entry::words(remark),
                Entry::words(figure.provenance.clone()),
                Entry::words(figure.source_name().to_string()),
            ]);
        }
    }
    document.table(table);
    document.list(SOURCES.map(|(short, long)| format!("{short}: {long}")).to_vec());
    document
}

/// What a section makes beside a machine's figures: a sentence for each figure of its collective, the nearest size taken.
pub fn compare(machine: &Machine, section: &Section, settings: &Settings) -> Vec<String> {
    let mut said = Vec::new();
    let best = section.rows.iter().flat_map(|row| row.sides().map(move |side| (row.size, side)));
    let best = best.max_by(|a, b| a.1.busbw.total_cmp(&b.1.busbw));
    for figure in machine.figures.iter().filter(|figure| figure.collective == section.collective) {
        let Some(expected) = figure.busbw.filter(|_| figure.bound.is_none()) else { continue };
        let size = figure.size.as_deref().and_then(units::bytes);
        let Some((at, found)) = nearest(section, size) else { continue };
        let share = found / expected;
        let other_ranks = match figure.ranks {
            Some(ranks) if ranks != settings.group_ranks => {
                format!(" (published for {ranks} ranks, here {})", settings.group_ranks)
            }
            _ => String::new(),
        };
        let switch = if figure.in_switch { ", reduced in the switch" } else { "" };
        let verdict = if share >= PASS { "passes" } else { "is BELOW" };
        said.push(format!(
            "{}: busbw {} GB/s at {} is {} of the published {} GB/s{switch}{other_ranks}; {verdict} the band from {} on [{}, {}]",
            machine.name,
            text::number(found),
            text::memory(at as f64),
            text::percent(share),
            text::number(expected),
            text::percent(PASS),
            figure.provenance,
            figure.source_name()
        ));
    }
    if let (Some(rated), Some((size, side))) = (machine.rated_gb_s, best) {
        said.push(format!(
            "{}: best busbw {} GB/s at {} is {} of the link's {} GB/s one way; about {} is normal",
            machine.name,
            text::number(side.busbw),
            text::memory(size as f64),
            text::percent(side.busbw / rated),
            text::number(rated),
            text::percent(NORMAL_OF_RATED)
        ));
        if side.busbw > rated {
            said.push(
                "busbw is above the link's rating. Its factor assumes a ring, in which each rank sends every byte itself; a \
                 switch that reduces (NVLink SHARP) needs fewer bytes on the link. See the wire bytes for what was really sent."
                    .into(),
            );
        }
    }
    if said.is_empty() {
        said.push(format!("{}: no published figure of {}", machine.name, section.collective));
    }
    said
}

/// Size and best bus bandwidth of the row whose size is nearest to `size` in proportion; of the largest row where absent.
fn nearest(section: &Section, size: Option<u64>) -> Option<(u64, f64)> {
    let busbw = |row: &zbench_reports::collectives::Row| row.sides().map(|side| side.busbw).fold(0.0, f64::max);
    let rows = section.rows.iter().filter(|row| row.size > 0);
    let found = match size {
        None => rows.max_by_key(|row| row.size),
        Some(size) => {
            let distance = |row: &zbench_reports::collectives::Row| (row.size as f64 / size as f64).ln().abs();
            rows.min_by(|a, b| distance(a).total_cmp(&distance(b)))
        }
    };
    found.map(|row| (row.size, busbw(row)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_reports::collectives::{Row, Side};

    fn section(busbw: f64) -> (Section, Settings) {
        let side = Side { time_us: 1.0, busbw, ..Side::default() };
        let row = Row {
            size: 16 << 30,
            count: 4 << 30,
            dtype: "float".into(),
            redop: "sum".into(),
            root: -1,
            out_of_place: Some(side),
            in_place: None,
            algorithm: "ring".into(),
            wire_bytes_rank: 0.0,
            wire_bytes_link: 0.0,
            iterations: 20,
            timestamp: String::new(),
        };
        let section = Section { collective: "all_reduce".into(), rows: vec![row], ..Section::default() };
        (section, Settings { group_ranks: 8, ..Settings::default() })
    }

    #[test]
    fn the_table_is_whole() {
        let all = machines().unwrap();
        assert!(all.len() >= 10);
        for figure in all.iter().flat_map(|machine| &machine.figures) {
            assert!(super::super::collective::Collective::ALL.iter().any(|c| c.name() == figure.collective));
            assert!(figure.busbw.is_some() != figure.time_us.is_some(), "{figure:?}");
            assert!(["read", "read-figure", "read-secondary"].contains(&figure.provenance.as_str()));
            assert!(figure.size.as_deref().is_none_or(|size| units::bytes(size).is_some()), "{figure:?}");
        }
        assert!(machine("h100-sxm").is_ok() && machine("abacus").unwrap_err().contains("H100-SXM"));
    }

    #[test]
    fn shares_bands_and_ratings_are_said() {
        let h200 = machine("H200-SXM").unwrap();
        let (rows, settings) = section(367.2);
        let said = compare(&h200, &rows, &settings).join("\n");
        assert!(said.contains("100.0 % of the published 367 GB/s; passes"), "{said}");
        assert!(said.contains("76.5 % of the published 480 GB/s, reduced in the switch; is BELOW"), "{said}");
        assert!(said.contains("81.6 % of the link's 450 GB/s one way") && !said.contains("assumes a ring"), "{said}");
        let (rows, settings) = section(480.0);
        assert!(compare(&h200, &rows, &settings).join("\n").contains("assumes a ring"));
    }
}
