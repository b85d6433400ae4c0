//! A server with lily-nano on a port of its own, and a plain HTTP client that shows every byte.
#![allow(dead_code, reason = "every test file uses a part")]

pub mod client;
pub mod device;

pub use client::{Answer, Connection, Events};
pub use device::Faults;

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};
use lily_engine::scheduler::SchedulerOptions;
use lily_server::{ServedModel, Server, ServerOptions, StartError};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Tokens that end lily-nano's texts; biased away, a text goes on until the context is full.
pub const ENDLESS: &str = r#"{"4089": -100, "4087": -100}"#;

/// How a test wants its server.
pub struct Setup {
    pub options: ServerOptions,
    pub sessions: usize,
    pub queue: usize,
    pub context: usize,
    /// Whether the server gets its model.
    pub loaded: bool,
    /// Breaks the device on demand.
    pub faults: Option<Faults>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            options: ServerOptions::new("lily-nano"),
            sessions: 4,
            queue: 64,
            context: 4096,
            loaded: true,
            faults: None,
        }
    }
}

impl Setup {
    /// The usual one with other options.
    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut setup = Self::default();
        change(&mut setup.options);
        setup
    }

    /// Starts the server.
    pub fn start(self) -> Running {
        let (addresses, address) = mpsc::channel();
        let (ender, end) = oneshot::channel();
        let server = Server::new(self.options.clone());
        let ours = server.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                addresses.send(listener.local_addr().unwrap()).unwrap();
                server.run(listener, async { drop(end.await) }).await
            })
        });
        if self.loaded {
            ours.serve_model(self.model());
        }
        Running { address: address.recv().unwrap(), end: Some(ender), thread: Some(thread), server: ours }
    }

    /// lily-nano, loaded as asked.
    pub fn model(&self) -> ServedModel {
        self.try_model().unwrap()
    }

    /// The same, where the device may fail.
    pub fn try_model(&self) -> Result<ServedModel, StartError> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
        let options = EngineOptions {
            context_tokens: self.context,
            sessions: self.sessions,
            ..EngineOptions::for_this_machine()
        };
        let checkpoint = Checkpoint::open(&path).unwrap();
        let engine = match &self.faults {
            Some(faults) => Engine::on(faults.device(), checkpoint, &options),
            None => Engine::new(checkpoint, &options),
        };
        let engine = engine.unwrap();
        ServedModel::start(engine, &SchedulerOptions { queue_jobs: self.queue })
    }
}

/// A server under test.
pub struct Running {
    pub address: SocketAddr,
    pub server: Server,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<bool>>,
}

impl Running {
    /// Tells the server to end.
    pub fn tell_to_end(&mut self) {
        let _ = self.end.take().map(|end| end.send(()));
    }

    /// Waits for its end; true if everything was complete.
    pub fn wait(&mut self) -> bool {
        self.tell_to_end();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.connect().request("GET", path, &[], None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.connect().request("POST", path, &[], Some(body.to_string().as_bytes()))
    }

    /// Posts and reads the answer as events.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        self.connect().stream(path, body)
    }

    /// A figure of /metrics.
    pub fn figure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until a figure is what it should be.
    pub fn wait_for(&self, name: &str, value: f64, limit: Duration) {
        let start = Instant::now();
        while self.figure(name) != value {
            assert!(start.elapsed() < limit, "{name} is {} and not {value} after {limit:?}", self.figure(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tell_to_end();
    }
}

/// A greedy chat request.
pub fn chat(text: &str) -> Value {
    json!({"model": "lily-nano", "messages": [{"role": "user", "content": text}], "temperature": 0})
}

/// A request whose answer goes on until the context is full.
pub fn endless() -> Value {
    let mut body = chat("Count to a million.");
    body["logit_bias"] = serde_json::from_str(ENDLESS).unwrap();
    body
}

/// An endless answer of which a token has come: it is being computed.
pub fn busy(server: &Running) -> Events {
    let mut events = server.stream("/v1/chat/completions", &endless());
    let said = |data: &str| data.contains("\"content\":\"") && !data.contains("\"content\":\"\"");
    assert!(events.any(|(_, data)| said(&data)));
    events
}

/// A body with further fields.
pub fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
