//! A cell's settings, the file that a writer makes of them, and what becomes of each.

use super::Exported;
use super::paths;
use crate::interop::draft::same;
use crate::interop::{Row, Verdict};
use serde_json::{Map, Value};
use zbench_config::keys as ours;
use zbench_engine::config::CourseSteps;

/// A cell's settings by their keys, and the file that is made of them.
pub struct View {
    settings: Vec<(String, Value)>,
    rows: Vec<Option<Row>>,
    /// The file.
    pub file: Map<String, Value>,
    /// Whether rows name a key of the file without its section.
    pub short_names: bool,
    /// What a reader must know beside the rows.
    pub notes: Vec<String>,
}

impl View {
    /// The settings of a cell as records have it.
    pub fn new(cell: &Value) -> View {
        let mut settings = Vec::new();
        flatten(cell, "", &mut settings);
        let is = |settings: &[(String, Value)], key: &str, wanted: &[Value]| {
            settings.iter().any(|(name, value)| name == key && wanted.contains(value))
        };
        let is_fixed = is(&settings, "train.lr_schedule", &["constant".into()])
            && is(&settings, "train.lr_warmup_steps", &[0.into()]);
        if !is_fixed && !settings.iter().any(|(key, _)| key == "train.lr_steps") {
            settings.push(("train.lr_steps".into(), CourseSteps::default().name().into()));
        }
        let is_zeropp = is(&settings, "parallel.strategy", &["zero++".into()]);
        let is_hybrid = is(&settings, "parallel.strategy", &["hsdp".into(), "hsdp-full-optimizer".into()]);
        let has_adapters = !is(&settings, "lora.rank", &[0.into()]) || is(&settings, "lora.method", &["ia3".into()]);
        // What a cell has filled in and its strategy does not read says nothing, nor do adapters' keys without adapters.
        settings.retain(|(key, value)| {
            let is_idle = (key == "parallel.shard" && !is_hybrid)
                || (key == "parallel.parked" && !is_zeropp)
                || (key.starts_with("lora.") && !has_adapters);
            !is_idle && !value.is_null()
        });
        // The record's name of hpZ's group; the configuration has one key for both.
        if let Some((key, _)) = settings.iter_mut().find(|(key, _)| key == "parallel.parked") {
            *key = "parallel.shard".into();
        }
        View { rows: vec![None; settings.len()], settings, file: Map::new(), short_names: false, notes: Vec::new() }
    }

    fn at(&self, key: &str) -> Option<usize> {
        self.settings.iter().position(|(name, _)| name == key)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.at(key).map(|at| &self.settings[at].1)
    }

    /// A text, or nothing.
    pub fn text(&self, key: &str) -> &str {
        self.value(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A whole number.
    pub fn count(&self, key: &str) -> Option<u64> {
        self.value(key)?.as_u64()
    }

    /// A degree; 1 where it is absent.
    pub fn degree(&self, key: &str) -> u64 {
        self.count(key).unwrap_or(1).max(1)
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// A flag; false where it is absent.
    pub fn flag(&self, key: &str) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// All steps, timed or not.
    pub fn steps(&self) -> u64 {
        self.count("train.steps").unwrap_or(0) + self.count("train.untimed_steps").unwrap_or(0)
    }

    /// Ranks among which the data are shared out.
    pub fn data_ranks(&self) -> u64 {
        let degrees = ["parallel.tensor", "parallel.pipeline", "parallel.context"].map(|key| self.degree(key));
        let replica = degrees.into_iter().fold(1, u64::saturating_mul);
        (self.degree("parallel.ranks") / replica.max(1)).max(1)
    }

    /// Whether it was said already what becomes of a key.
    pub fn is_settled(&self, key: &str) -> bool {
        self.at(key).is_some_and(|at| self.rows[at].is_some())
    }

    /// Puts a value into the file under a key with points; gives both, for the row.
    pub fn put<'p>(&mut self, path: &'p str, value: Value) -> (&'p str, Value) {
        paths::put(&mut self.file, path, value.clone());
        (path, value)
    }

    /// Notes what became of a setting, and leaves the file as it is.
    pub fn settle(&mut self, key: &str, verdict: Verdict, becomes: &[(&str, Value)], reason: &str) {
        let Some(at) = self.at(key) else { return };
        let name = |path: &str| match path.rsplit_once('.') {
            Some((_, name)) if self.short_names => name.to_string(),
            _ => path.to_string(),
        };
        let (key, value) = self.settings[at].clone();
        let becomes = becomes.iter().map(|(path, value)| (name(path), value.to_string())).collect();
        self.rows[at] = Some(Row { key, value, verdict, becomes, reason: reason.into(), place: None });
    }

    fn write(&mut self, key: &str, verdict: Verdict, becomes: &[(&str, Value)], reason: &str) {
        for (path, value) in becomes {
            paths::put(&mut self.file, path, value.clone());
        }
        self.settle(key, verdict, becomes, reason);
    }

    /// It becomes these keys of the file.
    pub fn used(&mut self, key: &str, becomes: &[(&str, Value)], reason: &str) {
        self.write(key, Verdict::Used, becomes, reason);
    }

    /// The other program does so anyway.
    pub fn default(&mut self, key: &str, reason: &str) {
        self.settle(key, Verdict::Default, &[], reason);
    }

    /// There is nothing like it; the nearest becomes keys of the file, if there are any.
    pub fn without(&mut self, key: &str, becomes: &[(&str, Value)], reason: &str) {
        self.write(key, Verdict::NoEquivalent, becomes, reason);
    }

    /// The file with a row for each setting: those that the writer did not settle have their section's reason.
    pub fn finish(self, text: String, program: &str) -> Exported {
        let row = |((key, value), row): ((String, Value), Option<Row>)| {
            row.unwrap_or_else(|| {
                let default = ours::default_of(&key).and_then(|default| serde_json::to_value(default).ok());
                let is_default = default.is_some_and(|default| same(&default, &value));
                let (verdict, reason) = left_over(&key, program);
                let (verdict, reason) = match (verdict, is_default, reason) {
                    (Verdict::NoEquivalent, true, "") => (Verdict::Default, "It is zbench's default.".to_string()),
                    (Verdict::NoEquivalent, true, _) => (Verdict::Default, format!("It is zbench's default. {reason}")),
                    (_, _, "") => (verdict, format!("{program}'s file has no key for it.")),
                    _ => (verdict, reason.to_string()),
                };
                Row { key, value, verdict, becomes: Vec::new(), reason, place: None }
            })
        };
        Exported { rows: self.settings.into_iter().zip(self.rows).map(row).collect(), text, notes: self.notes }
    }
}

/// What is neither written nor missed, and what is stated elsewhere there.
fn left_over(key: &str, program: &str) -> (Verdict, &'static str) {
    // torchtitan's file is the whole job; the other two are beside a training script.
    let in_script = program != "torchtitan";
    const OWN: [(&str, &str); 13] = [
        ("hardware.software", "It is the program whose times zbench predicts."),
        ("hardware.", "It is about the machine that zbench measures on."),
        ("link.", "It is an emulated link."),
        ("pace.", "It is an emulated speed of blocks."),
        ("parallel.backend", "The launcher there has its own."),
        ("parallel.stall", "The launcher there has its own."),
        ("parallel.ranks_per_node", "The launcher states the processes of a node."),
        ("memory.capacity", "It is a limit that zbench sets."),
        ("memory.prepack", "It is about zbench's kernels."),
        ("train.untimed_steps", "They are steps like the others there."),
        ("watch.", "It is about how zbench watches a run."),
        ("read_ahead", "Reading ahead is for the loader of data there."),
        ("suite", "It is what zbench measures."),
    ];
    const SCRIPT: [(&str, &str); 5] = [
        ("model.", "The training script makes the model."),
        ("data.", "The training script reads the data."),
        ("train.", "The training script states it."),
        ("lora.", "The training script adds adapters (PEFT)."),
        ("checkpoint.", "The training script saves."),
    ];
    if let Some((_, reason)) = OWN.iter().find(|(prefix, _)| key.starts_with(prefix)) {
        return (Verdict::Ignored, reason);
    }
    if let Some((_, reason)) = SCRIPT.iter().find(|(prefix, _)| key.starts_with(prefix)).filter(|_| in_script) {
        return (Verdict::NoEquivalent, reason);
    }
    match key {
        "memory.attention" if in_script => {
            (Verdict::NoEquivalent, "The training script chooses the model's attention.")
        }
        _ => (Verdict::NoEquivalent, ""),
    }
}

/// Every setting with its key; what a key holds as a whole stays whole, and a loss scale has the keys of its configuration.
fn flatten(value: &Value, prefix: &str, into: &mut Vec<(String, Value)>) {
    let Value::Object(table) = value else {
        return into.push((prefix.to_string(), value.clone()));
    };
    if prefix == "precision.scaling" {
        if let Some(scale) = table.get("static") {
            into.push(("precision.loss_scale".into(), scale.clone()));
        }
        if let Some(Value::Object(rules)) = table.get("dynamic") {
            into.push(("precision.loss_scale".into(), Value::from(0)));
            into.extend(rules.iter().map(|(name, value)| (format!("precision.{name}"), value.clone())));
        }
        return;
    }
    if (!prefix.is_empty() && ours::find(prefix).is_some()) || prefix == "model.form" || prefix == "parallel.loss" {
        return into.push((prefix.to_string(), value.clone()));
    }
    for (name, inner) in table {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        flatten(inner, &path, into);
    }
}
