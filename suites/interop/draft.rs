//! What an import collects: a row for each key of the file, the settings that came of them, and everything that is wrong.

use super::keys::{self, Fate, Kind, Spec};
use super::model::Named;
use super::node::{Node, Value};
use super::{Format, Row, Verdict};
use std::path::PathBuf;
use toml::Value as Toml;
use zbench_config::{ConfigError, Place, Problem, keys as ours};

/// What is said beside the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A preset, or a folder with config.json.
    pub model: Option<String>,
    /// Ranks in all.
    pub ranks: Option<u64>,
    /// Ranks of a node.
    pub ranks_per_node: Option<u64>,
    /// key=value of zbench.
    pub set: Vec<String>,
    /// The folder where the configuration's relative paths will start.
    pub folder: PathBuf,
}

/// A setting of zbench, and what it came of.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// Its key.
    pub key: &'static str,
    /// Its value.
    pub value: Toml,
    /// The key of the file, or the flag; empty where it follows from several or none.
    pub from: String,
    /// Why it is this, for a comment.
    pub comment: String,
}

/// An import under way, and done.
#[derive(Debug)]
pub struct Draft {
    /// What the file is.
    pub format: Format,
    /// The file.
    pub source: String,
    /// One for each key, in the order of the file.
    pub rows: Vec<Row>,
    /// The settings, one for each key.
    pub made: Vec<Made>,
    /// What a reader must know beside the rows.
    pub notes: Vec<String>,
    specs: &'static [Spec],
    found: Vec<Found>,
    problems: Vec<Problem>,
    /// Problems beyond those that are told.
    untold: usize,
}

/// What DeepSpeed's fields of stage 3 are called by, or not: their models take fields by name and by alias.
const STAGE_3: &str = "zero_optimization.stage3_";
/// Problems that are told of one file. Who has more has another kind of file, and reads none of them.
const MOST_PROBLEMS: usize = 50;

#[derive(Debug)]
struct Found {
    node: Node,
    kind: Kind,
    is_settled: bool,
}

impl Draft {
    /// Nothing yet.
    pub fn new(format: Format, source: &str) -> Draft {
        Draft {
            format,
            source: source.into(),
            rows: Vec::new(),
            made: Vec::new(),
            notes: Vec::new(),
            specs: match format {
                Format::DeepSpeed => &keys::DEEPSPEED,
                Format::Accelerate => &keys::ACCELERATE,
                Format::Torchtitan => &keys::TORCHTITAN,
                Format::HuggingFace => &[],
            },
            found: Vec::new(),
            problems: Vec::new(),
            untold: 0,
        }
    }

    /// Takes up every key of a table; what is unknown, deprecated or of a wrong type becomes a problem.
    pub fn walk(&mut self, table: &Node, section: &str) {
        for (key, node) in table.table().unwrap_or_default() {
            let path = if section.is_empty() { key.name.clone() } else { format!("{section}.{}", key.name) };
            let is_field = |spec: &&Spec| {
                section == "zero_optimization" && spec.key.strip_prefix(STAGE_3) == Some(key.name.as_str())
            };
            let specs = self.specs;
            let found = specs.iter().find(|spec| spec.key == path).or_else(|| specs.iter().find(is_field));
            let Some(spec) = found else {
                match self.unread(section, &key.name) {
                    Some(reason) => self.settled(&path, key.place, node, Verdict::Ignored, reason),
                    None => self.unknown(section, &path, &key.name, key.place),
                }
                continue;
            };
            if let Fate::Gone(instead) = spec.fate {
                self.problem(Some(key.place), &path, format!("is deprecated; {instead}"));
                continue;
            }
            let number = coerced(self.format, section, spec.kind, node);
            let node = number.as_ref().unwrap_or(node);
            let has_auto = self.format == Format::DeepSpeed || keys::AUTO.contains(&path.as_str());
            let may_be_auto = is_auto(node) && spec.fate != Fate::Section && has_auto;
            if !may_be_auto && let Err(message) = spec.check(node) {
                self.problem(Some(node.place), &path, message);
            } else if spec.fate == Fate::Section && node.table().is_some_and(|table| !table.is_empty()) {
                self.walk(node, &path);
            } else {
                self.take(spec, &path, key.place, node);
            }
        }
    }

    fn unknown(&mut self, section: &str, path: &str, name: &str, place: Place) {
        // What is not told needs no nearest spelling.
        if self.problems.len() >= MOST_PROBLEMS {
            self.untold += 1;
            return;
        }
        let shown: String = path.chars().take(80).collect();
        let beside = self.specs.iter().map(Spec::parts).filter(|(of, _)| *of == section).map(|(_, name)| name);
        let message = match (keys::nearest(name, beside), keys::elsewhere(self.specs, name)) {
            (_, Some(full)) => format!("unknown key here; take it out, or write it as {full} if that is meant"),
            (Some(near), None) => format!("unknown key; did you mean {near}?"),
            _ => "unknown key; take it out (docs/import-keys.md lists all keys)".to_string(),
        };
        self.problem(Some(place), &shown, message);
    }

    /// Why the program does not read a key that it does not refuse. A key that is nearly another one is taken for a slip and told.
    /// DeepSpeed 0.19.8 looks up what it knows at the top and refuses what it does not know inside most sections; accelerate 1.15.0
    /// refuses unknown keys at the top alone.
    fn unread(&self, section: &str, name: &str) -> Option<String> {
        let is_top = section.is_empty();
        if self.format == Format::Torchtitan {
            return None;
        }
        if section == "bf16" && self.specs.iter().any(|spec| spec.parts() == ("fp16", name)) {
            return Some(
                "It is of fp16; DeepSpeed 0.19.8 refuses it here, and releases that read bf16.enabled alone do not."
                    .into(),
            );
        }
        let of = |specs: &'static [Spec]| {
            specs.iter().map(Spec::parts).filter(move |(of, _)| *of == section).map(|(_, name)| name)
        };
        // activation_checkpointing is read key by key, as the top is.
        let is_looked_up = is_top || section == "activation_checkpointing";
        if is_looked_up == (self.format == Format::Accelerate) || keys::nearest(name, of(self.specs)).is_some() {
            return None;
        }
        if self.format == Format::Accelerate {
            let theirs = keys::DEEPSPEED.iter().find(|spec| spec.key == name && section == "deepspeed_config");
            let instead =
                theirs.map(|_| "; it belongs into a file that deepspeed_config_file names").unwrap_or_default();
            return Some(format!("accelerate does not read it in {section}{instead}."));
        }
        let remark = if name.starts_with('_') { ": a remark" } else { "" };
        let instead = keys::elsewhere(self.specs, name).map(|full| format!("; what it does read is {full}"));
        let place = if is_top { "at the top" } else { "there" };
        Some(format!("DeepSpeed does not read it {place}{remark}{}.", instead.unwrap_or_default()))
    }

    /// A row whose verdict is known at once.
    fn settled(&mut self, path: &str, place: Place, node: &Node, verdict: Verdict, reason: String) {
        let (key, value) = (path.to_string(), node.json());
        self.row(Row { key, value, verdict, becomes: Vec::new(), reason, place: Some(place) });
    }

    /// A row for a key. Those of a mapping get their verdict later; the table has it for the rest.
    fn take(&mut self, spec: &Spec, path: &str, place: Place, node: &Node) {
        let value = node.json();
        // YAML's quoted 'no' is a flag like the bare one.
        let said = if spec.kind == Kind::Bool { keys::truth(node).map(serde_json::Value::from) } else { None };
        let said = said.as_ref().unwrap_or(&value);
        let states_default =
            serde_json::from_str::<serde_json::Value>(spec.default).is_ok_and(|default| same(&default, said));
        let is_absent = matches!(node.value, Value::Null) || node.table().is_some_and(<[_]>::is_empty);
        let (verdict, reason, is_settled) = match spec.fate {
            _ if is_absent => (Verdict::Default, "It is empty, which is the same as leaving it out.".to_string(), true),
            Fate::Becomes if is_auto(node) => {
                let reason = "\"auto\" is filled in by the training script there; here zbench's default stands.";
                (Verdict::Default, reason.to_string(), true)
            }
            Fate::Ignored(why) | Fate::Without(why) if states_default => {
                (Verdict::Default, format!("It states its own default. {why}"), true)
            }
            Fate::Without(why) if is_auto(node) => {
                (Verdict::NoEquivalent, format!("\"auto\" is filled in by the training script there. {why}"), true)
            }
            Fate::Ignored(why) => (Verdict::Ignored, why.to_string(), true),
            Fate::Without(why) => (Verdict::NoEquivalent, why.to_string(), true),
            Fate::Becomes | Fate::Section | Fate::Gone(_) => (Verdict::Default, String::new(), false),
        };
        self.found.push(Found { node: node.clone(), kind: spec.kind, is_settled });
        self.rows.push(Row { key: path.into(), value, verdict, becomes: Vec::new(), reason, place: Some(place) });
    }

    /// A row whose verdict is known.
    pub fn row(&mut self, row: Row) {
        let node = Node { value: Value::Null, place: row.place.unwrap_or(Place { line: 1, column: 1 }) };
        self.found.push(Found { node, kind: Kind::Any, is_settled: true });
        self.rows.push(row);
    }

    fn at(&self, path: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.key == path)
    }

    /// The value of a key, unless it is absent, null or "auto".
    fn node(&self, path: &str) -> Option<&Node> {
        let node = &self.found[self.at(path)?].node;
        (!is_auto(node) && node.value != Value::Null).then_some(node)
    }

    /// Whether the file has the key, whatever it holds.
    pub fn has(&self, path: &str) -> bool {
        self.at(path).is_some()
    }

    /// Whether the file has a key below this one.
    pub fn has_below(&self, path: &str) -> bool {
        self.rows.iter().any(|row| row.key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
    }

    /// Whether it leaves the value to the training script.
    pub fn is_auto(&self, path: &str) -> bool {
        self.at(path).is_some_and(|at| is_auto(&self.found[at].node))
    }

    /// true or false.
    pub fn flag(&self, path: &str) -> Option<bool> {
        keys::truth(self.node(path)?)
    }

    /// A whole number from 0.
    pub fn count(&self, path: &str) -> Option<u64> {
        self.node(path)?.whole().and_then(|whole| u64::try_from(whole).ok())
    }

    /// A whole number.
    pub fn whole(&self, path: &str) -> Option<i64> {
        self.node(path)?.whole()
    }

    /// A number.
    pub fn number(&self, path: &str) -> Option<f64> {
        self.node(path)?.number()
    }

    /// Two numbers.
    pub fn pair(&self, path: &str) -> Option<[f64; 2]> {
        match &self.node(path)?.value {
            Value::List(list) => Some([list.first()?.number()?, list.get(1)?.number()?]),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.node(path)?.text()
    }

    /// Texts in a list, or one text with commas.
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.node(path).map(|node| &node.value) {
            Some(Value::List(list)) => list.iter().filter_map(Node::text).map(str::to_string).collect(),
            Some(Value::Text(text)) => {
                text.split(',').map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// One of a key's words, as its table has it.
    pub fn word(&self, path: &str) -> Option<&'static str> {
        match self.found[self.at(path)?].kind {
            Kind::Word(words) => keys::word(words, self.node(path)?),
            _ => None,
        }
    }

    fn settle(&mut self, path: &str, verdict: Verdict, reason: String) -> Option<usize> {
        let at = self.at(path).filter(|at| !self.found[*at].is_settled)?;
        (self.rows[at].verdict, self.rows[at].reason) = (verdict, reason);
        self.found[at].is_settled = true;
        Some(at)
    }

    /// A key of the file becomes settings.
    pub fn used(&mut self, path: &str, settings: &[(&str, Toml)], reason: impl Into<String>) {
        let reason = reason.into();
        for (key, value) in settings {
            self.set(key, value.clone(), path, path.to_string());
        }
        if let Some(at) = self.settle(path, Verdict::Used, reason) {
            self.rows[at].becomes = settings.iter().map(|(key, value)| (key.to_string(), shown(value))).collect();
        }
    }

    /// Sets the row of a key that is "auto". Settings are those that are assumed for it; the caller makes them.
    pub fn settle_auto(&mut self, path: &str, verdict: Verdict, settings: &[(&str, Toml)], reason: &str) {
        let Some(at) = self.at(path).filter(|at| is_auto(&self.found[*at].node)) else { return };
        let row = &mut self.rows[at];
        (row.verdict, row.reason) = (verdict, reason.to_string());
        row.becomes = settings.iter().map(|(key, value)| (key.to_string(), shown(value))).collect();
    }

    /// It says what is so anyway.
    pub fn default(&mut self, path: &str, reason: impl Into<String>) {
        self.settle(path, Verdict::Default, reason.into());
    }

    /// It changes nothing here.
    pub fn ignored(&mut self, path: &str, reason: impl Into<String>) {
        self.settle(path, Verdict::Ignored, reason.into());
    }

    /// There is nothing like it here.
    pub fn without(&mut self, path: &str, reason: impl Into<String>) {
        self.settle(path, Verdict::NoEquivalent, reason.into());
    }

    /// There is nothing quite like it: the nearest there is becomes the setting.
    pub fn nearest(&mut self, path: &str, settings: &[(&str, Toml)], reason: impl Into<String>) {
        self.used(path, settings, reason);
        if let Some(at) = self.at(path) {
            self.rows[at].verdict = Verdict::NoEquivalent;
        }
    }

    /// A setting that no key of the file states; the comment says what it follows from.
    pub fn derived(&mut self, key: &str, value: Toml, comment: impl Into<String>) {
        self.set(key, value, "", comment.into());
    }

    /// A setting that a flag states.
    pub fn flagged(&mut self, key: &str, value: Toml, flag: &str) {
        let short = flag.split(' ').next().unwrap_or(flag);
        self.set(key, value, flag, format!("from {short}"));
    }

    fn set(&mut self, key: &str, value: Toml, from: &str, comment: String) {
        // Mappings name keys that exist; a test walks all of them.
        let Some(known) = ours::find(key) else { return };
        let made = Made { key: known.name, value, from: from.into(), comment };
        match self.made.iter_mut().find(|other| other.key == known.name) {
            Some(other) => *other = made,
            None => self.made.push(made),
        }
    }

    /// A setting that was made.
    pub fn setting(&self, key: &str) -> Option<&Toml> {
        self.made.iter().find(|made| made.key == key).map(|made| &made.value)
    }

    /// A whole number that was made a setting.
    pub fn setting_count(&self, key: &str) -> Option<u64> {
        self.setting(key)?.as_integer().and_then(|whole| u64::try_from(whole).ok())
    }

    /// What is wrong with a key of the file.
    pub fn refuse(&mut self, path: &str, message: impl Into<String>) {
        let is_below = |row: &&Row| row.key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        // A section has no row of its own: its first key stands for it.
        let at = self.rows.iter().find(|row| row.key == path).or_else(|| self.rows.iter().find(is_below));
        let place = at.and_then(|row| row.place);
        self.problem(place, path, message.into());
    }

    /// What is wrong, and where.
    pub fn problem(&mut self, place: Option<Place>, key: &str, message: String) {
        if self.problems.len() >= MOST_PROBLEMS {
            self.untold += 1;
            return;
        }
        self.problems.push(Problem { source: self.source.clone(), place, key: key.into(), message });
    }

    /// Whether nothing is wrong so far.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// Applies `--ranks-per-node`, `--model` and `--set`, and gives the draft, or everything that is wrong with the file.
    pub fn finish(mut self, options: &Options) -> Result<Draft, ConfigError> {
        if self.untold > 0 {
            let message = format!("and {} more", self.untold);
            self.problems.push(Problem { source: self.source.clone(), place: None, key: String::new(), message });
        }
        for at in 0..self.rows.len() {
            // Every key that code maps is settled by it; this keeps a forgotten one from passing in silence.
            if !self.found[at].is_settled {
                self.rows[at].verdict = Verdict::NoEquivalent;
                self.rows[at].reason = "It does not apply beside the other keys of this file.".into();
            }
        }
        if let Some(ranks) = options.ranks_per_node {
            self.flagged("parallel.ranks_per_node", whole(ranks), "--ranks-per-node");
        }
        match options.model.as_deref().map(|model| super::model::named(model, &options.folder)) {
            Some(Ok(Named { settings, assumed })) => {
                settings.into_iter().for_each(|(key, value)| self.flagged(key, value, "--model"));
                self.notes.extend(assumed.into_iter().map(|note| format!("--model: {note}")));
            }
            Some(Err(error)) => self.problems.extend(error.0),
            None => {}
        }
        for argument in &options.set {
            let flag = format!("--set {argument}");
            match argument.split_once('=').map(|(name, text)| (name, ours::find(name.trim()), text)) {
                Some((_, Some(key), text)) => self.flagged(key.name, zbench_config::bare(text.trim()), &flag),
                Some((name, None, _)) => {
                    let near = ours::nearest(name.trim()).map(|key| format!("; did you mean {key}?"));
                    let message = format!("unknown key {}{}", name.trim(), near.unwrap_or_default());
                    self.problems.push(Problem { source: flag, place: None, key: String::new(), message });
                }
                None => {
                    let message = "write --set key=value".to_string();
                    self.problems.push(Problem { source: flag, place: None, key: String::new(), message });
                }
            }
        }
        self.state_adapters();
        let has_no_length = matches!(self.format, Format::DeepSpeed | Format::Accelerate);
        if has_no_length && self.problems.is_empty() && self.setting("train.seq_len").is_none() {
            let tokens = ours::default_of("train.seq_len").and_then(Toml::as_integer).unwrap_or_default();
            self.notes.push(format!(
                "the file does not say how long sequences are; zbench's default of {tokens} tokens is assumed: --set train.seq_len=N"
            ));
        }
        self.drop_without(
            "checkpoint.layout",
            "checkpoint.dir",
            "zbench writes checkpoints where checkpoint.dir is set: --set checkpoint.dir=FOLDER.",
        );
        self.drop_without(
            "model.loading",
            "model.path",
            "It is about weights that are read: --model FOLDER, or --set model.path=FOLDER.",
        );
        // Where a flag has the last word the file's row says so.
        for row in &mut self.rows {
            let lost = |key: &String| self.made.iter().any(|made| made.key == key && made.from.starts_with("--"));
            if let Some((key, _)) = row.becomes.iter().find(|(key, _)| lost(key)) {
                row.reason += &format!(" A flag states {key} instead.");
            }
        }
        if self.problems.is_empty() { Ok(self) } else { Err(ConfigError(self.problems)) }
    }
}

impl Draft {
    /// The note of adapters that a file of quantised weights implies names a default, which a flag may have replaced.
    fn state_adapters(&mut self) {
        const RANK: &str = "lora.rank";
        let flagged = self.made.iter().find(|made| made.key == RANK && made.from.starts_with("--set"));
        let Some(rank) = flagged.map(|made| shown(&made.value)) else { return };
        for note in &mut self.notes {
            if let Some((weights, _)) = note.split_once(", so adapters of lora.rank = ") {
                *note = format!("{weights}; adapters of lora.rank = {rank}, as --set states, train beside them");
            }
        }
    }

    /// A setting that zbench refuses without another one waits for that.
    fn drop_without(&mut self, key: &str, needs: &str, reason: &str) {
        if self.setting(needs).is_some() || self.setting(key).is_none() {
            return;
        }
        self.made.retain(|made| made.key != key || made.from.starts_with("--"));
        for row in self.rows.iter_mut().filter(|row| row.becomes.iter().any(|(made, _)| made == key)) {
            row.verdict = Verdict::Ignored;
            row.becomes.clear();
            row.reason = reason.to_string();
        }
    }
}

/// A count as TOML; counts that come here are far below 2^63.
pub fn whole(count: u64) -> Toml {
    Toml::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A value as a configuration has it; small numbers as people write them.
pub fn shown(value: &Toml) -> String {
    match value {
        Toml::Float(number) if number.is_finite() && *number != 0.0 && number.abs() < 1e-3 => format!("{number:e}"),
        other => other.to_string(),
    }
}

/// A text that pydantic, which reads DeepSpeed's sections of ZeRO and types, takes for a number.
fn coerced(format: Format, section: &str, kind: Kind, node: &Node) -> Option<Node> {
    let is_lax =
        format == Format::DeepSpeed && ["zero_optimization", "fp16", "bf16"].iter().any(|of| section.starts_with(of));
    let text = node.text().filter(|_| is_lax && matches!(kind, Kind::Whole(_)))?;
    Some(Node { value: Value::Int(text.parse().ok()?), place: node.place })
}

fn is_auto(node: &Node) -> bool {
    node.text() == Some("auto")
}

/// Equal as these formats take it: 5e8 is 500000000.
pub fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    match (a.as_i64().zip(b.as_i64()), a.as_f64().zip(b.as_f64())) {
        // Whole numbers near 2^63 are one as floats.
        (Some((a, b)), _) => a == b,
        (None, Some((a, b))) => a == b,
        _ => a == b,
    }
}
