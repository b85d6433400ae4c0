//! `lily serve` from outside: addresses, keys, signals, and settings for clients.

mod common;

use common::{Run, lily};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server that is up.
struct Served {
    child: Child,
    /// Reads what it says, so that it never waits for that.
    said: Option<JoinHandle<String>>,
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
        let mut stderr = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        Self { child, said: Some(said), address: anthropic }
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
        (code, self.said.take().unwrap().join().unwrap())
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    }

    /// A request that closes the connection.
    fn request(&self, head: &str, body: &str) -> String {
        let (host, length) = (&self.address, body.len());
        format!("{head} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    /// Sends a request that closes the connection; the answer's head and what follows come from the socket.
    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut socket = self.connect();
        socket.write_all(self.request(head, body).as_bytes()).unwrap();
        socket
    }

    fn ask(&self, head: &str, body: &str) -> String {
        to_the_end(self.send(head, body))
    }

    /// Sends bytes as they are, and nothing more; what comes back.
    fn say(&self, bytes: &str) -> String {
        let mut socket = self.connect();
        socket.write_all(bytes.as_bytes()).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        to_the_end(socket)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill(); // of a test that failed; it has ended otherwise
    }
}

fn to_the_end(mut socket: TcpStream) -> String {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
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
fn sigterm_lets_a_stream_finish_and_turns_everybody_else_away() {
    let server = Served::start(&[]);
    // They are open when the signal comes: two on which nothing is under way, and two with a piece of a request.
    let (mut used, unused) = (server.connect(), server.connect());
    used.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut ready = [0; 15];
    used.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"HTTP/1.1 200 OK");
    let begun = [("GET /ready", QUESTION.len() + 9), (CHAT, 9)].map(|(head, missing)| {
        let (request, mut socket) = (server.request(head, QUESTION), server.connect());
        let (sent, rest) = request.split_at(request.len() - missing);
        socket.write_all(sent.as_bytes()).unwrap();
        (head, socket, rest.to_owned())
    });
    let long = ENDLESS.replace("1500", "500");
    let mut stream = BufReader::new(server.send(CHAT, &long)).lines().map(Result::unwrap);
    assert!(stream.any(|line| line.contains("\"content\":\"") && !line.contains("\"content\":\"\"")));
    server.signal("TERM");
    let told = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(told.elapsed() < Duration::from_secs(10), "it still takes connections");
        std::thread::sleep(Duration::from_millis(5));
    }
    for idle in [used, unused] {
        assert!(!to_the_end(idle).contains("HTTP/1.1"), "it was closed, without another answer");
    }
    for (head, mut socket, rest) in begun {
        socket.write_all(rest.as_bytes()).unwrap();
        let answer = to_the_end(socket);
        assert!(answer.starts_with("HTTP/1.1 503"), "{head}: {answer}");
        for part in ["retry-after: 5", "x-should-retry: true", "\"code\":\"draining\""] {
            assert!(answer.contains(part), "{head}: {part} in {answer}");
        }
    }
    let rest: Vec<String> = stream.collect();
    assert!(rest.iter().any(|line| line.contains("\"finish_reason\":\"length\"")), "all of its tokens came");
    assert!(rest.iter().rev().any(|line| line == "data: [DONE]"), "{:?}", rest.last());
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("every answer was complete"), "{said}");
}

/// A word that clients use wherever they can.
const WORD: &str = "Zebra";

/// Requests with [`WORD`] in all that a client may say, good ones and bad ones.
fn requests_with_the_word() -> Vec<(&'static str, String)> {
    let chat = |more: &str| {
        (CHAT, format!(r#"{{"messages": [{{"role": "user", "content": "Zebra one two"}}], "max_tokens": 3{more}}}"#))
    };
    let tool = r#""tools": [{"type": "function", "function": {"name": "Zebra", "description": "Zebra", "strict": true,
        "parameters": {"type": "object", "properties": {"Zebra": {"enum": ["Zebra"]}}, "required": ["Zebra"]}}}]"#;
    let schema = r#"{"type": "object", "properties": {"Zebra": {"const": "Zebra"}}, "required": ["Zebra"]}"#;
    let mut requests = vec![
        chat(""),
        chat(r#", "stream": true"#),
        chat(r#", "stop": ["Zebra"], "user": "Zebra", "prompt_cache_key": "Zebra", "metadata": {"Zebra": "Zebra"}"#),
        chat(&format!(r#", {tool}, "tool_choice": "required", "max_completion_tokens": 60"#)),
        chat(&format!(
            r#", "response_format": {{"type": "json_schema", "json_schema": {{"name": "Zebra", "schema": {schema}}}}}"#
        )),
        chat(r#", "grammar": "Zebra is none""#),
        chat(r#", "structured_outputs": {"regex": "(Zebra"}"#),
        chat(r#", "structured_outputs": {"choice": ["Zebra"]}"#),
        chat(r#", "model": "Zebra""#),
        chat(r#", "temperature": "Zebra""#),
        chat(r#", "tool_choice": "Zebra""#),
        chat(r#", "reasoning_effort": "Zebra", "chat_template_kwargs": {"Zebra": "Zebra"}"#),
    ];
    let others = [
        (CHAT, r#"{"messages": Zebra"#),
        (CHAT, r#"{"messages": [{"role": "Zebra", "content": "Zebra"}]}"#),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "Zebra"}}]}]}"#,
        ),
        ("POST /v1/completions", r#"{"prompt": "<|im_start|>Zebra one two three", "max_tokens": 3}"#),
        ("POST /v1/completions", r#"{"prompt": "<|im_start|>Zebra one four five", "max_tokens": 3, "echo": true}"#),
        ("POST /v1/completions", r#"{"prompt": ["Zebra", "Zebra"]}"#),
        ("POST /v1/responses", r#"{"input": "Zebra", "instructions": "Zebra", "max_output_tokens": 3}"#),
        ("POST /v1/responses", r#"{"input": "Zebra", "previous_response_id": "Zebra"}"#),
        (
            "POST /v1/messages",
            r#"{"messages": [{"role": "user", "content": "Zebra"}], "system": "Zebra", "max_tokens": 3}"#,
        ),
        ("POST /v1/messages", r#"{"messages": [{"role": "user", "content": "Zebra"}], "max_tokens": "Zebra"}"#),
        ("POST /v1/messages/count_tokens", r#"{"messages": [{"role": "user", "content": "Zebra"}]}"#),
        ("POST /v1/messages/count_tokens", r#"{"messages": "Zebra"}"#),
        ("POST /tokenize", r#"{"content": "Zebra"}"#),
        ("POST /detokenize", r#"{"tokens": ["Zebra"]}"#),
        ("POST /apply-template", r#"{"messages": [{"role": "user", "content": "Zebra"}]}"#),
        ("POST /apply-template", r#"{"messages": ["Zebra"]}"#),
        ("POST /v1/Zebra?Zebra=Zebra", "Zebra"),
        ("GET /v1/models/Zebra?key=Zebra", ""),
        ("DELETE /v1/models?Zebra", "Zebra"),
    ];
    requests.extend(others.map(|(head, body)| (head, body.to_owned())));
    requests.push((CHAT, format!(r#"{{"messages": [{{"role": "user", "content": "{}"}}]}}"#, "Zebra ".repeat(2000))));
    requests
}

#[test]
fn nothing_that_clients_say_is_logged_at_any_level() {
    let server = Served::start(&["--log", "trace", "--explain-cache", "--context", "512"]);
    let requests = requests_with_the_word();
    let answers: Vec<String> = requests.iter().map(|(head, body)| server.ask(head, body)).collect();
    let with = |status: &str| answers.iter().filter(|answer| answer.starts_with(&format!("HTTP/1.1 {status}"))).count();
    let counts = ["200", "400", "404", "405", "500"].map(with);
    assert_eq!((counts[2..].to_vec(), counts.iter().sum()), (vec![3, 1, 0], answers.len()), "{counts:?}");
    assert!(counts[0] >= 12 && counts[1] >= 12, "{counts:?}");
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    for said in [
        "Zebra\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nZebra Zebra\r\n\r\n".to_owned(),
        "GET /v1/models HTTP/1.1\r\nhost: zebra.example\r\n\r\n".to_owned(),
        format!("{head}origin: https://zebra.example\r\n\r\n"),
        format!("{head}content-encoding: Zebra\r\n\r\n"),
        format!("{head}authorization: Bearer Zebra\r\nx-api-key: Zebra\r\nuser-agent: Zebra\r\n\r\n"),
        format!("{head}content-length: 100\r\n\r\n{{\"Zebra"),
    ] {
        let answer = server.say(&said);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{said}: {answer}");
    }
    assert!(server.ask(CHAT, QUESTION).contains("Paris"));
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("DEBUG") && said.contains("prompt tokens reused"), "all of it was on: {said}");
    for word in [WORD, "France", "Paris"] {
        let leaks: Vec<&str> = said.lines().filter(|line| line.to_lowercase().contains(&word.to_lowercase())).collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
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
    // A port that is known only when the server has started is no setting.
    let output = lily(&["serve", "--print-config", "codex", "--port", "0"]).output();
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{output:?}");
    assert!(output.stderr.contains("--port"), "{output:?}");
}
