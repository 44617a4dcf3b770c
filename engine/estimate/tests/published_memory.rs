//! Published rows of memory: what the issue asks for holds, and no text breaks the reader.

use zbench_estimate::published::flags::{Flags, dense_blocks, layout};
use zbench_estimate::published::job::express;
use zbench_estimate::published::memory::{beside_throughput, predict};
use zbench_estimate::published::models::{by_name, stated};
use zbench_estimate::published::row::{self, Row};
use zbench_estimate::published::score::{Fits, Outcome, quantile, rounding, score};
use zbench_estimate::published::words::machine;

fn file(name: &str) -> String {
    let path = format!("{}/../../tests/published/{name}.csv", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the published rows")
}

fn outcomes() -> Vec<Outcome> {
    row::read(&file("memory")).expect("CSV").iter().map(predict).collect()
}

/// The goals: median 5 %, 90th percentile 15 %; 85 % expressed; fits or not right in 95 %.
#[test]
fn memory_is_predicted_as_well_as_asked() {
    let outcomes = outcomes();
    let all = score(&outcomes);
    assert!(all.scored > 200, "{all:?}");
    assert!(all.median <= 0.05 && all.p90 <= 0.15, "{all:?}");
    assert!(all.expressed as f64 >= 0.85 * all.rows as f64, "{all:?}");
    let fits = Fits::of(&outcomes);
    assert!(fits.runs() > 100 && fits.right() as f64 >= 0.95 * fits.runs() as f64, "{fits:?}");
}

/// What the page says of "fits or not": the share that is right is below that of saying "fits" of every run, so what decides is
/// how many runs out of memory are found, and how many alarms are false. The figures stand in docs/estimator.md.
#[test]
fn out_of_memory_is_told_beside_the_predictor_that_always_says_fits() {
    let throughput = row::read(&file("throughput")).expect("CSV");
    let beside = throughput.iter().filter_map(beside_throughput);
    let all: Vec<Outcome> = outcomes().into_iter().chain(beside).collect();
    let fits = Fits::of(&all);
    let page =
        std::fs::read_to_string(format!("{}/../../docs/estimator.md", env!("CARGO_MANIFEST_DIR"))).expect("a page");
    let share = |share: Option<f64>| format!("{:.0} %", 100.0 * share.expect("some"));
    for words in [
        format!("{} of {} are predicted right", fits.right(), fits.runs()),
        format!("right of {}", fits.always_right()),
        format!(
            "{} of {} runs out of memory are found (recall {})",
            fits.found,
            fits.found + fits.missed,
            share(fits.recall())
        ),
        format!(
            "{} of {} alarms are right (precision {})",
            fits.found,
            fits.found + fits.false_alarms,
            share(fits.precision())
        ),
    ] {
        assert!(page.contains(&words), "docs/estimator.md should say \"{words}\" ({fits:?})");
    }
    let by_hand = |pairs: &[(bool, bool)]| {
        let of = |fits: &(bool, bool)| Outcome { fits: Some(*fits), ..all[0].clone() };
        Fits::of(&pairs.iter().map(of).collect::<Vec<_>>())
    };
    let four = by_hand(&[(true, true), (true, true), (true, false), (false, false), (false, true), (false, true)]);
    assert_eq!((four.right(), four.runs(), four.always_right()), (3, 6, 3));
    assert_eq!((four.recall(), four.precision()), (Some(1.0 / 3.0), Some(0.5)));
    assert_eq!((by_hand(&[(true, true)]).recall(), by_hand(&[]).precision()), (None, None));
}

/// Formula families are exact to their digits; papers cut digits off as often as they round, so a whole unit of the last
/// one is allowed.
#[test]
fn formulas_are_exact() {
    let exact = |o: &Outcome| {
        let gap = o.published.zip(o.predicted).map_or(f64::INFINITY, |(a, b)| (a - b).abs());
        gap <= 2.0 * o.rounding * (1.0 + 1e-9)
    };
    let formula = [
        "model_states_per_gpu",
        "activation_bytes_per_layer_per_microbatch",
        "estimator_gpu_per_gpu",
        "estimator_cpu_per_node",
    ];
    let list: Vec<Outcome> =
        outcomes().into_iter().filter(|o| o.scored && formula.contains(&o.quantity.as_str())).collect();
    assert!(list.len() > 40);
    for outcome in list {
        assert!(exact(&outcome), "{outcome:?}");
    }
}

/// Byte-exact peaks of Megatron's jobs: 2 % in the median, and most of them one by one.
#[test]
fn megatron_peaks() {
    let list: Vec<Outcome> =
        outcomes().into_iter().filter(|o| o.family == "megatron_ci" && o.quantity.starts_with("peak")).collect();
    let all = score(&list);
    assert!(all.scored >= 30 && all.median <= 0.02, "{all:?}");
}

/// Columns are found by name: in another order, with some missing and some unknown.
#[test]
fn columns_by_name() {
    let text = "seq,hidden,layers,heads,remark,model,id,vocab,micro_batch,framework,gpu,n_gpus\n\
                512+128,768,12+12,12,x,t5-like,a,\"32,128\",4,Megatron-Core,A100-SXM,8\n";
    let rows = row::read(text).expect("CSV");
    let expressed = express(&rows[0]).expect("a job");
    assert_eq!(expressed.job.model.layers, 12);
    assert_eq!(expressed.job.batch.seq, 512);
    assert_eq!(expressed.job.degrees.data, 8);
    assert_eq!(expressed.machine, Some("a100-80gb"));
    assert!(rows[0].text("family").is_empty());
    assert!(row::read("a,b\n1,2\n").is_err());
}

/// A cell of every column, replaced by what no author meant, gives a reason or a number and no panic.
#[test]
fn no_text_panics() {
    let odd = [
        "",
        "-1",
        "0",
        "1e9",
        "1000000000",
        "1e18",
        "nan",
        "24+",
        "+24",
        "n/a",
        "\u{1F600}",
        "[0]*1+[1]*",
        "(((",
        "E|t*9999999999|L",
    ];
    for name in ["memory", "throughput"] {
        let text = file(name);
        let mut lines = text.lines();
        let header = lines.next().expect("a header");
        let columns = header.split(',').count();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let records: Vec<csv::StringRecord> = reader.records().step_by(29).filter_map(Result::ok).collect();
        for column in 6..columns {
            for (which, value) in odd.iter().enumerate() {
                let record = &records[(column + which) % records.len()];
                let cells = record.iter().enumerate().map(|(i, cell)| if i == column { *value } else { cell });
                let mut writer = csv::Writer::from_writer(Vec::new());
                writer.write_record(header.split(',')).expect("written");
                writer.write_record(cells).expect("written");
                let bytes = writer.into_inner().expect("text");
                let rows = row::read(&String::from_utf8(bytes).expect("text")).expect("CSV");
                let row: &Row = &rows[0];
                let outcome = if name == "memory" { Some(predict(row)) } else { beside_throughput(row) };
                if let Some(outcome) = outcome {
                    assert!(outcome.predicted.is_some() || !outcome.reason.is_empty());
                }
            }
        }
    }
}

#[test]
fn small_readers() {
    let flags = Flags::of(
        "untie-embeddings-and-output-weights; q-lora-rank=192; recompute-modules=[moe_act mlp]; a free remark",
    );
    assert!(flags.has("untie-embeddings-and-output-weights") && !flags.has("remark"));
    assert_eq!(flags.count("q-lora-rank"), Some(192));
    assert_eq!(flags.list("recompute-modules"), ["moe_act", "mlp"]);
    assert_eq!(dense_blocks("([0]*3+[1]*13)", 16), 3);
    assert_eq!(dense_blocks("2", 16), 8);
    assert_eq!(layout("Et*3|(tt|)*6tmL"), Some(vec![3, 2, 2, 2, 2, 2, 2, 1]));
    assert_eq!(layout("nothing"), Some(vec![1]));
    assert_eq!(stated("GPT 1.01T"), Some(1_010_000_000_000));
    assert_eq!(stated("Qwen3-30B-A3B"), Some(30_000_000_000));
    assert_eq!(stated("GPT h14400 L80"), None);
    assert_eq!(by_name("Meta-Llama-3.1-70B-Instruct").map(|m| m.hidden), Some(8192));
    assert_eq!(machine("nvidia a100 80gb sxm", 0.0), Ok("a100-80gb"));
    assert_eq!(machine("a100-sxm", 40.0), Ok("a100-40gb"));
    assert!(machine("tpuv4", 0.0).is_err() && machine("abacus", 0.0).is_err());
    assert!((rounding("30.1") - 0.05).abs() < 1e-12 && (rounding("7600") - 50.0).abs() < 1e-12);
    assert!((quantile(&mut [4.0, 1.0, 3.0, 2.0], 0.5) - 2.5).abs() < 1e-12);
}
