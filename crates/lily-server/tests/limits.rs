//! What one client may take of the server: sizes, times, connections.

mod common;

use common::{Setup, chat};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn bodies_end_at_the_limit() {
    let server = Setup::with(|o| o.limits.body_bytes = 1000).start();
    let long = common::with(chat(&"x".repeat(2000)), json!({}));
    let answer = server.post("/v1/chat/completions", &long);
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    assert!(answer.text().contains("1000 bytes"), "{}", answer.text());
    let answer = server.connect().request("POST", "/v1/messages", &[], Some(long.to_string().as_bytes()));
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
    // A body that does not say how long it is.
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let chunked = [("transfer-encoding", "chunked")];
    let answer = server.connect().request("POST", "/v1/chat/completions", &chunked, Some(chunk.as_bytes()));
    assert_eq!(answer.status, 413);
}

#[test]
fn heads_end_at_the_limit() {
    let server = Setup::default().start();
    let long = "x".repeat(64 * 1024);
    let answer = server.connect().request("GET", "/health", &[("x-long", long.as_str())], None);
    assert_eq!(answer.status, 431);
    let many: Vec<(String, String)> = (0..200).map(|n| (format!("x-{n}"), "y".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(server.connect().request("GET", "/health", &many, None).status, 431);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn slow_heads_and_idle_connections_are_closed() {
    let server = Setup::with(|o| o.limits.head_time = Duration::from_millis(300)).start();
    let start = Instant::now();
    let mut slow = server.connect();
    slow.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n");
    // One byte now and then is not enough to stay.
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(100));
        let _ = std::io::Write::write_all(slow.socket.get_mut(), b"x");
    }
    slow.rest();
    let mut idle = server.connect();
    assert_eq!(idle.request("GET", "/health", &[], None).status, 200);
    assert_eq!(idle.request("GET", "/health", &[], None).status, 200, "connections are kept");
    idle.rest();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn slow_bodies_are_refused() {
    let server = Setup::with(|o| o.limits.body_time = Duration::from_millis(200)).start();
    let mut connection = server.connect();
    connection.ask("POST", "/v1/chat/completions", &[("content-length", "1000")], Some(b"{\"messages\""));
    let answer = connection.head();
    assert_eq!(answer.status, 408);
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[test]
fn compressed_bodies_are_refused() {
    let server = Setup::default().start();
    let gzip = [("content-encoding", "gzip")];
    let answer = server.connect().request("POST", "/v1/chat/completions", &gzip, Some(b"\x1f\x8b"));
    assert_eq!(answer.status, 415);
}

#[test]
fn deep_bodies_are_refused() {
    let server = Setup::default().start();
    for open in ["[", "{\"a\":"] {
        let body = open.repeat(100_000);
        let answer = server.connect().request("POST", "/v1/chat/completions", &[], Some(body.as_bytes()));
        assert_eq!(answer.status, 400, "{open}");
    }
    let tool = json!({"type": "function", "function": {"name": "f", "parameters":
        serde_json::from_str::<serde_json::Value>(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).unwrap()}});
    let answer = server
        .post("/v1/chat/completions", &common::with(chat("x"), json!({"tools": [tool], "tool_choice": "required"})));
    assert!(answer.status < 500, "{}", answer.text());
}

#[test]
fn further_connections_wait_for_a_place() {
    let server = Setup::with(|o| o.limits.connections = 2).start();
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!(first.request("GET", "/health", &[], None).status, 200);
    assert_eq!(second.request("GET", "/health", &[], None).status, 200);
    let mut third = server.connect();
    third.ask("GET", "/health", &[], None);
    third.socket.get_ref().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(std::io::Read::read(third.socket.get_mut(), &mut [0; 1]).is_err(), "not served yet");
    drop(first);
    third.socket.get_ref().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(third.head().status, 200);
}

#[test]
fn malformed_requests_do_no_harm() {
    let server = Setup::default().start();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"",
    ] {
        let mut connection = server.connect();
        connection.send(bytes);
        let _ = connection.socket.get_ref().shutdown(std::net::Shutdown::Write);
        connection.rest();
    }
    assert_eq!(server.get("/health").status, 200);
}
