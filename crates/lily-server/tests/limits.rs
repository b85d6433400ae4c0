//! What one client may take of the server: sizes, times, connections.

mod common;

use common::{Connection, Setup, chat};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Whether nothing has come from the server, not even the end.
fn is_open(connection: &mut Connection) -> bool {
    connection.socket.get_ref().set_nonblocking(true).unwrap();
    let read = std::io::Read::read(connection.socket.get_mut(), &mut [0; 1]);
    connection.socket.get_ref().set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn two_hundred_that_trickle_keep_nobody_waiting() {
    let long = Duration::from_secs(300); // they stay as long as this takes
    let server = Setup::with(|o| (o.limits.head_time, o.limits.body_time) = (long, long)).start();
    let trickle = |number: usize| {
        let mut connection = server.connect();
        if number.is_multiple_of(2) {
            connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-slow: ");
        } else {
            connection.ask("POST", "/v1/chat/completions", &[("content-length", "100000")], Some(b"{\"model\": \""));
        }
        connection
    };
    let mut slow: Vec<Connection> = (0..200).map(trickle).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                slow.iter_mut().for_each(|connection| connection.send(b"x"));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let answers: Vec<_> =
            (0..5).map(|_| server.post("/v1/chat/completions", &chat("What is the capital of France?"))).collect();
        done.store(true, Ordering::Relaxed);
        assert!(answers.iter().all(|answer| answer.status == 200 && answer.text().contains("Paris")), "{answers:?}");
    });
    let open = slow.iter_mut().filter_map(|connection| is_open(connection).then_some(())).count();
    assert_eq!(open, slow.len(), "the answers came while all of them were under way");
}

#[test]
fn bodies_share_a_budget() {
    let server = Setup::with(|o| o.limits.bodies_bytes = 10_000).start();
    let post = || server.connect().request("POST", "/v1/messages", &[], Some(&[b'x'; 6000]));
    let until = |status: u16| {
        let start = Instant::now();
        loop {
            let answer = post();
            if answer.status == status {
                return answer;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{}", answer.text());
        }
    };
    assert_eq!(post().status, 400, "it fits, and is no JSON");
    // Who announces much has no more room than what has come.
    let mut announced = server.connect();
    announced.ask("POST", "/v1/messages", &[("content-length", "60000000")], Some(b"{"));
    let mut held = server.connect();
    held.ask("POST", "/v1/messages", &[("content-length", "6001")], Some(&[b'x'; 6000]));
    let refused = until(503);
    assert_eq!(refused.json()["error"]["type"], "overloaded_error");
    assert!(refused.header("retry-after").is_some() && refused.header("x-should-retry") == Some("true"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("of the 10000 bytes"), "{message}");
    let small = common::with(chat("Hi"), json!({"max_tokens": 1}));
    assert_eq!(server.post("/v1/messages", &small).status, 200, "what fits is answered");
    // One that has come to its end makes room, and so does one whose client leaves.
    held.send(b"x");
    assert_eq!(held.head().status, 400);
    assert_eq!(post().status, 400);
    let mut left = server.connect();
    left.ask("POST", "/v1/messages", &[("content-length", "6001")], Some(&[b'x'; 6000]));
    until(503);
    drop(left);
    until(400);
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
