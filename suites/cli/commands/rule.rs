//! `zbench rule`: published rules of thumb as one-line answers, with the formula and its source on a second line.

use super::{print, print_document, print_lines};
use crate::{
    Format, Global, NetworkRule, Rule, RuleArgs, StatesRule, Zero2Formula, Zero2Rule, Zero3Offload, Zero3Rule,
};
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use zbench_estimate::deepspeed::{self, Formula, Line, Offloaded};
use zbench_estimate::rules::{Check, digits, state, traffic};
use zbench_host::exit;
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::units;

/// What a rule says.
#[derive(Debug, Serialize)]
struct Answer {
    /// Its name on the command line.
    rule: &'static str,
    /// What it was given.
    inputs: Value,
    /// In one line.
    answer: String,
    /// The numbers of that line.
    values: Vec<Number>,
    /// With these numbers in it.
    formula: String,
    /// Who says so.
    source: String,
}

#[derive(Debug, Serialize)]
struct Number {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

/// `zbench rule`.
pub fn rule(global: &Global, arguments: &RuleArgs) -> Result<u8> {
    let answer = match &arguments.rule {
        Rule::Network(given) => network(given),
        Rule::States(given) => states(given),
        Rule::Zero2(given) => zero2(given),
        Rule::Zero3(given) if given.largest_layer > given.parameters => bail!(
            "--largest-layer {} is more than the model's {} parameters; it is a part of them, often vocabulary x width",
            digits(given.largest_layer),
            digits(given.parameters)
        ),
        Rule::Zero3(given) => zero3(given),
    };
    match global.format {
        Format::Table => print(&format!("{}\n{} [{}]\n", answer.answer, answer.formula, answer.source))?,
        Format::Json => print_lines(&[answer])?,
        Format::Markdown | Format::Csv | Format::Html => print_document(global, &document(&answer))?,
    }
    Ok(exit::SUCCESS)
}

fn document(answer: &Answer) -> Document {
    let mut document = Document::new(format!("Rule: {}", answer.rule));
    document.paragraph(answer.answer.clone());
    let mut table =
        Table::new("values", vec![Column::words("value"), Column::numbers("number", "1"), Column::words("unit")]);
    for number in &answer.values {
        table.row(vec![
            Entry::words(number.name),
            Entry::maybe(Some(number.value), units::quantity),
            Entry::words(number.unit),
        ]);
    }
    document.table(table);
    document.paragraph(format!("{} [{}]", answer.formula, answer.source));
    document
}

/// Bits, as networks are rated.
fn gigabits(bits: f64) -> String {
    format!("{} Gb", units::number(bits / 1e9))
}

fn network(given: &NetworkRule) -> Answer {
    let (parameters, nodes) = (given.parameters, f64::from(given.nodes));
    let check = traffic::zero3_per_node(parameters, nodes);
    let bits = check.sum();
    let mut values = vec![Number { name: "bits_per_node_and_step", value: bits, unit: "bits" }];
    let mut answer = match given.nodes {
        1 => "Nothing has to enter a single node in a step of ZeRO-3".to_string(),
        _ => format!(
            "{} ({}) have to enter each of {} nodes in a step of ZeRO-3",
            gigabits(bits),
            units::traffic(bits / 8.0),
            units::count(given.nodes.into())
        ),
    };
    if let Some(step) = given.step {
        let rate = bits / step.as_secs_f64();
        answer += &format!("; a step of {} needs {}/s a node", units::duration(step.as_secs_f64()), gigabits(rate));
        values.push(Number { name: "needed_bits_per_second_and_node", value: rate, unit: "bits/s" });
    }
    if let Some(rate) = given.network {
        let least = traffic::zero3_wire_time(parameters, nodes, 8.0 * rate).sum();
        answer += &format!("; at {}/s a node no step is faster than {}", gigabits(8.0 * rate), units::duration(least));
        values.push(Number { name: "least_seconds_of_a_step", value: least, unit: "s" });
    }
    let (m, n) = (digits(parameters), given.nodes);
    Answer {
        rule: "network",
        inputs: json!({
            "parameters": parameters,
            "nodes": n,
            "step_seconds": given.step.map(|step| step.as_secs_f64()),
            "network_bits_per_second": given.network.map(|rate| 8.0 * rate),
        }),
        answer: answer + ".",
        values,
        formula: format!(
            "{}: 48 × {m} × {}/{n}; 48 M/N, which is often written, holds for N = 2 alone",
            check.says,
            n - 1
        ),
        source: check.source.into(),
    }
}

fn states(given: &StatesRule) -> Answer {
    let (parameters, ranks) = (given.parameters, f64::from(given.ranks));
    let check = match &given.gradients[..] {
        "4" => {
            let says = ["2P + 4P + 12P", "2P + 4P + 12P/N", "2P + 4P/N + 12P/N", "2P/N + 4P/N + 12P/N"];
            let says = says[usize::from(given.stage.min(3))];
            let check = Check::new("states", says, "Megatron-LM; ml-engineering", "bytes");
            state::state(check, parameters, state::Bytes::EIGHTEEN, state::Over::zero(given.stage, ranks))
        }
        _ => state::zero(given.stage, parameters, ranks),
    };
    let bytes = check.sum();
    let part = |at: usize| check.terms.get(at).map_or(0.0, |term| term.value);
    let number = |name, value| Number { name, value, unit: "bytes" };
    Answer {
        rule: "states",
        inputs: json!({
            "parameters": parameters,
            "ranks": given.ranks,
            "stage": given.stage,
            "gradient_bytes": if given.gradients == "4" { 4 } else { 2 },
        }),
        answer: format!(
            "{} ({}) of model state per rank under ZeRO-{} over {} {}: weights {}, gradients {}, optimizer {}.",
            units::traffic(bytes),
            units::memory(bytes),
            given.stage,
            units::count(given.ranks.into()),
            if given.ranks == 1 { "rank" } else { "ranks" },
            units::traffic(part(0)),
            units::traffic(part(1)),
            units::traffic(part(2))
        ),
        values: vec![
            number("bytes_per_rank", bytes),
            number("weights", part(0)),
            number("gradients", part(1)),
            number("optimizer", part(2)),
        ],
        formula: format!(
            "{} bytes, P = {}, N = {}, without activations",
            check.says,
            digits(parameters),
            digits(ranks)
        ),
        source: check.source.into(),
    }
}

/// A line of DeepSpeed's tables in words.
fn estimated(rule: &'static str, inputs: Value, line: &Line, symbols: String, source: &str) -> Answer {
    let bytes = |gib: f64| gib * (1u64 << 30) as f64;
    Answer {
        rule,
        inputs,
        answer: format!(
            "{:.2} GiB per GPU and {:.2} GiB of host memory per node, without activations.",
            line.gpu_gib, line.host_gib
        ),
        values: vec![
            Number { name: "bytes_per_gpu", value: bytes(line.gpu_gib), unit: "bytes" },
            Number { name: "host_bytes_per_node", value: bytes(line.host_gib), unit: "bytes" },
        ],
        formula: format!("GPU: {}, host: {}; {symbols}; what DeepSpeed calls GB is GiB", line.gpu, line.host),
        source: source.into(),
    }
}

fn zero2(given: &Zero2Rule) -> Answer {
    let (formula, source) = match given.formula {
        Zero2Formula::Current => {
            (Formula::Current, "DeepSpeed, estimate_zero2_model_states_mem_needs; equal to 0.19.8's (docs/claims.md)")
        }
        Zero2Formula::Documented => (Formula::Documented, "DeepSpeed, older docs/code-docs/source/memory.rst"),
    };
    let gpus = &given.gpus;
    let (per_node, nodes) = (gpus.gpus_per_node.into(), gpus.nodes.into());
    let line = deepspeed::zero2_line(given.parameters, per_node, nodes, given.offload, formula);
    let inputs = json!({
        "parameters": given.parameters,
        "gpus_per_node": gpus.gpus_per_node,
        "nodes": gpus.nodes,
        "offload": if given.offload { "optimizer" } else { "none" },
        "formula": if formula == Formula::Current { "current" } else { "documented" },
    });
    let symbols = format!("P = {}, N = {} GPUs", digits(given.parameters), units::count(gpus.all()));
    estimated("zero2", inputs, &line, symbols, source)
}

fn zero3(given: &Zero3Rule) -> Answer {
    let (offloaded, name) = match given.offload {
        Zero3Offload::None => (Offloaded::Nothing, "none"),
        Zero3Offload::Optimizer => (Offloaded::Optimizer, "optimizer"),
        Zero3Offload::All => (Offloaded::ParametersAndOptimizer, "all"),
    };
    let (gpus, init) = (&given.gpus, !given.no_zero_init);
    let line = deepspeed::zero3_line(
        given.parameters,
        given.largest_layer,
        gpus.gpus_per_node.into(),
        gpus.nodes.into(),
        offloaded,
        init,
    );
    let inputs = json!({
        "parameters": given.parameters,
        "largest_layer": given.largest_layer,
        "gpus_per_node": gpus.gpus_per_node,
        "nodes": gpus.nodes,
        "offload": name,
        "zero_init": init,
    });
    let (parameters, largest) = (digits(given.parameters), digits(given.largest_layer));
    let symbols = format!("P = {parameters}, L = {largest}, N = {} GPUs", units::count(gpus.all()));
    let source = "DeepSpeed, estimate_zero3_model_states_mem_needs; equal to 0.19.8's (docs/claims.md)";
    estimated("zero3", inputs, &line, symbols, source)
}
