//! What a prefix is remembered as: recurrent state at one position, and cache rows of a range of tokens.

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Half of the convolution window that holds the past.
    pub window: u32,
    /// All of it, buffer after buffer.
    pub bytes: Vec<u8>,
}

/// Cache rows of consecutive tokens: for every buffer of rows, those of all tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub buffers: Vec<Vec<u8>>,
}

impl Rows {
    /// The rows of a part of the tokens, counted from the first one here.
    pub fn part(&self, layout: &StateLayout, tokens: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let bytes = move |row: usize| tokens.start * row..tokens.end * row;
        self.buffers.iter().zip(&layout.row_bytes).map(move |(buffer, &row)| &buffer[bytes(row)])
    }

    /// A copy of a part.
    pub fn copy(&self, layout: &StateLayout, tokens: Range<usize>) -> Self {
        Self { buffers: self.part(layout, tokens).map(<[u8]>::to_vec).collect() }
    }
}

/// Rows that belong to a range of a sequence's tokens.
#[derive(Clone, Debug)]
pub(crate) struct RowsAt {
    /// Position of the first token of `rows`.
    pub start: usize,
    /// The rows.
    pub rows: Arc<Rows>,
    /// Which tokens of the sequence are meant.
    pub tokens: Range<usize>,
}

impl RowsAt {
    /// The rows that are meant, buffer after buffer.
    pub fn parts<'a>(&'a self, layout: &'a StateLayout) -> impl Iterator<Item = &'a [u8]> {
        self.rows.part(layout, self.tokens.start - self.start..self.tokens.end - self.start)
    }
}
