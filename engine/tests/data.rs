//! Sources of tokens: the generator against values worked out elsewhere and against the PyTorch run's tokens, files of
//! any length and content, texts and tokenizers.

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;
use zbench_engine::config::{Data, TokenType};
use zbench_engine::data::synthetic::Synthetic;
use zbench_engine::data::{DataError, Row, Source};
use zbench_test_tiers as tiers;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn handbook() -> PathBuf {
    Path::new(ROOT).join("configs/data/handbook.txt")
}

fn tokenizer() -> PathBuf {
    Path::new(ROOT).join("configs/data/tokenizer.json")
}

fn write(dir: &tempfile::TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file in a temporary folder");
    path
}

fn bytes_of(tokens: &[u32], dtype: TokenType) -> Vec<u8> {
    match dtype {
        TokenType::U16 => tokens.iter().flat_map(|token| (*token as u16).to_le_bytes()).collect(),
        TokenType::U32 => tokens.iter().flat_map(|token| token.to_le_bytes()).collect(),
    }
}

fn tokens_source(path: &Path, dtype: TokenType, vocab_size: usize, seq_len: usize) -> Result<Source, DataError> {
    Source::open(&Data::Tokens { path: path.into(), dtype, shuffle: false }, vocab_size, seq_len, 0)
}

fn text_source(path: &Path, tokenizer: &Path, vocab_size: usize, seq_len: usize) -> Result<Source, DataError> {
    Source::open(&Data::Text { path: path.into(), tokenizer: tokenizer.into(), shuffle: false }, vocab_size, seq_len, 0)
}

fn fill_into(
    source: &Source,
    first: u64,
    rows: usize,
    inputs: &mut [u32],
    targets: &mut [u32],
) -> Result<(), DataError> {
    source.fill_rows(false, first, rows, Row { inputs, targets, starts: None })
}

/// Inputs and targets of `rows` samples.
fn fill(source: &Source, first: u64, rows: usize, seq_len: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut inputs, mut targets) = (vec![0; rows * seq_len], vec![0; rows * seq_len]);
    fill_into(source, first, rows, &mut inputs, &mut targets).expect("tokens");
    (inputs, targets)
}

/// All tokens of a source that holds `count`.
fn stream(source: &Source, count: usize) -> Vec<u32> {
    let (mut inputs, targets) = fill(source, 0, 1, count - 1);
    inputs.push(*targets.last().expect("a token"));
    inputs
}

/// The error's text must hold all of `parts`.
fn refused(result: Result<Source, DataError>, parts: &[&str]) {
    let error = result.map(|_| ()).expect_err("to be refused").to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

// ------------------------------------------------------------------------------------------------ synthetic

#[test]
fn the_generator_gives_the_values_of_its_formula() {
    // Worked out with Python's integers from the formula; its mix(0) is the published E220A8397B1DCDAF.
    let cases: [(u64, usize, u64, [u32; 8]); 5] = [
        (1234, 8192, 0, [104, 28, 159, 45, 244, 214, 66, 92]),
        (1234, 8192, 1, [188, 192, 212, 54, 34, 188, 192, 209]),
        (0, 256, 0, [175, 125, 132, 166, 81, 168, 89, 209]),
        (7, 100, 123_456_789, [14, 87, 54, 87, 53, 83, 35, 94]),
        ((1 << 40) + 3, 3, 1 << 50, [1, 2, 1, 2, 1, 0, 2, 0]),
    ];
    for (seed, vocab_size, sample, expected) in cases {
        let source = Source::open(&Data::Synthetic {}, vocab_size, 7, seed).expect("a generator");
        let (inputs, targets) = fill(&source, sample, 1, 7);
        assert_eq!(inputs, expected[..7], "seed {seed} sample {sample}");
        assert_eq!(targets, expected[1..], "seed {seed} sample {sample}");
        assert_eq!((source.records(), source.tokens()), (None, None));
    }
}

#[test]
fn the_generator_with_64_tokens_made_the_fixture() {
    let file = std::fs::read(Path::new(ROOT).join("tests/fixtures/llama/tokens.bin")).expect("the fixture");
    let tokens: Vec<u32> = file.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let generator = Synthetic::new(64, 1234);
    assert_eq!(tokens.len(), 20 * 4 * 33);
    for (sample, record) in tokens.chunks_exact(33).enumerate() {
        let (mut inputs, mut targets) = ([0; 32], [0; 32]);
        generator.fill(sample as u64, &mut inputs, &mut targets);
        assert_eq!(inputs, record[..32], "sample {sample}");
        assert_eq!(targets, record[1..], "sample {sample}");
    }
}

#[test]
fn the_fixture_reads_as_a_token_file_and_wraps() {
    let path = Path::new(ROOT).join("tests/fixtures/llama/tokens.bin");
    let source = tokens_source(&path, TokenType::U32, 256, 32).expect("the fixture");
    assert_eq!((source.records(), source.tokens()), (Some(80), Some(2640)));
    let generator = Synthetic::new(64, 1234);
    for sample in [0u64, 1, 79, 80, 161, u64::MAX] {
        let (mut inputs, mut targets) = ([0; 32], [0; 32]);
        generator.fill(sample % 80, &mut inputs, &mut targets);
        assert_eq!(fill(&source, sample, 1, 32), (inputs.to_vec(), targets.to_vec()), "sample {sample}");
    }
}

fn held_out(source: &Source, first: u64, rows: usize, seq_len: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut inputs, mut targets) = (vec![0; rows * seq_len], vec![0; rows * seq_len]);
    source
        .fill_rows(true, first, rows, Row { inputs: &mut inputs, targets: &mut targets, starts: None })
        .expect("tokens");
    (inputs, targets)
}

#[test]
fn what_is_held_out_is_the_last_and_is_not_trained_on() {
    let dir = tempfile::tempdir().unwrap();
    // Ten records of five, each of its own number.
    let tokens: Vec<u32> = (0..10).flat_map(|record| [record; 5]).collect();
    let path = write(&dir, "t.bin", bytes_of(&tokens, TokenType::U16));
    let open = || tokens_source(&path, TokenType::U16, 10, 4).expect("ten records");
    for (share, held) in [(0.05, 1), (0.1, 1), (0.11, 2), (0.5, 5), (1.0, 9), (0.0, 1), (f64::NAN, 1), (7.0, 9)] {
        let source = open().hold_out(share).expect("enough");
        assert_eq!((source.records(), source.held_out()), (Some(10 - held), Some(held)), "share {share}");
        for sample in 0..30u64 {
            assert_eq!(fill(&source, sample, 1, 4).0, vec![(sample % (10 - held)) as u32; 4], "share {share}");
            let first = (10 - held + sample % held) as u32;
            assert_eq!(held_out(&source, sample, 1, 4).0, vec![first; 4], "share {share}");
        }
        let (rows, _) = held_out(&source, 0, 3, 4);
        let alone: Vec<u32> = (0..3).flat_map(|row| held_out(&source, row, 1, 4).0).collect();
        assert_eq!(rows, alone);
    }
    // Without: all are trained on, and asking for what is held out is an error.
    let whole = open();
    assert_eq!((whole.records(), whole.held_out()), (Some(10), Some(0)));
    let row = Row { inputs: &mut [0; 4], targets: &mut [0; 4], starts: None };
    assert!(whole.fill_rows(true, 0, 1, row).is_err());
    let one = write(&dir, "one.bin", bytes_of(&[1; 9], TokenType::U16));
    let one = tokens_source(&one, TokenType::U16, 10, 4).expect("one record").hold_out(0.5);
    refused(one, &["one.bin", "1 sequence", "shorter train.seq_len", "train.eval_every"]);
}

#[test]
fn the_generator_holds_out_samples_that_training_does_not_reach() {
    let open = || Source::open(&Data::Synthetic {}, 256, 32, 5).expect("a generator");
    let (plain, source) = (open(), open().hold_out(0.5).expect("a generator has others"));
    assert_eq!((source.records(), source.held_out()), (None, None));
    for sample in 0..100 {
        assert_eq!(fill(&source, sample, 1, 32), fill(&plain, sample, 1, 32), "training is as it was");
    }
    let trained: std::collections::HashSet<Vec<u32>> = (0..2000).map(|sample| fill(&source, sample, 1, 32).0).collect();
    for sample in 0..200 {
        let held = held_out(&source, sample, 1, 32);
        assert_eq!(held, fill(&plain, (1 << 43) + sample, 1, 32));
        assert!(!trained.contains(&held.0), "held-out sample {sample} is trained on");
    }
}

#[test]
fn sizes_of_nothing_and_wrong_buffers_are_errors() {
    refused(Source::open(&Data::Synthetic {}, 0, 4, 0), &["model.vocab_size", "0"]);
    refused(Source::open(&Data::Synthetic {}, 4, 0, 0), &["train.seq_len", "0"]);
    refused(Source::open(&Data::Synthetic {}, 4, usize::MAX, 0), &["train.seq_len"]);
    let source = Source::open(&Data::Synthetic {}, 4, 4, 0).expect("a generator");
    let mut eight = [0; 8];
    assert!(fill_into(&source, 0, 2, &mut eight, &mut [0; 4]).is_err());
    assert!(fill_into(&source, 0, 3, &mut eight, &mut [0; 8]).is_err());
    assert!(fill_into(&source, 0, usize::MAX, &mut eight, &mut [0; 8]).is_err());
    assert!(fill_into(&source, u64::MAX, 2, &mut eight, &mut [0; 8]).is_ok());
    assert!(fill_into(&source, 0, 0, &mut [], &mut []).is_ok());
}

proptest! {
    #[test]
    fn a_sample_is_the_same_however_the_batch_is_divided(
        seed in any::<u64>(), vocab_size in 1usize..2000, seq_len in 1usize..20, first in 0u64..1 << 40, ranks in 1usize..5,
    ) {
        let source = Source::open(&Data::Synthetic {}, vocab_size, seq_len, seed).expect("a generator");
        let whole = fill(&source, first, 2 * ranks, seq_len);
        prop_assert!(whole.0.iter().chain(&whole.1).all(|token| (*token as usize) < vocab_size.min(256)));
        let mut parts = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let (inputs, targets) = fill(&source, first + 2 * rank as u64, 2, seq_len);
            parts.0.extend(inputs);
            parts.1.extend(targets);
        }
        prop_assert_eq!(whole, parts);
    }
}

// ------------------------------------------------------------------------------------------------ token files

proptest! {
    #[test]
    fn a_token_file_is_read_in_order_and_wraps(
        tokens in prop::collection::vec(0u32..60_000, 1..300), wide in any::<bool>(), seq_len in 1usize..40,
        first in 0u64..1000, rows in 0usize..5,
    ) {
        let dtype = if wide { TokenType::U32 } else { TokenType::U16 };
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "tokens.bin", bytes_of(&tokens, dtype));
        let source = tokens_source(&path, dtype, 60_000, seq_len);
        let records: Vec<&[u32]> = tokens.chunks_exact(seq_len + 1).collect();
        if records.is_empty() {
            refused(source, &["tokens.bin", &tokens.len().to_string(), &(seq_len + 1).to_string()]);
            return Ok(());
        }
        let source = source.expect("at least one record");
        prop_assert_eq!(source.records(), Some(records.len() as u64));
        let (inputs, targets) = fill(&source, first, rows, seq_len);
        for row in 0..rows {
            let record = records[(first as usize + row) % records.len()];
            prop_assert_eq!(&inputs[row * seq_len..][..seq_len], &record[..seq_len]);
            prop_assert_eq!(&targets[row * seq_len..][..seq_len], &record[1..]);
        }
    }

    #[test]
    fn files_of_any_length_and_content_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), wide in any::<bool>(), seq_len in 1usize..40,
        vocab_size in 1usize..70_000,
    ) {
        let dtype = if wide { TokenType::U32 } else { TokenType::U16 };
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "tokens.bin", &bytes);
        let width = if wide { 4 } else { 2 };
        match tokens_source(&path, dtype, vocab_size, seq_len) {
            Ok(source) => {
                prop_assert!(bytes.len().is_multiple_of(width) && bytes.len() / width > seq_len);
                let (inputs, targets) = fill(&source, 3, 2, seq_len);
                prop_assert!(inputs.iter().chain(&targets).all(|token| (*token as usize) < vocab_size));
            }
            Err(error) => prop_assert!(error.to_string().contains("tokens.bin"), "{}", error),
        }
    }
}

#[test]
fn token_files_that_cannot_be_say_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let odd = write(&dir, "odd.bin", [0; 7]);
    refused(tokens_source(&odd, TokenType::U32, 10, 1), &["odd.bin", "7 bytes", "4 bytes", "data.dtype"]);
    refused(tokens_source(&odd, TokenType::U16, 10, 1), &["odd.bin", "7 bytes", "2 bytes"]);
    let empty = write(&dir, "empty.bin", []);
    refused(tokens_source(&empty, TokenType::U16, 10, 1), &["empty.bin", "0 tokens", "2"]);
    refused(tokens_source(&dir.path().join("no.bin"), TokenType::U16, 10, 1), &["no.bin", "data.path"]);
    refused(tokens_source(dir.path(), TokenType::U16, 10, 1), &["not a regular file", "data.path"]);
    // Record 2 of 3 tokens each holds the stranger at place 1.
    let stranger = write(&dir, "stranger.bin", bytes_of(&[1, 2, 3, 4, 5, 6, 7, 99, 9], TokenType::U32));
    let parts = ["stranger.bin", "token 99", "position 1", "record 2", "vocabulary of 50"];
    refused(tokens_source(&stranger, TokenType::U32, 50, 2), &parts);
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_an_error_not_a_signal() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = write(&dir, "tokens.bin", bytes_of(&[1; 64], TokenType::U16));
    let source = tokens_source(&path, TokenType::U16, 10, 3).expect("16 records");
    let (mut inputs, mut targets) = ([0; 3], [0; 3]);
    // The scan at opening has passed; every read checks again.
    std::fs::write(&path, bytes_of(&[1, 1, 1, 1, 1, 11, 1, 1], TokenType::U16)).expect("overwritten in place");
    let error = fill_into(&source, 1, 1, &mut inputs, &mut targets).expect_err("a strange token").to_string();
    assert!(error.contains("record 1") && error.contains("token 11"), "{error}");
    let error = fill_into(&source, 9, 1, &mut inputs, &mut targets).expect_err("truncated").to_string();
    assert!(error.contains("tokens.bin") && error.contains("cannot read"), "{error}");
}

// ------------------------------------------------------------------------------------------------ text

#[test]
fn the_tokenizer_has_1024_tokens_and_gives_the_handbook_back() {
    let text = std::fs::read_to_string(handbook()).expect("the handbook");
    let reference = Tokenizer::from_file(tokenizer()).expect("the tokenizer");
    assert_eq!(reference.get_vocab_size(true), 1024);
    let whole = text_source(&handbook(), &tokenizer(), 1024, 128).expect("the quickstart's data");
    let count = whole.tokens().expect("a text has tokens") as usize;
    assert_eq!(whole.records(), Some(count as u64 / 129));
    let tokens = stream(&text_source(&handbook(), &tokenizer(), 1024, count - 1).expect("one record"), count);
    assert_eq!(reference.decode(&tokens, false).expect("decodes"), text);
    // The same stream, cut shorter.
    assert_eq!(fill(&whole, 1, 2, 128).0, [&tokens[129..257], &tokens[258..386]].concat());
}

/// Tokens of a text in one call: what pieces must add up to.
fn in_one_piece(text: &str) -> Vec<u32> {
    let reference = Tokenizer::from_file(tokenizer()).expect("the tokenizer");
    reference.encode_fast(text, false).expect("encodes").get_ids().to_vec()
}

#[test]
fn a_text_of_many_pieces_is_one_stream() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(handbook()).expect("the handbook");
    let long: String = (0..12).map(|part| format!("{part}) {text}\n\n\t  ß→日本 {part}\n")).collect();
    let windows = text.repeat(6).replace('\n', "\r\n");
    let one_line = text.repeat(9).replace('\n', " ");
    let no_space: String = "äbc".repeat(120_000);
    let texts = [("long", &long), ("one_line", &one_line), ("windows", &windows), ("no_space", &no_space)];
    for (name, text) in tiers::some("data::a_text_of_many_pieces_is_one_stream", texts, [1, 4]) {
        let path = write(&dir, name, text);
        let count = text_source(&path, &tokenizer(), 1024, 1).expect("a text").tokens().expect("tokens") as usize;
        let tokens = stream(&text_source(&path, &tokenizer(), 1024, count - 1).expect("one record"), count);
        let reference = Tokenizer::from_file(tokenizer()).expect("the tokenizer");
        assert_eq!(reference.decode(&tokens, false).expect("decodes"), **text, "{name}");
        if name == "long" {
            assert_eq!(tokens, in_one_piece(text), "pieces end where the tokenizer cuts anyway");
        }
    }
}

#[test]
fn truncation_and_padding_that_a_tokenizer_file_asks_for_are_not_done() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(tokenizer()).expect("the tokenizer")).expect("JSON");
    json["truncation"] = serde_json::json!(
        {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 30_000}, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let changed = write(&dir, "tokenizer.json", json.to_string());
    let [plain, changed] =
        [tokenizer(), changed].map(|tokenizer| text_source(&handbook(), &tokenizer, 1024, 64).expect("a text"));
    assert_eq!(plain.tokens(), changed.tokens());
    json["model"]["dropout"] = serde_json::json!(0.1);
    let dropout = write(&dir, "dropout.json", json.to_string());
    refused(text_source(&handbook(), &dropout, 1024, 64), &["dropout.json", "model.dropout", "null"]);
}

#[test]
fn texts_and_tokenizers_that_cannot_be_say_so() {
    let dir = tempfile::tempdir().expect("a folder");
    refused(text_source(&handbook(), &tokenizer(), 1023, 64), &["tokenizer.json", "1024", "model.vocab_size = 1023"]);
    refused(text_source(&dir.path().join("no.txt"), &tokenizer(), 1024, 64), &["no.txt", "data.path"]);
    refused(text_source(dir.path(), &tokenizer(), 1024, 64), &["not a regular file", "data.path"]);
    refused(text_source(&handbook(), dir.path(), 1024, 64), &["not a regular file", "data.tokenizer"]);
    refused(text_source(&handbook(), &dir.path().join("t.json"), 1024, 64), &["t.json", "data.tokenizer"]);
    refused(text_source(&handbook(), &handbook(), 1024, 64), &["handbook.txt", "tokenizer"]);
    let short = write(&dir, "short.txt", "Bread.");
    refused(text_source(&short, &tokenizer(), 1024, 64), &["short.txt", "65", "train.seq_len"]);
    let empty = write(&dir, "empty.txt", "");
    refused(text_source(&empty, &tokenizer(), 1024, 64), &["empty.txt", "0 tokens"]);
    // Far behind the first piece, in the middle of a line, and a character cut off by the end of the file.
    let text = std::fs::read(handbook()).expect("the handbook");
    let mut broken = text.repeat(5);
    let place = broken.len() - 1000;
    broken[place] = 0xFF;
    let path = write(&dir, "broken.txt", &broken);
    refused(text_source(&path, &tokenizer(), 1024, 64), &["broken.txt", &format!("byte {place} "), "UTF-8"]);
    let mut cut = text;
    let place = cut.len();
    cut.extend(&"€".as_bytes()[..2]);
    let path = write(&dir, "cut.txt", &cut);
    refused(text_source(&path, &tokenizer(), 1024, 64), &["cut.txt", &format!("byte {place} ")]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("data::any_text", [16, 64, 64])))]

    #[test]
    fn any_text_comes_back(text in "(\\PC|[ \n\t\r]){2,300}") {
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "text.txt", &text);
        let expected = in_one_piece(&text);
        prop_assume!(expected.len() > 1);
        let source = text_source(&path, &tokenizer(), 1024, expected.len() - 1).expect("a text");
        let tokens = stream(&source, expected.len());
        let reference = Tokenizer::from_file(tokenizer()).expect("the tokenizer");
        prop_assert_eq!(reference.decode(&tokens, false).expect("decodes"), text);
        prop_assert_eq!(tokens, expected);
    }

    #[test]
    fn any_bytes_as_text_are_an_error_or_tokens(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "text.txt", &bytes);
        match text_source(&path, &tokenizer(), 1024, 4) {
            Ok(_) => prop_assert!(std::str::from_utf8(&bytes).is_ok()),
            Err(error) => prop_assert!(error.to_string().contains("text.txt"), "{}", error),
        }
    }

    #[test]
    fn any_bytes_as_tokenizer_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "t.json", &bytes);
        refused(text_source(&handbook(), &path, 1024, 4), &["t.json", "data.tokenizer"]);
    }

    #[test]
    fn a_damaged_tokenizer_is_an_error_or_gives_tokens_of_the_vocabulary(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_front in any::<bool>(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(tokenizer()).expect("the tokenizer");
        // The settings stand in front of the vocabulary.
        let reach = if in_front { 600 } else { bytes.len() };
        for (place, byte) in damage {
            bytes[place.index(reach)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = write(&dir, "t.json", &bytes);
        let text = write(&dir, "text.txt", "One measurement is none; two are a quarrel.\nMéasure again.");
        match text_source(&text, &path, 1024, 4) {
            Ok(source) => {
                let (inputs, _) = fill(&source, 0, 2, 4);
                prop_assert!(inputs.iter().all(|token| *token < 1024));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
