//! A device that breaks: whom it concerns is told in the shape of the API, and the server goes on.

mod common;

use common::device::Trouble;
use common::{Events, Faults, Running, Setup, busy, chat, with};
use lily_server::StartError;
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

fn fragile() -> (Running, Faults) {
    let faults = Faults::default();
    (Setup { faults: Some(faults.clone()), ..Setup::default() }.start(), faults)
}

/// A request that goes on for 32 tokens.
fn body(path: &str) -> Value {
    let ask = "What is the capital of France?";
    let messages = json!([{"role": "user", "content": ask}]);
    let own = match path {
        "/v1/completions" => json!({"prompt": ask, "max_tokens": 32}),
        "/v1/responses" => json!({"input": ask, "max_output_tokens": 32}),
        _ => json!({"messages": messages, "max_tokens": 32}),
    };
    let endless: Value = serde_json::from_str(common::ENDLESS).unwrap();
    with(own, json!({"temperature": 0, "logit_bias": endless}))
}

fn assert_healthy(server: &Running) {
    let answer = server.post("/v1/chat/completions", &chat("What is the capital of France?"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("The capital of France is Paris."), "{}", answer.text());
}

/// The error that ends a stream, which holds nothing that reads as a good end.
fn error_of(path: &str, events: Events) -> Value {
    let mut events: Vec<(String, String)> = events.collect();
    if !["/v1/responses", "/v1/messages"].contains(&path) {
        assert_eq!(events.pop().unwrap().1, "[DONE]", "{path}");
    }
    let (name, data) = events.pop().unwrap();
    let data: Value = serde_json::from_str(&data).unwrap();
    let good = ["message_stop", "response.completed", "response.incomplete", "\"finish_reason\":\"", "[DONE]"];
    for (event, data) in &events {
        assert!(good.iter().all(|word| event != word && !data.contains(word)), "{path}: {event} {data}");
    }
    match path {
        "/v1/responses" => {
            assert_eq!((name.as_str(), &data["response"]["status"]), ("response.failed", &json!("failed")), "{data}");
            data["response"]["error"].clone()
        }
        "/v1/messages" => {
            assert_eq!(
                (name.as_str(), &data["type"], &data["error"]["type"]),
                ("error", &json!("error"), &json!("api_error"))
            );
            data["error"].clone()
        }
        _ => {
            assert_eq!((name.as_str(), &data["error"]["type"]), ("", &json!("server_error")), "{path}: {data}");
            data["error"].clone()
        }
    }
}

#[test]
fn broken_logits_are_an_error_and_the_next_request_is_answered() {
    let (server, faults) = fragile();
    let mut failed = 0.0;
    for (trouble, words) in [(Trouble::NotANumber, "the logit of token 7 is NaN"), (Trouble::Flat, "logits are 1;")] {
        for (path, after) in PATHS.into_iter().zip([0, 1, 5, 0].into_iter().cycle()) {
            faults.plan(trouble, after);
            let answer = server.post(path, &body(path));
            assert_eq!((answer.status, faults.struck()), (500, 1), "{path}: {}", answer.text());
            let error = answer.json();
            assert_eq!(error["type"] == "error", path == "/v1/messages", "the shape of its API: {error}");
            let kind = if path == "/v1/messages" { "api_error" } else { "server_error" };
            assert_eq!(error["error"]["type"], kind);
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
            assert_eq!(answer.header("x-should-retry"), Some("false"), "the same again gives the same");
            assert_healthy(&server);

            faults.plan(trouble, after);
            let error = error_of(path, server.stream(path, &body(path)));
            assert!(error["message"].as_str().unwrap().contains(words), "{path}: {error}");
            assert_healthy(&server);
            failed += 2.0;
        }
    }
    assert_eq!(server.figure("lily_requests_finished_total{reason=\"error\"}"), failed);
}

#[test]
fn a_device_that_fails_at_the_warm_up_serves_nothing() {
    let faults = Faults::default();
    faults.plan(Trouble::Fails, 0);
    let Err(error) = (Setup { faults: Some(faults.clone()), ..Setup::default() }).try_model() else {
        panic!("a model whose device fails was served");
    };
    assert!(matches!(error, StartError::WarmUp(_)), "{error:?}");
    assert!(
        error.to_string().starts_with("the warm-up failed: ") && error.to_string().contains("as planned"),
        "{error}"
    );
    assert_eq!(faults.struck(), 1);
}

/// The device changes the state of all sessions of a step in place, so none of them can go on from it.
#[test]
fn a_shared_step_that_fails_ends_its_answers_with_an_error_and_no_others() {
    let (server, faults) = fragile();
    for (trouble, words) in [(Trouble::Fails, "as planned"), (Trouble::Panics, "a bug of lily")] {
        let both = [busy(&server), busy(&server)];
        faults.plan(trouble, 3);
        for events in both {
            let error = error_of(PATHS[0], events);
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        }
        assert_eq!(faults.struck(), 2, "both were in the step");
        assert_healthy(&server);
    }
}

/// What the memory plan counted on may be somebody else's when a session is to be made.
#[test]
fn without_memory_for_another_session_a_client_is_told_to_come_back() {
    let (server, faults) = fragile();
    let one = busy(&server);
    faults.fill_memory(true);
    let other = busy(&server); // in the session of the warm-up, though the plan has room for more
    for path in PATHS {
        let answer = server.post(path, &body(path));
        assert_eq!(answer.status, 503, "{path}: {}", answer.text());
        assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry") == Some("true"), "{path}");
        let error = &answer.json()["error"];
        let kind = if path == "/v1/messages" { "overloaded_error" } else { "unavailable_error" };
        let words = error["message"].as_str().unwrap();
        assert!(error["type"] == kind && words.contains("1073741824 bytes") && words.contains("--sessions"), "{error}");
    }
    drop(one);
    server.wait_for("lily_requests_running", 1.0, SOON);
    assert_healthy(&server);
    drop(other);
}

/// Broken logits are one session's: whoever shared the step goes on.
#[test]
fn broken_logits_concern_their_session_alone() {
    let (server, faults) = fragile();
    let both = [busy(&server), busy(&server)];
    faults.plan(Trouble::NotANumber, 3);
    server.wait_for("lily_requests_finished_total{reason=\"error\"}", 1.0, SOON);
    assert_eq!(faults.struck(), 2, "both were in the step");
    server.wait_for("lily_requests_running", 1.0, SOON);
    assert_eq!(server.figure("lily_requests_finished_total{reason=\"cancelled\"}"), 0.0);
    drop(both);
    assert_healthy(&server);
}
