//! What a prefix is remembered as: recurrent state at one position, and cache rows of a range of tokens.

use crate::backend::Kept;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Sizes of a session's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    /// Bytes of the recurrent and convolution state.
    pub snapshot_bytes: usize,
    /// Bytes of one token in each buffer of cache rows.
    pub row_bytes: Vec<usize>,
}

impl StateLayout {
    /// Bytes of one token's cache rows.
    pub fn token_bytes(&self) -> usize {
        self.row_bytes.iter().sum()
    }
}

/// Recurrent and convolution state at one position.
pub(crate) struct Snapshot {
    /// Half of the convolution window that holds the past.
    pub window: u32,
    /// All of it, buffer after buffer.
    pub kept: Box<dyn Kept>,
}

/// Cache rows of consecutive tokens.
pub(crate) struct Rows {
    /// How many tokens.
    pub tokens: usize,
    /// Buffer after buffer, the rows of all tokens in each.
    pub kept: Box<dyn Kept>,
}

impl Default for Rows {
    /// Those of no tokens.
    fn default() -> Self {
        Self { tokens: 0, kept: Box::new(Vec::new()) }
    }
}

impl Rows {
    /// Where the rows of a part of the tokens lie, counted from the first one here: a range for every buffer.
    pub fn part(&self, layout: &StateLayout, tokens: Range<usize>) -> Vec<Range<usize>> {
        let mut start = 0;
        let range = |&row: &usize| {
            let part = start + tokens.start * row..start + tokens.end * row;
            start += self.tokens * row;
            part
        };
        layout.row_bytes.iter().map(range).collect()
    }

    /// A copy of a part.
    pub fn copy(&self, layout: &StateLayout, tokens: Range<usize>) -> Self {
        Self { tokens: tokens.len(), kept: self.kept.copy(&self.part(layout, tokens)) }
    }
}

/// Rows that belong to a range of a sequence's tokens.
#[derive(Clone)]
pub(crate) struct RowsAt {
    /// Position of the first token of `rows`.
    pub start: usize,
    /// The rows.
    pub rows: Arc<Rows>,
    /// Which tokens of the sequence are meant.
    pub tokens: Range<usize>,
}

impl RowsAt {
    /// Where the rows that are meant lie: a range for every buffer.
    pub fn parts(&self, layout: &StateLayout) -> Vec<Range<usize>> {
        self.rows.part(layout, self.tokens.start - self.start..self.tokens.end - self.start)
    }
}

/// Bytes that are brought to the host at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Gives a range of kept bytes to `take`, in order and piece by piece.
///
/// # Errors
/// The first that `take` gives, or that of a device that has failed.
pub(super) fn pieces(
    kept: &dyn Kept,
    range: Range<usize>,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(bytes) = kept.host() {
        return take(&bytes[range]);
    }
    let mut piece = vec![0; range.len().min(PIECE_BYTES)];
    for start in range.clone().step_by(PIECE_BYTES) {
        let piece = &mut piece[..PIECE_BYTES.min(range.end - start)];
        kept.read(start, piece).map_err(io::Error::other)?;
        take(piece)?;
    }
    Ok(())
}
