//! One answer under way: reads a job's events on the scheduler's thread and passes on what they say.
//!
//! The text is parsed where its tokens are made, so that a stop string ends the job at once. What comes of it goes into an
//! unbounded channel, which a job's length bounds; when nobody listens any more, the job ends.

use crate::app::App;
use crate::explain;
use crate::guard::Passage;
use crate::memory::Memory;
use crate::prepare::Prepared;
use lily_api::error::{ApiError, ErrorKind};
use lily_api::finish::{CacheSources, Finish, FinishReason, Timings, Usage};
use lily_api::output::{OutputParser, Piece, TokenLogprob};
use lily_engine::generate::{FinishReason as Reason, GenerateError, Halt, Summary};
use lily_engine::sampler::Token;
use lily_engine::scheduler::{JobError, JobEvent, JobId};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What happens to an answer.
pub(crate) enum Message {
    /// More of it.
    Pieces(Vec<Piece>),
    /// It is complete.
    End(Result<Finish, ApiError>),
}

/// An answer under way. When it is dropped, its job ends.
pub(crate) struct Turn {
    app: Arc<App>,
    id: JobId,
    pub(crate) messages: UnboundedReceiver<Message>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Ok(model) = self.app.model() {
            model.scheduler.cancel(self.id);
        }
    }
}

/// Starts a job for a request.
///
/// # Errors
/// The scheduler does not take it.
pub(crate) fn start(app: &Arc<App>, prepared: Prepared, logprobs: bool, passage: Passage) -> Result<Turn, ApiError> {
    let Prepared { job, parser, memory } = prepared;
    let (sender, messages) = unbounded_channel();
    let mut reader = Reader {
        app: Arc::clone(app),
        parser,
        memory,
        logprobs,
        sender,
        passage,
        explained: app.options.explain_cache.then(|| job.request.prompt.clone()),
        submitted: Instant::now(),
        last_token: None,
        queue_seconds: None,
    };
    let model = app.model_for_work()?;
    match model.scheduler.submit(job, Box::new(move |event| reader.take(event))) {
        Ok(id) => Ok(Turn { app: Arc::clone(app), id, messages }),
        Err(refused) => Err(crate::refused::submit(app, model, &refused)),
    }
}

/// Reads the events of one job.
struct Reader {
    app: Arc<App>,
    parser: OutputParser,
    memory: Option<Memory>,
    logprobs: bool,
    sender: UnboundedSender<Message>,
    /// Where the request came from: its name in the log, and when it came.
    passage: Passage,
    /// The prompt, where the cache's work is to be explained.
    explained: Option<Vec<u32>>,
    submitted: Instant,
    last_token: Option<Instant>,
    /// How long it waited for a session; none while it waits.
    queue_seconds: Option<f64>,
}

impl Reader {
    fn take(&mut self, event: JobEvent) -> ControlFlow<Halt> {
        match event {
            JobEvent::Started { queue_seconds } => self.queue_seconds = Some(queue_seconds),
            JobEvent::Prefill { .. } => {}
            JobEvent::Token { token, top } => {
                self.time_token();
                self.read(token, &top);
                if self.parser.ended() {
                    return ControlFlow::Break(Halt::StopString);
                }
            }
            JobEvent::End(end) => self.end(end),
        }
        if self.sender.is_closed() { ControlFlow::Break(Halt::Cancelled) } else { ControlFlow::Continue(()) }
    }

    fn time_token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => self.app.metrics.first_token.record(now - self.passage.arrived),
            Some(last) => self.app.metrics.between_tokens.record(now - last),
        }
    }

    fn read(&mut self, token: Token, top: &[Token]) {
        let Ok(model) = self.app.model() else { return };
        let tokenizer = model.prompter.tokenizer();
        let bytes = if tokenizer.is_special(token.id) { &[][..] } else { tokenizer.token_bytes(token.id) };
        let logprob = self.logprobs.then(|| TokenLogprob {
            bytes: bytes.to_vec(),
            logprob: token.logprob,
            top: top.iter().map(|t| (tokenizer.token_bytes(t.id).to_vec(), t.logprob)).collect(),
        });
        let mut pieces = Vec::new();
        self.parser.push(bytes, logprob, &mut pieces);
        if let Some(memory) = &mut self.memory {
            memory.token(token.id, bytes);
        }
        self.send(pieces);
    }

    fn send(&mut self, pieces: Vec<Piece>) {
        if let Some(memory) = &mut self.memory {
            memory.pieces(&pieces);
        }
        if !pieces.is_empty() {
            let _ = self.sender.send(Message::Pieces(pieces)); // that nobody listens is noticed after every event
        }
    }

    fn end(&mut self, end: Result<Summary, JobError>) {
        let mut pieces = Vec::new();
        self.parser.finish(&mut pieces);
        self.send(pieces);
        let whole = match &end {
            Ok(Summary { finish_reason: Reason::Stop, .. }) => true,
            Ok(Summary { finish_reason: Reason::StopString, .. }) => {
                self.parser.stopped().is_none() && !self.parser.overran()
            }
            _ => false,
        };
        if let (true, Some(memory), Ok(model)) = (whole, self.memory.take(), self.app.model()) {
            memory.keep(model, &self.parser);
        }
        self.count(&end);
        let end = match end {
            Ok(summary) => Ok(self.finish(&summary)),
            Err(error) => {
                tracing::error!(target: "lily::jobs", id = %self.passage.id, error = %error, "generation failed");
                Err(failed(&error, self.app.pace.wait_seconds(1, 1)))
            }
        };
        let _ = self.sender.send(Message::End(end)); // perhaps nobody listens any more
    }

    fn finish(&self, summary: &Summary) -> Finish {
        let reason = match summary.finish_reason {
            Reason::Stop => FinishReason::Stop,
            // Or a call ended it, where the client takes one at a time.
            Reason::StopString => match self.parser.stopped() {
                Some(text) => FinishReason::StopString(text.to_owned()),
                None => FinishReason::Stop,
            },
            Reason::Length => FinishReason::Length,
            Reason::ContextFull => FinishReason::ContextFull,
            Reason::Cancelled => FinishReason::Cancelled,
        };
        let reuse = &summary.reuse;
        let cache = CacheSources {
            session_tokens: reuse.session_tokens,
            memory_tokens: reuse.memory_tokens,
            disk_tokens: reuse.disk_tokens,
        };
        let usage = Usage {
            prompt_tokens: summary.prompt_tokens,
            cached_tokens: reuse.tokens(),
            completion_tokens: summary.generated_tokens,
            reasoning_tokens: self.parser.reasoning_tokens(),
        };
        let timings = Timings {
            queue_ms: self.queue_seconds.unwrap_or_default() * 1e3,
            prompt_ms: summary.prefill_seconds * 1e3,
            predicted_ms: summary.decode_seconds * 1e3,
            cache,
        };
        Finish { reason, usage, timings: Some(timings) }
    }

    /// Writes the job into figures and log.
    fn count(&self, end: &Result<Summary, JobError>) {
        let metrics = &self.app.metrics;
        metrics.request.record(self.passage.arrived.elapsed());
        // How long others will wait does not depend on how slowly this one's body came.
        self.app.pace.job_took(self.submitted.elapsed());
        let Ok(summary) = end else {
            metrics.finished("error");
            return;
        };
        let reason = match summary.finish_reason {
            Reason::Stop | Reason::StopString => "stop",
            Reason::Length | Reason::ContextFull => "length",
            Reason::Cancelled => "cancelled",
        };
        metrics.finished(reason);
        // Nobody looked for the prompt of one that left the queue, or computed anything of it.
        if self.queue_seconds.is_some() {
            metrics.prompt_tokens.increment(summary.prompt_tokens as u64);
            metrics.generation_tokens.increment(summary.generated_tokens as u64);
            metrics.cache_queries.increment(summary.prompt_tokens as u64);
            metrics.cache_hits.increment(summary.reuse.tokens() as u64);
        }
        tracing::info!(
            target: "lily::jobs", id = %self.passage.id, reason, prompt = summary.prompt_tokens,
            cached = summary.reuse.tokens(), generated = summary.generated_tokens,
            prefill_ms = (summary.prefill_seconds * 1e3) as u64, decode_ms = (summary.decode_seconds * 1e3) as u64,
        );
        if let (Some(prompt), Ok(model)) = (&self.explained, self.app.model()) {
            explain::log(&self.passage.id, prompt, &summary.reuse, &model.prompter);
        }
    }
}

/// What a client is told of a job that failed, where answers take so long.
fn failed(error: &JobError, answer_seconds: u64) -> ApiError {
    let message = format!("The generation failed: {error}.");
    match error {
        JobError::Generate(GenerateError::Engine(error)) if error.is_out_of_memory() => {
            let message =
                format!("{message} Try again when other answers have ended, or serve fewer at a time (--sessions).");
            let error = ApiError::new(ErrorKind::Unavailable, message);
            ApiError { code: Some("out_of_memory"), retry_after: Some(answer_seconds), ..error }
        }
        JobError::ShutDown => ApiError::new(ErrorKind::Unavailable, message),
        JobError::Generate(_) | JobError::Panicked => ApiError::new(ErrorKind::Internal, message),
    }
}
