//! Files of users, in tests/cases, that an earlier version priced wrongly; what they have to take is from the program that each names.

use crate::support::root;
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::grid;
use zbench_config::{Context, Document, Resolved};
use zbench_engine::planner::Planner;
use zbench_predict::forecast::{self, Footprint};
use zbench_predict::planned;
use zbench_predict::search::{Wanted, search};
use zbench_predict::{collectives, job};
use zbench_reports::estimate_report::{EstimateRow, estimates};
use zbench_reports::render::terminal::{Terminal, render};
use zbench_reports::screen::Room;

fn document(name: &str, set: &[&str]) -> (Document, Context) {
    let set: Vec<String> = set.iter().map(|set| set.to_string()).collect();
    let document = Document::read(&root().join("tests/cases").join(name), &set).unwrap();
    (document, Context::new(Path::new("").into(), 2))
}

fn resolved(name: &str, set: &[&str]) -> Resolved {
    let (document, context) = document(name, set);
    zbench_config::resolve(&document.base, &context).unwrap()
}

fn footprint(name: &str, set: &[&str]) -> Footprint {
    forecast::footprint(&resolved(name, set), None)
}

fn gib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 30)
}

/// ZeRO on one card shares nothing and can still offload, which ddp cannot.
#[test]
fn one_device_offloads() {
    let planner = Planner::default();
    let cell = resolved("one-device-offload.toml", &[]);
    let found = search(&planner, &cell, "", &Wanted::default()).unwrap();
    assert!(found.fitting > 0 && found.nearest.is_none());
    let homes = |one: &str| found.best.iter().any(|best| best.settings.get("memory.offload_optimizer").unwrap() == one);
    assert!(homes("host") && !homes("none"), "optimizer state alone is 80 GiB");
}

/// What a search tries never leaves out the cell that it is asked about.
#[test]
fn a_search_has_the_cell_itself() {
    let set = ["memory.offload_parameters=\"none\"", "memory.offload_optimizer=\"host\"", "train.micro_batch=3"];
    let cell = resolved("one-device-offload.toml", &[&set[..], &["memory.offload_activations=\"host\""]].concat());
    let wanted = Wanted { listed: 1000, ..Wanted::default() };
    let found = search(&Planner::default(), &cell, "", &wanted).unwrap();
    let is_own = |settings: &zbench_reports::OrderedMap<String>| {
        [
            ("memory.offload_optimizer", "host"),
            ("memory.offload_parameters", "none"),
            ("memory.offload_activations", "host"),
        ]
        .iter()
        .all(|(key, value)| settings.get(key).is_some_and(|own| own == value))
    };
    assert!(found.best.iter().any(|best| is_own(&best.settings)));
    // Not a second time under another name; DeepSpeed's is zero3.
    let settings: Vec<_> = found.best.iter().map(|best| format!("{:?}", best.settings)).collect();
    assert_eq!(settings.iter().collect::<std::collections::BTreeSet<_>>().len(), settings.len());
    assert!(found.best.iter().all(|best| best.settings.get("parallel.strategy").is_some_and(|name| name != "fsdp")));
}

/// Nodes with one rank each: all cards of a node are its one rank's. 32 MiB enter a node at 0.85 of 100 Gb/s.
#[test]
fn ranks_of_a_node_share_its_cards() {
    let (document, context) = document("two-nodes-one-card.toml", &[]);
    let row = &collectives::prices(&document.base, &context).unwrap()[0];
    let wire = f64::from(32 << 20) / (0.85 * 12.5e9) * 1e6;
    assert!((wire..1.1 * wire).contains(&row.microseconds), "{} us for {wire}", row.microseconds);
    // The same of cells that train, and no faster than the card's link to its host.
    let machine = |profile: &str, ranks: usize| {
        let set = [format!("hardware.profile=\"{profile}\""), format!("parallel.ranks_per_node={ranks}")];
        let cell = resolved("f32-gradients-between-steps.toml", &[&set[0], &set[1], "parallel.ranks=16"]);
        forecast::job_and_machine(&cell).unwrap().1
    };
    for (ranks, rate) in [(1, 12.5e9), (2, 6.25e9), (8, 12.5e9 / 8.0)] {
        assert_eq!(machine("h100-pcie", ranks).inter.bandwidth, rate);
    }
    let alone = machine("h100-sxm", 1);
    assert_eq!(alone.inter.bandwidth, alone.host.bandwidth, "eight cards would be 400 GB/s");
}

/// DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: trainable parameters alone are copied to f32.
#[test]
fn frozen_weights_have_no_gradients_in_f32() {
    let with = |strategy: &str| {
        footprint("gradients-of-frozen-weights-under-zero2.toml", &[&format!("parallel.strategy=\"{strategy}\"")])
    };
    let cell = resolved("gradients-of-frozen-weights-under-zero2.toml", &[]);
    let zbench_estimate::job::Peft::Adapters { trainable, .. } = job(&cell).peft else { panic!("adapters") };
    for strategy in ["zero1", "zero2", "zero3"] {
        let gradients = *with(strategy).peaks.get("gradients").unwrap() as f64;
        assert!(gradients <= 8.0 * trainable as f64, "{strategy}: {} GiB", gib(gradients));
    }
}

/// DeepSpeed 0.19.8, runtime/zero/stage3.py: copies in f32 live during the update of their group, and only where the master is f32.
#[test]
fn zero3_frees_gradients_in_f32() {
    let parameters = 8_030_261_248.0;
    for (set, bytes) in [(&[][..], 10.0), (&["precision.master=\"f32\"", "precision.optimizer=\"f32\""], 16.0)] {
        let kept = footprint("f32-gradients-between-steps.toml", set).figures[0].after_step;
        let state = bytes * parameters / 4.0;
        let rest = gib(kept - state);
        assert!((0.0..2.0).contains(&rest), "{bytes} bytes a parameter and {rest} GiB");
    }
}

/// What `zbench plan` prints of a file, in one line, and its rows.
fn planned(name: &str) -> (String, Vec<EstimateRow>) {
    let (document, context) = document(name, &[]);
    let cells = grid::expand(&document, &[], 100, &context, &mut Files::default()).unwrap();
    let rows: Vec<_> = cells.into_iter().map(|cell| planned::plan(&Planner::default(), cell, None).row()).collect();
    let screen = render(&estimates(&rows, Room::SCREEN, &[]).short(), Terminal { width: 120, color: false });
    (screen.split_whitespace().collect::<Vec<_>>().join(" "), rows)
}

/// LlamaFactory issue 6752: out of memory, where a peak of 23.6 GiB of 23.7 GiB was predicted.
#[test]
fn a_band_that_passes_the_capacity_is_no_yes() {
    let (screen, rows) = planned("uncertain.toml");
    let doubts: Vec<(&str, bool)> = rows.iter().map(|row| (row.label.as_str(), row.uncertain)).collect();
    assert_eq!(doubts, [("zero2", true), ("zero3", false)]);
    assert!(screen.contains("1 fits and 1 is uncertain"), "{screen}");
    assert!(screen.contains("hardware.changes = [\"node.devices=4\"]"), "{screen}");
}

#[test]
fn what_does_not_fit_names_the_memory_that_is_too_small() {
    let (screen, _) = planned("host-does-not-fit.toml");
    assert!(screen.contains("145 GiB of a node's host memory of 64.0 GiB"), "{screen}");
    // Reading its weights takes memory of the host all the same.
    let change = "memory.offload_optimizer = \"none\" (predicted ";
    assert!(screen.contains(change) && screen.contains(" of 79.15 GiB, and no state on the host)"), "{screen}");
    let (screen, _) = planned("two-machines.toml");
    assert!(screen.contains("needs 200 GiB of 79.2 GiB") && screen.contains("needs 200 GiB of 23.7 GiB"), "{screen}");
    let (screen, _) = planned("zero2-of-deepspeed.toml");
    assert!(screen.contains("parallel.strategy = \"zero3\" (predicted"), "DeepSpeed has no fsdp: {screen}");
}

/// The first words say what is predicted and whether anything like it was ever compared; adapters do other work than full fine-tuning.
#[test]
fn a_plan_says_what_it_is_of_and_ranks_adapters_apart() {
    let (screen, rows) = planned("full-and-adapters.toml");
    let first =
        "ANSWER 2 of 3 cells are like no published result: llama3-8b on h100-sxm, 16,384 tokens a step, f32, fsdp2.";
    assert!(screen.starts_with(first), "{screen}");
    assert!(
        screen.contains(" Matrix products are in f32, and h100-sxm is rated 15 times as fast in 16 bits"),
        "{screen}"
    );
    assert!(screen.contains("2 cells: Predicted speeds of adapter runs were up to"), "{screen}");
    let fastest = |kind: &str| {
        let said = screen.split(&format!("Predicted to be the fastest {kind} that fits: ")).nth(1);
        said.unwrap_or_else(|| panic!("{kind}: {screen}")).split(',').take(2).collect::<String>()
    };
    assert!(fastest("full fine-tune").contains("rank=0") && fastest("adapter run").contains("rank=16"), "{screen}");
    assert!(screen.contains(" full fine-tune fits peak ") && screen.contains(" adapter run fits peak "), "{screen}");
    let width = |row: &EstimateRow| row.total_bytes_band.map(|[low, high]| high as f64 / low as f64).unwrap();
    assert!(width(&rows[1]) > 1.05 * width(&rows[0]), "nothing published is like adapters under fsdp2");
}

/// Whole groups of blocks are made again, and all but the last are gathered a third time, as docs/activation-checkpointing.md says.
#[test]
fn groups_of_blocks_take_longer_than_single_ones() {
    let step = |policy: &str| {
        let cell = resolved(
            "zero2-of-deepspeed.toml",
            &["parallel.strategy=\"zero3\"", &format!("memory.checkpointing={policy}")],
        );
        let (timing, traffic) = forecast::timing(&Planner::default(), &cell, None).unwrap();
        (timing.step_ms, traffic.iter().map(|of| of.wire_bytes).sum::<f64>())
    };
    let (full, sqrt) = (step("\"full\""), step("\"sqrt\""));
    assert!(sqrt.0 > 1.01 * full.0 && sqrt.1 > 1.1 * full.1, "{sqrt:?} {full:?}");
}

/// Without a word DeepSpeed reads all weights in each process; a file that loads on rank 0 says so, of a preset too.
#[test]
fn who_reads_the_weights_can_be_stated_of_a_preset() {
    let host = |set: &[&str]| footprint("host-does-not-fit.toml", set).figures[0].load_host;
    let (usual, of_first) = (host(&[]), host(&["model.loading=\"broadcast\""]));
    assert_eq!(usual, 4.0 * of_first);
    assert_eq!(host(&["model.loading=\"sliced\""]), 0.0);
}

/// transformers 5.23 on the meta device: 2,851,598,336 parameters of t5-3b with its two tables of relative positions.
#[test]
fn t5_has_its_relative_positions() {
    let text = "[model]\nfamily = \"t5\"\nhidden_size = 1024\nintermediate_size = 16384\nnum_hidden_layers = 24\n\
                num_attention_heads = 32\nhead_dim = 128\nvocab_size = 32128\ntie_word_embeddings = true\n\
                [train]\nseq_len = 512\n[hardware]\nprofile = \"a100-80gb\"\nsoftware = \"deepspeed\"\n";
    let document = Document::parse(Path::new("t5.toml"), text, &[]).unwrap();
    let cell = zbench_config::resolve(&document.base, &Context::new(Path::new("").into(), 2)).unwrap();
    assert_eq!(job(&cell).model.parameters(), 2_851_598_336);
}

/// transformers trains rotary models beyond their max_position_embeddings; a table of positions ends there.
#[test]
fn rotary_models_take_longer_sequences() {
    let is_taken = |preset: &str| {
        let (document, context) = document("longer-than-positions.toml", &[&format!("model.preset={preset}")]);
        let cell = grid::expand(&document, &[], 1, &context, &mut Files::default()).unwrap().remove(0);
        let searched = search(&Planner::default(), cell.resolved.as_ref().unwrap(), "", &Wanted::default());
        let row = planned::plan(&Planner::default(), cell, None).row();
        let reasons = [row.reason, searched.err().map(|error| error.to_string()).unwrap_or_default()];
        reasons.map(|reason| !reason.contains("exceeds the model's max_position_embeddings"))
    };
    assert_eq!([is_taken("qwen3-32b"), is_taken("gpt2")], [[true; 2], [false; 2]]);
}

fn timing(name: &str, set: &[&str]) -> zbench_predict::Timing {
    forecast::timing(&Planner::default(), &resolved(name, set), None).unwrap().0
}

/// A program has had several kernels over its releases: where a file names none, the band holds the bands of all of them.
#[test]
fn a_kernel_that_is_not_named_widens_the_band() {
    let ends = |set: &[&str]| {
        let of = timing("kernel-not-named.toml", set);
        of.band.unwrap().around_time(of.step_ms)
    };
    let [unknown, second, third] =
        [&[][..], &["memory.attention=\"flash\""], &["memory.attention=\"flash3\""]].map(&ends);
    assert!(third[0] < 0.99 * second[0] && unknown[1] == second[1], "{unknown:?} {second:?} {third:?}");
    assert!((unknown[0] / third[0] - 1.0).abs() < 1e-9, "{unknown:?} {third:?}");
    // Where scores may be in memory, the band reaches to them.
    let of_old = |more: &[&str]| ends(&[&["hardware.software=\"megatron-lm\""], more].concat());
    let (unknown, naive) = (of_old(&[]), of_old(&["memory.attention=\"naive\""]));
    assert!((unknown[1] / naive[1] - 1.0).abs() < 1e-9 && naive[0] > unknown[0], "{unknown:?} {naive:?}");
}

/// DeepSpeed, PyTorch's DDP and FSDP2 have no fused loss of their own: whole logits that a file does not ask for are said.
#[test]
fn whole_logits_are_said_where_the_software_has_no_fused_loss() {
    let (screen, rows) = planned("whole-logits.toml");
    let said: Vec<bool> = rows.iter().map(|row| row.assumed.iter().any(|text| text.contains("fused loss"))).collect();
    assert_eq!(said, [true, true, true, false], "{screen}");
    assert!(screen.contains("ASSUMED 1 cell: torch has no fused loss"), "{screen}");
    for stated in ["logits", "chunked"] {
        let set = ["hardware.software=\"torch\"", &format!("memory.loss=\"{stated}\"")];
        assert_eq!(footprint("whole-logits.toml", &set).whole_logits, "");
    }
}

/// Models of transformers call experts one after the other, and ZeRO-3 gathers the matrices of each.
#[test]
fn experts_one_after_the_other_are_slow_under_zero3() {
    let step = |set: &[&str]| timing("experts-one-by-one.toml", set).step_ms / 1e3;
    let zero3 = step(&[]);
    assert!((91.2 / 1.5..91.2 * 1.5).contains(&zero3), "{zero3} s");
    // Grouped products wait for no expert.
    assert!(step(&["hardware.software=\"fsdp2\"", "parallel.strategy=\"fsdp\""]) < zero3 / 5.0);
}

/// "Accelerate Large Model Training using DeepSpeed": at most 100 sequences a card under DDP and 200 under ZeRO-2. With transformers
/// 4.36 and PyTorch 2.6 (fake tensors) autocast keeps 11.4 GiB of activations at 100, and f16 alone 7.1.
#[test]
fn autocast_keeps_what_lies_between_products_in_f32() {
    let (document, context) = document("../../configs/claims/blenderbot-400m.toml", &[]);
    let cells = grid::expand(&document, &[], 100, &context, &mut Files::default()).unwrap();
    let of = |cell: &grid::GridCell| forecast::footprint(cell.resolved.as_ref().unwrap(), None);
    let [ddp_100, ddp_200, _, zero2_200] = &cells.iter().map(of).collect::<Vec<_>>()[..] else { panic!("four cells") };
    let capacity = cells[0].resolved.as_ref().unwrap().cell.memory.capacity.unwrap();
    assert!(ddp_100.fits(capacity) && !ddp_200.fits(capacity) && zero2_200.fits(capacity));
    let kept = gib(ddp_200.total as f64 - ddp_100.total as f64);
    assert!((10.8..12.8).contains(&kept), "{kept} GiB for 100 sequences");
}

/// DeepSpeed 0.19.8's CPU-Adam: torchrun gives one process all cores, and each of several one (OMP_NUM_THREADS = 1).
#[test]
fn one_rank_updates_on_all_cores_of_its_host() {
    let offload = |ranks: &str| {
        let set = ["train.micro_batch=16", "parallel.strategy=\"zero3\"", "hardware.software=\"deepspeed\""];
        let homes = ["memory.offload_optimizer=\"host\"", "memory.offload_parameters=\"host\"", ranks];
        timing("../../configs/claims/gpt2-xl-offload.toml", &[&set[..], &homes].concat())
    };
    let one = offload("parallel.ranks=1");
    // 6,608 s for 1,168 steps in the post above.
    let [least, most] = one.band.unwrap().around_time(one.step_ms);
    assert!((least..most).contains(&5_660.0), "{least} to {most} ms");
    let two = offload("parallel.ranks=2");
    assert!(two.spans.get("offload") > one.spans.get("offload"), "{:?} {:?}", one.spans, two.spans);
}
