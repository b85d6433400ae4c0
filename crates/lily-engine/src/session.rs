//! A session: one mutable token timeline with its state.
//!
//! KV rows of a prefix stay valid for as long as the tokens of the prefix do, but recurrent state cannot be trimmed: going
//! back means restoring it. What is worth keeping for that, and for other sessions, is the prefix cache's to decide;
//! running plans is the engine's work.

use crate::backend::State;
use crate::cache::{Rows, RowsAt, Snapshot, StateLayout};
use crate::model::{MixerBuffers, Model};
use crate::plan::Slot;
use std::ops::Range;

/// One token timeline.
pub struct Session {
    pub(crate) state: Box<dyn State>,
    /// Half of the convolution window that holds the past.
    pub(crate) window: u32,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    logits_valid: bool,
    /// Tokens up to the last snapshot that was taken or restored.
    pub(crate) remembered_tokens: usize,
}

impl Session {
    pub(crate) fn new(state: Box<dyn State>, vocab: usize) -> Self {
        let logits = vec![0.0; vocab];
        Self { state, window: 0, tokens: Vec::new(), logits, logits_valid: false, remembered_tokens: 0 }
    }

    /// The tokens whose state it holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits of the last token, `[V]`; `None` where the last step did not compute them.
    pub fn logits(&self) -> Option<&[f32]> {
        self.logits_valid.then_some(&self.logits)
    }

    pub(crate) fn logits_mut(&mut self) -> &mut [f32] {
        self.logits_valid = true;
        &mut self.logits
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.window = 1 - self.window;
        self.logits_valid = false;
    }

    /// Tokens that it shares with `tokens`.
    pub(crate) fn common_tokens(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Becomes empty.
    pub(crate) fn clear(&mut self, model: &Model) {
        self.tokens.clear();
        self.window = 0;
        self.logits_valid = false;
        self.remembered_tokens = 0;
        self.state.zero(&recurrent_slots(model).collect::<Vec<_>>());
    }

    /// The recurrent state at the current position.
    pub(crate) fn snapshot(&self, model: &Model) -> Snapshot {
        Snapshot { window: self.window, kept: self.state.keep(&recurrent_slots(model).collect::<Vec<_>>()) }
    }

    /// Puts the recurrent state back, and nothing else.
    pub(crate) fn put_recurrent(&mut self, model: &Model, snapshot: &Snapshot) {
        let mut at = 0;
        let part = |slot: Slot| {
            at += slot.bytes;
            (slot, at - slot.bytes)
        };
        self.state.take(&*snapshot.kept, &recurrent_slots(model).map(part).collect::<Vec<_>>());
        self.window = snapshot.window;
    }

    /// The KV rows of a range of its tokens.
    pub(crate) fn rows(&self, model: &Model, tokens: Range<usize>) -> Rows {
        let part = |(slot, row_bytes): (Slot, usize)| slot.part(tokens.start * row_bytes, tokens.len() * row_bytes);
        let slots: Vec<Slot> = row_slots(model).map(part).collect();
        Rows { tokens: tokens.len(), kept: self.state.keep(&slots) }
    }

    /// Becomes `tokens`, whose recurrent state is `snapshot`. The KV rows of a common prefix stay; `rows` are all others.
    pub(crate) fn restore(
        &mut self,
        model: &Model,
        layout: &StateLayout,
        tokens: &[u32],
        snapshot: &Snapshot,
        rows: &[RowsAt],
    ) {
        let common = self.common_tokens(tokens);
        let given: usize = rows.iter().map(|rows| rows.tokens.len()).sum();
        assert!(common + given >= tokens.len(), "rows of {given} tokens after {common} for {} tokens", tokens.len());
        for rows in rows {
            let part = |((slot, row_bytes), range): ((Slot, usize), Range<usize>)| {
                (slot.part(rows.tokens.start * row_bytes, range.len()), range.start)
            };
            let parts: Vec<_> = row_slots(model).zip(rows.parts(layout)).map(part).collect();
            self.state.take(&*rows.rows.kept, &parts);
        }
        self.put_recurrent(model, snapshot);
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.logits_valid = false;
        self.remembered_tokens = tokens.len();
    }

    /// Becomes a copy of `other`.
    pub(crate) fn copy_from(&mut self, other: &Session, model: &Model, layout: &StateLayout) {
        let count = other.tokens.len();
        let rows = RowsAt { start: 0, rows: other.rows(model, 0..count).into(), tokens: 0..count };
        self.restore(model, layout, &other.tokens, &other.snapshot(model), &[rows]);
        self.logits.clone_from(&other.logits);
        self.logits_valid = other.logits_valid;
        self.remembered_tokens = other.remembered_tokens;
    }
}

/// Sizes of the state of a model's sessions.
pub(crate) fn state_layout(model: &Model) -> StateLayout {
    StateLayout {
        snapshot_bytes: recurrent_slots(model).map(|slot| slot.bytes).sum(),
        row_bytes: row_slots(model).map(|(_, row_bytes)| row_bytes).collect(),
    }
}

/// State that changes with every token: recurrent states and convolution windows.
fn recurrent_slots(model: &Model) -> impl Iterator<Item = Slot> {
    model.layers.iter().flat_map(|layer| match &layer.mixer {
        MixerBuffers::Delta { window, state, .. } => vec![*window, *state],
        MixerBuffers::Attention { .. } => vec![],
    })
}

/// Buffers of KV rows, with the bytes of one token in each.
fn row_slots(model: &Model) -> impl Iterator<Item = (Slot, usize)> {
    let row_bytes = 2 * model.shape.attention.kv_heads * model.shape.attention.head_dim;
    model.layers.iter().flat_map(move |layer| match &layer.mixer {
        MixerBuffers::Delta { .. } => vec![],
        MixerBuffers::Attention { keys, values, .. } => vec![(*keys, row_bytes), (*values, row_bytes)],
    })
}
