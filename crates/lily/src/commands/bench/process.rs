//! A process that is asked something on stdin and answers on stdout.

use std::io::Write;
use std::process::{Command, ExitStatus, Stdio};

/// Lines of stderr that are shown of a process that failed.
const LAST_LINES: usize = 12;

/// A process that is over.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    /// The end of what it said on stderr.
    pub fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, input: Vec<u8>) -> Result<Ended, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error| format!("cannot start {name}: {error}");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // Beside reading, as both sides of a full pair of pipes would wait. Whoever does not read its stdin says why on stderr.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().map_err(failed)?;
    let _ = writer.join();
    Ok(Ended { status: output.status, stdout: output.stdout, stderr: output.stderr })
}
