//! Many clients at once, some of whom leave: nobody hangs, nothing stays behind.
#![cfg(target_os = "linux")] // reads the server's memory from /proc

mod common;

use common::lily;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A number that decides which clients leave, and when; taken from the clock unless it is given.
const SEED: &str = "LILY_LOAD_SEED";
const STREAMS: usize = 200;
/// Streams that the server has had before it is measured.
const BEFORE: usize = 50;
/// Growth of the server's memory that is not a leak: allocators keep some.
const SLACK_KIB: usize = 24 * 1024;

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        // Everything may wait, so that nobody is refused; what is remembered is bounded early.
        let flags = ["serve", "--port", "0", "--queue", "200", "--cache-bytes", "16M", "--log", "error"];
        let mut child = lily(&flags).spawn();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("OPENAI_BASE_URL=http://").unwrap().strip_suffix("/v1").unwrap().to_owned();
        Self { child, address }
    }

    fn resident_kib(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn send(&self, head: &str, body: &str) -> BufReader<TcpStream> {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let (host, length) = (&self.address, body.len());
        let request =
            format!("{head} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).unwrap();
        BufReader::new(socket)
    }

    fn figure(&self, name: &str) -> f64 {
        let mut text = String::new();
        self.send("GET /metrics", "").read_to_string(&mut text).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map_or(0.0, |v| v.parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What became of the clients.
#[derive(Default)]
struct Tally {
    complete: AtomicUsize,
    left: AtomicUsize,
    first_token_ms: Mutex<Vec<u128>>,
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    std::env::var(SEED).map_or(now.as_nanos() as u64 % 1_000_000, |seed| seed.parse().expect("a whole number"))
}

/// One client: asks something of its own, and listens to the end or, one of three, leaves after some lines.
fn client(server: &Server, seed: u64, number: usize, tally: &Tally) {
    let mut hash = DefaultHasher::new();
    (seed, number).hash(&mut hash);
    let drawn = hash.finish() as usize;
    let leaves_after = drawn.is_multiple_of(3).then_some(drawn / 3 % 17);
    let body = format!(
        r#"{{"messages": [{{"role": "user", "content": "What is {} + {}?"}}], "stream": true, "max_tokens": {}, "seed": {number}}}"#,
        number % 90,
        number % 7,
        4 + drawn / 51 % 9
    );
    let asked = Instant::now();
    let mut done = false;
    for (at, line) in server.send("POST /v1/chat/completions", &body).lines().enumerate() {
        let line = line.unwrap_or_else(|e| panic!("client {number} hangs: {e}"));
        assert!(at > 0 || line.contains(" 200 "), "client {number}: {line}");
        if line.contains("\"content\":\"") && !line.contains("\"content\":\"\"") && !done {
            tally.first_token_ms.lock().unwrap().push(asked.elapsed().as_millis());
            done = true;
        }
        if leaves_after.is_some_and(|after| at >= after) {
            tally.left.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if line == "data: [DONE]" {
            tally.complete.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    panic!("client {number}: the stream ended without [DONE]");
}

/// So many clients at once.
fn wave(server: &Server, seed: u64, clients: usize) -> Tally {
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for number in 0..clients {
            let tally = &tally;
            scope.spawn(move || client(server, seed, number, tally));
        }
    });
    tally
}

/// Waits until nothing is under way.
fn settle(server: &Server) {
    let start = Instant::now();
    while server.figure("lily_requests_running") + server.figure("lily_requests_waiting") > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(10), "requests that nobody listens to are still under way");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_hundred_streams_leave_nothing_behind() {
    let (server, seed) = (Server::start(), seed());
    println!("{SEED}={seed}");
    wave(&server, seed, BEFORE); // buffers and caches grow to their sizes
    settle(&server);
    let (kib, files) = (server.resident_kib(), server.open_files());
    let start = Instant::now();
    let tally = wave(&server, seed, STREAMS);
    let seconds = start.elapsed().as_secs_f64();
    settle(&server);
    let (complete, left) = (tally.complete.load(Ordering::Relaxed), tally.left.load(Ordering::Relaxed));
    assert_eq!(complete + left, STREAMS);
    assert!(left > 40 && complete > 100, "{complete} complete, {left} left");
    let mut first = tally.first_token_ms.into_inner().unwrap();
    first.sort_unstable();
    let (kib_after, files_after) = (server.resident_kib(), server.open_files());
    println!("streams  complete  left  seconds  first token p50  p95 (ms)  memory before  after (MiB)");
    println!(
        "{STREAMS:>7}  {complete:>8}  {left:>4}  {seconds:>7.1}  {:>15}  {:>8}  {:>13.1}  {:>11.1}",
        first[first.len() / 2],
        first[first.len() * 95 / 100],
        kib as f64 / 1024.0,
        kib_after as f64 / 1024.0
    );
    assert!(kib_after <= kib + SLACK_KIB, "memory went from {kib} to {kib_after} KiB");
    assert!(files_after <= files + 2, "open files went from {files} to {files_after}");
    assert_eq!(server.figure("lily_requests_finished_total{reason=\"error\"}"), 0.0);
}
