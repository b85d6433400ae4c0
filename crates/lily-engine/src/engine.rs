//! The engine: a loaded checkpoint on a device, and the one place where sessions are advanced.
//!
//! A caller hands a session the full token sequence it wants; the engine decides what to reuse, extend or rebuild, runs
//! the plans, and leaves the last token's logits in the session. Sampling, text and stopping are the generator's work.

mod ahead;
mod batch;
mod guesses;
mod reuse;
mod routing;
mod timing;

pub use ahead::Ahead;
pub use timing::{KernelTime, StepTimes};

use crate::backend::cpu::{CpuDevice, CpuMode};
use crate::backend::{self, Backend, BackendChoice, BackendError, Device, Program, State};
use crate::cache::{CacheError, CacheOptions, PrefixCache};
use crate::checkpoint::Checkpoint;
use crate::kernel::Step;
use crate::memory::{Asked, MemoryPlan};
use crate::model::{DecodeClass, Mechanism, Mechanisms, Model, Traits};
use crate::session::{Session, state_layout};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Longest context of a session, in tokens; at most the model's own limit.
    pub context_tokens: usize,
    /// Longest prefill chunk, in tokens; `None` is what suits the device.
    pub chunk_tokens: Option<usize>,
    /// What to compute on.
    pub backend: BackendChoice,
    /// Threads of the CPU backend.
    pub threads: usize,
    /// Code that the CPU backend runs.
    pub cpu: CpuMode,
    /// Sessions to plan memory for; the plan has fewer where memory does not allow as many, but one.
    pub sessions: usize,
    /// What to remember of prompts.
    pub cache: CacheOptions,
    /// Mechanisms that a GPU's plans may have; a device without any refuses to leave one out.
    pub mechanisms: Mechanisms,
}

impl EngineOptions {
    /// Defaults for this machine: 4,096 tokens of context, every core, its best instructions, one session.
    pub fn for_this_machine() -> Self {
        Self {
            context_tokens: 4096,
            chunk_tokens: None,
            backend: BackendChoice::Auto,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: CpuMode::Fast(crate::backend::cpu::isa::Isa::detect()),
            sessions: 1,
            cache: CacheOptions::default(),
            mechanisms: Mechanisms::ALL,
        }
    }

    /// The device that was chosen.
    ///
    /// # Errors
    /// If this machine does not have it.
    pub fn device(&self) -> Result<Box<dyn Device>, BackendError> {
        match self.backend {
            BackendChoice::Auto if cfg!(target_os = "macos") => backend::metal_device(),
            BackendChoice::Metal => backend::metal_device(),
            BackendChoice::Cuda => backend::cuda_device(),
            BackendChoice::Auto => backend::cuda_device().or_else(|_| Ok(self.host())),
            BackendChoice::Cpu => Ok(self.host()),
        }
    }

    fn host(&self) -> Box<dyn Device> {
        Box::new(CpuDevice { mode: self.cpu, threads: self.threads })
    }
}

/// Why an engine cannot be set up or a session cannot be advanced.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The model and one session do not fit into memory.
    #[error("not enough memory for this model:\n{plan}\n{limit}: {:.2} GB; ask for a shorter context (--context) or use a smaller model",
        *available_bytes as f64 / 1e9)]
    Memory {
        /// What would be needed.
        plan: MemoryPlan,
        /// What there is.
        available_bytes: usize,
        /// Whose limit that is.
        limit: &'static str,
    },
    /// The context asked for is longer than the model was made for.
    #[error("a context of {asked} tokens was asked for, but this model was made for at most {limit}")]
    ContextLimit {
        /// Asked for.
        asked: usize,
        /// The model's limit.
        limit: usize,
    },
    /// The sequence does not fit into the session.
    #[error("{tokens} tokens do not fit into a context of {context_tokens}; shorten the prompt or raise --context")]
    ContextFull {
        /// Length of the sequence.
        tokens: usize,
        /// Length of the context.
        context_tokens: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {id} is not in the model's vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A mechanism is to be left out that the device's plans do not have.
    #[error("{mechanism} cannot be turned off: it is a mechanism of GPUs, and this device is none")]
    Mechanism {
        /// The mechanism.
        mechanism: Mechanism,
    },
    /// The cache directory cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An empty sequence has no logits.
    #[error("the prompt has no tokens; give at least one")]
    Empty,
}

impl EngineError {
    /// Whether the device had no memory for what was asked of it, which it may have later.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, EngineError::Backend(BackendError::OutOfMemory { .. }))
    }
}

/// How an [`Engine::advance`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Tokens whose state was there already.
    pub reused_tokens: usize,
    /// Tokens that were computed.
    pub computed_tokens: usize,
    /// Whether the caller stopped it before the end; the session then holds the tokens computed so far.
    pub cancelled: bool,
}

/// A loaded checkpoint on a device.
pub struct Engine {
    checkpoint: Arc<Checkpoint>,
    model: Model,
    memory: MemoryPlan,
    backend: Box<dyn Backend>,
    programs: HashMap<(Mechanisms, ProgramKey), Program>,
    /// The device with its mechanisms, and those that there is memory to leave out.
    traits: Traits,
    mechanisms: Mechanisms,
    cache: PrefixCache,
}

/// Programs that are kept: those of steps that come again and again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ProgramKey {
    /// A chunk of the full length, with or without logits.
    Chunk { logits: bool },
    /// A decode step of these sessions, which may choose the next tokens.
    Decode { classes: Vec<DecodeClass>, choose: bool },
    /// The choice alone.
    Choose { sessions: usize },
    /// A step that checks guesses, with the class of each token.
    Verify { classes: Vec<DecodeClass>, choose: bool },
    /// The recurrent state of so many tokens of such a step.
    Replay { tokens: usize },
}

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    /// Tokens of a prompt; logits of the last one if asked for.
    Prompt { logits: bool },
    /// One token after the prompt, with logits.
    Decode,
}

impl Engine {
    /// Puts a checkpoint on the device that the options choose.
    ///
    /// # Errors
    /// If there is no such device, or the model does not fit, with the numbers.
    pub fn new(checkpoint: Checkpoint, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::on(options.device()?, checkpoint, options)
    }

    /// Puts a checkpoint on a device.
    ///
    /// # Errors
    /// If the model does not fit, with the numbers, or the device fails.
    pub fn on(device: Box<dyn Device>, checkpoint: Checkpoint, options: &EngineOptions) -> Result<Self, EngineError> {
        let limit = checkpoint.weights.shape.max_context_tokens;
        if options.context_tokens > limit {
            return Err(EngineError::ContextLimit { asked: options.context_tokens, limit });
        }
        device.check(&checkpoint.weights.shape)?;
        let traits = device.traits();
        let off = Mechanism::ALL.into_iter().find(|(mechanism, _)| !options.mechanisms.has(*mechanism));
        if let (Some((mechanism, _)), false) = (off, traits.split_attention) {
            return Err(EngineError::Mechanism { mechanism });
        }
        let chunk_tokens = options.chunk_tokens.unwrap_or(traits.chunk_tokens).clamp(1, options.context_tokens.max(1));
        let model = Model::for_sessions(
            &checkpoint.weights,
            traits.with(options.mechanisms.and(traits.mechanisms)),
            chunk_tokens,
            options.context_tokens,
            options.sessions,
        );
        let most = device.memory();
        let asked = Asked { sessions: options.sessions, cache_bytes: options.cache.bytes };
        let memory = MemoryPlan::new(&checkpoint, &model, asked, most.map(|most| most.bytes));
        if let Some(most) = most
            && memory.total_bytes() > most.bytes
        {
            return Err(EngineError::Memory { plan: memory, available_bytes: most.bytes, limit: most.limit });
        }
        let checkpoint = Arc::new(checkpoint);
        let backend = device.load(Arc::clone(&checkpoint), &model.table)?;
        let cache = PrefixCache::open(&options.cache, memory.cache_bytes, state_layout(&model), || {
            let numerics = format!("lily {} {}", env!("CARGO_PKG_VERSION"), backend.numerics());
            Sha256::new().chain_update(checkpoint.fingerprint()).chain_update(numerics).finalize().into()
        })?;
        Ok(Self {
            checkpoint,
            model,
            memory,
            backend,
            programs: HashMap::new(),
            traits,
            mechanisms: options.mechanisms.and(traits.mechanisms),
            cache,
        })
    }

    /// Uses other mechanisms from now on, as an ablation does.
    ///
    /// # Panics
    /// If one is left out that the engine was set up with, so that there is no memory for what replaces it: a broken
    /// invariant of the caller.
    pub fn switch(&mut self, mechanisms: Mechanisms) {
        assert!(mechanisms.include(self.mechanisms), "a mechanism that the engine was set up with is left out");
        self.model.traits = self.traits.with(mechanisms);
    }

    /// The mechanisms that are worth having on its device.
    pub fn own_mechanisms(&self) -> Mechanisms {
        self.traits.mechanisms
    }

    /// The checkpoint it was loaded from.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The model on the device.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What it needs of memory.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory
    }

    /// The device, for people.
    pub fn device(&self) -> String {
        self.backend.describe()
    }

    /// Bytes per second that the device's own memory moves, measured now; `None` where it is the host's.
    ///
    /// # Errors
    /// If the device has no memory left to measure with.
    pub fn bandwidth(&mut self) -> Result<Option<f64>, EngineError> {
        Ok(self.backend.bandwidth()?)
    }

    /// An empty session.
    ///
    /// # Errors
    /// If there is no memory for its state.
    pub fn new_session(&self) -> Result<Session, EngineError> {
        Ok(Session::new(self.backend.new_state()?, self.model.shape.vocab))
    }

    /// A copy of a session that lives on its own.
    ///
    /// # Errors
    /// If there is no memory for its state.
    pub fn fork(&self, session: &Session) -> Result<Session, EngineError> {
        let mut fork = self.new_session()?;
        fork.copy_from(session, &self.model, self.cache.layout());
        Ok(fork)
    }

    /// Makes `session` hold exactly `tokens`, with the logits of the last one.
    ///
    /// State of a common prefix is reused, see [`Engine::begin`]; the rest is computed, see [`Engine::prefill`]. `progress`
    /// is called between chunks with the tokens done and wanted, and may stop.
    ///
    /// # Errors
    /// If the tokens do not fit the context or the vocabulary; the session is then unchanged. If the device fails; the
    /// session is then empty.
    pub fn advance(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        boundaries: &[usize],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Advance, EngineError> {
        let reused_tokens = self.begin(session, tokens)?.tokens();
        let mut cancelled = false;
        while session.tokens().len() < tokens.len() {
            if progress(session.tokens().len(), tokens.len()).is_break() {
                cancelled = true;
                break;
            }
            self.prefill(session, tokens, boundaries, usize::MAX)?;
        }
        if !cancelled {
            let _ = progress(tokens.len(), tokens.len()); // done: too late to stop
        }
        Ok(Advance { reused_tokens, computed_tokens: session.tokens().len() - reused_tokens, cancelled })
    }

    /// Extends `session`, which holds a proper prefix of `tokens`, by one chunk of at most `most_tokens` of them (and at most
    /// the engine's chunk); the chunk that ends them leaves the last one's logits. Chunks end at the positions of `boundaries` (token counts, ascending), where the state is kept
    /// in the prefix cache; so it is before the last token, where no boundary is near it, and at coarse strides.
    ///
    /// # Errors
    /// If the device fails; the session is then empty.
    ///
    /// # Panics
    /// If the session holds something else: a broken invariant of the caller.
    pub fn prefill(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        boundaries: &[usize],
        most_tokens: usize,
    ) -> Result<(), EngineError> {
        let done = session.tokens().len();
        assert!(done < tokens.len() && tokens.starts_with(session.tokens()), "a session with a prefix of the tokens");
        let (end, snapshot) = self.chunk_end(session, tokens, boundaries, most_tokens);
        self.step(session, &tokens[done..end], StepKind::Prompt { logits: end == tokens.len() }, || ())?;
        if snapshot {
            self.take_snapshot(session);
        }
        Ok(())
    }

    /// Extends `session` by one token; its logits are in the session afterwards.
    ///
    /// # Errors
    /// If the context is full or the id unknown; the session is then unchanged. If the device fails; the session is then
    /// empty.
    pub fn decode(&mut self, session: &mut Session, token: u32) -> Result<(), EngineError> {
        self.decode_while(session, token, || ())
    }

    /// As [`Engine::decode`]; `meanwhile` runs while the device computes, where the device works beside the host.
    ///
    /// # Errors
    /// As there.
    pub fn decode_while<R>(
        &mut self,
        session: &mut Session,
        token: u32,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, EngineError> {
        self.check_fit(session.tokens().len() + 1)?;
        self.check_ids(&[token])?;
        self.step(session, &[token], StepKind::Decode, meanwhile)
    }

    /// Whether a prompt can be computed: its length and its ids.
    ///
    /// # Errors
    /// If it is empty, does not fit the context, or has ids that the model does not know.
    pub fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        self.check_fit(tokens.len())?;
        self.check_ids(tokens)
    }

    fn check_fit(&self, tokens: usize) -> Result<(), EngineError> {
        let context_tokens = self.model.context_tokens;
        if tokens > context_tokens { Err(EngineError::ContextFull { tokens, context_tokens }) } else { Ok(()) }
    }

    fn check_ids(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let vocab = self.model.shape.vocab;
        match tokens.iter().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(EngineError::Token { id, vocab }),
            None => Ok(()),
        }
    }

    /// Empties sessions whose step failed, once nothing of it is under way any more.
    fn emptied_if(
        &mut self,
        sessions: &mut [&mut Session],
        failed: Result<(), BackendError>,
    ) -> Result<(), EngineError> {
        failed.map_err(|error| {
            let _ = self.backend.wait(); // the first error is the one to tell
            sessions.iter_mut().for_each(|session| session.clear(&self.model));
            error.into()
        })
    }

    /// Extends the session by `tokens`; a session whose step failed on the device is emptied. `meanwhile` runs while the
    /// device does.
    fn step<R>(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        kind: StepKind,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<R, EngineError> {
        let scratch = &self.model.scratch;
        let step = Step { position: session.tokens().len() as u32, window: session.window };
        self.backend.write(scratch.step, bytemuck::bytes_of(&step));
        self.backend.write(scratch.tokens.first(4 * tokens.len()), bytemuck::cast_slice(tokens));
        let started = self.run(session, tokens.len(), kind);
        let result = meanwhile();
        let run = started.and_then(|()| self.backend.wait());
        self.emptied_if(&mut [session], run)?;
        session.extend(tokens);
        if kind != (StepKind::Prompt { logits: false }) {
            self.backend.read(self.model.scratch.logits, bytemuck::cast_slice_mut(session.logits_mut()));
        }
        Ok(result)
    }

    /// Starts the plan of a step.
    fn run(&mut self, session: &mut Session, rows: usize, kind: StepKind) -> Result<(), BackendError> {
        let model = &self.model;
        if matches!(kind, StepKind::Prompt { .. }) && !model.traits.mechanisms.has(Mechanism::DeviceRouting) {
            let plan = model.prefill(rows, kind == StepKind::Prompt { logits: true });
            return routing::run_with_host_routing(self.backend.as_mut(), plan, &mut [session.state.as_mut()]);
        }
        let classes = vec![model.decode_class(session.tokens().len())];
        let decode = ProgramKey::Decode { classes, choose: false };
        let key = match kind {
            StepKind::Decode => decode,
            StepKind::Prompt { logits: true } if rows == 1 && model.traits.decode_is_prefill => decode,
            StepKind::Prompt { logits } if rows == model.chunk_tokens => ProgramKey::Chunk { logits },
            StepKind::Prompt { logits } => {
                return self.backend.run(&model.prefill(rows, logits), &mut [session.state.as_mut()]);
            }
        };
        self.submit(&mut [session], key)
    }

    /// Starts a plan that is kept.
    fn submit(&mut self, sessions: &mut [&mut Session], key: ProgramKey) -> Result<(), BackendError> {
        let model = &self.model;
        let program = match self.programs.entry((model.traits.mechanisms, key)) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(place) => {
                let plan = match &place.key().1 {
                    ProgramKey::Decode { classes, choose } => model.decode_batch(classes, *choose),
                    ProgramKey::Choose { sessions } => model.choose(*sessions),
                    ProgramKey::Verify { classes, choose } => model.verify(classes, *choose),
                    ProgramKey::Replay { tokens } => model.replay(*tokens),
                    ProgramKey::Chunk { logits } => model.prefill(model.chunk_tokens, *logits),
                };
                place.insert(self.backend.prepare(plan)?)
            }
        };
        let mut states: Vec<&mut dyn State> =
            sessions.iter_mut().map(|session| &mut *session.state as &mut dyn State).collect();
        self.backend.submit(program, &mut states)
    }
}
