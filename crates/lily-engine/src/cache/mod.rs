//! The prefix cache: what is remembered of texts, for whichever session comes next with the same beginning.
//!
//! Recurrent state cannot be trimmed, so the state of a prefix is kept as a *snapshot* at one position, together with the
//! cache rows of its tokens. Snapshots are taken where a later text may part from this one (the engine decides), and kept
//! in memory in a [`tree`] over tokens, in which texts share the rows of a common beginning. A cache directory ([`disk`])
//! keeps them over restarts.
//!
//! # What makes room
//! In memory, the snapshot with the least *credit*. A snapshot is worth the tokens that would have to be computed again
//! without it: those since the snapshot before it. Its credit is this worth plus the clock at its last use, and the clock
//! rises to the credit of whatever makes room (Young's GreedyDual; where all are worth the same, this is
//! least-recently-used). So a snapshot that nobody uses stays until what was pushed out since was worth as much. It
//! follows that
//! - small background requests push each other out, and not the long conversation beside them: if they are very many, some
//!   of its last messages, as much as they are worth themselves;
//! - of a conversation's snapshots those close behind another go first, older ones before newer ones, and what is left
//!   is spread out;
//! - a conversation that nobody continues goes in the end, however long.
//!
//! In the directory, whole files go in the order of their last use.

mod disk;
mod file;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
mod writer;

pub(crate) use state::{Rows, RowsAt, Snapshot, StateLayout};

use disk::Disk;
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tree::Tree;

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
    /// 4 GiB of memory, which is five conversations of 32K tokens of the published model, no directory, and 16 GiB in one.
    fn default() -> Self {
        Self { bytes: 4 << 30, dir: None, dir_bytes: 16 << 30 }
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
    /// Bytes of all lily's files there.
    pub disk_bytes: u64,
    /// Files that could not be written, or not be read.
    pub disk_failures: u64,
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

/// Why a cache directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the cache directory {}: {source}; give one that can be written, or none", dir.display())]
pub struct CacheError {
    /// The directory.
    pub dir: PathBuf,
    /// What the system says.
    pub source: std::io::Error,
}

/// What the cache has for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Tokens before the deepest usable snapshot in memory; 0 is none.
    pub memory_tokens: usize,
    /// Tokens before the deepest usable snapshot in the directory, if that is deeper, otherwise as many as in memory.
    pub disk_tokens: usize,
    /// Tokens that the text shares with what is remembered.
    pub common_tokens: usize,
    /// Tokens of the longest remembered text that shares as many.
    pub remembered_tokens: usize,
}

/// The remembered prefixes of one model on one device.
pub(crate) struct PrefixCache {
    layout: StateLayout,
    tree: Tree,
    disk: Option<Disk>,
    limit_bytes: usize,
    hits: u64,
    misses: u64,
}

impl PrefixCache {
    /// An empty cache of `limit_bytes`, over the directory of the options, if any; `key` makes the name of what computes.
    pub fn open(
        options: &CacheOptions,
        limit_bytes: usize,
        layout: StateLayout,
        key: impl FnOnce() -> [u8; 32],
    ) -> Result<Self, CacheError> {
        let disk = match &options.dir {
            Some(dir) => Some(Disk::open(dir, options.dir_bytes, key(), layout.clone())?),
            None => None,
        };
        Ok(Self { tree: Tree::new(layout.clone(), limit_bytes), layout, disk, limit_bytes, hits: 0, misses: 0 })
    }

    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// What there is for `tokens`, of which a snapshot may cover the first `usable` at most.
    pub fn find(&self, tokens: &[u32], usable: usize) -> Found {
        let memory = self.tree.find(tokens, usable);
        let disk = self.disk.as_ref().map(|disk| disk.find(tokens, usable)).unwrap_or_default();
        let both = [memory, disk].map(|found| (found.common_tokens, found.remembered_tokens));
        let (common_tokens, remembered_tokens) = both[0].max(both[1]);
        Found {
            memory_tokens: memory.snapshot_tokens,
            disk_tokens: disk.snapshot_tokens.max(memory.snapshot_tokens),
            common_tokens,
            remembered_tokens,
        }
    }

    /// The state after `tokens`, where there is a snapshot, with the rows from position `from` on.
    pub fn load(&mut self, tokens: &[u32], from: usize) -> Option<(Arc<Snapshot>, Vec<RowsAt>)> {
        let mut rows = self.tree.rows(tokens, from..tokens.len());
        if let Some(snapshot) = self.tree.snapshot(tokens) {
            return Some((snapshot, rows));
        }
        let from = rows.last().map_or(from, |rows| rows.tokens.end);
        let (snapshot, read) = self.disk.as_mut()?.load(tokens, from)?;
        rows.extend(read);
        Some((Arc::new(snapshot), rows))
    }

    /// Whether a snapshot after so many tokens can be kept, if all else makes room.
    pub fn can_hold(&self, tokens: usize) -> bool {
        self.tree.can_hold(tokens)
    }

    /// Remembers the state after `tokens`, unless it is remembered already or too large.
    pub fn insert(
        &mut self,
        tokens: &[u32],
        snapshot: impl FnOnce() -> Snapshot,
        rows: impl FnOnce(Range<usize>) -> Rows,
    ) {
        if self.tree.can_hold(tokens.len()) && self.tree.snapshot(tokens).is_none() {
            self.tree.insert(tokens, Arc::new(snapshot()), rows);
        }
    }

    /// Has what is remembered in memory on the way of `tokens` written to the directory.
    pub fn save(&mut self, tokens: &[u32]) {
        if let Some(disk) = &mut self.disk {
            disk.save(tokens, &mut self.tree);
        }
    }

    /// Forgets what is remembered on the way of `tokens`.
    pub fn forget(&mut self, tokens: &[u32]) {
        self.tree.forget(tokens);
        if let Some(disk) = &mut self.disk {
            disk.forget(tokens);
        }
    }

    /// Counts a prompt of which something was there, or nothing.
    pub fn count(&mut self, hit: bool) {
        *(if hit { &mut self.hits } else { &mut self.misses }) += 1;
    }

    /// Waits until everything is written.
    pub fn settle(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.settle();
        }
    }

    /// From now on it does the same whenever it is asked for the same: it takes the time from `clock`, and learns of what
    /// was written in [`Self::settle`] only.
    #[cfg(test)]
    pub fn make_repeatable(&mut self, clock: impl Fn() -> std::time::SystemTime + Send + 'static) {
        if let Some(disk) = &mut self.disk {
            disk.make_repeatable(Box::new(clock));
        }
    }

    /// Checks that it is what it says.
    #[cfg(test)]
    pub fn audit(&self) {
        self.tree.audit();
    }

    pub fn status(&self) -> CacheStatus {
        let (entries, bytes) = self.tree.size();
        let (disk_entries, disk_bytes) = self.disk.as_ref().map(Disk::size).unwrap_or_default();
        CacheStatus {
            entries,
            bytes,
            limit_bytes: self.limit_bytes,
            disk_entries,
            disk_bytes,
            disk_failures: self.disk.as_ref().map_or(0, |disk| disk.failures),
            hits: self.hits,
            misses: self.misses,
            evictions: self.tree.evictions,
        }
    }
}
