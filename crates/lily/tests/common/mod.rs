//! Running the binary, and small checkpoints for it.
#![allow(dead_code)] // every test binary takes its own part of this

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A run that is over.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// stdout as one JSON value, of a run that succeeded.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A run to be.
pub struct Run {
    command: Command,
    input: Option<String>,
}

/// `lily ARGS`, away from the user's settings.
pub fn lily(args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("LILY_")) {
        command.env_remove(name);
    }
    command.args(args).env_remove("NO_COLOR").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { command, input: None }
}

impl Run {
    pub fn arg(mut self, arg: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Text for stdin.
    pub fn input(mut self, text: &str) -> Self {
        self.command.stdin(Stdio::piped());
        self.input = Some(text.to_owned());
        self
    }

    /// Starts it; stdin is open where [`Self::input`] was called.
    pub fn spawn(mut self) -> Child {
        let mut child = self.command.spawn().unwrap();
        if let Some(text) = self.input {
            // A process that does not read its stdin is a result, not an error of the test.
            let _ = child.stdin.as_mut().unwrap().write_all(text.as_bytes());
        }
        child
    }

    /// Runs it to its end.
    pub fn output(self) -> Output {
        let output = self.spawn().wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// A random checkpoint with lily-nano's tokenizer and template: it never stops by itself and says nothing of sense.
pub fn random_checkpoint(path: &Path) {
    let output = lily(&["synth", "tiny", path.to_str().unwrap()]).output();
    assert_eq!(output.code, Some(0), "{output:?}");
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano");
    for file in ["tokenizer.json", "chat_template.jinja"] {
        std::fs::copy(nano.join(file), path.join(file)).unwrap();
    }
}
