//! The plan of a decode step: six kernels a layer (seven where blocks of attention are merged apart), each a stage of its own,
//! and the two ends. What replaces a kernel whose
//! mechanism is off stands in [`super::unfused`].

use super::{AttentionBlocks, LayerBuffers, Mechanism, Mechanisms, MixerBuffers, Model, Traits};
use crate::kernel::*;
use crate::plan::{Plan, Slot};
use std::ops::Range;

/// How a decode step attends, by the length of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeClass {
    /// One kernel over the whole cache.
    Whole,
    /// Blocks of keys at once.
    Split {
        /// Blocks.
        blocks: u32,
        /// Keys of a block; 0 splits the visible keys evenly.
        block_keys: u32,
    },
}

/// Up to so many blocks are merged by the output projection itself, which saves a stage; more would make every
/// threadgroup of it read too much.
const MERGED_BLOCKS: u32 = 8;

impl DecodeClass {
    /// Few blocks for short contexts, more above; from `long_from` on blocks of fixed size, as many as the next power of
    /// two of the context needs, so that a plan is rebuilt seldom.
    fn of(position: usize, traits: Traits) -> Self {
        if !traits.split_attention {
            return DecodeClass::Whole;
        }
        let AttentionBlocks { short, short_to, medium, long_from, long_keys } = traits.blocks;
        match position + 1 {
            visible if visible <= short_to => DecodeClass::Split { blocks: short, block_keys: 0 },
            visible if visible >= long_from && traits.mechanisms.has(Mechanism::FixedBlocks) => {
                DecodeClass::Split { blocks: visible.next_power_of_two() as u32 / long_keys, block_keys: long_keys }
            }
            _ => DecodeClass::Split { blocks: medium, block_keys: 0 },
        }
    }

    /// Place among the sessions of a step: by blocks.
    pub fn order(self) -> u32 {
        match self {
            DecodeClass::Whole => 0,
            DecodeClass::Split { blocks, .. } => blocks,
        }
    }

    /// Whether the output projection merges its blocks.
    pub fn merged(self) -> bool {
        matches!(self, DecodeClass::Split { blocks: MERGED_BLOCKS, .. })
    }

    /// Most blocks of any step in a context of so many tokens, whatever the mechanisms.
    pub(super) fn most_blocks(context_tokens: usize, traits: Traits) -> u32 {
        let blocks = |tokens: usize, mechanisms| match Self::of(tokens.max(1) - 1, traits.with(mechanisms)) {
            DecodeClass::Split { blocks, .. } => blocks,
            DecodeClass::Whole => 0,
        };
        let lengths =
            [1, traits.blocks.short_to + 1, context_tokens].into_iter().filter(|&tokens| tokens <= context_tokens);
        lengths.flat_map(|tokens| [Mechanisms::ALL, Mechanisms::NONE].map(|m| blocks(tokens, m))).max().unwrap_or(0)
    }
}

/// What the choice of a session's token works with, beside its step and the token.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // named as the kernel's buffers
pub struct Choice {
    pub params: Slot,
    pub logits: Slot,
    pub bias: Slot,
    pub counts: Slot,
    pub draws: Slot,
    /// Two of them, which alternate.
    pub results: Slot,
    /// Two of them, which alternate.
    pub logprobs: Slot,
    pub scans: Slot,
    pub sums: Slot,
}

/// Row `i` of rows of so many bytes.
fn row(slot: Slot, bytes: usize, i: usize) -> Slot {
    slot.part(i * bytes, bytes)
}

impl Model {
    /// The plan that extends a session by one token and computes its logits.
    ///
    /// With `choose` the plan also chooses the next token and writes it where the next step reads its input.
    ///
    /// The plan serves every position of the same [`Model::decode_class`] as `position`.
    pub fn decode(&self, position: usize, choose: bool) -> Plan {
        self.decode_batch(&[self.decode_class(position)], choose)
    }

    /// The plan that extends several sessions by one token each and computes the logits of each: matrices are read once for
    /// all, state is each session's own. Row `i` of every activation is that of session `i`, and has the bits that a step of
    /// this session alone gives it. With `choose` it chooses the next token of each.
    ///
    /// # Panics
    /// If there is no session, or more than [`Model::batch`]: broken invariants of the engine.
    pub fn decode_batch(&self, classes: &[DecodeClass], choose: bool) -> Plan {
        let rows = classes.len();
        assert!((1..=self.batch).contains(&rows), "a batch of {rows} sessions; at most {}", self.batch);
        let mut plan = self.empty_plan();
        self.embed_rows(&mut plan, rows);
        for layer in &self.layers {
            match &layer.mixer {
                MixerBuffers::Delta { .. } => self.decode_delta(&mut plan, layer, rows),
                MixerBuffers::Attention { .. } => self.decode_attention(&mut plan, layer, classes),
            }
            if self.by_prefill(rows) {
                self.prefill_moe(&mut plan, layer, rows);
            } else {
                self.decode_moe(&mut plan, layer, rows);
            }
        }
        self.head(&mut plan, 0, rows);
        if choose {
            self.push_choices(&mut plan, rows);
        }
        plan
    }

    /// Whether products of several sessions' rows take the kernels of prefill: where those give a row the bits that it has
    /// in a decode step.
    fn by_prefill(&self, rows: usize) -> bool {
        rows > 1 && self.traits.decode_is_prefill
    }

    /// The plan that only chooses a token for each of several sessions, from logits that are there.
    pub fn choose(&self, sessions: usize) -> Plan {
        let mut plan = self.empty_plan();
        self.push_choices(&mut plan, sessions);
        plan
    }

    fn push_choices(&self, plan: &mut Plan, sessions: usize) {
        let choices: Vec<Choice> = (0..sessions).map(|i| self.choice_of(i)).collect();
        let vocab = self.shape.vocab as u32;
        for Choice { params, logits, bias, counts, scans, sums, .. } in choices.iter().copied() {
            plan.push(SampleScan { args: SampleScanArgs { vocab }, params, logits, bias, counts, scans, sums });
        }
        for (i, choice) in choices.into_iter().enumerate() {
            let Choice { params, logits, bias, counts, draws, results, logprobs, scans, sums } = choice;
            plan.push(Sample {
                args: SampleArgs { vocab },
                params,
                logits,
                bias,
                counts,
                step: self.step_of(i),
                token: row(self.scratch.tokens, 4, i),
                draws,
                results,
                logprobs,
                scans,
                sums,
            });
        }
    }

    /// What the choice of session `i` works with.
    pub fn choice_of(&self, i: usize) -> Choice {
        let s = &self.scratch;
        let own = |slot: Slot| row(slot, slot.bytes / self.batch, i);
        Choice {
            params: own(s.sampling),
            logits: own(s.logits_rows),
            bias: own(s.bias),
            counts: own(s.counts),
            draws: own(s.draws),
            results: own(s.results),
            logprobs: own(s.logprobs),
            scans: own(s.scans),
            sums: own(s.sums),
        }
    }

    /// Which decode plan a step at `position` needs.
    pub fn decode_class(&self, position: usize) -> DecodeClass {
        DecodeClass::of(position, self.traits)
    }

    /// Products of the normed rows: each with its matrix and where its results go.
    fn project(&self, plan: &mut Plan, gain: Slot, parts: [Option<(&MatrixSlots, Slot)>; 4], rows: usize) {
        if self.by_prefill(rows) {
            let x = self.norm(plan, gain, rows);
            return parts.into_iter().flatten().for_each(|(m, y)| {
                self.product(plan, x, m, y, rows);
            });
        }
        let h = self.hidden(self.scratch.h, rows);
        // A matrix that is not there has the format of one that is, so that all share the kernel's one path.
        let format = parts.into_iter().flatten().next().map_or(PackedFormat(0), |(m, _)| m.format);
        let none = (h.first(0), format);
        let codes = parts.map(|p| p.map_or(none.0, |(m, _)| m.codes));
        let scales = parts.map(|p| p.map_or(none.0, |(m, _)| m.scales));
        let biases = parts.map(|p| p.map_or(none.0, |(m, _)| m.biases));
        let y = parts.map(|p| p.map_or(none.0, |(m, y)| y.first(2 * rows * m.rows as usize)));
        plan.push(Project {
            args: ProjectArgs {
                rows: rows as u32,
                width: self.shape.hidden as u32,
                outputs: parts.map(|p| p.map_or(0, |(m, _)| m.rows)),
                formats: parts.map(|p| p.map_or(none.1, |(m, _)| m.format)),
                eps: self.shape.rms_eps,
            },
            h,
            gain,
            codes0: codes[0],
            scales0: scales[0],
            biases0: biases[0],
            codes1: codes[1],
            scales1: scales[1],
            biases1: biases[1],
            codes2: codes[2],
            scales2: scales[2],
            biases2: biases[2],
            codes3: codes[3],
            scales3: scales[3],
            biases3: biases[3],
            y0: y[0],
            y1: y[1],
            y2: y[2],
            y3: y[3],
        });
    }

    /// The step of session `i`.
    pub fn step_of(&self, i: usize) -> Slot {
        row(self.scratch.steps, size_of::<Step>(), i)
    }

    fn decode_delta(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize) {
        let MixerBuffers::Delta { qkv, z, a, b, taps, a_log, dt_bias, norm, out, window, state } = &layer.mixer else {
            unreachable!("called for delta layers only")
        };
        let (s, dims) = (&self.scratch, self.delta_dims(1));
        let parts = [Some((qkv, s.qkv)), Some((z, s.z)), Some((a, s.a)), Some((b, s.b))];
        self.project(plan, layer.input_norm, parts, rows);
        let (values_bytes, gate_bytes) = (2 * dims.values_width(), 2 * dims.value_heads as usize);
        let mixed = s.mixed.first(rows * values_bytes);
        if !self.has(Mechanism::FusedDeltaNorm) {
            self.delta_then_norm(plan, layer, mixed);
            return self.product_add_rows(plan, mixed, out, 0..rows);
        }
        for i in 0..rows {
            plan.push(DeltaStep {
                args: DeltaStepArgs { dims },
                step: self.step_of(i),
                qkv: row(s.qkv, 2 * dims.channels(), i),
                z: row(s.z, values_bytes, i),
                a: row(s.a, gate_bytes, i),
                b: row(s.b, gate_bytes, i),
                taps: *taps,
                a_log: *a_log,
                dt_bias: *dt_bias,
                gain: *norm,
                window: window.of(i),
                state: state.of(i),
                out: row(mixed, values_bytes, i),
            });
        }
        self.product_add_rows(plan, mixed, out, 0..rows);
    }

    fn decode_attention(&self, plan: &mut Plan, layer: &LayerBuffers, classes: &[DecodeClass]) {
        let MixerBuffers::Attention { q, k, v, o, .. } = &layer.mixer else {
            unreachable!("called for attention layers only")
        };
        let (s, rows, dims) = (&self.scratch, classes.len(), self.attention_dims(1));
        let parts = [Some((q, s.q_raw)), Some((k, s.k_raw)), Some((v, s.v_raw)), None];
        self.project(plan, layer.input_norm, parts, rows);
        let mixed = s.mixed.first(2 * rows * dims.q_width());
        let mut partials_bytes = 0;
        for (i, class) in classes.iter().enumerate() {
            let out = row(mixed, 2 * dims.q_width(), i);
            let DecodeClass::Split { blocks, block_keys } = *class else {
                self.attend_step(plan, layer, i, out);
                continue;
            };
            let partials = s.partials.part(partials_bytes, dims.partial_bytes(blocks));
            partials_bytes += partials.bytes;
            let reading = self.cache_reading(blocks, block_keys);
            if self.has(Mechanism::FusedQkPrep) {
                self.attend_blocks(plan, layer, reading, i, partials);
            } else {
                self.prepare_then_attend(plan, layer, reading, partials);
            }
            if !class.merged() {
                let q_raw = row(s.q_raw, 4 * dims.q_width(), i);
                plan.push(AttendMerge { args: AttendMergeArgs { dims, blocks }, q_raw, partials, out });
            }
        }
        // Neighbours whose blocks are merged in the same way take one kernel.
        let (mut start, mut partials_start) = (0, 0);
        for alike in classes.chunk_by(|a, b| a.merged() == b.merged()) {
            let these = start..start + alike.len();
            let partials_bytes: usize = alike.iter().map(|class| dims.partial_bytes(class.order())).sum();
            if alike[0].merged() {
                let partials = s.partials.part(partials_start, partials_bytes);
                self.merge_and_add(plan, o, these.clone(), partials);
            } else {
                self.product_add_rows(plan, mixed, o, these.clone());
            }
            (start, partials_start) = (these.end, partials_start + partials_bytes);
        }
    }

    /// Merges the blocks of these rows and adds their products to the residual stream.
    fn merge_and_add(&self, plan: &mut Plan, o: &MatrixSlots, rows: Range<usize>, partials: Slot) {
        let (s, dims) = (&self.scratch, self.attention_dims(rows.len()));
        let part = |slot: Slot, bytes: usize| slot.part(rows.start * bytes, rows.len() * bytes);
        let args = MergeMatVecAddArgs { dims, blocks: MERGED_BLOCKS, outputs: o.rows, format: o.format };
        let (codes, scales, biases) = (o.codes, o.scales, o.biases);
        let (q_raw, h) = (part(s.q_raw, 4 * dims.q_width()), part(s.h, 2 * o.rows as usize));
        plan.push(MergeMatVecAdd { args, q_raw, partials, codes, scales, biases, h });
    }

    fn attend_step(&self, plan: &mut Plan, layer: &LayerBuffers, i: usize, out: Slot) {
        let MixerBuffers::Attention { q_norm, k_norm, keys, values, .. } = &layer.mixer else {
            unreachable!("called for attention layers only")
        };
        let (s, dims) = (&self.scratch, self.attention_dims(1));
        plan.push(AttendStep {
            args: AttendStepArgs { dims },
            step: self.step_of(i),
            q_raw: row(s.q_raw, 4 * dims.q_width(), i),
            k_raw: row(s.k_raw, 2 * dims.kv_width(), i),
            v_raw: row(s.v_raw, 2 * dims.kv_width(), i),
            q_gain: *q_norm,
            k_gain: *k_norm,
            inv_freq: self.inv_freq,
            keys: keys.of(i),
            values: values.of(i),
            out,
        });
    }

    fn attend_blocks(&self, plan: &mut Plan, layer: &LayerBuffers, reading: CacheReading, i: usize, partials: Slot) {
        let MixerBuffers::Attention { q_norm, k_norm, keys, values, .. } = &layer.mixer else {
            unreachable!("called for attention layers only")
        };
        let (s, dims) = (&self.scratch, self.attention_dims(1));
        plan.push(AttendBlocks {
            args: AttendBlocksArgs { dims, reading },
            step: self.step_of(i),
            q_raw: row(s.q_raw, 4 * dims.q_width(), i),
            k_raw: row(s.k_raw, 2 * dims.kv_width(), i),
            v_raw: row(s.v_raw, 2 * dims.kv_width(), i),
            q_gain: *q_norm,
            k_gain: *k_norm,
            inv_freq: self.inv_freq,
            keys: keys.of(i),
            values: values.of(i),
            partials,
        });
    }

    fn cache_reading(&self, blocks: u32, block_keys: u32) -> CacheReading {
        CacheReading {
            blocks,
            block_keys,
            packed: if self.has(Mechanism::PackedQueries) { self.traits.packed_queries } else { 1 },
            coalesced: self.has(Mechanism::CoalescedCache) as u32,
        }
    }

    /// Adds products of these rows of `x` to the residual stream.
    fn product_add_rows(&self, plan: &mut Plan, x: Slot, m: &MatrixSlots, rows: Range<usize>) {
        let part = |slot: Slot, width: u32| slot.part(2 * rows.start * width as usize, 2 * rows.len() * width as usize);
        if self.by_prefill(rows.end) {
            return self.product_add(plan, x, m, rows.end);
        }
        plan.push(MatVecAdd {
            args: MatVecAddArgs { rows: rows.len() as u32, cols: m.cols, outputs: m.rows, format: m.format },
            x: part(x, m.cols),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            h: part(self.scratch.h, m.rows),
        });
    }

    fn decode_moe(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize) {
        let (s, dims, h) = (&self.scratch, self.moe_dims(rows), self.hidden(self.scratch.h, rows));
        let k = dims.assignments();
        let (logits, shared) = (s.router_logits.first(4 * rows * dims.experts as usize), s.shared.first(4 * rows));
        let (experts, scores) = (s.experts.first(4 * k), s.scores.first(4 * k));
        let act = s.act.first(2 * k * dims.expert_width as usize);
        let shared_act = s.shared_act.first(2 * rows * dims.shared_width as usize);
        let (router, scale) = (&layer.router, &layer.shared_scale);
        plan.push(RouterStep {
            args: RouterStepArgs { dims, router_format: router.format, shared_format: scale.format },
            h,
            gain: layer.post_norm,
            router_codes: router.codes,
            router_scales: router.scales,
            router_biases: router.biases,
            shared_codes: scale.codes,
            shared_scales: scale.scales,
            shared_biases: scale.biases,
            logits,
            shared,
        });
        if self.has(Mechanism::FusedGateUp) {
            self.experts_gate_up(plan, layer, rows, [logits, experts, scores, act, shared_act]);
        } else {
            self.products_then_gate(plan, layer, [logits, experts, scores, act, shared_act]);
        }
        if self.has(Mechanism::FusedDown) {
            self.experts_down(plan, layer, rows, [act, shared_act, experts, scores, shared]);
        } else {
            self.down_then_combine(plan, layer, [act, shared_act, experts, scores, shared]);
        }
    }

    fn experts_gate_up(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize, buffers: [Slot; 5]) {
        let (dims, h) = (self.moe_dims(rows), self.hidden(self.scratch.h, rows));
        let [logits, experts, scores, act, shared_act] = buffers;
        let (gate, up, shared_gate, shared_up) = (&layer.gate, &layer.up, &layer.shared_gate, &layer.shared_up);
        plan.push(ExpertsGateUpStep {
            args: ExpertsGateUpStepArgs {
                dims,
                gate_format: gate.format,
                up_format: up.format,
                shared_gate_format: shared_gate.format,
                shared_up_format: shared_up.format,
                stride_rows: gate.expert_stride_rows,
            },
            h,
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
            act,
            shared_act,
        });
    }

    fn experts_down(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize, inputs: [Slot; 5]) {
        let [act, shared_act, experts, scores, shared] = inputs;
        let (down, shared_down) = (&layer.down, &layer.shared_down);
        plan.push(ExpertsDownStep {
            args: ExpertsDownStepArgs {
                dims: self.moe_dims(rows),
                format: down.format,
                shared_format: shared_down.format,
                stride_rows: down.expert_stride_rows,
            },
            act,
            shared_act,
            experts,
            scores,
            shared,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            shared_codes: shared_down.codes,
            shared_scales: shared_down.scales,
            shared_biases: shared_down.biases,
            h: self.hidden(self.scratch.h, rows),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::outline;
    use crate::plan::stages::stages;
    use crate::shape::Shape;
    use crate::weights::{Float, Format};

    /// Kernels and stages of prefill at 4,096 and decode at 40,000 tokens of the published model without a mechanism.
    fn size_without(mechanism: Option<Mechanism>) -> [usize; 4] {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        let weights = outline(&Shape::qwen36_35b_a3b(), affine(4), affine(8));
        let mechanisms = mechanism.map_or(Mechanisms::ALL, |m| Mechanisms::ALL.without(m));
        let model = Model::new(&weights, Traits::GPU.with(mechanisms), 512, 65_536);
        let size = |plan: Plan| [plan.dispatches.len(), stages(&plan).iter().max().unwrap() + 1];
        let ([a, b], [c, d]) = (size(model.prefill(512, true)), size(model.decode(40_000, true)));
        [a, b, c, d]
    }

    #[test]
    fn a_mechanism_costs_what_it_saves() {
        let all = size_without(None);
        let [prefill, prefill_stages, decode, decode_stages] = all;
        let matrices = 30 * 5 + 10 * 4 + 40 * 6; // of delta layers, attention layers and experts
        for (mechanism, _) in Mechanism::ALL {
            let found = size_without(Some(mechanism));
            let decode_with = |more| [prefill, prefill_stages, decode + more, decode_stages + more];
            match mechanism {
                Mechanism::FusedDequantize => assert_eq!(found[0], prefill + matrices),
                Mechanism::Concurrency => assert_eq!(found, [prefill, prefill, decode, decode]),
                Mechanism::FusedGateUp | Mechanism::FusedDown => assert_eq!(found, decode_with(40)),
                Mechanism::FusedQkPrep => assert_eq!(found, decode_with(10)),
                Mechanism::FusedDeltaNorm => assert_eq!(found, decode_with(30)),
                // The same kernels in another form, or chosen by another.
                _ => assert_eq!(found, all, "{mechanism}"),
            }
        }
    }

    #[test]
    fn blocks_have_a_fixed_size_from_32k_on() {
        let class = |tokens: usize, mechanisms| DecodeClass::of(tokens - 1, Traits::GPU.with(mechanisms));
        let general = Mechanisms::ALL.without(Mechanism::FixedBlocks);
        for (tokens, blocks, block_keys) in [(1, 8, 0), (8192, 8, 0), (8193, 32, 0), (32_767, 32, 0)] {
            assert_eq!(class(tokens, Mechanisms::ALL), DecodeClass::Split { blocks, block_keys }, "{tokens}");
            assert_eq!(class(tokens, general), DecodeClass::Split { blocks, block_keys }, "{tokens}");
        }
        for (tokens, blocks) in [(32_768, 32), (32_769, 64), (65_536, 64), (131_072, 128)] {
            assert_eq!(class(tokens, Mechanisms::ALL), DecodeClass::Split { blocks, block_keys: 1024 }, "{tokens}");
            assert_eq!(class(tokens, general), DecodeClass::Split { blocks: 32, block_keys: 0 }, "{tokens}");
        }
        // Evenly split wherever that is better, with memory for both.
        for (tokens, fixed) in [
            (1, (33, 0)),
            (4096, (33, 0)),
            (4097, (66, 0)),
            (16_383, (66, 0)),
            (16_384, (32, 512)),
            (32_768, (64, 512)),
            (131_072, (256, 512)),
        ] {
            let wide = Traits::WIDE_GPU;
            let all = DecodeClass::of(tokens - 1, wide.with(Mechanisms::ALL));
            assert_eq!(all, DecodeClass::Split { blocks: fixed.0, block_keys: fixed.1 }, "{tokens}");
            let blocks = if tokens <= 4096 { 33 } else { 66 };
            assert_eq!(DecodeClass::of(tokens - 1, wide), DecodeClass::Split { blocks, block_keys: 0 }, "{tokens}");
            assert!(!all.merged() && DecodeClass::most_blocks(tokens, wide) >= fixed.0, "{tokens}");
        }
    }
}
