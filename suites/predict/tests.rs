//! The estimator's shapes beside the engine's layouts: two descriptions of one model must count alike.

use crate::forecast::{self, Footprint};
use crate::job;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use zbench_config::{Document, Resolved};
use zbench_engine::config::{MemoryTier, PipelineSchedule};
use zbench_engine::formats::hf;
use zbench_engine::model::{FlatKind, Layout};
use zbench_engine::plan::pipeline::{Pass, Pipeline};
use zbench_engine::planner::Planner;
use zbench_estimate::job::Order;
use zbench_estimate::{memory, rules};
use zbench_kernels::Category;

fn cell(preset: &str, more: &str) -> Resolved {
    resolved(&cell_text(preset, more))
}

fn cell_text(preset: &str, more: &str) -> String {
    format!("[model]\npreset = \"{preset}\"\n[train]\nseq_len = 128\n[hardware]\ndevice = \"cuda\"\n{more}")
}

fn resolved(text: &str) -> Resolved {
    let document = Document::parse(Path::new("t.toml"), text, &[]).unwrap();
    let context = zbench_config::Context::new(PathBuf::new(), 1);
    zbench_config::resolve(&document.base, &context).unwrap()
}

/// A shape has biases everywhere or nowhere and norms of one kind; what families do beside that is vectors, not matrices.
const VECTORS: f64 = 0.002;

#[test]
fn every_presets_parameters_are_those_of_the_engine_but_for_vectors() {
    for preset in hf::preset_names() {
        let cell = cell(preset, "");
        let layout = Layout::new(&cell.cell, 1);
        let engine: u64 = layout.parameters(FlatKind::Trainable) + layout.frozen_parameters();
        let shape = job(&cell).model;
        let off = shape.parameters() as f64 / engine as f64 - 1.0;
        assert!(off.abs() < VECTORS, "{preset}: {} instead of {engine}", shape.parameters());
    }
}

#[test]
fn adapters_are_counted_by_the_engine() {
    let cell = cell("llama2-7b", "[lora]\nrank = 8\ntargets = \"all-linear\"\nbase = \"nf4\"\n");
    let zbench_estimate::job::Peft::Adapters { trainable, base, .. } = job(&cell).peft else {
        panic!("adapters are adapters")
    };
    assert_eq!(trainable, Layout::new(&cell.cell, 1).parameters(FlatKind::Trainable));
    assert_eq!(base, zbench_estimate::job::Number::Nf4);
}

#[test]
fn each_target_is_the_matrix_of_its_name() {
    use zbench_estimate::job::{Peft, Targets};
    let targets = |preset: &str, software: &str, names: &str| {
        let lora = format!("software = \"{software}\"\n[lora]\nrank = 8\ntargets = {names}\n");
        match job(&resolved(&cell_text(preset, &lora))).peft {
            Peft::Adapters { targets, .. } => targets,
            Peft::None => panic!("adapters are adapters"),
        }
    };
    let none = Targets::default();
    for (name, wanted) in [
        ("q_proj", Targets { query: true, ..none }),
        ("k_proj", Targets { key: true, ..none }),
        ("v_proj", Targets { value: true, ..none }),
        ("o_proj", Targets { output: true, ..none }),
        ("gate_proj", Targets { gate: true, ..none }),
        ("up_proj", Targets { up: true, ..none }),
        ("down_proj", Targets { down: true, ..none }),
    ] {
        assert_eq!(targets("llama2-7b", "fsdp2", &format!("[\"{name}\"]")), wanted);
    }
    assert_eq!(targets("llama2-7b", "fsdp2", "\"all-linear\""), Targets::ALL);
    // Megatron Core, and GPT-2 everywhere, have one tensor for queries, keys and values.
    assert!(targets("llama2-7b", "megatron-core", "[\"q_proj\"]").fused);
    assert!(targets("gpt2", "fsdp2", "[\"c_attn\"]").fused);
}

/// Llama 2 7B on eight H100; a line in [hardware] may name a framework.
fn priced(software: &str, folder: &Path) -> (Footprint, f64, String) {
    let text = format!(
        "[model]\npreset = \"llama2-7b\"\n[train]\nseq_len = 2048\nmicro_batch = 8\n[memory]\nloss = \"logits\"\n[precision]\npreset = \"bf16-mixed\"\n\
         [hardware]\nprofile = \"h100-sxm\"\n{software}\n[parallel]\nranks = 8\nstrategy = \"fsdp\"\n"
    );
    let document = Document::parse(Path::new("t.toml"), &text, &[]).unwrap();
    let resolved = zbench_config::resolve(&document.base, &zbench_config::Context::new(folder.into(), 1)).unwrap();
    let (timing, _) = forecast::timing(&Planner::default(), &resolved, None).unwrap();
    (forecast::footprint(&resolved, None), timing.step_ms, timing.source)
}

#[test]
fn without_a_name_memory_and_time_are_of_zbench() {
    let nowhere = Path::new("");
    let (unset, named) = (priced("", nowhere), priced("software = \"zbench\"", nowhere));
    assert_eq!((unset.0.total, unset.1, &unset.2), (named.0.total, named.1, &named.2));
    assert!(unset.2.ends_with("as driven by zbench"), "{}", unset.2);
    let other = priced("software = \"fsdp2\"", nowhere);
    assert!(other.0.total > unset.0.total && other.1 != unset.1, "{} {}", other.0.total, other.1);
}

/// The peak is at the loss, of 16,384 tokens. Eight bytes a logit less are so much less in tensors, and half of the slack of 0.06 on top.
/// Without copies of parameters a step is shorter.
#[test]
fn a_profile_of_ones_own_changes_memory_and_time() {
    let folder = std::env::temp_dir().join(format!("zbench-own-framework-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("frameworks")).unwrap();
    let text = "base = \"fsdp2\"\nmemory.logit.whole = 6.0\ndrive.copy_bytes = 0.0\n";
    std::fs::write(folder.join("frameworks/ours.toml"), text).unwrap();
    let (base, ours) = (priced("software = \"fsdp2\"", &folder), priced("software = \"ours\"", &folder));
    std::fs::remove_dir_all(&folder).unwrap();
    let less = (base.0.total - ours.0.total) as f64 / (8.0 * 8.0 * 2048.0 * 32000.0);
    assert!((less - 1.03).abs() < 1e-6, "{less}");
    assert!(ours.1 < base.1 && ours.2.contains("as driven by ours"), "{} {} {}", ours.1, base.1, ours.2);
}

/// A cell of eight blocks in stages, untied, that the engine plans and the estimator prices.
fn staged(schedule: &str, more: &str) -> Resolved {
    let text = format!(
        "[model]\npreset = \"llama-tiny\"\nnum_hidden_layers = 8\ntie_word_embeddings = false\nvocab_size = 256\n\
         [train]\nseq_len = 256\nmicro_batch = 2\naccumulation = 8\n\
         [parallel]\nranks = 4\npipeline = 4\npipeline_schedule = \"{schedule}\"\n{more}"
    );
    resolved(&text)
}

/// Bytes of activations by stage: by the engine's plan, which tests hold against what is allocated, and as priced.
fn activations(cell: &Resolved) -> [Vec<f64>; 2] {
    let plan = Planner::default().plan(&cell.cell).unwrap();
    let stages = plan.estimate().stages;
    let planned = stages.iter().map(|stage| stage[MemoryTier::Device].peak(Category::Activations) as f64).collect();
    // The estimator has stages that differ from each other; a stated cut makes it name them all.
    let mut job = job(cell);
    if job.split.is_empty() {
        job.split = vec![0, 2, 4, 6];
    }
    let priced = memory::memory(&job);
    [planned, priced.stages.iter().map(|stage| stage.by(memory::Category::Activations)).collect()]
}

/// The largest part by which a stage is priced otherwise than it is planned.
fn off(cell: &Resolved) -> f64 {
    let [planned, priced] = activations(cell);
    assert_eq!(planned.len(), priced.len());
    let parts = planned.iter().zip(&priced).map(|(planned, priced)| (priced / planned - 1.0).abs());
    parts.fold(0.0, f64::max)
}

/// The estimator knows no tensor's place, and so no fragment of a moment: a twentieth for whole blocks, more where little is kept.
#[test]
fn activations_of_stages_are_priced_as_they_are_planned() {
    for (schedule, more, most) in [
        ("1f1b", "", 0.05),
        ("zb-h1", "", 0.05),
        ("1f1b", "[memory]\ncheckpointing = \"full\"\n", 0.12),
        ("zb-h1", "[memory]\ncheckpointing = \"full\"\n", 0.12),
        ("1f1b", "pipeline_split = [0, 1, 3, 7]\n", 0.05),
        ("zb-h1", "pipeline_split = [0, 1, 3, 7]\n", 0.06),
    ] {
        let off = off(&staged(schedule, more));
        assert!(off < most, "{schedule}, {more}: {off}");
    }
}

/// Seconds from the first forward to the last backward, in the engine's own order: what the stages' passes take one after the other,
/// waiting for each other's results.
fn simulated(pipeline: &Pipeline, stages: &[[f64; 3]]) -> f64 {
    let lists: Vec<_> = (0..pipeline.stages).map(|stage| pipeline.passes(stage)).collect();
    let (mut time, mut next) = (vec![0.0f64; stages.len()], vec![0; stages.len()]);
    let mut made: [HashMap<(usize, usize), f64>; 2] = Default::default();
    let last = stages.len() - 1;
    while next.iter().zip(&lists).any(|(next, list)| *next < list.len()) {
        for stage in 0..stages.len() {
            while let Some(pass) = lists[stage].get(next[stage]) {
                let micro = pass.micro();
                let [forward, input, weights] = stages[stage];
                let (begin, takes) = match pass {
                    Pass::Forward { .. } if stage == 0 => (Some(0.0), forward),
                    Pass::Forward { .. } => (made[0].get(&(stage - 1, micro)).copied(), forward),
                    Pass::BackwardWeight { .. } => (Some(0.0), weights),
                    of => {
                        let whole = if let Pass::Backward { .. } = of { weights } else { 0.0 };
                        let from = if stage == last { (0, last) } else { (1, stage + 1) };
                        (made[from.0].get(&(from.1, micro)).copied(), input + whole)
                    }
                };
                let Some(begin) = begin else { break };
                time[stage] = time[stage].max(begin) + takes;
                match pass {
                    Pass::Forward { .. } => drop(made[0].insert((stage, micro), time[stage])),
                    Pass::BackwardWeight { .. } => {}
                    _ => drop(made[1].insert((stage, micro), time[stage])),
                }
                next[stage] += 1;
            }
        }
    }
    time.into_iter().fold(0.0, f64::max)
}

#[test]
fn idle_time_is_that_of_the_engines_orders() {
    let orders = [
        (PipelineSchedule::Naive, Order::Naive),
        (PipelineSchedule::GPipe, Order::GPipe),
        (PipelineSchedule::OneFOneB, Order::OneFOneB),
        (PipelineSchedule::ZbH1, Order::ZeroBubble),
    ];
    let times = [[4.0, 4.0, 4.0], [1.0, 3.0, 0.5], [2.0, 1.0, 5.0], [3.0, 3.0, 0.0]];
    for (schedule, order) in orders {
        for (stages, micros) in [(2, 2), (2, 8), (3, 4), (4, 2), (4, 8), (5, 13)] {
            for time in times {
                // Stages that differ are followed pass by pass, and only ZB-H1 is.
                let uneven =
                    |stage: usize| if order == Order::ZeroBubble { 1.0 + 0.25 * (stage % 3) as f64 } else { 1.0 };
                let list: Vec<[f64; 3]> = (0..stages).map(|stage| time.map(|part| part * uneven(stage))).collect();
                let pipeline = Pipeline { schedule, stages, chunks: 1, micros };
                let own = list[0].iter().sum::<f64>();
                let idle = rules::pipeline::idle(order, 1.0, micros as f64, &list, own);
                let expected = simulated(&pipeline, &list) - micros as f64 * own;
                assert!((idle - expected).abs() < 1e-9, "{pipeline:?}, {list:?}: {idle}, {expected}");
            }
        }
    }
}

/// A cell of configs/mesh.toml on this machine, or priced on another.
fn of_mesh([tensor, stages]: [usize; 2], hardware: &str) -> zbench_config::Resolved {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/mesh.toml")).unwrap();
    let base = text.split("[grid]").next().unwrap();
    let text = format!("{base}\ntensor = {tensor}\npipeline = {stages}\n{hardware}");
    resolved(&text)
}

/// Divisions of eight ranks in the order of these numbers.
fn in_order(mut all: Vec<([usize; 2], f64)>) -> Vec<[usize; 2]> {
    all.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    all.into_iter().map(|(mesh, _)| mesh).collect()
}

/// What a search goes by and what the grid measures to the byte put divisions of eight ranks in one order, by memory and by bytes on the
/// wire. By those a price is of the slowest stage, and the plan's rows are each of the stage that has most; two divisions that are less than
/// 1 % apart stand the other way round.
#[test]
fn meshes_have_one_order_as_priced_and_as_planned() {
    let meshes: Vec<[usize; 2]> =
        [1, 2, 4, 8].into_iter().flat_map(|t| [1, 2, 4, 8].map(|p| [t, p])).filter(|[t, p]| t * p <= 8).collect();
    let (planner, mut orders) = (Planner::default(), [(); 4].map(|()| Vec::new()));
    for mesh in meshes {
        let planned = planner.plan(&of_mesh(mesh, "").cell).unwrap().estimate();
        let priced = of_mesh(mesh, "[hardware]\ndevice = \"cuda\"\nprofile = \"h100-sxm\"\nsoftware = \"zbench\"\n");
        let (_, traffic) = crate::forecast::timing(&planner, &priced, None).unwrap();
        let numbers = [
            planned.memory().total_peak() as f64,
            crate::forecast::footprint(&priced, None).total as f64,
            planned.traffic.iter().map(|row| row.wire_bytes).sum(),
            traffic.iter().map(|row| row.wire_bytes).sum(),
        ];
        orders.iter_mut().zip(numbers).for_each(|(order, number)| order.push((mesh, number)));
    }
    let [planned, priced, planned_wire, priced_wire] = orders;
    assert_eq!(in_order(planned), in_order(priced), "memory");
    for ((mesh, bytes), (_, price)) in planned_wire.iter().zip(&priced_wire) {
        for ((other, of_other), (_, price_of_other)) in planned_wire.iter().zip(&priced_wire) {
            if *bytes < 0.99 * of_other {
                assert!(price < price_of_other, "{mesh:?} and {other:?}: bytes on the wire");
            }
        }
    }
}

/// From every way of recomputing less, all blocks can be recomputed.
#[test]
fn advice_ends_with_full_recomputation() {
    for checkpointing in ["none", "selective"] {
        let more = format!(
            "profile = \"h100-sxm\"\nsoftware = \"fsdp2-compiled\"\n[memory]\ncheckpointing = \"{checkpointing}\"\n[precision]\n\
             preset = \"bf16-mixed\"\n[parallel]\nranks = 64\nstrategy = \"fsdp\"\n"
        );
        let text = cell_text("llama2-70b", &more).replace("seq_len = 128", "seq_len = 4096\nmicro_batch = 4");
        let capacity = 79 << 30;
        let advice = crate::planned::cheapest_change(&Planner::default(), &resolved(&text), capacity).unwrap();
        assert!(advice.starts_with("memory.checkpointing = \"full\" (predicted "), "{checkpointing}: {advice}");
        // Nothing makes a rank fit that has less than its weights and gradients.
        assert_eq!(crate::planned::cheapest_change(&Planner::default(), &resolved(&text), 1 << 20), None);
    }
}

/// The program has no sharded weights and the host no room for the optimizer, so that the largest sets of changes are none; half the
/// micro-batch fits all the same.
#[test]
fn advice_is_found_where_the_largest_changes_are_none() {
    let more = "profile = \"h100-sxm\"\nsoftware = \"megatron-lm\"\nchanges = [\"node.host_memory=16GiB\"]\n[memory]\ncheckpointing = \"full\"\nattention = \"flash\"\n\
                [precision]\npreset = \"bf16-mixed\"\n[parallel]\nranks = 8\nstrategy = \"zero1\"\n";
    let text =
        cell_text("llama2-7b", more).replace("seq_len = 128", "seq_len = 4096\nmicro_batch = 16\naccumulation = 2");
    let resolved = resolved(&text);
    let capacity = resolved.cell.memory.capacity.unwrap();
    let advice = crate::planned::cheapest_change(&Planner::default(), &resolved, capacity).unwrap();
    assert!(advice.starts_with("half train.micro_batch and twice train.accumulation (predicted "), "{advice}");
}

/// AdamW's moments in f32, 8 bytes a parameter, lie in the home that is asked for, on all ranks of a node together.
#[test]
fn bytes_outside_the_device_are_stated_by_home() {
    for home in ["host", "disk"] {
        let more = format!("[parallel]\nstrategy = \"zero3\"\nranks = 2\n[memory]\noffload_optimizer = \"{home}\"\n");
        let cell = cell("gpt2", &more);
        let plan = Planner::default().plan(&cell.cell).unwrap();
        let footprint = Footprint::of_plan(&plan.stage_plan_of(0).estimate, 2);
        let moments = 8 * Layout::new(&cell.cell, 1).parameters(FlatKind::Trainable);
        match home {
            "host" => assert!(footprint.host >= moments && footprint.disk == 0, "{footprint:?}"),
            _ => assert!(footprint.disk >= moments, "{footprint:?}"),
        }
    }
}
