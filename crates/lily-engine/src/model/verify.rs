//! The plans that check guesses: a decode step of several tokens of one session, of which all but the first are guessed, and
//! the one that brings the recurrent state to where the right ones end.
//!
//! Such a step is that of several sessions, of which each is the same: that a row sees the keys and the state that the rows
//! before it left follows from what its kernels read and write. Of the rows after the first wrong guess nothing must stay. Rows of the KV cache
//! are overwritten later; the recurrent state is put back by the engine and brought forward again by the delta rule alone,
//! whose inputs each layer keeps in a part of its own of the buffers that chunks of a prompt fill.

use super::{DecodeClass, MixerBuffers, Model};
use crate::kernel::{DeltaStep, Kernel};
use crate::plan::{Dispatch, Plan, Slot};

impl Model {
    /// Most tokens of [`Model::verify`]: those of a decode step, if the chunks are long enough for what the layers keep;
    /// otherwise none.
    pub fn verify_rows_max(&self) -> usize {
        let is_delta = |mixer: &MixerBuffers| matches!(mixer, MixerBuffers::Delta { .. });
        let layers = self.layers.iter().filter(|layer| is_delta(&layer.mixer)).count();
        if layers * self.batch <= self.scratch_rows() { self.batch } else { 0 }
    }

    /// Rows of the buffers of activations.
    fn scratch_rows(&self) -> usize {
        self.chunk_tokens.max(self.batch)
    }

    /// The plan that extends a session by tokens of these classes and computes the logits of each, as so many decode
    /// steps would, to the bit; with `choose`, it chooses what follows each. It leaves what [`Model::replay`] needs.
    ///
    /// # Panics
    /// If there are no tokens, or more than [`Model::verify_rows_max`]: a broken invariant of the engine.
    pub fn verify(&self, classes: &[DecodeClass], choose: bool) -> Plan {
        let (rows, most) = (classes.len(), self.verify_rows_max());
        assert!(rows <= most, "{rows} tokens of one session; at most {most}");
        let s = &self.scratch;
        let mut plan = self.decode_batch(classes, choose);
        let (mut layer, mut in_steps) = (0, false);
        for dispatch in &mut plan.dispatches {
            layer += usize::from(in_steps && !is_delta_step(dispatch));
            in_steps = is_delta_step(dispatch);
            let kept = |slot: &Slot| self.part_of(layer, slot.of(0), &[s.qkv, s.z, s.a, s.b]);
            dispatch.slots = dispatch.slots.iter().map(kept).collect();
        }
        plan
    }

    /// The plan that brings the recurrent state forward by the first `tokens` tokens of the last [`Model::verify`], from
    /// where it was before.
    ///
    /// # Panics
    /// As there.
    pub fn replay(&self, tokens: usize) -> Plan {
        let mut plan = self.verify(&vec![self.decode_class(0); tokens], false);
        plan.dispatches.retain(is_delta_step);
        for (i, dispatch) in plan.dispatches.iter_mut().enumerate() {
            // Results, which nobody reads, do not make layers wait for each other.
            let apart = |slot: &Slot| self.part_of(i / tokens, *slot, &[self.scratch.mixed]);
            dispatch.slots = dispatch.slots.iter().map(apart).collect();
        }
        plan
    }

    /// The slot as it is, or the part of a layer if it is of one of these buffers of activations.
    fn part_of(&self, layer: usize, slot: Slot, buffers: &[Slot]) -> Slot {
        let Some(whole) = buffers.iter().find(|whole| whole.buffer == slot.buffer) else { return slot };
        let row_bytes = whole.bytes / self.scratch_rows();
        whole.part(layer * self.batch * row_bytes + slot.offset, slot.bytes)
    }
}

fn is_delta_step(dispatch: &Dispatch) -> bool {
    std::ptr::eq(dispatch.contract, DeltaStep::contract())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Traits;
    use crate::outline::outline;
    use crate::plan::stages::stages;
    use crate::shape::Shape;
    use crate::weights::{Float, Format};

    fn model(chunk_tokens: usize) -> Model {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        let weights = outline(&Shape::qwen36_35b_a3b(), affine(4), affine(8));
        Model::for_sessions(&weights, Traits::GPU, chunk_tokens, 4096, 5)
    }

    #[test]
    fn rows_of_one_session_wait_for_each_other_and_layers_of_a_replay_do_not() {
        let model = model(512);
        let classes = [model.decode_class(100); 4];
        let (together, rows) = (model.decode_batch(&classes, true), model.verify(&classes, true));
        let depth = |plan: &Plan| stages(plan).into_iter().max().unwrap() + 1;
        assert_eq!(rows.dispatches.len(), together.dispatches.len());
        assert_eq!(depth(&rows), depth(&together) + 3 * 40); // 3 rows after the first, in each layer
        assert!(rows.dispatches.iter().flat_map(|d| &d.slots).all(|slot| slot.session == 0));
        let replay = model.replay(3);
        assert_eq!((replay.dispatches.len(), depth(&replay)), (3 * 30, 3));
    }

    #[test]
    fn a_replay_reads_what_the_step_left() {
        let model = model(512);
        let (rows, replay) = (model.verify(&[model.decode_class(100); 5], false), model.replay(2));
        let inputs = |d: &Dispatch| -> Vec<Slot> { d.slots[..d.slots.len() - 1].to_vec() };
        let steps: Vec<&Dispatch> = rows.dispatches.iter().filter(|d| is_delta_step(d)).collect();
        let first_two = steps.chunks(5).flat_map(|layer| &layer[..2]);
        assert!(first_two.map(|d| inputs(d)).eq(replay.dispatches.iter().map(inputs)));
        // Nobody but their projections writes there.
        for (layer, steps) in steps.chunks(5).enumerate() {
            for input in steps.iter().flat_map(|d| [d.slots[1], d.slots[2], d.slots[3], d.slots[4]]) {
                let writes = |d: &&Dispatch| d.bindings().any(|(p, slot)| p.access.writes() && slot.overlaps(input));
                assert_eq!(rows.dispatches.iter().filter(writes).count(), 1, "layer {layer}");
            }
        }
        assert_eq!((model.verify_rows_max(), self::model(149).verify_rows_max()), (5, 0));
    }
}
