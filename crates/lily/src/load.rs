//! From flags to a loaded model: resolves the model argument, opens the checkpoint, sets the engine up.

use crate::failure::Failure;
use crate::model::{Caches, Model};
use crate::{nano, output};
use clap::Args;
use lily_engine::backend::BackendChoice;
use lily_engine::backend::cpu::CpuMode;
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineOptions};

/// Which model.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Model: a directory, or org/name[@revision] in the Hugging Face cache or LM Studio's folder [default: the small
    /// model in the box]
    #[arg(short, long, env = "LILY_MODEL", hide_env_values = true, value_name = "MODEL")]
    pub model: Option<String>,
}

/// How to compute.
#[derive(Args, Clone, Debug, Default)]
pub struct EngineArgs {
    /// Longest context, in tokens [default: 4096, for serve 32768, or the model's limit]
    #[arg(long, env = "LILY_CONTEXT", hide_env_values = true, value_name = "TOKENS",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub context: Option<usize>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// What to compute on.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceArgs {
    /// Backend: cpu, metal (a Mac's GPU), cuda (an NVIDIA GPU, in builds that have it), or auto, the best of these here
    #[arg(
        long,
        env = "LILY_BACKEND",
        hide_env_values = true,
        value_name = "NAME",
        default_value = "auto",
        hide_default_value = true
    )]
    pub backend: BackendChoice,
    /// Threads of the CPU backend [default: all cores]
    #[arg(long, env = "LILY_THREADS", hide_env_values = true, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub threads: Option<usize>,
    /// Code of the CPU backend: reference, scalar, avx2, avx512, avx512bf16, neon [default: the best of this machine]
    #[arg(
        long,
        env = "LILY_CPU",
        hide_env_values = true,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub cpu: String,
}

impl ModelArgs {
    /// Finds the model.
    pub fn resolve(&self) -> Result<Model, Failure> {
        Caches::of_this_machine().resolve(self.model.as_deref())
    }

    /// Opens the checkpoint. Says on stderr when it is the one in the box, and how to get a real one.
    pub fn open(&self) -> Result<Checkpoint, Failure> {
        let model = self.resolve()?;
        self.introduce(&model);
        open(&model)
    }

    /// Says on stderr which model it is, where the user cannot know.
    pub fn introduce(&self, model: &Model) {
        if self.model.is_none() {
            output::note(nano::INTRODUCTION);
        } else if let Model::Directory { origin: Some(origin), .. } = model {
            output::note(&format!("model: {origin}"));
        }
    }
}

/// Opens a resolved model.
pub fn open(model: &Model) -> Result<Checkpoint, Failure> {
    match model {
        Model::Nano => nano::open(),
        Model::Directory { path, .. } => Ok(Checkpoint::open(path)?),
    }
}

impl EngineArgs {
    /// The engine's options for a checkpoint that was made for `limit` tokens of context.
    pub fn options(&self, limit: usize) -> Result<EngineOptions, Failure> {
        let mut options = EngineOptions::for_this_machine();
        options.context_tokens = self.context.unwrap_or(options.context_tokens.min(limit));
        if let Some(threads) = self.device.threads {
            options.threads = threads;
        }
        options.backend = self.device.backend;
        options.cpu = CpuMode::parse(&self.device.cpu)?;
        Ok(options)
    }

    /// Puts a checkpoint on the device.
    pub fn engine(&self, checkpoint: Checkpoint) -> Result<Engine, Failure> {
        let options = self.options(checkpoint.weights.shape.max_context_tokens)?;
        Ok(Engine::new(checkpoint, &options)?)
    }
}
