//! Failures of a command: what to print and which code to exit with.
//!
//! The codes are a contract with scripts; `lily man` and `lily --help` list them.

use lily_engine::backend::BackendError;
use lily_engine::checkpoint::CheckpointError;
use lily_engine::engine::EngineError;
use lily_engine::generate::GenerateError;
use lily_engine::prompt::PromptError;
use lily_engine::sampler::ParamsError;
use lily_engine::sampler::SampleError;
use lily_server::StartError;
use std::fmt::Display;
use std::process::ExitCode;

/// Something failed that is none of the others.
const FAILED: u8 = 1;
/// The command line asks for something that makes no sense; clap's own code.
const USAGE: u8 = 2;
/// The model is missing or was refused.
const MODEL: u8 = 3;
/// Not enough memory.
const MEMORY: u8 = 4;
/// The backend or its instruction set is not available.
const BACKEND: u8 = 5;
/// Interrupted by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    /// None where there is nothing to say.
    message: Option<String>,
}

impl Failure {
    fn new(code: u8, message: impl Display) -> Self {
        Self { code, message: Some(message.to_string()) }
    }

    /// A failure without a code of its own.
    pub fn other(message: impl Display) -> Self {
        Self::new(FAILED, message)
    }

    /// A request that makes no sense.
    pub fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    /// A model that is not there or cannot be used.
    pub fn model(message: impl Display) -> Self {
        Self::new(MODEL, message)
    }

    /// The user pressed Ctrl-C.
    pub fn interrupted() -> Self {
        Self { code: INTERRUPTED, message: None }
    }

    /// A result that was printed in full and is not good enough.
    pub fn silent() -> Self {
        Self { code: FAILED, message: None }
    }

    /// The failure of another process of this program: its code (none if something ended it) and message.
    pub fn of_process(code: Option<i32>, message: &str) -> Self {
        Self::new(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED), message)
    }

    /// A file that cannot be read or written.
    pub fn file(action: &str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::other(format_args!("{}: cannot {action}: {source}", path.display()))
    }

    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if let Some(message) = &self.message {
            eprintln!("error: {message}");
        }
        ExitCode::from(self.code)
    }

    /// Whether it only means that the reader of stdout went away.
    pub fn is_broken_pipe(&self) -> bool {
        self.code == 0
    }

    /// The message, for places that go on after a failure.
    pub fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }
}

impl From<std::io::Error> for Failure {
    /// Of writing to stdout: a reader that went away has what it wanted.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self { code: 0, message: None },
            _ => Self::other(format_args!("cannot write to stdout: {error}")),
        }
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        let code = match error {
            CheckpointError::Request { .. } => USAGE,
            _ => MODEL,
        };
        Self::new(code, error)
    }
}

impl From<PromptError> for Failure {
    fn from(error: PromptError) -> Self {
        let code = match error {
            PromptError::Template(_) => FAILED,
            _ => MODEL,
        };
        Self::new(code, error)
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error {
            BackendError::OutOfMemory { .. } | BackendError::TooLong { .. } => MEMORY,
            BackendError::Unknown { .. } => USAGE,
            BackendError::Isa(_)
            | BackendError::NoMetal { .. }
            | BackendError::NoCuda { .. }
            | BackendError::NoGpu { .. } => BACKEND,
            BackendError::Shape(_) => MODEL,
            BackendError::Binding { .. }
            | BackendError::Compile { .. }
            | BackendError::Refused { .. }
            | BackendError::Fault { .. } => FAILED,
        };
        Self::new(code, error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Backend(error) => error.into(),
            EngineError::Memory { .. } => Self::new(MEMORY, error),
            EngineError::ContextLimit { .. } | EngineError::Mechanism { .. } => Self::new(USAGE, error),
            _ => Self::new(FAILED, error),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Prompt(error) => error.into(),
            _ => Self::new(FAILED, error),
        }
    }
}

impl From<ParamsError> for Failure {
    fn from(error: ParamsError) -> Self {
        Self::new(USAGE, error)
    }
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Self {
        Self::new(FAILED, error)
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        match error {
            GenerateError::Engine(error) => error.into(),
            GenerateError::Params(error) => error.into(),
            GenerateError::Sample { .. } | GenerateError::Constraint { .. } => Self::new(FAILED, error),
        }
    }
}
