//! The memory plan: what a model needs on a device, made before anything is allocated.

use crate::checkpoint::Checkpoint;
use crate::model::Model;
use crate::plan::Home;
use serde::Serialize;
use std::fmt;

/// What is wished for beside the model and one session; less is planned where memory does not allow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Sessions that live at once.
    pub sessions: usize,
    /// Bytes for remembered prefixes.
    pub cache_bytes: usize,
}

/// Bytes needed, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Longest context, in tokens.
    pub context_tokens: usize,
    /// Mapped weights; pages that the system can drop and read again.
    pub weight_bytes: usize,
    /// Sessions that live at once.
    pub sessions: usize,
    /// KV cache of one session at the longest context.
    pub kv_bytes: usize,
    /// Recurrent and convolution state of one session.
    pub recurrent_bytes: usize,
    /// Most that remembered prefixes take.
    pub cache_bytes: usize,
    /// Activations and constants of the device.
    pub scratch_bytes: usize,
}

impl MemoryPlan {
    /// The plan of a model in `available_bytes` (`None`: unknown). The model and one session are planned whatever there is;
    /// what is left goes to remembered prefixes, half of it where there are to be further sessions, and then to these, up to
    /// what is asked.
    pub fn new(checkpoint: &Checkpoint, model: &Model, asked: Asked, available_bytes: Option<usize>) -> Self {
        let kv_bytes = model.shape.kv_bytes_per_token() * model.context_tokens;
        let state_bytes = model.table.bytes(|h| matches!(h, Home::State));
        let mut plan = Self {
            context_tokens: model.context_tokens,
            weight_bytes: checkpoint.weight_bytes(),
            sessions: 1,
            kv_bytes,
            recurrent_bytes: state_bytes - kv_bytes,
            cache_bytes: 0,
            scratch_bytes: model.table.bytes(|h| matches!(h, Home::Scratch | Home::Vector(_))),
        };
        let left_bytes = |plan: &Self| available_bytes.map_or(usize::MAX, |all| all.saturating_sub(plan.total_bytes()));
        let share = if asked.sessions > 1 { 2 } else { 1 };
        plan.cache_bytes = asked.cache_bytes.min(left_bytes(&plan) / share);
        plan.sessions = 1 + (left_bytes(&plan) / state_bytes.max(1)).min(asked.sessions.saturating_sub(1));
        plan
    }

    /// All of it.
    pub fn total_bytes(&self) -> usize {
        let session_bytes = self.kv_bytes + self.recurrent_bytes;
        self.weight_bytes + self.sessions * session_bytes + self.cache_bytes + self.scratch_bytes
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: usize| bytes as f64 / 1e9;
        let sessions = match self.sessions {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        writeln!(f, "weights          {:>9.3} GB", gb(self.weight_bytes))?;
        writeln!(f, "KV cache         {:>9.3} GB at {} tokens{sessions}", gb(self.kv_bytes), self.context_tokens)?;
        writeln!(f, "recurrent state  {:>9.3} GB{sessions}", gb(self.recurrent_bytes))?;
        writeln!(f, "prefix cache     {:>9.3} GB at most", gb(self.cache_bytes))?;
        writeln!(f, "scratch          {:>9.3} GB", gb(self.scratch_bytes))?;
        write!(f, "total            {:>9.3} GB", gb(self.total_bytes()))
    }
}

/// Memory that this process could use, in bytes; `None` where the system does not say.
///
/// On Linux: `MemAvailable`, lowered to the limit of the control group. Mapped weights that are already cached count as
/// available, as they should.
pub fn available_bytes() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let available = line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? * 1024;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = group.and_then(|text| text.trim().parse().ok()).unwrap_or(usize::MAX);
    Some(available.min(limit))
}
