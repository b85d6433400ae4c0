//! `lily serve` from outside: addresses, keys, signals, and settings for clients.

mod common;

use common::{Run, lily};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A server that is up.
struct Served {
    child: Child,
    /// Without the scheme.
    address: String,
}

impl Served {
    /// `lily serve --port 0 ARGS`, until it answers.
    fn start(args: &[&str]) -> Self {
        Self::of(lily(&[&["serve", "--port", "0"], args].concat()))
    }

    fn of(run: Run) -> Self {
        let mut child = run.spawn();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut variable = |name: &str| lines.next().unwrap().unwrap().strip_prefix(name).unwrap().to_owned();
        let openai = variable("OPENAI_BASE_URL=http://");
        let anthropic = variable("ANTHROPIC_BASE_URL=http://");
        assert_eq!(openai, format!("{anthropic}/v1"));
        Self { child, address: anthropic }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end: the exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(40), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }

    /// Sends a request that closes the connection; the answer's head and what follows come from the socket.
    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}",
            self.address
        );
        socket.write_all(request.as_bytes()).unwrap();
        socket
    }

    fn ask(&self, head: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(head, body).read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill(); // of a test that failed; it has ended otherwise
    }
}

const CHAT: &str = "POST /v1/chat/completions";
const QUESTION: &str =
    r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}"#;
/// Goes on for some seconds.
const ENDLESS: &str = r#"{"messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 1500,
    "logit_bias": {"4087": -100, "4089": -100}}"#;

#[test]
fn it_answers_until_it_is_told_to_end() {
    let server = Served::start(&["--alias", "claude-local", "--context", "512"]);
    assert!(server.ask(CHAT, QUESTION).contains("The capital of France is Paris."));
    let models = server.ask("GET /v1/models", "");
    assert!(
        models.contains("\"lily-nano\"") && models.contains("\"claude-local\"") && models.contains(":512"),
        "{models}"
    );
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("every answer was complete"), "{said}");
    assert!(!said.contains("capital"), "prompts and answers are never logged: {said}");
}

#[test]
fn an_end_waits_for_answers_and_a_second_ctrl_c_does_not() {
    let server = Served::start(&[]);
    let mut stream = BufReader::new(server.send(CHAT, ENDLESS)).lines();
    assert!(stream.next().unwrap().unwrap().contains("200"));
    server.signal("INT");
    std::thread::sleep(Duration::from_millis(300));
    assert!(TcpStream::connect(&server.address).is_err(), "nobody new is let in");
    assert!(stream.next().is_some(), "the answer goes on");
    server.signal("INT");
    let (code, said) = server.end();
    assert_eq!(code, Some(130), "{said}");
}

#[test]
fn a_port_that_is_taken_is_code_1_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = lily(&["serve", "--port", &port]).output();
    assert_eq!(output.code, Some(1), "{output:?}");
    for part in [format!("127.0.0.1:{port}"), "--port".to_owned()] {
        assert!(output.stderr.contains(&part), "{output:?}");
    }
    assert_eq!(output.stdout, "");
}

#[test]
fn beyond_loopback_a_key_is_needed() {
    let output = lily(&["serve", "--host", "0.0.0.0", "--port", "0"]).output();
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.stderr.contains("LILY_API_KEY") && output.stderr.contains("--insecure"), "{output:?}");
    let output = lily(&["serve", "--host", "example.com"]).output();
    assert_eq!(output.code, Some(2), "{output:?}");
    let run = lily(&["serve", "--port", "0"]).env("LILY_HOST", "0.0.0.0").env("LILY_API_KEY", "s3cret");
    let server = Served::of(run);
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    assert!(server.ask(CHAT, QUESTION).contains("401"));
    assert!(server.ask(&format!("{CHAT}?x"), QUESTION).contains("authentication_error"));
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0));
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn a_model_that_cannot_be_served_ends_it() {
    let output = lily(&["serve", "no-such-folder", "--port", "0"]).output();
    assert_eq!(output.code, Some(3), "{output:?}");
    let folder = tempfile::tempdir().unwrap();
    let output = lily(&["serve", folder.path().to_str().unwrap(), "--port", "0"]).output();
    assert_eq!(output.code, Some(3), "{output:?}");
    let output = lily(&["serve", "--context", "999999", "--port", "0"]).output();
    assert_eq!(output.code, Some(2), "{output:?}");
}

#[test]
fn it_explains_where_prompts_part() {
    let server = Served::start(&["--explain-cache"]);
    server.ask(CHAT, QUESTION);
    server.ask(CHAT, &QUESTION.replace("France", "Spain"));
    server.signal("TERM");
    let (_, said) = server.end();
    let explained: Vec<&str> = said.lines().filter(|line| line.contains("prompt tokens reused")).collect();
    assert_eq!(explained.len(), 2, "{said}");
    assert!(explained[1].contains("in message 1 (user)"), "{}", explained[1]);
    assert!(!said.contains("France") && !said.contains("Spain"), "{said}");
}

#[test]
fn it_explains_which_message_of_a_conversation_differs() {
    const SAID: [(&str, &str); 5] =
        [("system", "Brief."), ("user", "Red?"), ("assistant", "Yes."), ("user", "Blue?"), ("user", "Green?")];
    let conversation = |changed: Option<usize>| {
        let message = |(i, (role, text)): (usize, &(&str, &str))| {
            let text = if Some(i) == changed { "Zebras." } else { text };
            format!(r#"{{"role": "{role}", "content": "{text}"}}"#)
        };
        let messages: Vec<String> = SAID.iter().enumerate().map(message).collect();
        format!(r#"{{"messages": [{}], "max_tokens": 1}}"#, messages.join(", "))
    };
    let server = Served::start(&["--explain-cache"]);
    server.ask(CHAT, &conversation(None));
    for changed in [3, 2, 0] {
        server.ask(CHAT, &conversation(Some(changed)));
    }
    server.signal("TERM");
    let (_, said) = server.end();
    let explained: Vec<&str> = said.lines().filter(|line| line.contains("prompt tokens reused")).collect();
    let parted = ["", "in message 4 (user)", "in message 3 (assistant)", "in message 1 (system)"];
    assert_eq!(explained.len(), parted.len(), "{said}");
    for (line, parted) in explained.iter().zip(parted) {
        assert!(line.contains(parted) && line.contains(", in message ") != parted.is_empty(), "{parted}: {line}");
    }
}

#[test]
fn remembered_prompts_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let long = QUESTION.replace("What is", &format!("{} What is", "Read this carefully.".repeat(20)));
    let ask = || {
        let server = Served::start(&["--cache-dir", cache]);
        let answer = server.ask(CHAT, &long);
        server.signal("TERM");
        assert_eq!(server.end().0, Some(0));
        let line = answer.lines().find_map(|line| line.strip_prefix("x-lily-cache: ")).unwrap().to_owned();
        (line, answer.rsplit("\"content\":").next().unwrap().split(',').next().unwrap().to_owned())
    };
    let (cold, first) = ask();
    assert!(cold.contains("disk=0"), "{cold}");
    let (warm, second) = ask();
    assert!(!warm.contains("disk=0"), "{warm}");
    assert_eq!(first, second);
}

#[test]
fn settings_for_clients_have_the_servers_address() {
    for client in ["codex", "claude", "opencode", "qwen", "zed", "continue", "openwebui", "xcode"] {
        let output = lily(&["serve", "--print-config", client, "--port", "8123"]).output();
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.stdout.contains("8123"), "{output:?}");
        assert!(output.stderr.contains("goes into"), "{output:?}");
    }
    let output = lily(&["serve", "--print-config", "emacs"]).output();
    assert_eq!(output.code, Some(2), "{output:?}");
}
