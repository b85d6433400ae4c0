//! What a panic says may quote a text: the log has its place and not its words, and clients get neither. The log is one for the
//! process, so what else it has of jobs is looked at here too.

mod common;

use common::device::Trouble;
use common::{Faults, Setup, busy, chat};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    let untold = |text: &str| !text.contains("as planned") && text.contains("a bug of lily; the log says where");
    faults.plan(Trouble::Panics, 0);
    let answer = server.post("/v1/chat/completions", &chat("What is the capital of France?"));
    assert_eq!((answer.status, untold(&answer.text())), (500, true), "{}", answer.text());
    // A step that several share breaks down for each of them.
    let both = [busy(&server), busy(&server)];
    faults.plan(Trouble::Panics, 3);
    for events in both {
        let text: String = events.map(|(_, data)| data).collect();
        assert!(untold(&text), "{text}");
    }
    assert_eq!(faults.struck(), 2, "both were in the step");
    assert_eq!(server.post("/v1/chat/completions", &chat("What is the capital of France?")).status, 200);
    drop(busy(&server));
    server.wait_for("lily_requests_finished_total{reason=\"cancelled\"}", 1.0, Duration::from_secs(5));
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("common/device.rs:") && said.contains("generation failed"), "{said}");
    assert!(!said.contains("as planned"), "{said}");
    for (reason, jobs) in [("cancelled", 1), ("stop", 1)] {
        assert_eq!(said.matches(&format!("reason=\"{reason}\"")).count(), jobs, "{reason}: {said}");
    }
}
