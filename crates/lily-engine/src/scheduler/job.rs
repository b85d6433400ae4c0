//! What goes into a scheduler and what comes out: jobs, their events, and why one is refused or fails.

use crate::cache::CacheStatus;
use crate::constraint::Constraint;
use crate::generate::{GenerateError, Halt, Request, Summary};
use crate::sampler::{ParamsError, Token};
use serde::Serialize;
use std::fmt;
use std::ops::ControlFlow;

/// One request to the scheduler.
#[derive(Default)]
pub struct Job {
    /// What to generate. `boundaries` are where messages end, the last one before the generation prompt's tail.
    pub request: Request,
    /// Follows the text and says what may come next.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Names the conversation, as a hint: what it left in a session is not given to others while there is a choice.
    pub cache_key: Option<String>,
}

impl fmt::Debug for Job {
    /// Its sizes: prompts are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("prompt_tokens", &self.request.prompt.len())
            .field("constrained", &self.constraint.is_some())
            .finish_non_exhaustive()
    }
}

/// The number of a job, unique in its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Takes a job's events, on the scheduler's thread: it must not block. Its answer may end the job.
pub type Sink = Box<dyn FnMut(JobEvent) -> ControlFlow<Halt> + Send>;

/// What happens to a job. [`JobEvent::End`] comes last, exactly once, and nobody asks for the answer to it.
#[derive(Debug)]
pub enum JobEvent {
    /// It has left the queue.
    Started {
        /// How long it waited there.
        queue_seconds: f64,
    },
    /// What of the prompt was there already is restored, or a chunk of the rest is computed.
    Prefill {
        /// Tokens of the prompt whose state is there.
        done_tokens: usize,
        /// Tokens of the prompt.
        total_tokens: usize,
        /// Tokens of the prompt that did not have to be computed.
        cached_tokens: usize,
    },
    /// A token of the text.
    Token {
        /// The token.
        token: Token,
        /// The most likely tokens at its place, as many as were asked for.
        top: Vec<Token>,
    },
    /// It has ended.
    End(Result<Summary, JobError>),
}

/// Why a job is not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Too many are waiting.
    #[error("{waiting} requests are waiting, and {limit} may; try again later")]
    QueueFull {
        /// Jobs that wait.
        waiting: usize,
        /// The most that may.
        limit: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens and the context {context_tokens}, one of them for the answer")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// An empty sequence has no logits.
    #[error("the prompt has no tokens; give at least one")]
    Empty,
    /// A token id that the model does not have.
    #[error("token id {id} is not in the model's vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// No more jobs are taken: the scheduler ends.
    #[error("the server is shutting down")]
    Draining,
}

/// Why a job failed; others are not affected.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The device failed, the logits were broken, or the constraint refused.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Code of the job or of the engine panicked. The panic's words may quote a text, so they are nobody's business.
    #[error("a bug of lily; the log says where")]
    Panicked,
    /// The scheduler ended before the job did.
    #[error("the server shut down before the answer was complete")]
    ShutDown,
}

/// How a scheduler is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Jobs that are computed by turns.
    pub running: usize,
    /// Jobs in the queue.
    pub waiting: usize,
    /// Most jobs in the queue.
    pub queue_limit: usize,
    /// Most jobs that are computed by turns: the sessions of the memory plan.
    pub sessions: usize,
    /// Tokens whose state the sessions of running jobs hold.
    pub kv_tokens: usize,
    /// Tokens whose state all sessions can hold.
    pub kv_limit_tokens: usize,
    /// Jobs that have ended, however.
    pub ended: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Whether no more jobs are taken.
    pub draining: bool,
    /// What is remembered of prompts.
    pub cache: CacheStatus,
}
