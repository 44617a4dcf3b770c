//! Stored values, what differs from them, and dumps in full.

use super::cells::Case;
use super::sections::{Section, Taken};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What values depend on: the instructions of the kernels, or what runs CUDA. A letter and a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(usize);

const LEVELS: [(char, &str); 7] = [
    ('p', "portable"),
    ('2', "avx2"),
    ('5', "avx512"),
    ('b', "avx512-bf16"),
    ('a', "amx-bf16"),
    ('c', "cuda-on-the-processor"),
    ('g', "cuda-on-a-gpu"),
];

impl Level {
    pub fn all() -> impl Iterator<Item = Level> {
        (0..LEVELS.len()).map(Level)
    }

    pub fn named(name: &str) -> Level {
        let found = Level::all().find(|level| level.name() == name);
        found.unwrap_or_else(|| panic!("the level {name} has no letter in the golden dump; add it to {}", file!()))
    }

    pub fn name(self) -> &'static str {
        LEVELS[self.0].1
    }

    fn letter(self) -> char {
        LEVELS[self.0].0
    }
}

/// A short hash of a section.
pub fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_string()
}

/// Hashes of a cell on a level, in the order of [`Section::ALL`].
pub fn hashes(taken: &Taken) -> Vec<(Section, String)> {
    Section::ALL.into_iter().map(|section| (section, hash(&taken.text(section)))).collect()
}

/// Hashes by cell, section and level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored(BTreeMap<String, BTreeMap<Section, BTreeMap<Level, String>>>);

const HEAD: &str = "\
# The golden dump of the engine: of each cell the hash of each section, by the levels it was made on. Nobody edits this file;
# golden::bless writes it (docs/ci.md).
";

impl Stored {
    pub fn parse(text: &str) -> Stored {
        let (mut stored, mut cell) = (Stored::default(), String::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix("cell ") {
                cell = name.to_string();
                stored.0.insert(cell.clone(), BTreeMap::new());
                continue;
            }
            let mut words = line.split(' ');
            let section = words.next().and_then(Section::of).unwrap_or_else(|| panic!("no section: {line}"));
            for word in words {
                let (letters, hash) = word.split_once('=').unwrap_or_else(|| panic!("no value: {line}"));
                for letter in letters.chars() {
                    let level = Level::all().find(|level| level.letter() == letter);
                    let level = level.unwrap_or_else(|| panic!("no level {letter}: {line}"));
                    stored.put(&cell, section, level, hash.to_string());
                }
            }
        }
        stored
    }

    pub fn put(&mut self, cell: &str, section: Section, level: Level, hash: String) {
        self.0.entry(cell.into()).or_default().entry(section).or_default().insert(level, hash);
    }

    /// As a file, cells in this order; others are left out.
    pub fn write<'a>(&self, cells: impl IntoIterator<Item = &'a str>) -> String {
        let mut text = HEAD.to_string();
        let legend = Level::all().map(|level| format!("{} {}", level.letter(), level.name()));
        writeln!(text, "# Levels: {}.", legend.collect::<Vec<_>>().join(", ")).unwrap();
        for cell in cells {
            let Some(sections) = self.0.get(cell) else { continue };
            writeln!(text, "cell {cell}").unwrap();
            for (section, levels) in sections {
                let mut groups: Vec<(String, &str)> = Vec::new();
                for (level, hash) in levels {
                    match groups.iter_mut().find(|(_, known)| known == hash) {
                        Some((letters, _)) => letters.push(level.letter()),
                        None => groups.push((level.letter().into(), hash)),
                    }
                }
                let groups: Vec<String> = groups.iter().map(|(letters, hash)| format!("{letters}={hash}")).collect();
                writeln!(text, "{} {}", section.word(), groups.join(" ")).unwrap();
            }
        }
        text
    }

    /// Whether a cell has values of a level.
    pub fn has(&self, cell: &str, level: Level) -> bool {
        self.0.get(cell).is_some_and(|sections| sections.values().any(|levels| levels.contains_key(&level)))
    }

    pub fn cells(&self) -> BTreeSet<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// What became of a check.
#[derive(Debug, Default)]
pub struct Check {
    /// Cell, section and level of each value that is another.
    pub differences: Vec<String>,
    /// Levels with a value that was compared.
    pub checked: BTreeSet<Level>,
    /// Cells on a level without a stored value.
    pub without: BTreeMap<Level, usize>,
}

impl Check {
    /// Compares the hashes of a cell on a level.
    pub fn see(&mut self, stored: &Stored, cell: &str, level: Level, hashes: &[(Section, String)]) {
        let Some(sections) = stored.0.get(cell) else {
            self.differences.push(format!("cell \"{cell}\" is not stored"));
            return;
        };
        if sections.values().all(|levels| !levels.contains_key(&level)) {
            *self.without.entry(level).or_default() += 1;
            return;
        }
        self.checked.insert(level);
        for (section, is) in hashes {
            let was = sections.get(section).and_then(|levels| levels.get(&level));
            if was != Some(is) {
                let was = was.map_or("nothing", String::as_str);
                let (section, level) = (section.word(), level.name());
                self.differences.push(format!("cell \"{cell}\", section {section}, level {level}: was {was}, is {is}"));
            }
        }
    }

    /// A line for each level that was not checked at all or not for every cell, with the reason.
    pub fn not_checked(&self, here: &BTreeSet<Level>) -> Vec<String> {
        let reason = |level: Level| match (here.contains(&level), self.without.get(&level)) {
            (false, _) => Some("this machine lacks it".to_string()),
            (true, Some(cells)) => Some(format!("{cells} cells have no stored value of it")),
            (true, None) if !self.checked.contains(&level) => Some("no cell that ran has it".to_string()),
            (true, None) => None,
        };
        let line = |level: Level| Some(format!("not checked: level {} ({})", level.name(), reason(level)?));
        Level::all().filter_map(line).collect()
    }

    pub fn assert(&self) {
        let count = self.differences.len();
        let of = |section: Section| {
            let place = format!(", section {}, level ", section.word());
            let count = self.differences.iter().filter(|difference| difference.contains(&place)).count();
            format!("{} {count}", section.word())
        };
        let by_section = Section::ALL.map(of).join(", ");
        let shown = self.differences.iter().take(30).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(
            count == 0,
            "{count} values of the golden dump differ ({by_section}); docs/ci.md says how to see them in words\n{shown}"
        );
    }
}

/// A dump in full: lines by cell, section and level.
type Dump = BTreeMap<(String, Section), BTreeMap<Level, Vec<String>>>;

/// A cell in full, each text once with the levels that have it.
pub fn in_full(case: &Case, on_levels: &[(Level, Taken)]) -> String {
    let mut text = format!("== cell {}\n", case.name);
    for section in Section::ALL {
        let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
        for (level, taken) in on_levels {
            let lines = taken.text(section);
            match groups.iter_mut().find(|(_, known)| *known == lines) {
                Some((levels, _)) => levels.push(level.name()),
                None => groups.push((vec![level.name()], lines)),
            }
        }
        for (levels, lines) in groups {
            write!(text, "== section {} {}\n{lines}", section.word(), levels.join(" ")).unwrap();
        }
    }
    text
}

fn parse_dump(text: &str) -> Dump {
    let (mut dump, mut cell, mut place) = (Dump::new(), String::new(), None);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== cell ") {
            (cell, place) = (name.to_string(), None);
        } else if let Some(words) = line.strip_prefix("== section ") {
            let mut words = words.split(' ');
            let section = words.next().and_then(Section::of).unwrap_or_else(|| panic!("no section: {line}"));
            let levels: Vec<Level> = words.map(Level::named).collect();
            let lines = dump.entry((cell.clone(), section)).or_default();
            levels.iter().for_each(|level| drop(lines.insert(*level, Vec::new())));
            place = Some((section, levels));
        } else if let Some((section, levels)) = &place {
            let lines = dump.get_mut(&(cell.clone(), *section)).unwrap();
            levels.iter().for_each(|level| lines.get_mut(level).unwrap().push(line.to_string()));
        } else {
            panic!("a line outside of sections: {line}");
        }
    }
    dump
}

/// The first difference of each section between two dumps, in words, and how many there are; nothing where they are equal.
pub fn first_differences(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (parse_dump(old), parse_dump(new));
    let mut found: BTreeMap<Section, (usize, String)> = BTreeMap::new();
    let places: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for place in places {
        let (cell, section) = place;
        let (was, is) = (old.get(place), new.get(place));
        let levels: BTreeSet<Level> =
            [was, is].into_iter().flatten().flat_map(|levels| levels.keys().copied()).collect();
        for level in levels {
            let lines =
                |dump: Option<&BTreeMap<Level, Vec<String>>>| dump.and_then(|levels| levels.get(&level).cloned());
            let said = match (lines(was), lines(is)) {
                (Some(was), Some(is)) => match (0..was.len().max(is.len())).find(|at| was.get(*at) != is.get(*at)) {
                    None => continue,
                    Some(at) => {
                        let word =
                            |lines: &[String]| lines.get(at).map_or("nothing".into(), |line| format!("\"{line}\""));
                        format!("line {}: was {}, is {}", at + 1, word(&was), word(&is))
                    }
                },
                (Some(_), None) => "is in the old dump alone".into(),
                (None, _) => "is in the new dump alone".into(),
            };
            let said = format!("cell \"{cell}\", section {}, level {}, {said}", section.word(), level.name());
            found.entry(*section).or_insert((0, said)).0 += 1;
        }
    }
    let line = |(section, (count, first)): (Section, (usize, String))| {
        format!("section {}: {count} differ, the first: {first}", section.word())
    };
    found.into_iter().map(line).collect()
}
