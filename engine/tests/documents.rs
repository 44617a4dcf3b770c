//! Documents as sequences: what is packed, padded and cut, where losses are, in which order and from which file; and lines
//! that are no documents.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use zbench_engine::config::{Answers, Data, DocumentFile, DocumentForm, DocumentPacking, Documents, Template};
use zbench_engine::data::{Counts, DataError, NO_TARGET, Prefetcher, Row, Source};
use zbench_test_tiers as tiers;

/// A tokenizer of one token per byte: token = byte, so that tests see the text in the tokens. 256 ends a text.
fn bytewise(dir: &TempDir) -> PathBuf {
    // The byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on.
    let plain = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut other = 256u32..;
    let letters = (0..256u32).map(|byte| if plain(byte) { byte } else { other.next().unwrap() });
    let vocab: BTreeMap<String, u32> =
        letters.enumerate().map(|(byte, letter)| (char::from_u32(letter).unwrap().to_string(), byte as u32)).collect();
    let pre = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let end = json!({"id": END, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": pre, "post_processor": null, "decoder": pre,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    write(dir, "tokenizer.json", tokenizer.to_string())
}

const END: u32 = 256;

fn write(dir: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file in a temporary folder");
    path
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

fn texts(texts: &[&str]) -> String {
    lines(&texts.iter().map(|text| json!({"text": text})).collect::<Vec<_>>())
}

fn file(path: PathBuf, form: DocumentForm) -> DocumentFile {
    DocumentFile { path, form, field: "text".into(), weight: 1.0 }
}

fn documents(dir: &TempDir, files: Vec<DocumentFile>) -> Documents {
    Documents {
        files,
        tokenizer: bytewise(dir),
        packing: DocumentPacking::Packed,
        shuffle: false,
        template: Template::ChatMl,
        answers: Answers::Only,
        end: None,
    }
}

fn jsonl(dir: &TempDir, content: impl AsRef<[u8]>) -> Documents {
    documents(dir, vec![file(write(dir, "a.jsonl", content), DocumentForm::Jsonl)])
}

fn chat(dir: &TempDir, content: impl AsRef<[u8]>) -> Documents {
    documents(dir, vec![file(write(dir, "a.jsonl", content), DocumentForm::Chat)])
}

fn open(documents: &Documents, seq_len: usize) -> Result<Source, DataError> {
    Source::open(&Data::Documents(Box::new(documents.clone())), 300, seq_len, 7)
}

#[derive(Clone, Debug, PartialEq)]
struct Filled {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    starts: Vec<u32>,
}

fn fill(source: &Source, held_out: bool, first: u64, rows: usize) -> Filled {
    let zeros = || vec![9999; rows * source.seq_len()];
    let mut to = Filled { inputs: zeros(), targets: zeros(), starts: zeros() };
    let row = Row { inputs: &mut to.inputs, targets: &mut to.targets, starts: Some(&mut to.starts) };
    source.fill_rows(held_out, first, rows, row).expect("a sequence");
    to
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The text of tokens; the end is `$`.
fn text(tokens: &[u32]) -> String {
    tokens.iter().map(|token| if *token == END { '$' } else { char::from(*token as u8) }).collect()
}

/// Targets as text, without a loss `_`.
fn wanted(targets: &[u32]) -> String {
    targets.iter().map(|token| if *token == NO_TARGET { "_".into() } else { text(&[*token]) }).collect()
}

fn refused(result: Result<Source, DataError>, parts: &[&str]) {
    let error = result.map(|_| ()).expect_err("to be refused").to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

// ------------------------------------------------------------------------------------------------ sequences

#[test]
fn documents_are_packed_whole_and_none_has_the_next_ones_first_token_as_a_target() {
    let dir = tempfile::tempdir().unwrap();
    // 4, 6 and 3 tokens with their ends, in sequences of 10: 6 and 4 go together, 3 and padding.
    let source = open(&jsonl(&dir, texts(&["abc", "defgh", "ij"])), 10).expect("documents");
    assert_eq!(source.records(), Some(2));
    let both = fill(&source, false, 0, 2);
    assert_eq!(text(&both.inputs[..10]), "abc$defgh$");
    assert_eq!(wanted(&both.targets[..10]), "bc$_efgh$_");
    assert_eq!(both.starts[..10], [0, 0, 0, 0, 4, 4, 4, 4, 4, 4]);
    assert_eq!(text(&both.inputs[10..]), "ij$$$$$$$$");
    assert_eq!(wanted(&both.targets[10..]), "j$________");
    assert_eq!(both.starts[10..], [0, 0, 0, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(source.counts(false, 0, 1).unwrap(), Counts { real: 10, padding: 0, targets: 8 });
    assert_eq!(source.counts(false, 0, 2).unwrap(), Counts { real: 13, padding: 7, targets: 10 });
    let found = source.found().unwrap();
    assert_eq!((found.documents, found.tokens, found.cut, found.without_loss), (3, 13, 0, 0));
    // Round and round.
    assert_eq!(fill(&source, false, 2, 1), fill(&source, false, 0, 1));
}

#[test]
fn padded_documents_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut padded = jsonl(&dir, texts(&["abc", "defgh", "ij"]));
    padded.packing = DocumentPacking::Padded;
    let source = open(&padded, 8).expect("documents");
    let all = fill(&source, false, 0, 3);
    assert_eq!(text(&all.inputs), "abc$$$$$defgh$$$ij$$$$$$");
    assert_eq!(wanted(&all.targets), "bc$_____efgh$___j$______");
    assert_eq!(source.counts(false, 0, 3).unwrap(), Counts { real: 13, padding: 11, targets: 10 });
}

#[test]
fn a_stream_is_cut_anywhere_and_a_token_behind_a_document_predicts_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = jsonl(&dir, texts(&["abc", "defgh", "ij"]));
    stream.packing = DocumentPacking::Stream;
    let source = open(&stream, 5).expect("documents");
    let all = fill(&source, false, 0, 2);
    assert_eq!((text(&all.inputs), wanted(&all.targets)), ("abc$dfgh$i".into(), "bc$degh$ij".into()));
    assert_eq!(source.counts(false, 0, 2).unwrap(), Counts { real: 10, padding: 0, targets: 10 });
}

#[test]
fn a_long_document_is_cut_and_loses_no_target() {
    let dir = tempfile::tempdir().unwrap();
    for packing in [DocumentPacking::Packed, DocumentPacking::Padded] {
        let mut long = jsonl(&dir, texts(&["abcdefghij", "xy"]));
        long.packing = packing;
        let source = open(&long, 4).expect("documents");
        let found = source.found().unwrap();
        assert_eq!((found.cut, found.without_loss, source.records()), (1, 0, Some(4)));
        let all = fill(&source, false, 0, 4);
        assert_eq!(text(&all.inputs), "abcdefghij$$xy$$");
        assert_eq!(wanted(&all.targets), "bcdefghij$__y$__");
    }
}

#[test]
fn answers_alone_have_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let talk = json!({"messages": [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "k"},
        {"role": "assistant", "content": ""},
    ]});
    let rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nk<|im_end|>\n\
                    <|im_start|>assistant\n<|im_end|>\n$";
    let only = chat(&dir, lines(std::slice::from_ref(&talk)));
    let len = rendered.len();
    let row = fill(&open(&only, len).expect("a conversation"), false, 0, 1);
    assert_eq!(text(&row.inputs), rendered);
    let mut expected = vec![b'_'; len];
    for (place, answer) in [(rendered.find("yo").unwrap(), "yo<|im_end|>"), (len - 12, "<|im_end|>")] {
        expected[place - 1..place - 1 + answer.len()].copy_from_slice(answer.as_bytes());
    }
    assert_eq!(wanted(&row.targets), String::from_utf8(expected).unwrap());
    // All of it, and the plain template.
    let all = Documents { answers: Answers::All, ..only.clone() };
    assert_eq!(wanted(&fill(&open(&all, len).unwrap(), false, 0, 1).targets), format!("{}_", &rendered[1..]));
    let plain = Documents { template: Template::Plain, ..only };
    let row = fill(&open(&plain, 50).expect("a conversation"), false, 0, 1);
    let shown = "user: hi\nassistant: yo\nuser: k\nassistant: \n$";
    assert!(text(&row.inputs).starts_with(shown), "{}", text(&row.inputs));
    let targets = "__________________ yo\n__________________ \n_";
    assert!(wanted(&row.targets).starts_with(targets), "{}", wanted(&row.targets));

    let pairs = chat(&dir, lines(&[json!({"prompt": "2+2=", "completion": "4"})]));
    let row = fill(&open(&pairs, 8).expect("a pair"), false, 0, 1);
    assert_eq!((text(&row.inputs), wanted(&row.targets)), ("2+2=4$$$".into(), "___4$___".into()));
}

#[test]
fn documents_without_a_loss_are_left_out_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |content: &str| json!({"messages": [{"role": "user", "content": content}]});
    let pair = json!({"prompt": "ab", "completion": "cd"});
    let source = open(&chat(&dir, lines(&[ask("a"), pair.clone(), ask("b")])), 40).expect("one of three");
    let found = source.found().unwrap();
    assert_eq!((found.documents, found.without_loss, found.sequences), (3, 2, 1));
    assert_eq!(text(&fill(&source, false, 0, 1).inputs[..5]), "abcd$");
    refused(
        open(&chat(&dir, lines(&[ask("a")])), 40),
        &["a.jsonl", "1 documents", "token with a loss", "data.loss_on"],
    );
    let mut nothing = jsonl(&dir, texts(&["", ""]));
    refused(open(&nothing, 4), &["token with a loss"]);
    // A record of a stream without a loss is left out, too.
    let long = json!({"prompt": "x".repeat(30), "completion": "y"});
    nothing = Documents { packing: DocumentPacking::Stream, ..chat(&dir, lines(&[long, pair])) };
    let source = open(&nothing, 4).expect("a stream");
    for record in 0..source.records().unwrap() {
        let counts = source.counts(false, record, 1).unwrap();
        let targets = fill(&source, false, record, 1).targets;
        assert_eq!(counts.targets, targets.iter().filter(|target| **target != NO_TARGET).count() as u64);
        assert!(counts.targets > 0);
    }
}

#[test]
fn the_token_behind_documents_is_the_tokenizers_or_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut named = jsonl(&dir, texts(&["ab"]));
    named.end = Some(7);
    assert_eq!(fill(&open(&named, 4).unwrap(), false, 0, 1).inputs, [97, 98, 7, 7]);
    named.end = Some(300);
    refused(open(&named, 4), &["data.document_end = 300", "vocabulary of 300"]);
    // One that has none has none.
    named = jsonl(&dir, texts(&["ab"]));
    let without = std::fs::read_to_string(&named.tokenizer).unwrap().replace("<|endoftext|>", "<|other|>");
    named.tokenizer = write(&dir, "without.json", without);
    assert_eq!(fill(&open(&named, 4).unwrap(), false, 0, 1).inputs, [97, 98, 0, 0]);
}

// ------------------------------------------------------------------------------------------------ order and mixture

/// A file of `count` documents of one sequence each, which start with `letter`.
fn numbered(dir: &TempDir, letter: char, count: usize) -> DocumentFile {
    let all: Vec<String> = (0..count).map(|number| format!("{letter}{number:03}")).collect();
    let content = texts(&all.iter().map(String::as_str).collect::<Vec<_>>());
    file(write(dir, &format!("{letter}.jsonl"), content), DocumentForm::Jsonl)
}

fn names(source: &Source, held_out: bool, samples: std::ops::Range<u64>) -> Vec<String> {
    samples.map(|sample| text(&fill(source, held_out, sample, 1).inputs[..4])).collect()
}

#[test]
fn every_epoch_has_all_sequences_in_an_order_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let plain = documents(&dir, vec![numbered(&dir, 'a', 50)]);
    let shuffled = Documents { shuffle: true, ..plain.clone() };
    let in_order = names(&open(&plain, 5).unwrap(), false, 0..50);
    assert!(in_order.is_sorted());
    let source = open(&shuffled, 5).unwrap();
    let epochs: Vec<Vec<String>> = (0..3).map(|epoch| names(&source, false, epoch * 50..(epoch + 1) * 50)).collect();
    for (number, epoch) in epochs.iter().enumerate() {
        assert_ne!(epoch, &in_order);
        assert!(epochs[..number].iter().all(|other| other != epoch), "epoch {number} repeats another");
        let mut sorted = epoch.clone();
        sorted.sort();
        assert_eq!(sorted, in_order, "epoch {number}");
    }
    // Again the same, and from another seed another.
    assert_eq!(names(&open(&shuffled, 5).unwrap(), false, 0..50), epochs[0]);
    let other = Source::open(&Data::Documents(Box::new(shuffled)), 300, 5, 8).unwrap();
    assert_ne!(names(&other, false, 0..50), epochs[0]);
}

#[test]
fn files_are_mixed_by_weight_and_each_wraps_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![numbered(&dir, 'a', 30), numbered(&dir, 'b', 4)];
    (files[0].weight, files[1].weight) = (3.0, 1.0);
    for shuffle in [false, true] {
        let source = open(&Documents { shuffle, ..documents(&dir, files.clone()) }, 5).unwrap();
        assert_eq!(source.records(), Some(34));
        let drawn = names(&source, false, 0..80);
        let of_b: Vec<&String> = drawn.iter().filter(|name| name.starts_with('b')).collect();
        assert_eq!(of_b.len(), 20);
        for epoch in of_b.chunks(4) {
            let mut epoch = epoch.to_vec();
            epoch.sort();
            assert_eq!(epoch, ["b000", "b001", "b002", "b003"]);
        }
        let mut of_a: Vec<&String> = drawn.iter().filter(|name| name.starts_with('a')).take(30).collect();
        of_a.sort();
        of_a.dedup();
        assert_eq!(of_a.len(), 30);
    }
    files[1].weight = 0.0;
    refused(open(&documents(&dir, files), 5), &["b.jsonl", "weight 0", "above 0"]);
    refused(open(&documents(&dir, vec![]), 5), &["data.files", "0 files"]);
}

#[test]
fn what_is_held_out_is_of_every_file_and_is_not_trained_on() {
    let dir = tempfile::tempdir().unwrap();
    let files = vec![numbered(&dir, 'a', 30), numbered(&dir, 'b', 10)];
    let source = open(&Documents { shuffle: true, ..documents(&dir, files) }, 5).unwrap();
    let row = Row { inputs: &mut [0; 5], targets: &mut [0; 5], starts: None };
    assert!(source.fill_rows(true, 0, 1, row).is_err());
    assert!(source.counts(true, 0, 1).is_err());
    let source = source.hold_out(0.1).expect("enough");
    assert_eq!((source.records(), source.held_out()), (Some(36), Some(4)));
    let held = names(&source, true, 0..8);
    assert!(held.iter().all(|name| ["a027", "a028", "a029", "b009"].contains(&name.as_str())), "{held:?}");
    assert!(names(&source, false, 0..200).iter().all(|name| !held.contains(name)));
    assert_eq!(source.counts(true, 0, 3).unwrap(), Counts { real: 15, padding: 0, targets: 12 });
    let one = open(&documents(&dir, vec![numbered(&dir, 'c', 1)]), 5).unwrap();
    refused(one.hold_out(0.5), &["c.jsonl", "1 sequence", "train.eval_every"]);
}

// ------------------------------------------------------------------------------------------------ reading ahead

#[test]
fn what_is_read_ahead_is_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&Documents { shuffle: true, ..documents(&dir, vec![numbered(&dir, 'a', 23)]) }, 6).unwrap();
    for depth in [1, 2, 5] {
        let ahead = Prefetcher::start(&source, 2, 4, depth, true).expect("a thread");
        // In order; then elsewhere, back, and the same twice.
        let numbers = (0..20).map(|step| 8 + 4 * step).chain([1000, 1004, 8, 8, 12, 12, u64::MAX - 3]);
        for first in numbers {
            let mut to = Filled { inputs: vec![0; 12], targets: vec![0; 12], starts: vec![0; 12] };
            let row = Row { inputs: &mut to.inputs, targets: &mut to.targets, starts: Some(&mut to.starts) };
            ahead.take(first, row).expect("a micro-batch");
            assert_eq!(to, fill(&source, false, first, 2), "depth {depth}, sample {first}");
        }
        let row = Row { inputs: &mut [0; 12], targets: &mut [0; 11], starts: None };
        assert!(ahead.take(0, row).is_err());
    }
}

#[test]
fn an_error_comes_where_its_micro_batch_is_wanted_and_dropping_ends_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir, "t.bin", [1u8; 80]);
    let data = Data::Tokens { path: path.clone(), dtype: zbench_engine::config::TokenType::U16, shuffle: false };
    let source = Source::open(&data, 300, 3, 0).expect("ten records");
    let ahead = Prefetcher::start(&source, 1, 1, 3, false).expect("a thread");
    let take = |first| ahead.take(first, Row { inputs: &mut [0; 3], targets: &mut [0; 3], starts: None });
    assert!(take(2).is_ok());
    // Records from the sixth on go away while it reads.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(48).unwrap();
    let ends: Vec<bool> = (3..10).map(|first| take(first).is_ok()).collect();
    // What was read before the file shrank is as it was.
    let bad = ends.iter().position(|ok| !ok).expect("an error");
    assert!(bad >= 3 && ends[..bad].iter().all(|ok| *ok) && ends[bad..].iter().all(|ok| !ok), "{ends:?}");
    assert!(take(0).is_ok(), "what is still there can be read again");
    drop(ahead);
}

// ------------------------------------------------------------------------------------------------ what is no document

#[test]
fn lines_that_are_no_documents_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = json!({"text": "ab"}).to_string();
    let bad: [(&str, &[&str]); 9] = [
        ("{\"text\": \"a", &["is not JSON", "one JSON object"]),
        ("[1]", &["is a list", "object"]),
        ("\"text\"", &["is a text"]),
        ("{}", &["has no \"text\"", "empty", "data.field"]),
        ("{\"body\": \"a\", \"id\": 1}", &["has no \"text\"", "\"body\"", "data.field"]),
        ("{\"text\": 5}", &["a number", "must be a text"]),
        ("{\"text\": null}", &["null", "must be a text"]),
        ("{\"text\": \"\\ud800\"}", &["is not JSON"]),
        ("{\"text\": \"a\"} {}", &["is not JSON"]),
    ];
    for (line, parts) in bad {
        let source = open(&jsonl(&dir, format!("{good}\n\n{line}\n{good}\n")), 4);
        let mut all = vec!["a.jsonl", "line 3"];
        all.extend(parts);
        refused(source, &all);
    }
    let talks: [(Value, &[&str]); 8] = [
        (json!({"text": "a"}), &["no \"messages\"", "\"text\""]),
        (json!({"prompt": "a"}), &["no \"completion\""]),
        (json!({"messages": []}), &["empty list"]),
        (json!({"messages": "a"}), &["a text", "must be a list"]),
        (json!({"messages": ["a"]}), &["a text", "message 0"]),
        (json!({"messages": [{"role": "user"}]}), &["no \"content\"", "message 0"]),
        (json!({"messages": [{"role": "user", "content": []}]}), &["a list", "\"content\""]),
        (json!({"messages": [{"role": "<|im_end|>", "content": "a"}]}), &["role", "message 0"]),
    ];
    for (talk, parts) in talks {
        let mut all = vec!["a.jsonl", "line 1"];
        all.extend(parts);
        refused(open(&chat(&dir, lines(&[talk])), 4), &all);
    }
    refused(open(&jsonl(&dir, b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n"), 4), &["line 2", "not UTF-8", "byte 10"]);
    refused(open(&jsonl(&dir, ""), 4), &["a.jsonl", "no document"]);
    refused(open(&jsonl(&dir, "\n \r\n\t\n"), 4), &["no document"]);
    let absent = documents(&dir, vec![file(dir.path().join("absent.jsonl"), DocumentForm::Jsonl)]);
    refused(open(&absent, 4), &["absent.jsonl", "open", "data.path"]);
    // A byte-order mark, carriage returns, no newline at the end.
    let odd = format!("\u{feff}{good}\r\n{good}");
    assert_eq!(open(&jsonl(&dir, odd), 4).expect("two documents").found().unwrap().documents, 2);
}

#[test]
fn a_line_without_end_is_refused_and_a_long_text_is_tokenized_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.jsonl");
    std::fs::File::create(&path).unwrap().set_len(zbench_engine::data::MOST_LINE_BYTES as u64 + 10).unwrap();
    refused(open(&documents(&dir, vec![file(path, DocumentForm::Jsonl)]), 4), &["line 1", "64 MiB"]);
    let words: String = (0..40_000).map(|number| format!("w{number}\n")).collect();
    let source = open(&jsonl(&dir, texts(&[&words])), 1 << 19).expect("one document");
    let row = fill(&source, false, 0, 1);
    assert_eq!(row.inputs[..words.len()], tokens(&words));
    assert_eq!(row.inputs[words.len()], END);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("text".to_string()),
        Just("messages".into()),
        Just("role".into()),
        Just("content".into()),
        Just("prompt".into()),
        Just("completion".into()),
        ".{0,3}",
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Opens a file in every form; whatever opens can be read.
fn survives(dir: &Path, content: &[u8], tokenizer: &Path) {
    let path = dir.join("fuzz.jsonl");
    std::fs::write(&path, content).unwrap();
    for form in [DocumentForm::Jsonl, DocumentForm::Chat] {
        for packing in [DocumentPacking::Packed, DocumentPacking::Padded, DocumentPacking::Stream] {
            let documents = Documents {
                files: vec![file(path.clone(), form)],
                tokenizer: tokenizer.into(),
                packing,
                shuffle: true,
                template: Template::Plain,
                answers: Answers::Only,
                end: None,
            };
            let Ok(source) = open(&documents, 6) else { continue };
            for sample in [0, 1, 77, u64::MAX] {
                let row = fill(&source, false, sample, 1);
                let counts = source.counts(false, sample, 1).unwrap();
                let targets = row.targets.iter().filter(|target| **target != NO_TARGET).count() as u64;
                assert_eq!((counts.real + counts.padding, counts.targets), (6, targets));
                assert!(targets > 0 && row.inputs.iter().all(|token| *token < 300));
                assert!(row.starts.iter().zip(0..).all(|(start, place)| *start <= place) && row.starts.is_sorted());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("documents::any_bytes_and_any_json", [50, 200, 200])))]

    #[test]
    fn bytes_are_an_error_or_a_source(content in proptest::collection::vec(any::<u8>(), 0..300)) {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = bytewise(&dir);
        survives(dir.path(), &content, &tokenizer);
    }

    #[test]
    fn any_json_is_an_error_or_a_source(values in proptest::collection::vec(any_json(), 0..4)) {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = bytewise(&dir);
        survives(dir.path(), lines(&values).as_bytes(), &tokenizer);
        // What is nearly right.
        for value in values {
            let nearly = json!({"text": "ok", "messages": [{"role": "assistant", "content": "fine"}, value]});
            survives(dir.path(), lines(&[json!({"text": "first", "prompt": "a", "completion": "b"}), nearly]).as_bytes(), &tokenizer);
        }
    }
}
