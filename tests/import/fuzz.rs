//! Whatever a file holds, it is an import or an error, never a panic; and what is imported reads back.

use super::{fixture, options};
use proptest::prelude::*;
use std::path::Path;
use zbench_config::Document;
use zbench_suites::interop::{self, toml};

fn survives(bytes: &[u8]) {
    match interop::parse("file", bytes, &options(&[])) {
        Ok(draft) => {
            // Values may be out of zbench's ranges, which its reader says; the text itself is always TOML.
            let text = toml::text(&draft);
            if let Err(error) = Document::parse(Path::new("out.toml"), &text, &[]) {
                assert!(!error.to_string().contains("not TOML"), "{error}: {text}");
            }
            assert!(draft.rows.iter().all(|row| !row.reason.is_empty()), "{:?}", draft.rows);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn any_fixture() -> impl Strategy<Value = Vec<u8>> {
    let names = ["stage2_fp16.json", "stage3_offload.json", "stage3_full.json", "fsdp_full_shard.yaml"];
    let all: Vec<Vec<u8>> = names.iter().map(|name| std::fs::read(fixture(name)).expect("a fixture")).collect();
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        survives(&bytes);
    }

    #[test]
    fn any_text_of_brackets_and_words(text in r#"[\[\]{}:," \n0-9a-zA-Z_.eE+\-#&*!|>'\\]{0,200}"#) {
        survives(text.as_bytes());
        survives(format!("{{\"zero_optimization\": {text}}}").as_bytes());
        survives(format!("distributed_type: FSDP\nfsdp_config: {text}\n").as_bytes());
    }

    #[test]
    fn mutated_files(
        file in any_fixture(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..3, 0usize..12), 1..6),
    ) {
        let mut bytes = file;
        for (at, byte, what, length) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
                _ => {
                    let piece: Vec<u8> = bytes[at..(at + length).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        survives(&bytes);
    }

    #[test]
    fn any_number_in_any_key(
        key in prop::sample::select(interop::keys::DEEPSPEED.iter().map(|spec| spec.key).collect::<Vec<_>>()),
        number in prop_oneof![any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(|x| x.to_string()), any::<i64>().prop_map(|x| x.to_string()), any::<u64>().prop_map(|x| x.to_string())],
        ranks in prop::option::of(1u64..2000),
    ) {
        let inner = key.rsplit('.').fold(number, |value, name| format!("{{\"{name}\": {value}}}"));
        let text = format!("{{\"zero_optimization\": {{\"stage\": 3}}, {}", inner.trim_start_matches('{'));
        for text in [inner, text] {
            let options = interop::Options { ranks, ..options(&[]) };
            if let Ok(draft) = interop::parse("file", text.as_bytes(), &options) {
                let _ = toml::text(&draft);
            }
        }
    }
}
