//! A session: one mutable token timeline with its state.
//!
//! KV rows of a prefix stay valid for as long as the tokens of the prefix do, but recurrent state cannot be trimmed;
//! so a session keeps *snapshots* of it at chosen positions, and going back means restoring the newest one at or before
//! the common prefix. Running plans is the engine's work.

use crate::backend::State;
use crate::model::{MixerBuffers, Model};
use crate::plan::Slot;

/// Most snapshots a session keeps; the oldest goes first.
const SNAPSHOTS_MAX: usize = 8;

/// Recurrent and convolution state at one position.
struct Snapshot {
    position: usize,
    window: u32,
    bytes: Vec<u8>,
}

/// One token timeline.
pub struct Session {
    pub(crate) state: Box<dyn State>,
    /// Half of the convolution window that holds the past.
    pub(crate) window: u32,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    logits_valid: bool,
    snapshots: Vec<Snapshot>,
}

impl Session {
    pub(crate) fn new(state: Box<dyn State>, vocab: usize) -> Self {
        let logits = vec![0.0; vocab];
        Self { state, window: 0, tokens: Vec::new(), logits, logits_valid: false, snapshots: Vec::new() }
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

    /// Goes back until the session holds a prefix of `tokens`, and returns its length.
    ///
    /// The last token of `tokens` is computed again unless its logits are still there.
    pub(crate) fn rewind_to_prefix_of(&mut self, tokens: &[u32], model: &Model) -> usize {
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let here = self.tokens.len();
        if common == here && (here < tokens.len() || self.logits_valid) {
            return here;
        }
        let usable = common.min(tokens.len() - 1);
        self.snapshots.retain(|s| s.position <= usable);
        match self.snapshots.last() {
            Some(snapshot) => {
                self.tokens.truncate(snapshot.position);
                self.window = snapshot.window;
                let mut at = 0;
                for slot in recurrent_slots(model) {
                    self.state.write(slot, &snapshot.bytes[at..][..slot.bytes]);
                    at += slot.bytes;
                }
            }
            None => self.clear(model),
        }
        self.logits_valid = false;
        self.tokens.len()
    }

    /// Becomes empty.
    pub(crate) fn clear(&mut self, model: &Model) {
        self.tokens.clear();
        self.snapshots.clear();
        self.window = 0;
        self.logits_valid = false;
        recurrent_slots(model).for_each(|slot| self.state.write(slot, &vec![0; slot.bytes]));
    }

    /// Remembers the recurrent state at the current position.
    pub(crate) fn take_snapshot(&mut self, model: &Model) {
        let position = self.tokens.len();
        if self.snapshots.last().is_some_and(|s| s.position >= position) {
            return;
        }
        let mut bytes = Vec::new();
        for slot in recurrent_slots(model) {
            let at = bytes.len();
            bytes.resize(at + slot.bytes, 0);
            self.state.read(slot, &mut bytes[at..]);
        }
        if self.snapshots.len() == SNAPSHOTS_MAX {
            self.snapshots.remove(0);
        }
        self.snapshots.push(Snapshot { position, window: self.window, bytes });
    }

    /// Positions of the snapshots, ascending.
    pub fn snapshot_positions(&self) -> Vec<usize> {
        self.snapshots.iter().map(|s| s.position).collect()
    }

    /// Becomes a copy of `other`, without its snapshots.
    pub(crate) fn copy_from(&mut self, other: &Session, model: &Model) {
        self.tokens.clone_from(&other.tokens);
        self.window = other.window;
        self.logits.clone_from(&other.logits);
        self.logits_valid = other.logits_valid;
        self.snapshots.clear();
        let mut bytes = Vec::new();
        for slot in recurrent_slots(model).chain(cache_slots(model, self.tokens.len())) {
            bytes.resize(slot.bytes, 0);
            other.state.read(slot, &mut bytes);
            self.state.write(slot, &bytes);
        }
    }
}

/// State that changes with every token: recurrent states and convolution windows.
fn recurrent_slots(model: &Model) -> impl Iterator<Item = Slot> {
    model.layers.iter().flat_map(|layer| match &layer.mixer {
        MixerBuffers::Delta { window, state, .. } => vec![*window, *state],
        MixerBuffers::Attention { .. } => vec![],
    })
}

/// Cache rows of the first `tokens` tokens.
fn cache_slots(model: &Model, tokens: usize) -> impl Iterator<Item = Slot> {
    let row_bytes = 2 * model.shape.attention.kv_heads * model.shape.attention.head_dim;
    model.layers.iter().flat_map(move |layer| match &layer.mixer {
        MixerBuffers::Delta { .. } => vec![],
        MixerBuffers::Attention { keys, values, .. } => {
            vec![keys.first(tokens * row_bytes), values.first(tokens * row_bytes)]
        }
    })
}
