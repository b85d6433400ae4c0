//! What of a prompt need not be computed: the session's own state, or one that the prefix cache restores; and when the
//! state is worth keeping there.

use super::{Engine, EngineError};
use crate::cache::{CacheStatus, Divergence, Reuse};
use crate::session::Session;

/// Snapshots closer together than this are not worth their memory.
const APART_TOKENS: usize = 8;
/// A prompt without a boundary this close to its end gets one before its last token, for whoever sends it again.
const TAIL_TOKENS: usize = 32;
/// Chunks between snapshots where no boundary is, if they are no more than so many tokens: what an edit in the middle of a long
/// prompt costs at most.
const STRIDE_CHUNKS: usize = 8;
const STRIDE_TOKENS: usize = 4096;

impl Engine {
    /// Makes `session` hold a prefix of `tokens`, the longest whose state is known: the session's own where `tokens` only
    /// extends it, otherwise the deepest snapshot of the prefix cache. At least the last of `tokens` is left to compute,
    /// unless its logits are there.
    ///
    /// # Errors
    /// If the tokens do not fit the context or the vocabulary; the session is then unchanged.
    pub fn begin(&mut self, session: &mut Session, tokens: &[u32]) -> Result<Reuse, EngineError> {
        self.check(tokens)?;
        let here = session.tokens().len();
        let common = session.common_tokens(tokens);
        let extends = common == here && (here < tokens.len() || session.logits().is_some());
        let own = if extends { here } else { 0 };
        let (mut reuse, found) = loop {
            let found = self.cache.find(tokens, tokens.len() - 1);
            let best = found.memory_tokens.max(found.disk_tokens);
            if own >= best {
                if own == 0 {
                    session.clear(&self.model);
                }
                break (Reuse { session_tokens: own, ..Reuse::default() }, found);
            }
            // A file that cannot be read is forgotten, so the next round finds less.
            if let Some((snapshot, rows)) = self.cache.load(&tokens[..best], common.min(best)) {
                let layout = self.cache.layout();
                session.restore(&self.model, layout, &tokens[..best], &snapshot, &rows);
                let memory_tokens = found.memory_tokens;
                break (Reuse { memory_tokens, disk_tokens: best - memory_tokens, ..Reuse::default() }, found);
            }
        };
        let (common, remembered_tokens) = (found.common_tokens, found.remembered_tokens).max((common, here));
        if common > 0 && common < tokens.len() && common < remembered_tokens {
            reuse.divergence = Some(Divergence { position: common, remembered_tokens });
        }
        self.cache.count(reuse.tokens() > 0);
        Ok(reuse)
    }

    /// Where the chunk that starts at `done` ends, and whether a snapshot is due there.
    pub(super) fn chunk_end(
        &self,
        session: &Session,
        tokens: &[u32],
        boundaries: &[usize],
        most_tokens: usize,
    ) -> (usize, bool) {
        let (done, remembered) = (session.tokens().len(), session.remembered_tokens);
        let last = tokens.len() - 1;
        let is_far = |&boundary: &usize| boundary > done && boundary >= remembered + APART_TOKENS && boundary <= last;
        let tail = boundaries.iter().all(|boundary| *boundary > last || boundary + TAIL_TOKENS < last).then_some(last);
        let end = tokens.len().min(done + self.model.chunk_tokens.min(most_tokens.max(1)));
        if !self.cache.can_hold(end) {
            return (end, false);
        }
        match boundaries.iter().copied().chain(tail).find(is_far) {
            Some(boundary) if boundary <= end => (boundary, true),
            _ => {
                let stride = (STRIDE_CHUNKS * self.model.chunk_tokens).min(STRIDE_TOKENS);
                (end, end < tokens.len() && end >= remembered + stride)
            }
        }
    }

    /// Keeps the session's present state in the prefix cache, and has what is kept of its text written to the cache
    /// directory, if there is one.
    pub fn remember(&mut self, session: &mut Session) {
        if session.tokens().len() >= session.remembered_tokens + APART_TOKENS {
            self.take_snapshot(session);
        }
        self.cache.save(session.tokens());
    }

    pub(super) fn take_snapshot(&mut self, session: &mut Session) {
        let model = &self.model;
        let tokens = session.tokens();
        self.cache.insert(tokens, || session.snapshot(model), |range| session.rows(model, range));
        session.remembered_tokens = tokens.len();
    }

    /// Empties a session whose state cannot be trusted, and forgets all that was kept of its text.
    pub fn discard(&mut self, session: &mut Session) {
        self.cache.forget(session.tokens());
        session.clear(&self.model);
    }

    /// What is remembered of prompts.
    pub fn cache_status(&self) -> CacheStatus {
        self.cache.status()
    }

    /// Waits until everything that was to be written to the cache directory is there.
    pub fn settle_cache(&mut self) {
        self.cache.settle();
    }

    /// From now on the cache does the same whenever it is asked for the same.
    #[cfg(test)]
    pub(crate) fn make_cache_repeatable(&mut self, clock: impl Fn() -> std::time::SystemTime + Send + 'static) {
        self.cache.make_repeatable(clock);
    }

    /// Checks that the cache is what it says.
    #[cfg(test)]
    pub(crate) fn audit_cache(&self) {
        self.cache.audit();
    }
}
