//! The engine: from a checkpoint on disk to logits and sampled tokens.
//!
//! Data flows one way: tokens -> [`session`] -> [`plan`] -> [`backend`] -> logits -> sampler -> tokens.
//! The crate knows nothing of HTTP or of the command line; a caller sees an [`engine::Engine`] (a loaded checkpoint on a
//! device) and [`session::Session`]s (token timelines with their state), or a [`scheduler::Scheduler`] that serves many
//! requests with one engine.

pub mod backend;
pub mod cache;
pub mod checkpoint;
pub mod constraint;
pub mod detokenizer;
pub mod engine;
pub mod generate;
pub mod kernel;
pub mod memory;
pub mod model;
pub mod outline;
pub mod plan;
pub mod prompt;
pub mod sampler;
pub mod scheduler;
pub mod session;
pub mod shape;
pub mod template;
pub mod tokenizer;
pub mod weights;
