//! The rules' file: TOML in which every key is known, with place and nearest name for one that is not.

use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zbench_config::places::Places;
use zbench_config::{ConfigError, Place, Problem};
use zbench_estimate::spelling;
use zbench_reports::gate::{Bound, Figure, Kind, Rule, Rules, Verdict, metric, verdict};

/// What a rules' file says.
#[derive(Clone, Debug, PartialEq)]
pub struct RulesFile {
    /// The file.
    pub path: PathBuf,
    /// The configuration to run, relative paths from the file's own folder; absent: the baseline's own cells.
    pub config: Option<PathBuf>,
    /// `--set` of that configuration.
    pub set: Vec<String>,
    /// `--only` of it.
    pub only: Option<String>,
    /// How it is judged.
    pub rules: Rules,
    /// Seconds that one trial may take.
    pub trial_timeout: f64,
    /// Of `--self-test`.
    pub self_test: SelfTest,
}

/// What a self-test measures and replays.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTest {
    /// Minutes of turns, of the same program and of the slower side together.
    pub minutes: f64,
    /// Pairs of trials of the same program, where no turns are taken.
    pub pairs: usize,
    /// Comparisons to replay.
    pub runs: usize,
    /// What makes the second side really slower, as `--set`; empty for nothing.
    pub slow_set: Vec<String>,
    /// Pairs of trials of that.
    pub slow_pairs: usize,
}

/// Keys by section; `metrics` has those of its kinds.
const TOP: &[&str] = &["config", "set", "only", "decide", "policy", "metrics", "self_test"];
const DECIDE: &[&str] = &["time_budget", "trial_timeout", "min_pairs", "max_pairs", "confidence", "confirm", "figure"];
const POLICY: &[&str] = &["fail_on"];
const SELF_TEST: &[&str] = &["minutes", "pairs", "runs", "slow_set", "slow_pairs"];

impl RulesFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place.
    pub fn read(path: &Path) -> Result<RulesFile, ConfigError> {
        let text = zbench_engine::formats::files::named_text(path).map_err(|error| {
            ConfigError::about(
                path.display().to_string(),
                format!("cannot be read: {error}; name a file of gate rules"),
            )
        })?;
        RulesFile::parse(path, &text)
    }

    /// Checks a file's text.
    ///
    /// # Errors
    /// As [`RulesFile::read`].
    pub fn parse(path: &Path, text: &str) -> Result<RulesFile, ConfigError> {
        let mut reader = Reader { source: path.display().to_string(), places: Places::of(text), problems: Vec::new() };
        let mut file = RulesFile {
            path: path.into(),
            config: None,
            set: Vec::new(),
            only: None,
            rules: Rules::default(),
            trial_timeout: 60.0,
            self_test: SelfTest { minutes: 12.0, pairs: 600, runs: 200, slow_set: Vec::new(), slow_pairs: 200 },
        };
        match DeTable::parse(text) {
            Ok(table) => reader.file(&mut file, table.get_ref()),
            Err(error) => {
                let place = error.span().map(|span| reader.place(span.start));
                reader.problem(place, "", format!("not TOML: {}", error.message().trim()));
            }
        }
        if reader.problems.is_empty() { Ok(file) } else { Err(ConfigError(reader.problems)) }
    }
}

/// A key of a table, where it stands, and its value.
type Found<'v, 'i> = (String, Place, &'v Spanned<DeValue<'i>>);

struct Reader<'a> {
    source: String,
    places: Places<'a>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, place: Option<Place>, key: &str, message: String) {
        self.problems.push(Problem { source: self.source.clone(), place, key: key.into(), message });
    }

    fn place(&self, offset: usize) -> Place {
        self.places.at(offset)
    }

    /// The entries of a table in the order of the file; unknown ones become problems.
    fn entries<'v, 'i>(&mut self, table: &'v DeTable<'i>, section: &str, known: &[&str]) -> Vec<Found<'v, 'i>> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut found = Vec::new();
        for (name, value) in entries {
            let (word, place) = (name.get_ref().to_string(), self.place(name.span().start));
            if known.contains(&word.as_str()) {
                found.push((word, place, value));
            } else {
                let key = if section.is_empty() { word.clone() } else { format!("{section}.{word}") };
                self.problem(Some(place), &key, format!("unknown key; {}", hint(&word, known)));
            }
        }
        found
    }

    fn file(&mut self, file: &mut RulesFile, table: &DeTable<'_>) {
        let folder = file.path.parent().unwrap_or(Path::new("")).to_path_buf();
        for (key, place, value) in self.entries(table, "", TOP) {
            match key.as_str() {
                "config" => file.config = self.text(&key, place, value).map(|text| folder.join(text)),
                "only" => file.only = self.text(&key, place, value),
                "set" => file.set = self.texts(&key, place, value),
                _ => match value.get_ref().as_table() {
                    None => self.problem(Some(place), &key, format!("is a section; write [{key}] and its keys below")),
                    Some(inner) => match key.as_str() {
                        "decide" => self.decide(file, inner),
                        "policy" => self.policy(file, inner),
                        "metrics" => self.metrics(file, inner),
                        _ => self.self_test(file, inner),
                    },
                },
            }
        }
        if file.config.is_none() && (!file.set.is_empty() || file.only.is_some()) {
            self.problem(None, "config", "is absent, and set and only are about it; name a configuration".into());
        }
        if file.rules.max_pairs < file.rules.min_pairs {
            let (least, most) = (file.rules.min_pairs, file.rules.max_pairs);
            self.problem(None, "decide.max_pairs", format!("is {most}, below decide.min_pairs = {least}; raise it"));
        }
    }

    fn decide(&mut self, file: &mut RulesFile, table: &DeTable<'_>) {
        for (word, place, value) in self.entries(table, "decide", DECIDE) {
            let key = format!("decide.{word}");
            match word.as_str() {
                "time_budget" => self.seconds(&key, place, value, &mut file.rules.time_budget),
                "trial_timeout" => self.seconds(&key, place, value, &mut file.trial_timeout),
                "min_pairs" => self.count(&key, place, value, 1..=1000, &mut file.rules.min_pairs),
                "max_pairs" => self.count(&key, place, value, 1..=1000, &mut file.rules.max_pairs),
                "confirm" => self.count(&key, place, value, 0..=10, &mut file.rules.confirm),
                "confidence" => match number(value.get_ref()).filter(|share| (0.5..1.0).contains(share)) {
                    Some(share) => file.rules.confidence = share,
                    None => self.problem(Some(place), &key, "write a share from 0.5 to below 1, as 0.98".into()),
                },
                _ => {
                    let figure =
                        value.get_ref().as_str().and_then(|text| Figure::ALL.iter().find(|(name, _)| *name == text));
                    match figure {
                        Some((_, figure)) => file.rules.figure = *figure,
                        None => self.problem(Some(place), &key, one_of(Figure::ALL.map(|(name, _)| name))),
                    }
                }
            }
        }
    }

    fn policy(&mut self, file: &mut RulesFile, table: &DeTable<'_>) {
        for (word, place, value) in self.entries(table, "policy", POLICY) {
            let key = format!("policy.{word}");
            let words = self.texts(&key, place, value);
            let verdicts: Vec<Option<Verdict>> = words.iter().map(|word| Verdict::policy(word)).collect();
            match verdicts.iter().position(Option::is_none) {
                Some(bad) => {
                    let message = format!("\"{}\": {}", words[bad], one_of(verdict::POLICY.map(Verdict::name)));
                    self.problem(Some(place), &key, message);
                }
                None => file.rules.fail_on = verdicts.into_iter().flatten().collect(),
            }
        }
    }

    fn metrics(&mut self, file: &mut RulesFile, table: &DeTable<'_>) {
        let names: Vec<&str> = metric::METRICS.iter().map(|metric| metric.name).collect();
        let mut rules = Vec::new();
        for (name, place, value) in self.entries(table, "metrics", &names) {
            let (Some(metric), section) = (metric::find(&name), format!("metrics.{name}")) else { continue };
            let Some(inner) = value.get_ref().as_table() else {
                self.problem(Some(place), &section, format!("is a section; write [{section}] and its bounds below"));
                continue;
            };
            let mut bound = Bound::default_of(metric.kind);
            let known: &[&str] = match metric.kind {
                Kind::Noisy => &["slower", "faster"],
                Kind::Exact => &["more", "less"],
                Kind::Losses => &["tolerance"],
            };
            for (word, place, value) in self.entries(inner, &section, known) {
                let Some(share) = share(value.get_ref()) else {
                    let message = "write a share from 0 to 10, as \"2.5 %\" or 0.025".to_string();
                    self.problem(Some(place), &format!("{section}.{word}"), message);
                    continue;
                };
                match (&mut bound, word.as_str()) {
                    (Bound::Band { slower, .. }, "slower") => *slower = share,
                    (Bound::Band { faster, .. }, _) => *faster = share,
                    (Bound::Tolerance { more, .. }, "more") => *more = share,
                    (Bound::Tolerance { less, .. }, _) => *less = share,
                    (Bound::Losses(tolerance), _) => *tolerance = share,
                }
            }
            rules.push(Rule { metric, bound });
        }
        if rules.is_empty() && self.problems.is_empty() {
            self.problem(
                None,
                "metrics",
                "names no metric, so nothing would be judged; name one or leave [metrics] out".into(),
            );
        }
        file.rules.metrics = rules;
    }

    fn self_test(&mut self, file: &mut RulesFile, table: &DeTable<'_>) {
        for (word, place, value) in self.entries(table, "self_test", SELF_TEST) {
            let key = format!("self_test.{word}");
            match word.as_str() {
                "minutes" => match number(value.get_ref()).filter(|minutes| *minutes > 0.0 && *minutes <= 10_000.0) {
                    Some(minutes) => file.self_test.minutes = minutes,
                    None => self.problem(Some(place), &key, "write a number of minutes, as 12".into()),
                },
                "pairs" => self.count(&key, place, value, 1..=100_000, &mut file.self_test.pairs),
                "runs" => self.count(&key, place, value, 1..=100_000, &mut file.self_test.runs),
                "slow_pairs" => self.count(&key, place, value, 0..=100_000, &mut file.self_test.slow_pairs),
                _ => file.self_test.slow_set = self.texts(&key, place, value),
            }
        }
    }

    fn text(&mut self, key: &str, place: Place, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let text = value.get_ref().as_str().filter(|text| !text.is_empty()).map(str::to_string);
        if text.is_none() {
            self.problem(Some(place), key, "write a text in quotes".into());
        }
        text
    }

    fn texts(&mut self, key: &str, place: Place, value: &Spanned<DeValue<'_>>) -> Vec<String> {
        let list = value.get_ref().as_array();
        let texts: Option<Vec<String>> =
            list.and_then(|list| list.iter().map(|item| item.get_ref().as_str().map(str::to_string)).collect());
        if texts.is_none() {
            self.problem(Some(place), key, "write a list of texts, as [\"a\", \"b\"]".into());
        }
        texts.unwrap_or_default()
    }

    fn seconds(&mut self, key: &str, place: Place, value: &Spanned<DeValue<'_>>, into: &mut f64) {
        let text = value.get_ref().as_str().and_then(zbench_config::units::seconds);
        match text.or_else(|| number(value.get_ref())).filter(|seconds| *seconds > 0.0 && *seconds <= 1e7) {
            Some(seconds) => *into = seconds,
            None => self.problem(Some(place), key, "write a time above 0, as \"2min\" or 90".into()),
        }
    }

    fn count(
        &mut self,
        key: &str,
        place: Place,
        value: &Spanned<DeValue<'_>>,
        range: std::ops::RangeInclusive<usize>,
        into: &mut usize,
    ) {
        let whole =
            number(value.get_ref()).filter(|value| value.fract() == 0.0 && *value >= 0.0).map(|value| value as usize);
        match whole.filter(|whole| range.contains(whole)) {
            Some(whole) => *into = whole,
            None => {
                let message = format!("write a whole number from {} to {}", range.start(), range.end());
                self.problem(Some(place), key, message);
            }
        }
    }
}

fn hint(word: &str, known: &[&str]) -> String {
    match spelling::nearest(word, known.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("there are {}", known.join(", ")),
    }
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("write one of {}", names.join(", "))
}

/// A number as TOML has it.
fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(whole) => i64::from_str_radix(whole.as_str(), whole.radix()).ok()? as f64,
        DeValue::Float(real) => real.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// `"2.5 %"` or `0.025`.
fn share(value: &DeValue<'_>) -> Option<f64> {
    let share = match value.as_str() {
        Some(text) => text.trim().strip_suffix('%')?.trim().parse::<f64>().ok()? / 100.0,
        None => number(value)?,
    };
    (0.0..=10.0).contains(&share).then_some(share)
}
