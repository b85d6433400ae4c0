//! Everything that the fuzzers of other crates keep, as bodies for every route: whatever it is, the server survives it.

mod common;

use common::{Running, Setup};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most tokens of an answer: what is tried here comes before and after them.
const ANSWER_TOKENS: usize = 6;

/// The files of a corpus.
fn files(folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// A body with a short answer of the model that is served here; as it is where it is no object.
fn short(bytes: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut body)) = serde_json::from_slice(bytes) else { return bytes.to_vec() };
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
        body.insert(name.into(), ANSWER_TOKENS.into());
    }
    body.insert("model".into(), "lily-nano".into());
    Value::Object(body).to_string().into_bytes()
}

/// Bodies with a text of a model: as it is, to be made tokens of, as the history of a conversation, as a prompt.
fn bodies_with(text: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(text);
    let asked = |content: &str| json!({"role": "user", "content": content});
    let history = json!([asked("Hi"), {"role": "assistant", "content": text}, asked("And?")]);
    let own = [
        json!({"content": text}),
        json!({"messages": history, "max_tokens": ANSWER_TOKENS}),
        json!({"input": history, "max_output_tokens": ANSWER_TOKENS}),
        json!({"prompt": text, "max_tokens": ANSWER_TOKENS}),
    ];
    own.iter().map(|body| body.to_string().into_bytes()).collect()
}

/// The routes that take bodies, as the server's own document has them.
fn routes(server: &Running) -> Vec<String> {
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    let posted = paths.iter().filter(|(path, methods)| path.starts_with("/v1") && methods.get("post").is_some());
    posted.map(|(path, _)| path.clone()).collect()
}

#[test]
fn no_corpus_breaks_a_route() {
    let server = Setup { context: 1024, ..Setup::default() }.start();
    let mut bodies: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    bodies.extend(files("lily-api/corpus/bodies"));
    let answered_briefly = ["lily-api/corpus/bodies", "lily-engine/corpus/template"].into_iter().flat_map(files);
    bodies.extend(answered_briefly.map(|(path, bytes)| (path, short(&bytes))));
    for (path, bytes) in files("lily-api/corpus/output") {
        bodies.extend(bodies_with(&bytes).into_iter().map(|body| (path.clone(), body)));
        bodies.push((path, bytes));
    }
    let routes = routes(&server);
    assert_eq!(routes.len(), 8, "{routes:?}");
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    for route in &routes {
        for (path, body) in &bodies {
            let answer = server.connect().request("POST", route, &[], Some(body));
            let name = path.file_name().unwrap().display();
            assert!(answer.status < 500, "{name} to {route}: {} {}", answer.status, answer.text());
            if answer.status == 200 {
                *answered.entry(route).or_default() += 1;
                assert!(!answer.text().contains("\"error\":{"), "{name} to {route}: {}", answer.text());
            } else {
                assert!(answer.json()["error"]["message"].as_str().unwrap().len() > 10, "{name} to {route}");
            }
        }
    }
    println!("{} bodies; answered: {answered:?}", bodies.len());
    assert_eq!(answered.len(), routes.len() - 1, "all routes but one for tokens were of use: {answered:?}");
    assert_eq!(server.figure("lily_requests_finished_total{reason=\"error\"}"), 0.0);
    server.wait_for("lily_requests_running", 0.0, std::time::Duration::from_secs(10));
    assert_eq!(server.get("/ready").status, 200);
    assert!(
        server.post("/v1/chat/completions", &common::chat("What is the capital of France?")).text().contains("Paris")
    );
}
