//! The life of requests: waiting, being refused, being left alone, ending with the server.

mod common;

use common::{Faults, Setup, busy, chat, endless, with};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_client_that_leaves_ends_its_answer() {
    let server = Setup::default().start();
    let events = busy(&server);
    server.wait_for("lily_requests_running", 1.0, SOON);
    drop(events);
    let left = Instant::now();
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 1.0, SOON);
    server.wait_for("lily_requests_running", 0.0, SOON);
    assert!(server.figure("lily_generation_tokens_total") < 1000.0, "of 4,000 that it would have had");
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
}

#[test]
fn a_client_that_leaves_without_a_stream_ends_its_answer_too() {
    let server = Setup::default().start();
    let mut connection = server.connect();
    connection.ask("POST", "/v1/chat/completions", &[], Some(endless().to_string().as_bytes()));
    // Its tokens cannot be seen from here; that the time between them is measured can.
    let start = Instant::now();
    while !server.get("/metrics").text().contains("lily_time_to_first_token_seconds_count 1") {
        assert!(start.elapsed() < SOON, "no token came");
    }
    drop(connection);
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 1.0, SOON);
}

#[test]
fn a_client_that_leaves_the_queue_is_forgotten() {
    let server = Setup { sessions: 1, ..Setup::default() }.start();
    let first = busy(&server);
    let second = server.stream("/v1/chat/completions", &chat("Hi"));
    server.wait_for("lily_requests_waiting", 1.0, SOON);
    drop(second);
    server.wait_for("lily_requests_waiting", 0.0, SOON);
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 1.0, SOON);
    // Its prompt was not looked for.
    let counted = || ["lily_prefix_cache_queries_total", "lily_prompt_tokens_total"].map(|name| server.figure(name));
    assert_eq!(counted(), [0.0, 0.0]);
    drop(first);
    server.wait_for("lily_requests_running", 0.0, SOON);
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 2.0, SOON);
    assert!(counted().iter().all(|tokens| (1.0..100.0).contains(tokens)), "of the first: {:?}", counted());
}

/// The device is held inside a chunk while the client leaves; the chunk is the last one.
#[test]
fn a_client_that_leaves_during_its_prompt_ends_it_within_a_chunk() {
    let faults = Faults::default();
    let server = Setup { faults: Some(faults.clone()), ..Setup::default() }.start();
    let hold = faults.hold_prompts();
    let mut client = server.connect();
    let mut body = chat(&"word ".repeat(1500)); // three chunks of 512 tokens at least
    body["stream"] = true.into();
    client.ask("POST", "/v1/chat/completions", &[], Some(body.to_string().as_bytes()));
    let start = Instant::now();
    while faults.chunks() == 0 {
        assert!(start.elapsed() < SOON, "no chunk came");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(client);
    std::thread::sleep(Duration::from_secs(1)); // far more than the server needs to see it
    drop(hold);
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 1.0, SOON);
    server.wait_for("lily_requests_running", 0.0, SOON);
    assert_eq!(faults.chunks(), 1);
    assert_eq!(server.figure("lily_generation_tokens_total"), 0.0);
}

/// What a client waits for begins with its request, not with its job.
#[test]
fn times_are_measured_from_the_arrival() {
    let server = Setup::default().start();
    let body = with(chat("What is the capital of France?"), json!({"max_tokens": 2})).to_string();
    let length = body.len().to_string();
    let mut client = server.connect();
    client.ask("POST", "/v1/chat/completions", &[("content-length", length.as_str())], Some(b""));
    std::thread::sleep(Duration::from_millis(700));
    client.send(body.as_bytes());
    assert_eq!(client.head().status, 200);
    for name in ["lily_time_to_first_token_seconds_sum", "lily_request_duration_seconds_sum"] {
        assert!(server.figure(name) >= 0.7, "{name} is {}", server.figure(name));
    }
}

#[test]
fn a_full_queue_tells_clients_to_come_back() {
    let server = Setup { sessions: 1, queue: 1, ..Setup::default() }.start();
    let first = busy(&server);
    let second = server.stream("/v1/chat/completions", &chat("What is 2 + 2?"));
    server.wait_for("lily_requests_waiting", 1.0, SOON);
    let refused = server.post("/v1/chat/completions", &chat("Hi"));
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(server.figure("lily_requests_refused_total{reason=\"queue_full\"}"), 1.0);
    drop(first);
    let text: String = second
        .values()
        .iter()
        .filter_map(|c| c["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert!(text.contains('4'), "the one that waited is answered: {text}");
}

/// A request that has no place is refused for that, whatever it asks: nothing of it was looked at.
#[test]
fn a_full_queue_refuses_before_it_reads() {
    let server = Setup { sessions: 1, queue: 1, ..Setup::default() }.start();
    let _first = busy(&server);
    let _second = server.stream("/v1/chat/completions", &chat("What is 2 + 2?"));
    server.wait_for("lily_requests_waiting", 1.0, SOON);
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
    for path in paths {
        let refused = server.connect().request("POST", path, &[], Some(b"{\"no JSON"));
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        assert!(refused.header("retry-after").is_some() && refused.header("x-should-retry") == Some("true"));
        let error = refused.json();
        assert_eq!(error["error"]["type"], "rate_limit_error", "{path}");
        assert_eq!(error["type"] == "error", path == "/v1/messages", "the shape of its API: {error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("1 requests are waiting and 1 may"), "{error}");
    }
    assert_eq!(server.figure("lily_requests_refused_total{reason=\"queue_full\"}"), paths.len() as f64);
    // What needs no place in the queue is answered.
    assert_eq!(server.post("/v1/messages/count_tokens", &chat("Hi")).status, 200);
}

#[test]
fn a_stream_that_waits_shows_signs_of_life() {
    let mut setup = Setup { sessions: 1, ..Setup::default() };
    setup.options.limits.heartbeat = Duration::from_millis(50);
    let server = setup.start();
    let first = busy(&server);
    let mut second = server.stream("/v1/chat/completions", &chat("Hi"));
    assert_eq!(second.next().unwrap().0, "", "the role at once");
    for _ in 0..3 {
        // Idle timers of LangChain and Qwen Code count what was parsed, which comments are not.
        let chunk: Value = serde_json::from_str(&second.next().unwrap().1).expect("a chunk that says nothing");
        let choice = &chunk["choices"][0];
        assert_eq!((&choice["delta"], &choice["finish_reason"]), (&json!({}), &Value::Null), "{chunk}");
    }
    drop(first);
    assert_eq!(second.last().unwrap().1, "[DONE]");
}

#[test]
fn an_end_lets_answers_come_to_theirs() {
    let mut server = Setup::default().start();
    let mut events = server.stream("/v1/chat/completions", &with(endless(), json!({"max_tokens": 100})));
    events.next().unwrap();
    let mut kept = server.connect();
    assert_eq!(kept.request("GET", "/health", &[], None).status, 200);
    server.tell_to_end();
    let rest: Vec<_> = events.collect();
    assert_eq!(rest.last().unwrap().1, "[DONE]");
    assert!(rest.iter().any(|(_, data)| data.contains("\"length\"")), "all hundred tokens came");
    assert!(server.wait(), "everything was complete");
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn an_end_has_a_deadline() {
    let mut server = Setup::with(|o| o.limits.drain_time = Duration::from_millis(300)).start();
    let mut events = server.stream("/v1/chat/completions", &endless());
    events.next().unwrap();
    let told = Instant::now();
    assert!(!server.wait(), "something was cut short");
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    let rest: Vec<_> = events.collect();
    assert_eq!(rest.last().unwrap().1, "[DONE]");
    assert!(rest.iter().any(|(_, data)| data.contains("\"error\"")), "the client is told: {:?}", rest.last());
}

#[test]
fn one_bad_request_leaves_the_others_alone() {
    let server = Setup::default().start();
    let good = server.stream("/v1/chat/completions", &chat("What is the capital of France?"));
    for body in
        [&b"{"[..], b"[]", b"null", b"{\"messages\":[{}]}", b"\xff\xfe", b"{\"messages\":[{\"role\":\"user\"}]}"]
    {
        assert_eq!(server.connect().request("POST", "/v1/chat/completions", &[], Some(body)).status, 400);
    }
    let text: String =
        good.values().iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(text, "The capital of France is Paris.");
}
