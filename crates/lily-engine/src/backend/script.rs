//! The state of a device that computes no model, for tests: a hash of the tokens that went into it, in every buffer that a
//! model's state has. State that is mixed up, cut short or taken from elsewhere hashes to something else.
//!
//! What comes next after such a state, and how a device behaves otherwise, is the business of the tests that have one: the
//! simulation of the scheduler here, and the agents that are tried against the server.

use super::cpu::Cpu;
use super::{Backend, State};
use crate::kernel::Step;
use crate::plan::{BufferTable, Slot};
use crate::shape::Shape;

/// What the tokens of a sequence hash to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hashes {
    /// Of the tokens: the recurrent state.
    recurrent: u64,
    /// Of the rows in the cache.
    rows: u64,
}

/// A hash of two.
pub fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x632b_e593_04b4_dc75);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

impl Hashes {
    /// The sequence, longer by a token.
    pub fn push(&mut self, token: u32) {
        self.recurrent = mix(self.recurrent, u64::from(token) + 1);
        self.rows = mix(self.rows, self.recurrent);
    }

    /// Both as one.
    pub fn seed(self) -> u64 {
        mix(self.recurrent, self.rows)
    }
}

/// Where a model's buffers have the state and what plans say of it.
pub struct Places {
    row_bytes: usize,
    steps: Slot,
    logits: Slot,
    vocab: usize,
    windows: Vec<Slot>,
    states: Vec<Slot>,
    rows: Vec<Slot>,
}

impl Places {
    /// Those of a model.
    ///
    /// # Panics
    /// If the table lacks a buffer that every model has.
    pub fn new(shape: &Shape, table: &BufferTable) -> Self {
        let slots = |ending: &str| {
            let named = table.iter().filter(|(_, info)| info.name.ends_with(ending));
            named.map(|(buffer, info)| Slot::whole(buffer, info.bytes)).collect::<Vec<_>>()
        };
        let called = |name: &str| {
            let (buffer, info) = table.iter().find(|(_, info)| info.name == name).expect("a buffer of every model");
            Slot::whole(buffer, info.bytes)
        };
        Self {
            row_bytes: 2 * shape.attention.kv_heads * shape.attention.head_dim,
            vocab: shape.vocab,
            steps: called("steps"),
            logits: called("logits"),
            windows: slots(".window"),
            states: slots(".state"),
            rows: [slots(".keys"), slots(".values")].concat(),
        }
    }

    /// Tokens that the logits are of.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Takes the tokens of a plan's session `place` into its state, of which there are `sessions` in the plan. `tokens` is the
    /// plan's slot of them; `took` learns of each.
    pub fn take(
        &self,
        memory: &Cpu,
        (place, sessions): (usize, usize),
        tokens: Slot,
        state: &mut dyn State,
        took: &mut dyn FnMut(Hashes, u32),
    ) -> Hashes {
        let mut step = Step { position: 0, window: 0 };
        memory.read(self.steps.part(place * size_of::<Step>(), size_of::<Step>()), bytemuck::bytes_of_mut(&mut step));
        let mut ids = vec![0_u32; tokens.bytes / 4 / sessions];
        let bytes = 4 * ids.len();
        memory.read(tokens.part(bytes * place, bytes), bytemuck::cast_slice_mut(&mut ids));
        let mut hashes = self.hashes(state, step);
        for (row, &id) in (step.position as usize..).zip(&ids) {
            took(hashes, id);
            hashes.push(id);
            for slot in &self.rows {
                put(state, slot.part(row * self.row_bytes, self.row_bytes), hashes.recurrent);
            }
        }
        self.states.iter().for_each(|slot| put(state, *slot, hashes.recurrent));
        self.halves(1 - step.window).for_each(|slot| put(state, slot, hashes.recurrent));
        hashes
    }

    /// Leaves a state that belongs to no sequence.
    pub fn spoil(&self, state: &mut dyn State) {
        self.states.iter().for_each(|slot| put(state, *slot, 0xbad));
    }

    /// Writes what comes next after session `place` of a plan.
    pub fn put_logits(&self, memory: &mut Cpu, place: usize, logits: &[f32]) {
        memory.write(self.logits.part(4 * self.vocab * place, 4 * self.vocab), bytemuck::cast_slice(logits));
    }

    fn halves(&self, window: u32) -> impl Iterator<Item = Slot> {
        self.windows.iter().map(move |slot| slot.part(window as usize * slot.bytes / 2, slot.bytes / 2))
    }

    /// What the state says of the tokens before a step; a hash of its contradictions, if there are any.
    fn hashes(&self, state: &dyn State, step: Step) -> Hashes {
        let mut hashes = Hashes::default();
        for row in 0..step.position as usize {
            let all = self.rows.iter().map(|slot| get(state, slot.part(row * self.row_bytes, self.row_bytes)));
            hashes.rows = mix(hashes.rows, same(all));
        }
        let recurrent = self.states.iter().copied().chain(self.halves(step.window)).map(|slot| get(state, slot));
        hashes.recurrent = same(recurrent);
        hashes
    }
}

/// Writes a hash to both ends of a slot.
fn put(state: &mut dyn State, slot: Slot, hash: u64) {
    state.write(slot.first(8), &hash.to_le_bytes());
    state.write(slot.part(slot.bytes - 8, 8), &hash.to_le_bytes());
}

/// A hash of what is at both ends of a slot; the one that was put there, if it is the same.
fn get(state: &dyn State, slot: Slot) -> u64 {
    let mut ends = [[0; 8]; 2];
    state.read(slot.first(8), &mut ends[0]);
    state.read(slot.part(slot.bytes - 8, 8), &mut ends[1]);
    let [first, last] = ends.map(u64::from_le_bytes);
    if first == last { first } else { mix(first, last) }
}

/// The one value that all of them are, or a hash of their differences.
fn same(mut all: impl Iterator<Item = u64>) -> u64 {
    let first = all.next().expect("a model with both kinds of layers");
    all.fold(first, |hash, next| if next == first { hash } else { mix(hash, next) })
}
