//! What a panic says may quote a text: the log has its place and not its words.

mod common;

use common::device::Trouble;
use common::{Faults, Setup, chat};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_is_logged_by_its_place_and_without_its_words() {
    let log = Log::default();
    let ours = log.clone();
    let level = tracing_subscriber::filter::LevelFilter::TRACE;
    tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || ours.clone()).init();
    lily_server::log_panics();
    let faults = Faults::default();
    let server = Setup { faults: Some(faults.clone()), ..Setup::default() }.start();
    faults.plan(Trouble::Panics, 0);
    let answer = server.post("/v1/chat/completions", &chat("What is the capital of France?"));
    assert_eq!((answer.status, answer.text().contains("as planned")), (500, true), "{}", answer.text());
    assert_eq!(server.post("/v1/chat/completions", &chat("What is the capital of France?")).status, 200);
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("common/device.rs:") && said.contains("generation failed"), "{said}");
    assert!(!said.contains("as planned"), "{said}");
}
