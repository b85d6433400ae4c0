//! The plan of a prefill chunk: matrix times matrix, experts grouped, logits of the last row only.

use super::unfused::Expanded;
use super::{LayerBuffers, Mechanism, MixerBuffers, Model};
use crate::kernel::*;
use crate::plan::{Plan, Slot};

/// Tokens after which the scan's state goes through memory where it may not stay in registers.
const SCAN_BLOCK_ROWS: u32 = 32;

impl Model {
    /// The plan that extends a session by `rows` tokens; with `logits`, the last row's logits are computed too.
    ///
    /// # Panics
    /// If `rows` is 0 or more than the model's chunk: a broken invariant of the session.
    pub fn prefill(&self, rows: usize, logits: bool) -> Plan {
        assert!(rows >= 1 && rows <= self.chunk_tokens, "a chunk of {rows} rows; at most {}", self.chunk_tokens);
        let mut plan = self.empty_plan();
        self.embed_rows(&mut plan, rows);
        for layer in &self.layers {
            match &layer.mixer {
                MixerBuffers::Delta { .. } => self.prefill_delta(&mut plan, layer, rows),
                MixerBuffers::Attention { .. } => self.prefill_attention(&mut plan, layer, rows),
            }
            self.prefill_moe(&mut plan, layer, rows);
        }
        if logits {
            self.head(&mut plan, rows - 1, 1);
        }
        plan
    }

    pub(super) fn embed_rows(&self, plan: &mut Plan, rows: usize) {
        let (s, m) = (&self.scratch, self.embed);
        plan.push(Embed {
            args: EmbedArgs { rows: rows as u32, width: m.cols, format: m.format },
            tokens: s.tokens.first(4 * rows),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            y: self.hidden(s.h, rows),
        });
    }

    /// Logits of so many rows from this one on.
    pub(super) fn head(&self, plan: &mut Plan, row: usize, rows: usize) {
        let m = self.head;
        plan.push(Head {
            args: HeadArgs {
                row: row as u32,
                rows: rows as u32,
                width: m.cols,
                vocab: m.rows,
                eps: self.shape.rms_eps,
                format: m.format,
            },
            h: self.hidden(self.scratch.h, row + rows),
            gain: self.final_norm,
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            logits: self.scratch.logits_rows.first(4 * rows * m.rows as usize),
        });
    }

    /// `rows` rows of model width in a bf16 buffer.
    pub(super) fn hidden(&self, slot: Slot, rows: usize) -> Slot {
        slot.first(2 * rows * self.shape.hidden)
    }

    pub(super) fn norm(&self, plan: &mut Plan, gain: Slot, rows: usize) -> Slot {
        let y = self.hidden(self.scratch.x, rows);
        plan.push(RmsNorm {
            args: RmsNormArgs { rows: rows as u32, width: self.shape.hidden as u32, eps: self.shape.rms_eps },
            x: self.hidden(self.scratch.h, rows),
            gain,
            y,
        });
        y
    }

    pub(super) fn product(&self, plan: &mut Plan, x: Slot, m: &MatrixSlots, y: Slot, rows: usize) -> Slot {
        let y = y.first(2 * rows * m.rows as usize);
        let m = self.for_product(plan, m, 1, Expanded::First);
        plan.push(MatMul {
            args: MatMulArgs {
                rows: rows as u32,
                cols: m.cols,
                outputs: m.rows,
                format: m.format,
                tile_rows: self.traits.tiles.dense(rows as u32, m.rows, 1),
            },
            x,
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            y,
        });
        y
    }

    pub(super) fn product_add(&self, plan: &mut Plan, x: Slot, m: &MatrixSlots, rows: usize) {
        let m = self.for_product(plan, m, 1, Expanded::First);
        plan.push(MatMulAdd {
            args: MatMulAddArgs {
                rows: rows as u32,
                cols: m.cols,
                outputs: m.rows,
                format: m.format,
                tile_rows: self.traits.tiles.dense(rows as u32, m.rows, 1),
            },
            x,
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            h: self.hidden(self.scratch.h, rows),
        });
    }

    fn prefill_delta(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize) {
        let MixerBuffers::Delta { qkv, z, a, b, taps, a_log, dt_bias, norm, out, window, state } = &layer.mixer else {
            unreachable!("called for delta layers only")
        };
        let (s, dims) = (&self.scratch, self.delta_dims(rows));
        let x = self.norm(plan, layer.input_norm, rows);
        let qkv = self.product(plan, x, qkv, s.qkv, rows);
        let z = self.product(plan, x, z, s.z, rows);
        let a = self.product(plan, x, a, s.a, rows);
        let b = self.product(plan, x, b, s.b, rows);
        let q = s.q.first(2 * rows * dims.keys_width());
        let k = s.k.first(2 * rows * dims.keys_width());
        let [v, y, mixed] = [s.v, s.y, s.mixed].map(|slot| slot.first(2 * rows * dims.values_width()));
        let [decay, beta] = [s.decay, s.beta].map(|slot| slot.first(4 * rows * dims.value_heads as usize));
        plan.push(DeltaPrep {
            args: DeltaPrepArgs { dims },
            step: s.step,
            qkv,
            a,
            b,
            taps: *taps,
            a_log: *a_log,
            dt_bias: *dt_bias,
            window: *window,
            q,
            k,
            v,
            decay,
            beta,
        });
        let block_rows = if self.has(Mechanism::RegisterScan) { 0 } else { SCAN_BLOCK_ROWS };
        plan.push(DeltaScan { args: DeltaScanArgs { dims, block_rows }, q, k, v, decay, beta, state: *state, y });
        plan.push(GatedNorm { args: GatedNormArgs { dims }, y, z, gain: *norm, out: mixed });
        self.product_add(plan, mixed, out, rows);
    }

    fn prefill_attention(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize) {
        let MixerBuffers::Attention { q, k, v, o, q_norm, k_norm, keys, values } = &layer.mixer else {
            unreachable!("called for attention layers only")
        };
        let (s, dims) = (&self.scratch, self.attention_dims(rows));
        let x = self.norm(plan, layer.input_norm, rows);
        let q_raw = self.product(plan, x, q, s.q_raw, rows);
        let k_raw = self.product(plan, x, k, s.k_raw, rows);
        let v_raw = self.product(plan, x, v, s.v_raw, rows);
        let [q, mixed] = [s.q, s.mixed].map(|slot| slot.first(2 * rows * dims.q_width()));
        plan.push(QkPrep {
            args: QkPrepArgs { dims },
            step: s.step,
            q_raw,
            k_raw,
            v_raw,
            q_gain: *q_norm,
            k_gain: *k_norm,
            inv_freq: self.inv_freq,
            keys: *keys,
            values: *values,
            q,
        });
        let segments = self.segments();
        let partials = s.partials.first(segments.partials_bytes(&dims));
        plan.push(Attend {
            args: AttendArgs { dims, segments },
            step: s.step,
            q,
            q_raw,
            keys: *keys,
            values: *values,
            partials,
            out: mixed,
        });
        if segments.count > 1 {
            plan.push(MergeSegments {
                args: MergeSegmentsArgs { dims, segments },
                step: s.step,
                q_raw,
                partials,
                out: mixed,
            });
        }
        self.product_add(plan, mixed, o, rows);
    }

    pub(super) fn prefill_moe(&self, plan: &mut Plan, layer: &LayerBuffers, rows: usize) {
        let (s, dims) = (&self.scratch, self.moe_dims(rows));
        let x = self.norm(plan, layer.post_norm, rows);
        let logits = s.router_logits.first(4 * rows * dims.experts as usize);
        let shared = s.shared.first(4 * rows);
        let [experts, scores, order] = [s.experts, s.scores, s.order].map(|slot| slot.first(4 * dims.assignments()));
        self.router(plan, layer, x, logits, shared, rows);
        plan.push(Route { args: RouteArgs { dims }, logits, experts, scores });
        let heights = self.traits.tiles;
        let tile_rows = match self.has(Mechanism::TilesByLoad) {
            true => heights.of_experts(dims.assignments() as u32, dims.experts),
            false => heights.least,
        };
        let tiles = s.tiles.first(8 * dims.tiles(tile_rows) as usize);
        let group = GroupRowsArgs { dims, tile_rows };
        plan.push(GroupRows { args: group, experts, offsets: s.offsets, order, tiles });
        let act = s.act.first(2 * dims.assignments() * dims.expert_width as usize);
        let y = self.hidden(s.expert_y, dims.assignments());
        self.grouped(plan, layer, group, [x, order, tiles, act, y]);
        let shared_act = s.shared_act.first(2 * rows * dims.shared_width as usize);
        let gate = self.for_product(plan, &layer.shared_gate, 1, Expanded::First);
        let up = self.for_product(plan, &layer.shared_up, 1, Expanded::Second);
        plan.push(GateUp {
            args: GateUpArgs {
                rows: rows as u32,
                cols: gate.cols,
                outputs: gate.rows,
                gate_format: gate.format,
                up_format: up.format,
                tile_rows: self.traits.tiles.dense(rows as u32, gate.rows, 2),
            },
            x,
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            y: shared_act,
        });
        let shared_y = self.product(plan, shared_act, &layer.shared_down, s.shared_y, rows);
        let h = self.hidden(s.h, rows);
        plan.push(Combine { args: CombineArgs { dims }, y, scores, shared_y, shared, h });
    }

    fn router(&self, plan: &mut Plan, layer: &LayerBuffers, x: Slot, logits: Slot, shared: Slot, rows: usize) {
        let (router, scale) = (&layer.router, &layer.shared_scale);
        plan.push(Router {
            args: RouterArgs { dims: self.moe_dims(rows), router_format: router.format, shared_format: scale.format },
            x,
            router_codes: router.codes,
            router_scales: router.scales,
            router_biases: router.biases,
            shared_codes: scale.codes,
            shared_scales: scale.scales,
            shared_biases: scale.biases,
            logits,
            shared,
        });
    }

    fn grouped(&self, plan: &mut Plan, layer: &LayerBuffers, group: GroupRowsArgs, buffers: [Slot; 5]) {
        let ([x, order, tiles, act, y], GroupRowsArgs { dims, tile_rows }) = (buffers, group);
        let offsets = self.scratch.offsets;
        let gate = self.for_product(plan, &layer.gate, dims.experts, Expanded::First);
        let up = self.for_product(plan, &layer.up, dims.experts, Expanded::Second);
        plan.push(ExpertGateUp {
            args: ExpertGateUpArgs {
                dims,
                gate_format: gate.format,
                up_format: up.format,
                stride_rows: gate.expert_stride_rows,
                tile_rows,
            },
            x,
            offsets,
            order,
            tiles,
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            y: act,
        });
        let down = self.for_product(plan, &layer.down, dims.experts, Expanded::First);
        plan.push(ExpertDown {
            args: ExpertDownArgs { dims, format: down.format, stride_rows: down.expert_stride_rows, tile_rows },
            act,
            offsets,
            order,
            tiles,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            y,
        });
    }
}
