//! HTTP/1.1 on a socket, just enough of it.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for anything; a test that meets it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub struct Connection {
    pub socket: BufReader<TcpStream>,
    host: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket: BufReader::new(socket), host: address.to_string() }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request; a header `host` replaces the usual one, `content-length` too.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let given = |name| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !given("host") {
            head += &format!("host: {}\r\n", self.host);
        }
        if let Some(body) = body
            && !given("content-length")
            && !given("transfer-encoding")
        {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.send(head.as_bytes());
        self.send(body.unwrap_or_default());
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Answer {
        self.ask(method, path, headers, body);
        let mut answer = self.head();
        if method == "HEAD" || answer.status == 204 {
            return answer;
        }
        answer.body = if answer.header("transfer-encoding") == Some("chunked") {
            std::iter::from_fn(|| self.chunk()).flatten().collect()
        } else {
            let length = answer.header("content-length").map_or(0, |n| n.parse().unwrap());
            let mut body = vec![0; length];
            self.socket.read_exact(&mut body).unwrap();
            body
        };
        answer
    }

    /// Reads status line and headers.
    pub fn head(&mut self) -> Answer {
        let status = self.line();
        let code = status.split(' ').nth(1).unwrap_or_else(|| panic!("no status line but {status:?}"));
        let mut answer = Answer { status: code.parse().unwrap(), headers: Vec::new(), body: Vec::new() };
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { return answer };
            answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next chunk of a body; `None` for the last one.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        self.socket.read_exact(&mut chunk).unwrap();
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.socket.read_line(&mut line).unwrap();
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// Reads until the server closes; what came.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest); // a reset is an end too
        rest
    }

    /// Posts and reads the answer as events.
    pub fn stream(mut self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        self.ask("POST", path, &[], Some(body.to_string().as_bytes()));
        let head = self.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        Events { connection: self, text: String::new() }
    }
}

/// Server-sent events: an iterator over `(event, data)`.
pub struct Events {
    pub connection: Connection,
    text: String,
}

impl Iterator for Events {
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                let field = |name| block.lines().find_map(|line: &str| line.strip_prefix(name));
                let event = field("event: ").unwrap_or_default().to_owned();
                return Some((event, field("data: ").unwrap_or_else(|| panic!("no data in {block:?}")).to_owned()));
            }
            match self.connection.chunk() {
                Some(chunk) => self.text += std::str::from_utf8(&chunk).expect("whole characters"),
                None => {
                    assert_eq!(self.text, "", "the stream ends between events");
                    return None;
                }
            }
        }
    }
}

impl Events {
    /// The JSON of all events to the end; `[DONE]` left out.
    pub fn values(self) -> Vec<Value> {
        let data = self.filter(|(_, data)| data != "[DONE]");
        data.map(|(_, data)| serde_json::from_str(&data).unwrap()).collect()
    }
}
