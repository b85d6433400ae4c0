//! Every route: that it is there, with and without `/v1`, and what it says.

mod common;

use common::{Setup, chat};
use serde_json::{Value, json};

#[test]
fn every_documented_route_is_there_and_no_other() {
    let server = Setup::default().start();
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 20, "{paths:?}");
    for (path, methods) in paths {
        let here = path.replace("{id}", "lily-nano");
        for other in ["GET", "POST", "DELETE"] {
            let known = methods.get(other.to_lowercase()).is_some();
            let answer = server.connect().request(other, &here, &[], Some(b"{}"));
            assert_eq!(answer.status != 405, known, "{other} {path}: {}", answer.text());
            assert!(!answer.text().contains("\"not_found\""), "{other} {path}: {}", answer.text());
            assert_eq!(answer.header("allow").is_some(), !known, "{other} {path}");
        }
        let twin = path.strip_prefix("/v1").unwrap_or(path);
        assert!(paths.contains_key(twin), "{path} without /v1");
    }
}

#[test]
fn the_path_counts_and_the_query_does_not() {
    let server = Setup::default().start();
    for path in ["/v1/models", "/models", "/v1/models?", "/models?", "/v1/models?limit=1000&after_id=x"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(
        server.post("/v1/chat/completions?beta=true", &common::with(chat("Hi"), json!({"max_tokens": 1}))).status,
        200
    );
    for path in ["/v2/models", "/v1", "/v1/models/", "/v1/model", "/%2e%2e/etc/passwd", "/V1/models"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let twice = server.get("/v1/v1/messages").text();
    assert!(twice.contains("without /v1"), "{twice}");
}

#[test]
fn models_are_listed_for_both_kinds_of_clients() {
    let server = Setup::with(|o| o.aliases = vec!["claude-local".into(), "org/name".into()]).start();
    let list = server.get("/v1/models").json();
    assert_eq!((list["object"].as_str(), list["has_more"].as_bool()), (Some("list"), Some(false)));
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["lily-nano", "claude-local", "org/name"]);
    assert_eq!((list["first_id"].as_str(), list["last_id"].as_str()), (Some("lily-nano"), Some("org/name")));
    for model in list["data"].as_array().unwrap() {
        assert_eq!((model["object"].as_str(), model["type"].as_str()), (Some("model"), Some("model")));
        assert_eq!((model["context_length"].as_u64(), model["max_model_len"].as_u64()), (Some(4096), Some(4096)));
        assert_eq!(model["created"].as_u64().map(|c| c > 1_700_000_000), Some(true));
        assert_eq!(&server.get(&format!("/v1/models/{}", model["id"].as_str().unwrap())).json(), model);
    }
    let missing = server.get("/v1/models/gpt-9");
    assert_eq!((missing.status, missing.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
    let body = common::with(chat("Hi"), json!({"model": "claude-local", "max_tokens": 1}));
    assert_eq!(server.post("/v1/chat/completions", &body).json()["model"], "claude-local");
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let server = Setup::default().start();
    for text in ["The capital of France is Paris.", "č🎉\n\n", "<|im_start|>user"] {
        let answer = server.post("/tokenize", &json!({"content": text})).json();
        let tokens = answer["tokens"].as_array().unwrap();
        assert_eq!(answer["count"], tokens.len());
        assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).json()["content"], text);
    }
    let count = |body: Value| server.post("/v1/tokenize", &body).json()["count"].as_u64().unwrap();
    let recognised = count(json!({"prompt": "<|im_start|>"}));
    assert!(recognised < count(json!({"prompt": "<|im_start|>", "parse_special": false})));
    let pieces = server.post("/tokenize", &json!({"content": "é", "with_pieces": true})).json();
    assert!(pieces["tokens"][0]["piece"].is_string() || pieces["tokens"][0]["piece"].is_array(), "{pieces}");
    let wrong = server.post("/detokenize", &json!({"tokens": [1, 4096]}));
    assert_eq!((wrong.status, wrong.json()["error"]["param"].as_str()), (400, Some("tokens")));
}

#[test]
fn the_template_is_the_one_that_chats_go_through() {
    let server = Setup::default().start();
    let prompt = server.post("/apply-template", &chat("Hello")).json()["prompt"].as_str().unwrap().to_owned();
    assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    let tokens = server.post("/tokenize", &chat("Hello")).json()["count"].as_u64().unwrap();
    let used = server.post("/v1/chat/completions", &common::with(chat("Hello"), json!({"max_tokens": 1}))).json();
    assert_eq!(used["usage"]["prompt_tokens"], tokens);
}

#[test]
fn figures_are_told_in_prometheus_words() {
    let server = Setup::default().start();
    server
        .post("/v1/chat/completions", &common::with(chat("What is the capital of France?"), json!({"max_tokens": 4})));
    let answer = server.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain"));
    let text = answer.text();
    for name in [
        "lily_requests_running",
        "lily_requests_waiting",
        "lily_kv_cache_usage_ratio",
        "lily_prefix_cache_queries_total",
        "lily_prefix_cache_hits_total",
        "lily_prompt_tokens_total",
        "lily_time_to_first_token_seconds_count",
        "lily_inter_token_latency_seconds_count",
        "lily_request_duration_seconds_count",
        "lily_requests_finished_total",
    ] {
        assert!(text.contains(&format!("\n{name}")), "{name} is not in\n{text}");
    }
    assert_eq!(server.figure("lily_generation_tokens_total"), 4.0);
    assert_eq!(server.figure("lily_time_to_first_token_seconds_count"), 1.0);
    assert_eq!(server.figure("lily_inter_token_latency_seconds_count"), 3.0);
}

#[test]
fn a_server_without_its_model_says_so() {
    let server = Setup { loaded: false, ..Setup::default() }.start();
    assert_eq!(server.get("/health").status, 200);
    for answer in [server.get("/ready"), server.get("/v1/models"), server.post("/v1/chat/completions", &chat("Hi"))] {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "loading");
        assert!(answer.header("retry-after").is_some());
    }
    server.server.serve_model(Setup::default().model());
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn the_page_asks_nothing_of_anybody_else() {
    let server = Setup::default().start();
    let answer = server.get("/");
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").unwrap();
    for rule in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    let page = answer.text();
    assert!(page.contains("v1/chat/completions") && page.ends_with("</html>\n"));
    // Nothing is loaded, and no text becomes HTML.
    for foreign in [
        "<script src",
        "<link rel=\"stylesheet\"",
        "@import",
        "url(http",
        "<img",
        "<iframe",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(server.connect().request("HEAD", "/", &[], None).status, 200, "Claude Code asks so");
}
