//! How an answer ended and what it cost: the figures that every API reports in its own words.

use serde_json::{Value, json};

/// Why an answer ended. That it ended with tool calls is seen by the encoders themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string of the request.
    StopString(String),
    /// As many tokens as were asked for.
    Length,
    /// No room is left in the context.
    ContextFull,
    /// The server ended it: it is draining, or somebody cancelled.
    Cancelled,
}

impl FinishReason {
    /// Whether the answer is all that the model or the client wanted.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Stop | Self::StopString(_))
    }
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the cached ones included.
    pub prompt_tokens: usize,
    /// Of them, those that were not computed again.
    pub cached_tokens: usize,
    /// Tokens generated, the reasoning included.
    pub completion_tokens: usize,
    /// Of them, those inside the reasoning block.
    pub reasoning_tokens: usize,
}

impl Usage {
    /// In the words of chat completions.
    pub(crate) fn chat(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        })
    }
}

/// Where reused tokens of a prompt came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSources {
    /// The session already held them.
    pub session_tokens: usize,
    /// A snapshot in memory.
    pub memory_tokens: usize,
    /// A snapshot on disk.
    pub disk_tokens: usize,
}

/// Time spent, reported in the extension `timings`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From arrival to the first work on it.
    pub queue_ms: f64,
    /// On the prompt.
    pub prompt_ms: f64,
    /// On the answer.
    pub predicted_ms: f64,
    /// Where reused tokens came from.
    pub cache: CacheSources,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
    /// How long it took, where the server tells.
    pub timings: Option<Timings>,
}

impl Finish {
    /// The extension `timings`: the names are llama-server's, so that its users' tools read them; `cache_n` and what follows
    /// `cache_from_` count prompt tokens.
    pub(crate) fn timings(&self) -> Option<Value> {
        let timings = self.timings?;
        let computed = self.usage.prompt_tokens.saturating_sub(self.usage.cached_tokens);
        let generated = self.usage.completion_tokens;
        let per_token = |ms: f64, tokens: usize| if tokens == 0 { 0.0 } else { round(ms / tokens as f64) };
        let per_second = |ms: f64, tokens: usize| if ms > 0.0 { round(tokens as f64 * 1000.0 / ms) } else { 0.0 };
        Some(json!({
            "queue_ms": round(timings.queue_ms),
            "cache_n": self.usage.cached_tokens,
            "cache_from_session": timings.cache.session_tokens,
            "cache_from_memory": timings.cache.memory_tokens,
            "cache_from_disk": timings.cache.disk_tokens,
            "prompt_n": computed,
            "prompt_ms": round(timings.prompt_ms),
            "prompt_per_token_ms": per_token(timings.prompt_ms, computed),
            "prompt_per_second": per_second(timings.prompt_ms, computed),
            "predicted_n": generated,
            "predicted_ms": round(timings.predicted_ms),
            "predicted_per_token_ms": per_token(timings.predicted_ms, generated),
            "predicted_per_second": per_second(timings.predicted_ms, generated),
        }))
    }
}

/// To the microsecond: more digits are noise.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
