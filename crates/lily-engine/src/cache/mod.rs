//! What is remembered of prompts, and how a request tells what it found.

use serde::Serialize;
use std::path::PathBuf;

/// How much may be remembered, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes in memory; 0 remembers nothing beside the sessions themselves.
    pub bytes: usize,
    /// A directory that keeps what is remembered over restarts.
    pub dir: Option<PathBuf>,
    /// Most bytes in that directory.
    pub dir_bytes: u64,
}

impl Default for CacheOptions {
    /// 512 MiB of memory, no directory, and 16 GiB in one.
    fn default() -> Self {
        Self { bytes: 512 << 20, dir: None, dir_bytes: 16 << 30 }
    }
}

/// What is remembered at the moment, and how it served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStatus {
    /// Snapshots in memory.
    pub entries: usize,
    /// Bytes that they take, KV rows included.
    pub bytes: usize,
    /// Most bytes that they may take.
    pub limit_bytes: usize,
    /// Snapshots in the cache directory.
    pub disk_entries: usize,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Prompts of which something was there already.
    pub hits: u64,
    /// Prompts of which nothing was.
    pub misses: u64,
    /// Snapshots that made room for others.
    pub evictions: u64,
}

/// What of a prompt did not have to be computed, and where it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reuse {
    /// Tokens whose state the session held.
    pub session_tokens: usize,
    /// Tokens whose state was restored from memory.
    pub memory_tokens: usize,
    /// Tokens whose state was read from the cache directory.
    pub disk_tokens: usize,
    /// Where the prompt parts from what was remembered; `None` where all that was remembered of this text is a prefix of
    /// the prompt.
    pub divergence: Option<Divergence>,
}

impl Reuse {
    /// Tokens that did not have to be computed.
    pub fn tokens(&self) -> usize {
        self.session_tokens + self.memory_tokens + self.disk_tokens
    }
}

/// Where a prompt parts from the remembered text that shares most with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// Index of the first token that differs.
    pub position: usize,
    /// Tokens of the remembered text.
    pub remembered_tokens: usize,
}
