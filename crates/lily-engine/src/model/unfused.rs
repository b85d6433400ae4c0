//! What stands in a plan where a mechanism is off that a kernel carries.

use super::{LayerBuffers, Mechanism, MixerBuffers, Model};
use crate::kernel::*;
use crate::plan::{Plan, Slot};
use crate::weights::{Float, Format};

/// A place in which a prefill chunk expands one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expanded {
    /// For most products.
    First = 0,
    /// For the second of a pair.
    Second = 1,
}

impl Model {
    /// The matrix for a product of a prefill chunk: as it is stored, or expanded to bf16 before.
    pub(super) fn for_product(&self, plan: &mut Plan, m: &MatrixSlots, experts: u32, place: Expanded) -> MatrixSlots {
        if self.has(Mechanism::FusedDequantize) {
            return *m;
        }
        let format = PackedFormat::from(Format::Dense(Float::Bf16));
        let codes = self.scratch.expanded[place as usize].first(2 * (experts * m.rows) as usize * m.cols as usize);
        let args =
            DequantizeArgs { experts, rows: m.rows, cols: m.cols, stride_rows: m.expert_stride_rows, format: m.format };
        plan.push(Dequantize { args, codes: m.codes, scales: m.scales, biases: m.biases, y: codes });
        let none = codes.first(0);
        MatrixSlots { codes, scales: none, biases: none, format, expert_stride_rows: m.rows, ..*m }
    }

    /// [`DeltaStep`] in two.
    pub(super) fn delta_then_norm(&self, plan: &mut Plan, layer: &LayerBuffers, out: Slot) {
        let MixerBuffers::Delta { taps, a_log, dt_bias, norm, window, state, .. } = &layer.mixer else {
            unreachable!("called for delta layers only")
        };
        let (s, dims) = (&self.scratch, self.delta_dims(1));
        let y = s.y.first(2 * dims.values_width());
        plan.push(DeltaUpdate {
            args: DeltaUpdateArgs { dims },
            step: s.step,
            qkv: s.qkv.first(2 * dims.channels()),
            a: s.a.first(2 * dims.value_heads as usize),
            b: s.b.first(2 * dims.value_heads as usize),
            taps: *taps,
            a_log: *a_log,
            dt_bias: *dt_bias,
            window: *window,
            state: *state,
            results: y,
        });
        let z = s.z.first(2 * dims.values_width());
        plan.push(GatedNorm { args: GatedNormArgs { dims }, y, z, gain: *norm, out });
    }

    /// [`AttendBlocks`] in two.
    pub(super) fn prepare_then_attend(
        &self,
        plan: &mut Plan,
        layer: &LayerBuffers,
        reading: CacheReading,
        partials: Slot,
    ) {
        let MixerBuffers::Attention { q_norm, k_norm, keys, values, .. } = &layer.mixer else {
            unreachable!("called for attention layers only")
        };
        let (s, dims) = (&self.scratch, self.attention_dims(1));
        let q = s.q.first(2 * dims.q_width());
        plan.push(QkPrep {
            args: QkPrepArgs { dims },
            step: s.step,
            q_raw: s.q_raw.first(4 * dims.q_width()),
            k_raw: s.k_raw.first(2 * dims.kv_width()),
            v_raw: s.v_raw.first(2 * dims.kv_width()),
            q_gain: *q_norm,
            k_gain: *k_norm,
            inv_freq: self.inv_freq,
            keys: *keys,
            values: *values,
            q,
        });
        let args = AttendPreparedArgs { dims, reading };
        plan.push(AttendPrepared { args, step: s.step, q, keys: *keys, values: *values, partials });
    }

    /// [`ExpertsGateUpStep`] in two; `buffers` are router logits, experts, scores and both activations.
    pub(super) fn products_then_gate(&self, plan: &mut Plan, layer: &LayerBuffers, buffers: [Slot; 5]) {
        let [logits, experts, scores, act, shared_act] = buffers;
        let (dims, products) = (self.moe_dims(1), self.scratch.products);
        let (gate, up, shared_gate, shared_up) = (&layer.gate, &layer.up, &layer.shared_gate, &layer.shared_up);
        plan.push(ExpertsProductsStep {
            args: ExpertsProductsStepArgs {
                dims,
                gate_format: gate.format,
                up_format: up.format,
                shared_gate_format: shared_gate.format,
                shared_up_format: shared_up.format,
                stride_rows: gate.expert_stride_rows,
            },
            h: self.hidden(self.scratch.h, 1),
            gain: layer.post_norm,
            logits,
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            shared_gate_codes: shared_gate.codes,
            shared_gate_scales: shared_gate.scales,
            shared_gate_biases: shared_gate.biases,
            shared_up_codes: shared_up.codes,
            shared_up_scales: shared_up.scales,
            shared_up_biases: shared_up.biases,
            experts,
            scores,
            products,
        });
        plan.push(GateProducts { args: GateProductsArgs { dims }, products, act, shared_act });
    }

    /// [`ExpertsDownStep`] in two; `inputs` are both activations, experts, scores and the shared expert's scale.
    pub(super) fn down_then_combine(&self, plan: &mut Plan, layer: &LayerBuffers, inputs: [Slot; 5]) {
        let [act, shared_act, experts, scores, shared] = inputs;
        let (s, dims, down, shared_down) = (&self.scratch, self.moe_dims(1), &layer.down, &layer.shared_down);
        let (y, shared_y) = (self.hidden(s.expert_y, dims.assignments()), self.hidden(s.shared_y, 1));
        plan.push(ExpertsEachStep {
            args: ExpertsEachStepArgs {
                dims,
                format: down.format,
                shared_format: shared_down.format,
                stride_rows: down.expert_stride_rows,
            },
            act,
            shared_act,
            experts,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            shared_codes: shared_down.codes,
            shared_scales: shared_down.scales,
            shared_biases: shared_down.biases,
            y,
            shared_y,
        });
        let h = self.hidden(s.h, 1);
        plan.push(Combine { args: CombineArgs { dims }, y, scores, shared_y, shared, h });
    }
}
