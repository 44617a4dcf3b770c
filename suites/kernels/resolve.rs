//! Settings with `suite = "gemm"` or `"attention"` become specifications.

use super::attention::{AttentionCell, Shape};
use super::gemm::{self, GemmCell, Product, Step};
use super::{Device, Method, model};
use crate::bench::{BenchSpec, Specs};
use toml::Value;
use zbench_config::{Context, Refusal, Setting, Values};
use zbench_engine::config::Cell;
use zbench_kernels::{DType, Gemm};

/// The products of one combination.
///
/// # Errors
/// A key without effect, values that contradict each other, a model that is refused.
pub fn gemm(values: &Values, context: &Context) -> Result<Specs, Refusal> {
    if let Some(key) = values.settings.keys().find(|key| key.starts_with("attention.")) {
        return Err(no_effect(values, key, "suite is \"gemm\""));
    }
    match values.given_text("gemm.shape") {
        Some(shape) => match outside(values, &["gemm", "bench"]) {
            Some(key) => Err(no_effect(values, key, "gemm.shape states the product")),
            None => one(values, &shape, context),
        },
        None => of_model(values, context),
    }
}

/// A key that is not of these sections, nor one that every suite has.
fn outside<'a>(values: &Values<'a>, sections: &[&str]) -> Option<&'a &'static str> {
    const COMMON: [&str; 5] = ["name", "question", "suite", "hardware.device", "hardware.threads_per_rank"];
    let is_known = |key: &str| {
        COMMON.contains(&key) || key.split_once('.').is_some_and(|(section, _)| sections.contains(&section))
    };
    values.settings.keys().find(|key| !is_known(key))
}

fn no_effect(values: &Values, key: &str, when: &str) -> Refusal {
    values.refuse(key, &["suite", "gemm.shape"], format!("has no effect where {when}; leave it out"))
}

fn device(values: &Values, context: &Context) -> Device {
    let threads = values.given_count("hardware.threads_per_rank").unwrap_or(context.cores);
    match values.text("hardware.device").as_str() {
        // One thread starts what a GPU computes.
        "cuda" => Device { device: "cuda".into(), threads_per_rank: 1 },
        _ => Device { device: "cpu".into(), threads_per_rank: threads },
    }
}

fn method(values: &Values) -> Method {
    Method {
        seconds: values.real("bench.seconds"),
        iterations: values.count("bench.iterations") as u64,
        warmup: values.real("bench.warmup"),
    }
}

/// The type of that name; kinds admit no others.
fn dtype(name: &str) -> DType {
    [DType::Bf16, DType::F16].into_iter().find(|dtype| dtype.name() == name).unwrap_or(DType::F32)
}

fn one(values: &Values, shape: &str, context: &Context) -> Result<Specs, Refusal> {
    let [m, n, k] =
        zbench_config::kind::gemm_shape(shape).map_err(|message| values.refuse("gemm.shape", &[], message))?;
    let layout = values.text("gemm.layout");
    let a = values.given_text("gemm.dtype").map_or(DType::F32, |name| dtype(&name));
    let op = Gemm {
        m,
        n,
        k,
        trans_a: layout.starts_with('t'),
        trans_b: layout.ends_with('t'),
        alpha: 1.0,
        accumulate: values.value("gemm.accumulate").as_bool() == Some(true),
        a,
        b: a,
        c: values.given_text("gemm.output").map_or(a, |name| dtype(&name)),
        ..Gemm::DENSE
    };
    let cell = GemmCell {
        suite: "gemm".into(),
        gemm: Product::of_op(&op, &values.text("gemm.buffers")),
        hardware: device(values, context),
        bench: method(values),
        model: String::new(),
        step: None,
        uses: Vec::new(),
    };
    Ok((vec![Box::new(cell)], None))
}

/// The cell whose training step has the products.
///
/// # Errors
/// A key without effect, or what keeps the model from training.
pub(crate) fn model_cell(values: &Values, context: &Context) -> Result<Cell, Refusal> {
    for key in ["gemm.layout", "gemm.output", "gemm.accumulate"] {
        if values.given(key).is_some() {
            let message = "follows from the model's layers; leave it out, or state gemm.shape";
            return Err(values.refuse(key, &["gemm.shape"], message));
        }
    }
    let mut settings = values.settings.clone();
    settings.retain(|key, _| !key.starts_with("gemm.") && !key.starts_with("bench.") && *key != "suite");
    if let Some(given) = values.settings.get("gemm.dtype") {
        if let Some(key) = settings.keys().find(|key| key.starts_with("precision.")) {
            let message = format!("stands beside {key}, which says the types of a model's products; keep one of them");
            return Err(values.refuse("gemm.dtype", &[*key], message));
        }
        let preset = match given.value.as_str() {
            Some("bf16") => "bf16-mixed",
            Some("f16") => "f16-mixed",
            _ => "f32",
        };
        settings.insert("precision.preset", Setting { value: Value::from(preset), ..given.clone() });
    }
    Ok(zbench_config::resolve(&settings, context)?.cell)
}

/// Every product of a model's training step.
fn of_model(values: &Values, context: &Context) -> Result<Specs, Refusal> {
    // Products are timed with any number of threads, more than a cell that trains may have.
    let mut settings = values.settings.clone();
    settings.remove("hardware.threads_per_rank");
    let cell = model_cell(&Values { settings: &settings }, context)?;
    let train = values.settings.get("train.seq_len").map_or("train.micro_batch", |_| "train.seq_len");
    let products = model::products(&cell).map_err(|(key, message)| {
        let refusal = values.refuse(train, &["train.micro_batch", "model.preset", "model.path"], message);
        Refusal { key, ..refusal }
    })?;
    let name = model_name(values);
    let remark = (products.grouped_flops > 0.0).then(|| {
        format!(
            "{name}: the grouped products of its experts, {:.0} % of the operations of all products, are another kernel and not \
             measured",
            100.0 * products.grouped_flops / (products.grouped_flops + products.flops)
        )
    });
    let step = Step {
        micro_batch: cell.train.micro_batch,
        seq_len: cell.train.seq_len,
        accumulation: cell.train.accumulation,
    };
    let spec = |(op, uses): (Gemm, Vec<gemm::Use>)| -> Box<dyn BenchSpec> {
        Box::new(GemmCell {
            suite: "gemm".into(),
            gemm: Product::of_op(&op, &values.text("gemm.buffers")),
            hardware: device(values, context),
            bench: method(values),
            model: name.clone(),
            step: Some(step),
            uses,
        })
    };
    Ok((products.all.into_iter().map(spec).collect(), remark))
}

/// What the model is called: its preset, its folder or its family.
pub(crate) fn model_name(values: &Values) -> String {
    let folder = |path: String| {
        let name = std::path::Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or(path)
    };
    let named = values.given_text("model.preset").or_else(|| values.given_text("model.path").map(folder));
    let others = |key: &&&str| key.starts_with("model.") && !["model.preset", "model.path"].contains(*key);
    let changed = values.settings.keys().filter(others).count();
    match (named, changed) {
        (Some(name), 0) => name,
        (Some(name), _) => format!("{name}, changed"),
        (None, 0) => "llama-32m".into(),
        (None, _) => values.given_text("model.family").unwrap_or_else(|| "llama".into()),
    }
}

/// The attention of one combination.
///
/// # Errors
/// A key without effect, heads that do not divide.
pub fn attention(values: &Values, context: &Context) -> Result<Specs, Refusal> {
    if let Some(key) = outside(values, &["attention", "bench"]) {
        return Err(no_effect(values, key, "suite is \"attention\""));
    }
    let heads = values.count("attention.heads");
    let kv_heads = values.given_count("attention.kv_heads").unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("{kv_heads} does not divide attention.heads = {heads}; write a divisor of it");
        return Err(values.refuse("attention.kv_heads", &["attention.heads"], message));
    }
    let cell = AttentionCell {
        suite: "attention".into(),
        attention: Shape {
            batch: values.count("attention.batch"),
            heads,
            kv_heads,
            head_dim: values.count("attention.head_dim"),
            seq_len: values.count("attention.seq_len"),
            window: values.count("attention.window"),
            dtype: dtype(&values.text("attention.dtype")),
            pass: values.text("attention.pass"),
            kernel: values.text("attention.kernel"),
        },
        hardware: device(values, context),
        bench: method(values),
    };
    Ok((vec![Box::new(cell)], None))
}
