//! Training on documents: a packed batch is its documents run alone, the loss is the mean over the tokens of the global
//! batch that have one, and none of it depends on strategy, rank count or who reads the batch.

use crate::training::accounting::{assert_as_planned, assert_stated, policies, small};
use crate::training::identity::{assert_close, assert_same, odd, strategies};
use crate::training::support::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use zbench_engine::config::*;
use zbench_engine::data::{Counts, NO_TARGET, Row, Source};
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

/// Letters and a space are tokens 0 to 26; 27 ends a text. Other characters have no token.
fn tokenizer(dir: &Path) -> PathBuf {
    let letters = ('a'..='z').enumerate().map(|(id, letter)| format!("\"{letter}\":{id}"));
    let vocab: Vec<String> = letters.chain(["\"Ġ\":26".into()]).collect();
    let text = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,"decoder":null,
        "added_tokens":[{{"id":27,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,
        "special":true}}],"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,
        "use_regex":false}},"model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{{{}}},"merges":[]}}}}"#,
        vocab.join(",")
    );
    let path = dir.join("tokenizer.json");
    std::fs::write(&path, text).unwrap();
    path
}

/// A text of so many letters that repeats nothing soon.
fn words(number: usize, len: usize) -> String {
    (0..len).map(|place| char::from(b'a' + ((number * 7 + place * place * 3 + place) % 26) as u8)).collect()
}

/// Texts of these lengths, with the end mark one token longer.
fn data(dir: &TempDir, packing: DocumentPacking, lens: &[usize]) -> Data {
    let lines = lens.iter().enumerate().map(|(number, len)| format!("{{\"text\":\"{}\"}}\n", words(number, *len)));
    of_lines(dir, packing, DocumentForm::Jsonl, &lines.collect::<String>())
}

/// Prompts and answers of these lengths.
fn answers(dir: &TempDir, packing: DocumentPacking, lens: &[(usize, usize)]) -> Data {
    let line = |(number, (prompt, answer)): (usize, &(usize, usize))| {
        format!("{{\"prompt\":\"{}\",\"completion\":\"{}\"}}\n", words(number, *prompt), words(number + 40, *answer))
    };
    let lines: String = lens.iter().enumerate().map(line).collect();
    of_lines(dir, packing, DocumentForm::Chat, &lines)
}

fn of_lines(dir: &TempDir, packing: DocumentPacking, form: DocumentForm, lines: &str) -> Data {
    let path = dir.path().join("documents.jsonl");
    std::fs::write(&path, lines).unwrap();
    Data::Documents(Box::new(Documents {
        files: vec![DocumentFile { path, form, field: "text".into(), weight: 1.0 }],
        tokenizer: tokenizer(dir.path()),
        packing,
        shuffle: true,
        template: Template::ChatMl,
        answers: Answers::Only,
        end: None,
    }))
}

/// Uneven prompts and answers, so that no two micro-batches have the same number of targets.
const TALKS: [(usize, usize); 12] =
    [(3, 2), (1, 7), (5, 1), (2, 4), (9, 2), (1, 1), (4, 6), (2, 9), (6, 5), (1, 3), (7, 4), (3, 8)];

/// The loss and gradients of each document alone, on the path that knows no documents, weighted by its targets.
fn alone(dir: &TempDir, cell: &Cell, lens: &[usize]) -> (f64, Tensors) {
    let (mut loss, mut gradients, mut all) = (0.0, Tensors::new(), 0.0);
    for (number, len) in lens.iter().enumerate() {
        let mut tokens: Vec<u32> = words(number, *len).bytes().map(|letter| u32::from(letter - b'a')).collect();
        tokens.push(27);
        let path = dir.path().join("alone.bin");
        std::fs::write(&path, tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        let mut one = cell.clone();
        one.data = Data::Tokens { path, dtype: TokenType::U32, shuffle: false };
        (one.train.seq_len, one.train.micro_batch, one.train.steps) = (*len, 1, 1);
        let ran = run(&one);
        let weight = *len as f64;
        (loss, all) = (loss + weight * ran.steps[0].loss, all + weight);
        for (place, (name, values)) in ran.gradients.into_iter().enumerate() {
            let scaled = values.iter().map(|value| (f64::from(*value) * weight) as f32);
            match gradients.get_mut(place) {
                None => gradients.push((name, scaled.collect())),
                Some((_, sum)) => sum.iter_mut().zip(scaled).for_each(|(sum, value)| *sum += value),
            }
        }
    }
    gradients
        .iter_mut()
        .for_each(|(_, sum)| sum.iter_mut().for_each(|value| *value = (f64::from(*value) / all) as f32));
    (loss / all, gradients)
}

/// Relative, for losses and for gradients in norm, in f32. Stated before the first run.
const CLOSE: f64 = 1e-5;

#[test]
fn a_packed_batch_has_the_loss_and_gradients_of_its_documents_alone() {
    let lens = [5, 3, 11, 1, 7, 2, 4, 12, 6];
    let dir = tempfile::tempdir().unwrap();
    let mut cells: Vec<(String, Cell)> = vec![("llama".into(), odd())];
    cells.extend(forms().into_iter().map(|form| (form.0.to_string(), formed(odd(), form))));
    cells.extend(expert_cells(odd()).into_iter().map(|(name, cell)| (name.to_string(), cell)));
    let mut tied = odd();
    tied.model.tie_word_embeddings = true;
    cells.push(("tied".into(), tied));
    let (packings, ways) = (
        [DocumentPacking::Packed, DocumentPacking::Padded],
        [
            (AttentionKind::Flash, Checkpointing::None),
            (AttentionKind::Flash, Checkpointing::Full),
            (AttentionKind::Naive, Checkpointing::Selective),
        ],
    );
    let mut known = BTreeMap::new();
    let test = "training::documents::a_packed_batch_has_the_loss_and_gradients_of_its_documents_alone";
    for [cell, packing, way] in tiers::combinations(test, [cells.len(), packings.len(), ways.len()]) {
        let ((name, mut cell), number) = (cells[cell].clone(), cell);
        let (packing, (attention, policy)) = (packings[packing], ways[way].clone());
        cell.train.clip_norm = 0.0;
        let (loss, gradients) = known.entry(number).or_insert_with(|| alone(&dir, &cell, &lens));
        let loss = *loss;
        let mut together = cell.clone();
        together.data = data(&dir, packing, &lens);
        together.memory.attention = attention;
        together.memory.checkpointing = policy.clone();
        let source = Source::open(&together.data, 61, together.train.seq_len, 0).unwrap();
        let sequences = source.records().unwrap() as usize;
        assert_eq!(sequences, if packing == DocumentPacking::Packed { 5 } else { lens.len() });
        together.train.micro_batch = sequences;
        let what = format!("{name}, {packing:?}, {attention:?}, {policy:?}");
        let ran = run(&together);
        let step = &ran.steps[0];
        assert!((step.loss - loss).abs() <= CLOSE * loss, "{what}: {} and {loss}", step.loss);
        assert_eq!(ran.gradients.len(), gradients.len());
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        for ((name, ours), (other, theirs)) in ran.gradients.iter().zip(&*gradients) {
            assert_eq!(name, other);
            let form = &cell.model.form;
            let takes_out = name.ends_with("k_proj.bias") && form.positions != Positions::Rotary && !form.qk_norm;
            let of_scores = ["q_proj", "k_proj", "q_norm", "k_norm"].iter().any(|part| name.contains(part));
            if takes_out || of_scores && cell.model.sliding_window == Some(1) {
                // The softmax takes out what is added to all scores of a query, and the only score of one that sees one
                // key: the gradient is 0 but for rounding.
                assert!(norm(ours).max(norm(theirs)) <= CLOSE * step.grad_norm, "{what}: gradient of {name}");
                continue;
            }
            let distance = distance(ours, theirs);
            assert!(distance <= CLOSE, "{what}: gradient of {name}: {distance}");
        }
        // One by one, as so many micro-batches: the same mean.
        (together.train.micro_batch, together.train.accumulation) = (1, sequences);
        let one_by_one = run(&together);
        assert!((one_by_one.steps[0].loss - loss).abs() <= CLOSE * loss, "{what}: one by one");
        let norms = (one_by_one.steps[0].grad_norm, step.grad_norm);
        assert!((norms.0 - norms.1).abs() <= CLOSE * norms.1, "{what}: norms {norms:?}");
    }
}

#[test]
fn documents_train_to_the_same_bits_under_every_strategy_policy_and_reader() {
    let dir = tempfile::tempdir().unwrap();
    let learned = *forms().iter().find(|(name, ..)| *name == "gpt2").unwrap();
    let mut experts = expert_cells(odd()).swap_remove(0).1;
    (experts.train.clip_norm, experts.train.lr) = (0.05, 1e-3);
    let talks = answers(&dir, DocumentPacking::Packed, &TALKS);
    let texts = tempfile::tempdir().unwrap();
    let many = documents(texts.path(), 60);
    let bases = [
        ("llama", odd(), &talks),
        ("gpt2", formed(odd(), learned), &talks),
        ("mixtral", experts, &talks),
        ("llama with texts", odd(), &many),
    ];
    let ways = [(Checkpointing::None, 2), (Checkpointing::Full, 0), (Checkpointing::Every(2), 5)];
    let test = "training::documents::documents_train_to_the_same_bits";
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 4, 1], [1, 2]) {
        let (strategies, mut references) = (strategies(ranks), BTreeMap::new());
        for [base, strategy, way] in tiers::combinations(test, [bases.len(), strategies.len(), ways.len()]) {
            let ((name, cell, data), number) = (&bases[base], base);
            let mut base = Cell { data: (*data).clone(), ..cell.clone() };
            base.train.clip_norm = base.train.clip_norm.min(0.05);
            let reference = references.entry(number).or_insert_with(|| run(&on(base.clone(), Strategy::Ddp, ranks, 1)));
            let ((strategy, shard), (policy, read_ahead)) = (strategies[strategy], ways[way].clone());
            let mut cell = on(base, strategy, ranks, shard);
            (cell.memory.checkpointing, cell.read_ahead) = (policy.clone(), read_ahead);
            let what = format!("{name}: {} on {ranks} by {shard}, {policy:?}, {read_ahead} ahead", strategy.name());
            assert_same(reference, &cell, &what);
        }
    }
}

#[test]
fn the_mean_is_over_the_targets_of_the_global_batch_however_it_is_shared_out() {
    let dir = tempfile::tempdir().unwrap();
    for packing in [DocumentPacking::Packed, DocumentPacking::Padded, DocumentPacking::Stream] {
        let mut base = odd();
        base.data = answers(&dir, packing, &TALKS);
        base.train.micro_batch = 4;
        let one = run(&base);
        // By hand from the targets: uneven, or the test would show nothing.
        let source = Source::open(&base.data, 61, 13, base.train.seed).unwrap();
        let rows: Vec<u64> = (0..4).map(|row| source.counts(false, row, 1).unwrap().targets).collect();
        assert!(rows.iter().any(|count| *count != rows[0]), "{rows:?}");
        let mut targets = vec![0; 4 * 13];
        let row = Row { inputs: &mut vec![0; 4 * 13], targets: &mut targets, starts: None };
        source.fill_rows(false, 0, 4, row).unwrap();
        let counts = one.steps[0].counts;
        assert!(counts.is_none(), "these steps are put together by the test");
        assert_eq!(rows.iter().sum::<u64>(), targets.iter().filter(|target| **target != NO_TARGET).count() as u64);
        let divisions = [(2, 2, 1), (4, 1, 1), (2, 1, 2), (1, 1, 4), (1, 2, 2)];
        for (ranks, rows, accumulation) in tiers::some("training::documents::the_mean", divisions, [3, 5]) {
            let mut cell = on(base.clone(), Strategy::Zero3, ranks, 1);
            (cell.train.micro_batch, cell.train.accumulation) = (rows, accumulation);
            let ran = run(&cell);
            let what = format!("{packing:?}: {ranks} ranks, {rows} rows, {accumulation} micro-batches");
            assert_close(&one, &ran, &what);
            for ((name, ours), (_, theirs)) in ran.gradients.iter().zip(&one.gradients) {
                assert!(distance(ours, theirs) <= CLOSE, "{what}: {name}");
            }
        }
    }
}

#[test]
fn documents_with_a_loss_everywhere_are_the_stream_bit_for_bit() {
    // A stream of documents without a mask is what a file of the same tokens is.
    let dir = tempfile::tempdir().unwrap();
    let lens = [20, 31, 9, 44, 60, 27];
    let mut cell = odd();
    cell.data = data(&dir, DocumentPacking::Stream, &lens);
    if let Data::Documents(documents) = &mut cell.data {
        documents.shuffle = false;
    }
    let tokens = lens.iter().enumerate().flat_map(|(number, len)| {
        let letters: Vec<u32> = words(number, *len).bytes().map(|letter| u32::from(letter - b'a')).collect();
        letters.into_iter().chain([27])
    });
    let path = dir.path().join("stream.bin");
    std::fs::write(&path, tokens.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let mut plain = cell.clone();
    plain.data = Data::Tokens { path, dtype: TokenType::U32, shuffle: false };
    assert_same(&run(&plain), &cell, "a stream");
}

#[test]
fn plans_hold_for_documents() {
    let dir = tempfile::tempdir().unwrap();
    let learned = *forms().iter().find(|(name, ..)| *name == "gpt2").unwrap();
    let bottom = *forms().iter().find(|(name, ..)| name.starts_with("gemma")).unwrap();
    let bases = [("llama", small()), ("gpt2", formed(small(), learned)), ("gemma", formed(small(), bottom))];
    let packings = [DocumentPacking::Packed, DocumentPacking::Padded, DocumentPacking::Stream];
    let ways = [(Strategy::Ddp, 1, 1), (Strategy::Zero3, 2, 2), (Strategy::Hsdp, 4, 2)];
    let policies = policies();
    let types = [(Precision::F32, AttentionKind::Flash), (Precision::mixed(DType::Bf16), AttentionKind::Naive)];
    let sizes = [bases.len(), packings.len(), ways.len(), policies.len(), types.len()];
    for [base, packing, way, policy, of_type] in tiers::combinations("training::documents::plans_hold", sizes) {
        let ((name, base), (strategy, ranks, shard)) = (&bases[base], ways[way]);
        let mut cell = on(base.clone(), strategy, ranks, shard);
        cell.data = answers(&dir, packings[packing], &TALKS);
        (cell.memory.checkpointing, cell.train.accumulation) = (policies[policy].clone(), 2);
        (cell.precision, cell.memory.attention) = types[of_type];
        let what = format!("{name}, {:?}: {} {:?}", packings[packing], strategy.name(), policies[policy]);
        assert_as_planned(&cell, &what);
        if ranks < 4 {
            assert_stated(&cell, &what);
        }
    }
}

#[test]
fn steps_count_padding_and_targets_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = on(odd(), Strategy::Ddp, 2, 1);
    cell.data = answers(&dir, DocumentPacking::Padded, &TALKS);
    let source = Source::open(&cell.data, 61, 13, cell.train.seed).unwrap();
    let steps = std::sync::Mutex::new(Vec::new());
    let tell = |step: &zbench_engine::observe::outcome::Step| steps.lock().unwrap().push(step.clone());
    zbench_engine::run::launch_ranks::train(&cell, &plan(&cell), &tell).unwrap();
    let steps = steps.into_inner().unwrap();
    assert_eq!(steps.len(), 3);
    for (number, step) in steps.iter().enumerate() {
        let Counts { real, padding, targets } = source.counts(false, 4 * number as u64, 4).unwrap();
        assert_eq!(step.counts, Some(Counts { real, padding, targets }));
        assert_eq!((step.tokens, real + padding), (real, 4 * 13));
        assert!(padding > 0 && targets < real);
    }
    // Other sources say nothing of it, and count as they did.
    let other = on(odd(), Strategy::Ddp, 2, 1);
    let ran = zbench_engine::run::launch_ranks::train(&other, &plan(&other), &|_| {}).unwrap();
    assert!(ran.steps.iter().all(|step| step.counts.is_none() && step.tokens == 4 * 13));
}
