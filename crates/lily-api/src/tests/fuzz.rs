//! Inputs that were trouble or might be, replayed and mutated.
//!
//! `corpus/output` holds texts of models, `corpus/bodies` requests of clients (the name begins with the API). Every run replays
//! them and tries some mutations; `LILY_FUZZ_CASES=1000000 cargo test --release -p lily-api fuzz` tries more. An input
//! that breaks a law is written into the corpus, made as small as can be, to be fixed and kept.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use serde_json::Value;

use crate::encode::encoder;
use crate::finish::FinishReason;
use crate::output::tests::{laws, markup};
use crate::request::Input;
use crate::{Api, parse};

/// Mutations that a run without other orders tries.
const CASES: u32 = 300;

fn corpus(kind: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(kind);
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Changes of a text: cut a part out, repeat a part, put something in, or go on with another text.
#[derive(Clone, Debug)]
enum Edit {
    Cut(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Splice(prop::sample::Index, prop::sample::Index),
}

fn edits(insert: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<Edit>> {
    let at = || any::<prop::sample::Index>();
    let edit = prop_oneof![
        (at(), 1usize..40).prop_map(|(at, length)| Edit::Cut(at, length)),
        (at(), 1usize..40).prop_map(|(at, length)| Edit::Repeat(at, length)),
        (at(), insert).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at(), at()).prop_map(|(at, other)| Edit::Splice(at, other)),
    ];
    prop::collection::vec(edit, 0..6)
}

fn apply(bytes: &[u8], edits: &[Edit], corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for edit in edits {
        let place = |at: &prop::sample::Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match edit {
            Edit::Cut(at, length) => {
                let at = place(at, &bytes);
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Edit::Repeat(at, length) => {
                let at = place(at, &bytes);
                let part = bytes[at..(at + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Edit::Insert(at, more) => {
                let at = place(at, &bytes);
                bytes.splice(at..at, more.iter().copied());
            }
            Edit::Splice(at, other) => {
                let other = &other.get(corpus).1;
                let at = place(at, &bytes);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at.min(other.len())..]);
            }
        }
    }
    bytes
}

/// Mutates the corpus and checks; an input that fails is written beside the others.
fn fuzz(kind: &str, insert: impl Strategy<Value = Vec<u8>>, ending: &str, check: impl Fn(&Path, &[u8], &[usize])) {
    let corpus = corpus(kind);
    let cases = std::env::var("LILY_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (any::<prop::sample::Index>(), edits(insert), prop::collection::vec(0usize..1000, 0..6));
    let result = TestRunner::new(config).run(&strategy, |(entry, edits, cuts)| {
        let (path, bytes) = entry.get(&corpus);
        check(path, &apply(bytes, &edits, &corpus), &cuts);
        Ok(())
    });
    if let Err(TestError::Fail(reason, (entry, edits, cuts))) = result {
        let (path, bytes) = entry.get(&corpus);
        let stem = path.file_stem().unwrap().to_string_lossy();
        let found = path.with_file_name(format!("{stem}_found{ending}"));
        std::fs::write(&found, apply(bytes, &edits, &corpus)).unwrap();
        panic!("{reason}\ncut at {cuts:?}; the input is in {}", found.display());
    }
    result.unwrap();
}

fn output_laws(text: &[u8], cuts: &[usize]) {
    for (inside, tools) in [(false, false), (false, true), (true, false), (true, true)] {
        laws(text, cuts, inside, tools);
    }
}

#[test]
fn corpus_of_model_texts() {
    for (path, bytes) in corpus("output") {
        eprintln!("{}", path.display());
        for cut in 0..=bytes.len() {
            laws(&bytes, &[cut], true, true);
        }
        output_laws(&bytes, &[]);
    }
}

#[test]
fn fuzz_model_texts() {
    fuzz("output", markup().prop_map(String::into_bytes), ".bytes", |_, bytes, cuts| output_laws(bytes, cuts));
}

fn api_of(path: &Path) -> Api {
    match path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap() {
        "chat" => Api::Chat,
        "completions" => Api::Completions,
        "responses" => Api::Responses,
        "messages" => Api::Messages,
        other => panic!("{other} is no API"),
    }
}

/// A body is refused with a reason, or becomes a request that can be answered.
fn body_laws(api: Api, body: &[u8]) -> bool {
    match parse(api, body) {
        Ok(request) => {
            if let Input::Chat(chat) = &request.input {
                assert!(chat.messages.iter().all(|m| m["content"].is_string() && m["role"].is_string()));
                assert!(chat.template_tools().is_none_or(|tools| tools.is_array()));
            }
            let pieces = super::pieces(&request, &[b"a", b"</think>", b"b"]);
            let whole = encoder(&request, super::context()).whole(&pieces, &super::finish(FinishReason::Stop));
            assert!(whole["usage"].is_object());
            true
        }
        Err(error) => {
            assert!(error.status == 400 && error.message.len() > 10, "{error:?}");
            assert!(error.body(api)["error"]["message"].is_string());
            false
        }
    }
}

#[test]
fn corpus_of_bodies() {
    for (path, bytes) in corpus("bodies") {
        let accepted = body_laws(api_of(&path), &bytes);
        // What clients send is accepted; what a mutation found need not be.
        let found = path.to_string_lossy().contains("_found");
        assert!(accepted || found, "{}: {:?}", path.display(), parse(api_of(&path), &bytes));
    }
}

#[test]
fn fuzz_bodies() {
    let parts = [
        "null",
        "{}",
        "[]",
        "\"\"",
        "1e400",
        "-1",
        ",",
        "\"type\":\"image\"",
        "\"content\":null",
        "\\ud800",
        "\u{FFFD}",
        "[",
    ];
    let insert = prop::sample::select(parts.to_vec()).prop_map(|part| part.as_bytes().to_vec());
    fuzz("bodies", insert, ".json", |path, bytes, _| {
        body_laws(api_of(path), bytes);
    });
}

/// The same with whole values changed, so that more bodies stay JSON.
#[test]
fn fuzz_values_of_bodies() {
    let values =
        ["null", "{}", "[]", "\"x\"", "-1", "0", "1.5", "true", "[null]", "{\"type\": 5}", "[{}]", "{\"a\": [[[]]]}"];
    let insert = prop::sample::select(values.to_vec()).prop_map(|value| value.as_bytes().to_vec());
    fuzz("bodies", insert, ".json", |path, bytes, cuts| {
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else { return };
        for (number, cut) in cuts.iter().enumerate() {
            let mut places = Vec::new();
            super::requests::places(&body, "", &mut places);
            let value = values[(cut + number) % values.len()];
            *body.pointer_mut(&places[cut % places.len()]).unwrap() = serde_json::from_str(value).unwrap();
        }
        body_laws(api_of(path), body.to_string().as_bytes());
    });
}
