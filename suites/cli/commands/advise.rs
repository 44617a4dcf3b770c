//! `advise`: how to train a model on given devices, on one screen, and as a configuration of some program.

use super::report::write_whole;
use super::search::{Questions, keeps};
use super::{document_text, print_file, print_json, print_screen, quoted, room, shortened};
use crate::{AdviseArgs, AdviseTarget, Format, Global, PlanArgs};
use anyhow::{Context as _, Result, bail};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use toml::Value;
use zbench_config::files::Files;
use zbench_config::keys::Key;
use zbench_config::kind::Kind;
use zbench_config::{ConfigError, Document, Resolved, Setting, Settings, grid, keys};
use zbench_engine::config::DeviceKind;
use zbench_engine::planner::Planner;
use zbench_host::{exit, terminal};
use zbench_predict::forecast;
use zbench_predict::search::{HEADROOM, SOFTWARE, TIE, Wanted, search};
use zbench_reports::estimate_report::{Advice, Asked, Candidate, Searched, name};
use zbench_reports::{label, units};
use zbench_suites::interop::draft::shown;
use zbench_suites::interop::export::{self, Target};
use zbench_suites::interop::{Row, Verdict, model};

/// Keys that a search decides: what a file says of them is no part of the question.
const DECIDED: [&str; 16] = [
    "parallel.strategy",
    "parallel.shard",
    "parallel.tensor",
    "parallel.sequence",
    "parallel.pipeline",
    "parallel.pipeline_split",
    "parallel.pipeline_schedule",
    "parallel.virtual_stages",
    "parallel.context",
    "parallel.expert",
    "parallel.expert_tensor",
    "parallel.placement",
    "train.micro_batch",
    "memory.offload_optimizer",
    "memory.offload_parameters",
    "memory.offload_activations",
];

/// What else it decides, in spite of what a file says.
const MORE_DECIDED: [&str; 2] = ["train.accumulation", "memory.checkpointing"];

/// The file that stands for advice without one, in messages.
const NO_FILE: &str = "advice.toml";
/// Times the devices, and parts of the sequence, that are tried where nothing fits.
const TRIED: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// `zbench advise`.
pub fn advise(global: &Global, arguments: &AdviseArgs) -> Result<u8> {
    if let Some(output) = arguments.output.as_ref().filter(|output| !arguments.force && output.exists()) {
        bail!("{} exists; name another file, or add --force", output.display());
    }
    let document = document(arguments)?;
    let price = match document.base.get("hardware.gpu_hour_price") {
        Some(setting) => zbench_config::kind::number(&setting.value),
        None => None,
    };
    let asked = questions(document, arguments)?;
    let wanted = Wanted {
        headroom: arguments.headroom.unwrap_or(HEADROOM),
        global_batch: asked.global_batch,
        keep: kept(arguments)?,
        tie: TIE,
        ..Wanted::default()
    };
    let Some((place, found)) = asked.search(&wanted)?.into_iter().next() else {
        bail!("there is no cell; leave --only out, or name one that is there")
    };
    let cell = &asked.expanded.cells[place];
    let resolved = cell.resolved.as_ref().map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    let mut advice = Advice::of(question(arguments, resolved, &found, price), found);
    if advice.recommended.is_none() {
        advice.changes = what_fits(&wanted, resolved);
    }
    let exported = match (&arguments.export, advice.recommended.as_ref()) {
        (Some(target), Some(best)) => {
            Some(exported(&asked, place, best, *target, &advice, arguments.output.as_deref())?)
        }
        _ => None,
    };
    say(global, arguments, &advice, exported.as_ref())?;
    Ok(if advice.recommended.is_some() { exit::SUCCESS } else { exit::NOT_MEASURED })
}

/// `zbench plan FILE --advise`: the same for a file.
pub fn of_plan(global: &Global, file: PathBuf, arguments: &PlanArgs) -> Result<u8> {
    let arguments = AdviseArgs {
        file: Some(file),
        model: None,
        gpus: None,
        profile: None,
        global_batch: None,
        seq_len: None,
        software: None,
        price: None,
        set: arguments.set.clone(),
        only: arguments.only.clone(),
        keep: arguments.keep.clone(),
        headroom: arguments.headroom,
        export: None,
        output: None,
        force: false,
    };
    advise(global, &arguments)
}

/// The document that the arguments describe: the file's, with what the options state instead.
fn document(arguments: &AdviseArgs) -> Result<Document> {
    let mut set = Vec::new();
    let mut state = |key: &str, value: Option<String>| set.extend(value.map(|value| format!("{key}={value}")));
    let count = |count: Option<u64>| count.map(|count| count.to_string());
    if arguments.file.is_none() {
        state("precision.preset", Some("bf16-mixed".into()));
    }
    state("parallel.ranks", count(arguments.gpus));
    state("train.global_batch", count(arguments.global_batch));
    state("train.seq_len", count(arguments.seq_len));
    state("hardware.profile", arguments.profile.clone());
    state("hardware.software", arguments.software.clone().or_else(|| software_of(arguments).map(str::to_string)));
    state("hardware.gpu_hour_price", arguments.price.map(|price| price.to_string()));
    set.extend(arguments.set.iter().cloned());
    let mut document = match &arguments.file {
        Some(file) => Document::read(file, &set)?,
        None => Document::parse(Path::new(NO_FILE), "", &set)?,
    };
    if let Some(given) = &arguments.model {
        // What --set states has no place in a file, and stays.
        document.base.retain(|key, setting| !key.starts_with("model.") || setting.place.is_none());
        let named = model::named(given, document.folder())?;
        named.assumed.iter().for_each(|note| zbench_host::say!("--model {given}: {note}"));
        for (key, value) in named.settings {
            document.base.entry(key).or_insert(Setting { value, place: None, from_grid: false });
        }
    }
    Ok(document)
}

/// The software that a program's configuration is priced as, where neither an option nor the file names one.
fn software_of(arguments: &AdviseArgs) -> Option<&'static str> {
    let is_named = |file: &PathBuf| {
        Document::read(file, &arguments.set).is_ok_and(|document| document.base.contains_key("hardware.software"))
    };
    let is_set = arguments.set.iter().any(|set| set.trim_start().starts_with("hardware.software"));
    match arguments.export {
        _ if is_set || arguments.file.as_ref().is_some_and(is_named) => None,
        Some(AdviseTarget::Deepspeed) => Some("deepspeed"),
        Some(AdviseTarget::Accelerate) => Some("fsdp2"),
        Some(AdviseTarget::Torchtitan) => Some("fsdp2-compiled"),
        Some(AdviseTarget::Zbench) | None => None,
    }
}

/// The values that ways keep: as asked for, and those that the program's configuration can say.
fn kept(arguments: &AdviseArgs) -> Result<Vec<(String, String)>> {
    let mut kept = keeps(&arguments.keep)?;
    let Some(target) = arguments.export.and_then(program) else { return Ok(kept) };
    for (key, value) in target.ways() {
        match kept.iter().find(|(other, _)| other == key) {
            // A value that is another key's is held against the ways below, which have both.
            Some((_, asked)) if !value.starts_with('=') && !value.split('|').any(|one| one == asked) => {
                bail!(
                    "--keep {key}={asked}: {}'s file cannot say that; it has {}",
                    target.name(),
                    value.replace('|', " and ")
                )
            }
            Some(_) if !value.starts_with('=') => {}
            _ => kept.push((key.to_string(), value.to_string())),
        }
    }
    Ok(kept)
}

/// Another program, whose configuration is written.
fn program(target: AdviseTarget) -> Option<Target> {
    match target {
        AdviseTarget::Deepspeed => Some(Target::DeepSpeed),
        AdviseTarget::Accelerate => Some(Target::Accelerate),
        AdviseTarget::Torchtitan => Some(Target::Torchtitan),
        AdviseTarget::Zbench => None,
    }
}

/// The one question that is asked. What a search decides is taken out of it; the sequences of a step stay those of the file.
fn questions(mut document: Document, arguments: &AdviseArgs) -> Result<Questions> {
    const BATCH: &str = "train.global_batch";
    let only = arguments.only.as_deref();
    if !document.base.contains_key(BATCH) {
        let mut stated = Questions::of(document.clone(), only, grid::MOST_CELLS)?;
        let place = one_question(&document, &stated)?;
        let resolved =
            stated.expanded.cells.swap_remove(place).resolved.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        let (parallel, train) = (&resolved.cell.parallel, &resolved.cell.train);
        let replicas = parallel.ranks / parallel.degrees.ranks_per_replica().max(1);
        let batch = train.micro_batch.saturating_mul(train.accumulation).saturating_mul(replicas);
        let value = Value::Integer(i64::try_from(batch).unwrap_or(i64::MAX));
        document.base.insert(BATCH, Setting { value, place: None, from_grid: false });
    }
    document.base.remove("train.accumulation");
    document.axes.retain(|axis| axis.key != "train.accumulation");
    document.base.retain(|key, _| !DECIDED.contains(key));
    let asked = Questions::of(document.clone(), only, grid::MOST_CELLS)?;
    one_question(&document, &asked)?;
    Ok(asked)
}

/// The place of the one question's cell.
fn one_question(document: &Document, asked: &Questions) -> Result<usize> {
    let cells = &asked.expanded.cells;
    match asked.cells[..] {
        [place] => Ok(place),
        [] => bail!("{}", grid::none_left(document, &asked.expanded.only)),
        _ => {
            let places: Vec<_> = asked.cells.iter().map(|place| cells[*place].clone()).collect();
            let terms = grid::differences(&places).into_iter().take(3).collect::<Vec<_>>().join(" | ");
            let message = format!(
                "asks {} questions, and advice is of one; narrow it with --only or --set: {terms}",
                asked.cells.len()
            );
            Err(ConfigError::about(document.path.display().to_string(), message).into())
        }
    }
}

/// What was asked, as the advice repeats it.
fn question(arguments: &AdviseArgs, resolved: &Resolved, found: &Searched, price: Option<f64>) -> Asked {
    let cell = &resolved.cell;
    let software = found.best.first().and_then(|best| best.settings.get("hardware.software").cloned());
    Asked {
        model: model_name(arguments, resolved),
        gpus: cell.parallel.ranks as u64,
        profile: resolved.profile.as_ref().map(|profile| profile.name.clone()).unwrap_or_default(),
        software: software.or_else(|| cell.hardware.software.clone()).unwrap_or_else(|| match cell.hardware.device {
            DeviceKind::Cpu => "zbench".into(),
            DeviceKind::Cuda => SOFTWARE.into(),
        }),
        global_batch: found.global_batch,
        seq_len: cell.train.seq_len as u64,
        gpu_hour_price: price,
    }
}

/// The model as it was named, else its family and parameters.
fn model_name(arguments: &AdviseArgs, resolved: &Resolved) -> String {
    let of_file = || {
        let document = Document::read(arguments.file.as_ref()?, &arguments.set).ok()?;
        let named = ["model.preset", "model.path"].into_iter().find_map(|key| document.base.get(key));
        named.and_then(|setting| setting.value.as_str().map(str::to_string))
    };
    let sizes = || {
        let model = &resolved.cell.model;
        format!("a {} of {} blocks of width {}", model.family, model.num_hidden_layers, model.hidden_size)
    };
    arguments.model.clone().or_else(of_file).unwrap_or_else(sizes)
}

/// What of the question would have to change so that something fits: more devices, shorter sequences.
fn what_fits(wanted: &Wanted, resolved: &Resolved) -> Vec<String> {
    let planner = Planner::default();
    let fits = |change: &dyn Fn(&mut Resolved)| {
        let mut other = resolved.clone();
        change(&mut other);
        let found = search(&planner, &other, "", wanted);
        found.ok().filter(|found| !found.best.is_empty())
    };
    let (ranks, seq) = (resolved.cell.parallel.ranks, resolved.cell.train.seq_len);
    let more = TRIED.into_iter().find_map(|times| {
        let found = fits(&|other| {
            other.cell.parallel.ranks = ranks * times;
            other.cell.parallel.shard = ranks * times;
        })?;
        Some(format!("{} devices hold it: {}.", units::count(found.ranks), estimate(&found.best[0])))
    });
    let shorter =
        TRIED.into_iter().filter(|times| seq.is_multiple_of(*times) && seq / times >= 128).find_map(|times| {
            let found = fits(&|other| other.cell.train.seq_len = seq / times)?;
            Some(format!(
                "sequences of {} tokens fit: {}.",
                units::count((seq / times) as u64),
                estimate(&found.best[0])
            ))
        });
    more.into_iter().chain(shorter).collect()
}

fn estimate(best: &Candidate) -> String {
    format!("{}, {} a rank", name(best, None), units::memory(best.memory_bytes as f64))
}

/// A configuration, and what is to be said of it.
struct Written {
    text: String,
    notes: Vec<String>,
}

/// The recommended way as a program's configuration.
fn exported(
    asked: &Questions,
    place: usize,
    best: &Candidate,
    target: AdviseTarget,
    advice: &Advice,
    output: Option<&Path>,
) -> Result<Written> {
    let Some(target) = program(target) else {
        let (settings, folder) = (asked.settings(place, best), asked.expanded.document.folder());
        let is_beside = output.is_some_and(|output| lies_in(output, folder));
        let notes = if is_beside { Vec::new() } else { profiles_to_copy(&settings, folder) };
        return Ok(Written { text: own(&settings, folder, &advice.name), notes });
    };
    let cell = asked.cell(place, best, &mut Files::default())?;
    let resolved = cell.resolved.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    let title = format!("advice for {}", advice.asked.model);
    // accelerate's file says on how many machines the ranks are.
    let mut cell = resolved.cell.clone();
    cell.parallel.ranks_per_node.get_or_insert(forecast::ranks_per_node(&resolved));
    let exported = export::export(&grid::plain(&cell), &title, target);
    let exported = exported.with_context(|| format!("the advice cannot be written for {}", target.name()))?;
    // What the search decided is the advice; of the rest `zbench export` has a table.
    let is_decided = |key: &str| DECIDED.contains(&key) || MORE_DECIDED.contains(&key) || key.starts_with("lora.");
    let is_usual = |row: &Row| label::is_usual(&row.key, row.value.as_str().unwrap_or(&row.value.to_string()));
    let is_lost = |row: &&Row| row.verdict == Verdict::NoEquivalent && is_decided(&row.key) && !is_usual(row);
    let lost = exported.rows.iter().filter(is_lost);
    let mut notes: Vec<String> = lost.map(|row| format!("{}: {}", row.key, row.reason.trim_end_matches('.'))).collect();
    notes.extend(exported.notes);
    Ok(Written { text: exported.text, notes })
}

/// The settings as a file that `plan` and `grid` read. Its paths are absolute, so that it may lie anywhere.
fn own(settings: &Settings, folder: &Path, name: &str) -> String {
    let parts = |key: &Key| key.name.split_once('.').unwrap_or(("", key.name));
    let stated: Vec<(&Key, &Setting)> =
        keys::KEYS.iter().filter_map(|key| Some((*key, settings.get(key.name)?))).collect();
    let mut sections: Vec<&str> = stated.iter().map(|(key, _)| parts(key).0).collect();
    let mut seen = HashSet::new();
    sections.retain(|section| seen.insert(*section));
    // Keys at the top would else belong to the section before them.
    sections.sort_by_key(|section| !section.is_empty());
    let mut text = format!("# Made by `zbench advise`: {name}.\n");
    for section in sections {
        if !section.is_empty() {
            text += &format!("\n[{section}]\n");
        }
        for (key, setting) in stated.iter().filter(|(key, _)| parts(key).0 == section) {
            let path = setting.value.as_str().filter(|_| matches!(key.kind, Kind::Path));
            let absolute = path.and_then(|path| std::path::absolute(folder.join(path)).ok());
            let value = absolute
                .map_or_else(|| shown(&setting.value), |path| shown(&Value::String(path.display().to_string())));
            text += &format!("{} = {value}\n", parts(key).1);
        }
    }
    text
}

fn lies_in(file: &Path, folder: &Path) -> bool {
    let real =
        |folder: &Path| std::fs::canonicalize(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    file.parent()
        .is_some_and(|parent| real(parent).ok().zip(real(folder).ok()).is_some_and(|(one, other)| one == other))
}

/// What is read from beside a configuration, and so has to be beside the new one, too.
fn profiles_to_copy(settings: &Settings, folder: &Path) -> Vec<String> {
    let beside = |(key, kind): (&str, &str)| {
        let name = settings.get(key)?.value.as_str()?;
        let file = folder.join(kind).join(format!("{name}.toml"));
        file.is_file().then(|| format!("{key}: copy {} into {kind} beside the new file", file.display()))
    };
    [("hardware.profile", "machines"), ("hardware.software", "frameworks")].into_iter().filter_map(beside).collect()
}

/// Prints the advice, and the configuration where it was asked for.
fn say(global: &Global, arguments: &AdviseArgs, advice: &Advice, exported: Option<&Written>) -> Result<()> {
    let to_output = arguments.output.as_deref().zip(exported);
    if let Some((path, exported)) = to_output {
        write_whole(path, exported.text.as_bytes())?;
    }
    let to_stdout = exported.filter(|_| arguments.output.is_none());
    if global.format == Format::Json {
        let mut line = serde_json::to_value(advice)?;
        if let Some(exported) = exported {
            line["export"] = serde_json::json!({ "text": exported.text, "notes": exported.notes });
        }
        return print_json(&format!("{line}\n"));
    }
    let next = next(arguments, advice, exported);
    let document = advice.document(room(global), &next);
    match to_stdout {
        None => print_screen(global, &document)?,
        Some(exported) => {
            if !global.quiet {
                let document = if global.full { document } else { shortened(&document) };
                terminal::say_rendered(document_text(global, &document).trim_end().to_string());
            }
            print_file(&exported.text)?;
        }
    }
    if let Some((path, _)) = to_output {
        zbench_host::say!("wrote {}", path.display());
    }
    Ok(())
}

/// What to do with the advice.
fn next(arguments: &AdviseArgs, advice: &Advice, exported: Option<&Written>) -> Vec<(&'static str, String)> {
    let mut next = Vec::new();
    if let Some(exported) = exported.filter(|exported| !exported.notes.is_empty()) {
        next.push(("EXPORT", exported.notes.join("; ")));
    }
    if advice.recommended.is_none() {
        return next;
    }
    let words = match (arguments.export, &arguments.output) {
        (Some(AdviseTarget::Zbench), Some(path)) => {
            let path = quoted(&path.to_string_lossy());
            format!("zbench plan {path} has its memory by category and its time by span; --full here has all that was searched.")
        }
        (Some(_), _) => "--full has all settings and the other ways.".into(),
        (None, _) => "--export zbench -o run.toml writes it for `zbench plan` and `grid`, --export torchtitan, deepspeed or accelerate \
                      for these; --full has all settings."
            .into(),
    };
    next.push(("NEXT", words));
    next
}
