//! The model that is served: its scheduler, its text tools, and what the server wants to know of it.

use crate::constraint::{Grammars, Marks};
use crate::metrics::Metrics;
use lily_api::history::History;
use lily_engine::engine::Engine;
use lily_engine::generate::Request;
use lily_engine::prompt::{PromptError, Prompter};
use lily_engine::sampler::SamplingParams;
use lily_engine::scheduler::{Job, JobError, JobEvent, Refused, Scheduler, SchedulerOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// Most bytes of answers that are remembered as they were written.
const HISTORY_BYTES: usize = 32 << 20;

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The checkpoint cannot take text.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// No thread for the scheduler.
    #[error("cannot start the scheduler's thread: {0}")]
    Thread(std::io::Error),
    /// The warm-up was refused.
    #[error("the warm-up was refused: {0}")]
    Refused(#[from] Refused),
    /// The warm-up failed.
    #[error("the warm-up failed: {0}")]
    WarmUp(#[from] JobError),
}

/// A loaded model with everything that turns requests into jobs.
pub struct ServedModel {
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) scheduler: Scheduler,
    /// Longest prompt with its answer.
    pub(crate) context_tokens: usize,
    /// Tokens that may be drawn are those below this id.
    pub(crate) vocab: usize,
    /// What is sampled with where a request does not say.
    pub(crate) sampling: SamplingParams,
    pub(crate) marks: Arc<Marks>,
    /// Tells answers of this checkpoint and version from others.
    pub(crate) fingerprint: String,
    /// What the model wrote lately.
    history: Mutex<History>,
    /// Made when a request first needs them.
    grammars: OnceLock<Result<Grammars, String>>,
}

impl ServedModel {
    /// Starts the scheduler and generates one token, so that the first request finds everything warm. Blocks.
    ///
    /// # Errors
    /// A checkpoint without a tokenizer, or a device that fails.
    pub fn start(engine: Engine, options: &SchedulerOptions) -> Result<Self, StartError> {
        let prompter = Arc::new(Prompter::new(engine.checkpoint())?);
        let vocab = prompter.tokenizer().vocab_size().min(engine.model().shape.vocab);
        let model = Self {
            context_tokens: engine.model().context_tokens,
            vocab,
            sampling: SamplingParams::of_checkpoint(&engine.checkpoint().generation),
            marks: Arc::new(Marks::new(&prompter, vocab)),
            fingerprint: fingerprint(&engine),
            history: Mutex::new(History::new(HISTORY_BYTES)),
            grammars: OnceLock::new(),
            scheduler: Scheduler::start(engine, options).map_err(StartError::Thread)?,
            prompter,
        };
        model.warm_up()?;
        Ok(model)
    }

    fn warm_up(&self) -> Result<(), StartError> {
        let request = Request { prompt: vec![0], vocab: self.vocab, max_tokens: Some(1), ..Request::default() };
        let (sender, receiver) = mpsc::channel();
        let sink = move |event| {
            if let JobEvent::End(end) = event {
                let _ = sender.send(end); // the receiver waits for nothing else
            }
            ControlFlow::Continue(())
        };
        self.scheduler.submit(Job { request, ..Job::default() }, Box::new(sink))?;
        receiver.recv().unwrap_or(Err(JobError::ShutDown))?;
        Ok(())
    }

    /// What the model wrote lately.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        // Whoever broke down with it left a memory that may lack something; it is one all the same.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grammars over this model's tokens.
    ///
    /// # Errors
    /// If they cannot be made of its vocabulary.
    pub(crate) fn grammars(&self) -> Result<&Grammars, &str> {
        let made = self.grammars.get_or_init(|| Grammars::new(Arc::clone(&self.prompter), self.vocab));
        made.as_ref().map_err(String::as_str)
    }

    /// Takes no more jobs; true if those under way ended within `patience`. Blocks.
    pub(crate) fn drain(&self, patience: Duration) -> bool {
        self.scheduler.drain(patience)
    }

    /// Writes how the scheduler is doing into the figures.
    pub(crate) fn measure(&self, metrics: &Metrics) {
        let status = self.scheduler.status();
        metrics.running.set(status.running as f64);
        metrics.waiting.set(status.waiting as f64);
        metrics.kv_usage.set(status.kv_tokens as f64 / status.kv_limit_tokens.max(1) as f64);
        metrics.cache_bytes.set(status.cache.bytes as f64);
        metrics.cache_entries.set(status.cache.entries as f64);
    }
}

fn fingerprint(engine: &Engine) -> String {
    let mut hasher = DefaultHasher::new();
    let checkpoint = engine.checkpoint();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    checkpoint.path().hash(&mut hasher);
    checkpoint.weight_bytes().hash(&mut hasher);
    engine.device().hash(&mut hasher);
    format!("lily_{:016x}", hasher.finish())
}
