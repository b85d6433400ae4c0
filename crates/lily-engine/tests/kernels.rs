//! Every kernel contract on every instruction set against its reference function: random inputs, awkward row counts,
//! poisoned outputs, and twice for bit-equality.

use half::bf16;
use lily_engine::backend::Backend;
use lily_engine::backend::cpu::{Cpu, CpuMode, isa::Isa};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::kernel::*;
use lily_engine::plan::{BufferTable, Dispatch, Home, Plan, Slot};
use lily_engine::weights::{Float, Format};
use std::path::PathBuf;
use std::sync::Arc;

const ROWS: [u32; 8] = [1, 2, 3, 5, 16, 17, 33, 65];
const Q4: Format = Format::Affine { bits: 4, group: 64, scale: Float::Bf16 };
const Q8: Format = Format::Affine { bits: 8, group: 32, scale: Float::Bf16 };
const PLAIN: Format = Format::Dense(Float::Bf16);

/// One dispatch with its buffers and their contents.
struct Case {
    table: BufferTable,
    contents: Vec<(Slot, Vec<u8>)>,
    random: u64,
}

impl Case {
    fn new(seed: u64) -> Self {
        Self {
            table: BufferTable::default(),
            contents: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn next(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// Between -1 and 1.
    fn uniform(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32 * 2.0 - 1.0
    }

    fn bytes(&mut self, bytes: Vec<u8>) -> Slot {
        let slot = self.table.add("input", bytes.len(), Home::Scratch);
        self.contents.push((slot, bytes));
        slot
    }

    fn bf16(&mut self, count: u32, scale: f32) -> Slot {
        let values: Vec<bf16> = (0..count).map(|_| bf16::from_f32(self.uniform() * scale)).collect();
        self.bytes(bytemuck::cast_slice(&values).to_vec())
    }

    fn f32(&mut self, count: u32, low: f32, high: f32) -> Slot {
        let values: Vec<f32> = (0..count).map(|_| low + (self.uniform() + 1.0) / 2.0 * (high - low)).collect();
        self.bytes(bytemuck::cast_slice(&values).to_vec())
    }

    fn u32(&mut self, values: &[u32]) -> Slot {
        self.bytes(bytemuck::cast_slice(values).to_vec())
    }

    /// A buffer full of NaN.
    fn poison(&mut self, bytes: u32) -> Slot {
        self.bytes(vec![0xff; bytes as usize])
    }

    fn matrix(&mut self, rows: u32, cols: u32, format: Format) -> MatrixSlots {
        let row_bytes = format.row_bytes(cols as usize) as u32;
        let codes = match format {
            Format::Affine { .. } => {
                let codes = (0..rows * row_bytes).map(|_| self.next() as u8).collect();
                self.bytes(codes)
            }
            Format::Dense(_) => self.bf16(rows * cols, 0.2),
        };
        let groups = rows * format.scale_row_bytes(cols as usize) as u32 / 2;
        let most = if row_bytes == cols { 0.001 } else { 0.02 };
        let (scales, biases) = (self.bf16(groups, most), self.bf16(groups, 0.1));
        MatrixSlots { codes, scales, biases, format: format.into(), rows, cols, expert_stride_rows: rows }
    }

    /// Runs the dispatch by reference and on every instruction set, and compares everything it writes.
    fn check(mut self, dispatch: Dispatch, label: &str) {
        let contract = dispatch.contract;
        let want = self.run(&dispatch, CpuMode::Reference, 1);
        for isa in Isa::supported() {
            let got = self.run(&dispatch, CpuMode::Fast(isa), 3);
            assert!(
                got == self.run(&dispatch, CpuMode::Fast(isa), 2),
                "{} {label} {isa:?}: two runs differ",
                contract.name
            );
            let written = contract.params.iter().filter(|p| p.access.writes());
            for ((param, want), got) in written.zip(&want).zip(&got) {
                let label = format!("{} {label} {isa:?}: `{}`", contract.name, param.name);
                compare(param.element, want, got, contract.tolerance, &label);
            }
        }
    }

    fn run(&mut self, dispatch: &Dispatch, mode: CpuMode, threads: usize) -> Vec<Vec<u8>> {
        let checkpoint =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/base-q4g64");
        let checkpoint = Arc::new(Checkpoint::open(&checkpoint).unwrap());
        let mut cpu = Cpu::new(checkpoint, &self.table, mode, threads).unwrap();
        self.contents.iter().for_each(|(slot, bytes)| cpu.write(*slot, bytes));
        let mut state = cpu.new_state().unwrap();
        cpu.run(&Plan { dispatches: vec![dispatch.clone()] }, state.as_mut());
        let written = dispatch.bindings().filter(|(param, _)| param.access.writes());
        written
            .map(|(_, slot)| {
                let mut bytes = vec![0; slot.bytes];
                cpu.read(slot, &mut bytes);
                bytes
            })
            .collect()
    }
}

/// Element by element within `tolerance` of the largest reference magnitude; NaN only where the reference has it.
fn compare(element: &str, want: &[u8], got: &[u8], tolerance: f32, label: &str) {
    let widen = |bytes: &[u8]| -> Vec<f32> {
        match element {
            "bf16" => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    };
    if element == "u32" {
        return assert!(want == got, "{label} differs");
    }
    let (want, got) = (widen(want), widen(got));
    let most = want.iter().filter(|w| w.is_finite()).fold(0.0_f32, |m, w| m.max(w.abs()));
    for (i, (w, g)) in want.iter().zip(&got).enumerate() {
        let right = if w.is_nan() { g.is_nan() } else { (w - g).abs() <= tolerance * most };
        assert!(right, "{label}[{i}] is {g}, the reference {w}; tolerance {tolerance} of {most}");
    }
}

#[test]
fn embed() {
    for (rows, format) in ROWS.into_iter().zip([Q4, Q8, PLAIN].into_iter().cycle()) {
        let mut c = Case::new(1);
        let m = c.matrix(40, 96 + 32, format);
        let ids: Vec<u32> = (0..rows).map(|i| i * 7 % 40).collect();
        let kernel = Embed {
            args: EmbedArgs { rows, width: 128, format: m.format },
            tokens: c.u32(&ids),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            y: c.poison(2 * rows * 128),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, {format:?}"));
    }
}

#[test]
fn head_and_arg_max() {
    for (vocab, format) in [(1, Q4), (63, Q4), (200, Q8), (130, PLAIN)] {
        let mut c = Case::new(2);
        let m = c.matrix(vocab, 128, format);
        let kernel = Head {
            args: HeadArgs { row: 2, width: 128, vocab, eps: 1e-6, format: m.format },
            h: c.bf16(3 * 128, 4.0),
            gain: c.f32(128, 0.5, 1.5),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            logits: c.poison(4 * vocab),
        };
        c.check(kernel.dispatch(), &format!("vocab {vocab}, {format:?}"));
        let mut c = Case::new(3);
        let logits = c.f32(vocab, -1.0, 1.0);
        let kernel = ArgMax { args: ArgMaxArgs { vocab }, logits, token: c.poison(4) };
        c.check(kernel.dispatch(), &format!("vocab {vocab}"));
    }
}

#[test]
fn arg_max_takes_the_lowest_of_equals() {
    let mut c = Case::new(4);
    let values = [1.0_f32, 3.0, 3.0, 2.0, 3.0];
    let logits = c.bytes(bytemuck::cast_slice(&values).to_vec());
    let kernel = ArgMax { args: ArgMaxArgs { vocab: 5 }, logits, token: c.poison(4) };
    assert_eq!(c.run(&kernel.dispatch(), CpuMode::Fast(Isa::detect()), 2), [1_u32.to_le_bytes()]);
}

#[test]
fn rms_norm() {
    for (rows, scale) in ROWS.into_iter().zip([1.0, 1e-4, 3e4, 0.0].into_iter().cycle()) {
        let mut c = Case::new(5);
        let kernel = RmsNorm {
            args: RmsNormArgs { rows, width: 160, eps: 1e-6 },
            x: c.bf16(rows * 160, scale),
            gain: c.f32(160, 0.5, 1.5),
            y: c.poison(2 * rows * 160),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, scale {scale}"));
    }
}

#[test]
fn matmul_and_matmul_add() {
    for (rows, format) in ROWS.into_iter().zip([Q4, Q8, PLAIN].into_iter().cycle()) {
        let (cols, outputs) = (192, 77);
        let mut c = Case::new(6);
        let m = c.matrix(outputs, cols, format);
        let x = c.bf16(rows * cols, 1.0);
        let (codes, scales, biases) = (m.codes, m.scales, m.biases);
        let args = MatMulArgs { rows, cols, outputs, format: m.format };
        let plain = MatMul { args, x, codes, scales, biases, y: c.poison(2 * rows * outputs) };
        let h = c.bf16(rows * outputs, 2.0);
        let add = MatMulAdd { args: bytemuck::cast(args), x, codes, scales, biases, h };
        let label = format!("{rows} rows, {format:?}");
        Case { table: c.table.clone(), contents: c.contents.clone(), random: 1 }.check(plain.dispatch(), &label);
        c.check(add.dispatch(), &label);
    }
}

#[test]
fn gate_up() {
    for (rows, formats) in ROWS.into_iter().zip([(Q4, Q4), (Q8, Q4), (PLAIN, Q8)].into_iter().cycle()) {
        let mut c = Case::new(7);
        let (gate, up) = (c.matrix(70, 128, formats.0), c.matrix(70, 128, formats.1));
        let kernel = GateUp {
            args: GateUpArgs { rows, cols: 128, outputs: 70, gate_format: gate.format, up_format: up.format },
            x: c.bf16(rows * 128, 1.0),
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            y: c.poison(2 * rows * 70),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, {formats:?}"));
    }
}

#[test]
fn project() {
    for (i, formats) in [[Q4; 4], [Q4, Q8, PLAIN, Q4], [PLAIN, PLAIN, Q8, Q8]].into_iter().enumerate() {
        let mut c = Case::new(8 + i as u64);
        // The third case leaves the last matrix out.
        let outputs = [100, 64, 3, if i == 2 { 0 } else { 5 }];
        let m: [MatrixSlots; 4] = std::array::from_fn(|j| c.matrix(outputs[j], 128, formats[j]));
        let y = outputs.map(|n| c.poison(2 * n));
        let kernel = Project {
            args: ProjectArgs { width: 128, outputs, formats: m.map(|m| m.format), eps: 1e-6 },
            h: c.bf16(128, 3.0),
            gain: c.f32(128, 0.5, 1.5),
            codes0: m[0].codes,
            scales0: m[0].scales,
            biases0: m[0].biases,
            codes1: m[1].codes,
            scales1: m[1].scales,
            biases1: m[1].biases,
            codes2: m[2].codes,
            scales2: m[2].scales,
            biases2: m[2].biases,
            codes3: m[3].codes,
            scales3: m[3].scales,
            biases3: m[3].biases,
            y0: y[0],
            y1: y[1],
            y2: y[2],
            y3: y[3],
        };
        c.check(kernel.dispatch(), &format!("{formats:?}"));
    }
}

fn delta_dims(rows: u32) -> DeltaDims {
    DeltaDims { rows, key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 96, conv_width: 4, eps: 1e-6 }
}

#[test]
fn delta_prep() {
    for (rows, window) in ROWS.into_iter().zip([0, 1].into_iter().cycle()) {
        let (mut c, dims) = (Case::new(10), delta_dims(rows));
        let channels = dims.channels() as u32;
        let kernel = DeltaPrep {
            args: DeltaPrepArgs { dims },
            step: c.u32(&[5, window]),
            qkv: c.bf16(rows * channels, 2.0),
            a: c.bf16(rows * 4, 8.0),
            b: c.bf16(rows * 4, 4.0),
            taps: c.f32(4 * channels, -0.6, 0.6),
            a_log: c.f32(4, -1.0, 2.5),
            dt_bias: c.f32(4, -6.0, 1.0),
            window: c.bf16(2 * 3 * channels, 2.0),
            q: c.poison(2 * rows * 128),
            k: c.poison(2 * rows * 128),
            v: c.poison(2 * rows * 384),
            decay: c.poison(4 * rows * 4),
            beta: c.poison(4 * rows * 4),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, window {window}"));
    }
}

#[test]
fn delta_scan_and_gated_norm() {
    for rows in ROWS {
        let (mut c, dims) = (Case::new(11), delta_dims(rows));
        let kernel = DeltaScan {
            args: DeltaScanArgs { dims },
            q: c.bf16(rows * 128, 0.1),
            k: c.bf16(rows * 128, 0.15),
            v: c.bf16(rows * 384, 1.0),
            decay: c.f32(rows * 4, 0.5, 1.0),
            beta: c.f32(rows * 4, 0.0, 1.0),
            state: c.f32(4 * 96 * 64, -1.0, 1.0),
            y: c.poison(2 * rows * 384),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
        let mut c = Case::new(12);
        let kernel = GatedNorm {
            args: GatedNormArgs { dims },
            y: c.bf16(rows * 384, 0.3),
            z: c.bf16(rows * 384, 4.0),
            gain: c.f32(96, 0.5, 1.5),
            out: c.poison(2 * rows * 384),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
    }
}

#[test]
fn delta_step() {
    for window in [0, 1] {
        let (mut c, dims) = (Case::new(13), delta_dims(1));
        let channels = dims.channels() as u32;
        let kernel = DeltaStep {
            args: DeltaStepArgs { dims },
            step: c.u32(&[5, window]),
            qkv: c.bf16(channels, 2.0),
            z: c.bf16(384, 4.0),
            a: c.bf16(4, 8.0),
            b: c.bf16(4, 4.0),
            taps: c.f32(4 * channels, -0.6, 0.6),
            a_log: c.f32(4, -1.0, 2.5),
            dt_bias: c.f32(4, -6.0, 1.0),
            gain: c.f32(96, 0.5, 1.5),
            window: c.bf16(2 * 3 * channels, 2.0),
            state: c.f32(4 * 96 * 64, -1.0, 1.0),
            out: c.poison(2 * 384),
        };
        c.check(kernel.dispatch(), &format!("window {window}"));
    }
}

/// Dimensions with `heads` query heads on two KV heads of 64, half of them rotated.
fn attention_dims(rows: u32, heads: u32) -> AttentionDims {
    AttentionDims { rows, heads, kv_heads: 2, head_dim: 64, rotary_dim: 32, eps: 1e-6 }
}

#[test]
fn qk_prep() {
    for rows in ROWS {
        let (mut c, dims) = (Case::new(14), attention_dims(rows, 6));
        let context = 70 + rows;
        let kernel = QkPrep {
            args: QkPrepArgs { dims },
            step: c.u32(&[70, 0]),
            q_raw: c.bf16(rows * 2 * 384, 2.0),
            k_raw: c.bf16(rows * 128, 2.0),
            v_raw: c.bf16(rows * 128, 2.0),
            q_gain: c.f32(64, 0.5, 1.5),
            k_gain: c.f32(64, 0.5, 1.5),
            inv_freq: c.f32(16, 0.0, 1.0),
            keys: c.bf16(context * 128, 1.0),
            values: c.bf16(context * 128, 1.0),
            q: c.poison(2 * rows * 384),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
    }
}

#[test]
fn attend() {
    // Contexts inside one block of keys, at its border, and over several; groups of 3, 8 and 10 heads.
    for (rows, position, heads) in [(1, 0, 6), (5, 0, 16), (17, 250, 6), (3, 254, 20), (2, 700, 16), (65, 200, 6)] {
        let (mut c, dims) = (Case::new(15), attention_dims(rows, heads));
        let context = position + rows + 3;
        let kernel = Attend {
            args: AttendArgs { dims },
            step: c.u32(&[position, 0]),
            q: c.bf16(rows * heads * 64, 4.0),
            q_raw: c.bf16(rows * 2 * heads * 64, 2.0),
            keys: c.bf16(context * 128, 2.0),
            values: c.bf16(context * 128, 1.0),
            out: c.poison(2 * rows * heads * 64),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows at {position}, {heads} heads"));
    }
}

#[test]
fn attend_step() {
    for (position, heads) in [(0, 6), (1, 16), (255, 20), (256, 6), (900, 16)] {
        let (mut c, dims) = (Case::new(16), attention_dims(1, heads));
        let kernel = AttendStep {
            args: AttendStepArgs { dims },
            step: c.u32(&[position, 0]),
            q_raw: c.bf16(2 * heads * 64, 2.0),
            k_raw: c.bf16(128, 2.0),
            v_raw: c.bf16(128, 2.0),
            q_gain: c.f32(64, 0.5, 1.5),
            k_gain: c.f32(64, 0.5, 1.5),
            inv_freq: c.f32(16, 0.0, 1.0),
            keys: c.bf16((position + 2) * 128, 1.0),
            values: c.bf16((position + 2) * 128, 1.0),
            out: c.poison(2 * heads * 64),
        };
        c.check(kernel.dispatch(), &format!("at {position}, {heads} heads"));
    }
}

fn moe_dims(rows: u32) -> MoeDims {
    MoeDims { rows, width: 128, experts: 11, top_k: 3, expert_width: 96, shared_width: 64, eps: 1e-6 }
}

#[test]
fn router_and_router_step() {
    for (rows, formats) in ROWS.into_iter().zip([(Q8, Q8), (PLAIN, Q8), (Q4, PLAIN)].into_iter().cycle()) {
        let (mut c, dims) = (Case::new(17), moe_dims(rows));
        let (router, shared) = (c.matrix(11, 128, formats.0), c.matrix(1, 128, formats.1));
        let (router_format, shared_format) = (router.format, shared.format);
        let x = c.bf16(rows * 128, 2.0);
        let label = format!("{rows} rows, {formats:?}");
        let kernel = Router {
            args: RouterArgs { dims, router_format, shared_format },
            x,
            router_codes: router.codes,
            router_scales: router.scales,
            router_biases: router.biases,
            shared_codes: shared.codes,
            shared_scales: shared.scales,
            shared_biases: shared.biases,
            logits: c.poison(4 * rows * 11),
            shared: c.poison(4 * rows),
        };
        let step = RouterStep {
            args: RouterStepArgs { dims: moe_dims(1), router_format, shared_format },
            h: x.first(2 * 128),
            gain: c.f32(128, 0.5, 1.5),
            router_codes: router.codes,
            router_scales: router.scales,
            router_biases: router.biases,
            shared_codes: shared.codes,
            shared_scales: shared.scales,
            shared_biases: shared.biases,
            logits: c.poison(4 * 11),
            shared: c.poison(4),
        };
        Case { table: c.table.clone(), contents: c.contents.clone(), random: 1 }.check(kernel.dispatch(), &label);
        c.check(step.dispatch(), &label);
    }
}

#[test]
fn route_and_group_rows() {
    for rows in ROWS {
        let (mut c, dims) = (Case::new(18), moe_dims(rows));
        let kernel = Route {
            args: RouteArgs { dims },
            logits: c.f32(rows * 11, -4.0, 4.0),
            experts: c.poison(4 * rows * 3),
            scores: c.poison(4 * rows * 3),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
        let mut c = Case::new(19);
        let ids: Vec<u32> = (0..rows * 3).map(|_| c.next() % 11).collect();
        let kernel = GroupRows {
            args: GroupRowsArgs { dims },
            experts: c.u32(&ids),
            offsets: c.poison(4 * 12),
            order: c.poison(4 * rows * 3),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
    }
}

#[test]
fn route_breaks_ties_towards_the_lowest_expert() {
    let mut c = Case::new(20);
    let logits = [0.0_f32, 2.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let kernel = Route {
        args: RouteArgs { dims: moe_dims(1) },
        logits: c.bytes(bytemuck::cast_slice(&logits).to_vec()),
        experts: c.poison(12),
        scores: c.poison(12),
    };
    let out = c.run(&kernel.dispatch(), CpuMode::Fast(Isa::detect()), 2);
    assert_eq!(
        out[0].chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>(),
        [1, 3, 2]
    );
}

/// Assignments of `rows` tokens sorted by expert: even, or all on one expert and its neighbour.
fn grouping(c: &mut Case, rows: u32, skewed: bool) -> (Slot, Slot) {
    let experts: Vec<u32> =
        (0..rows * 3).map(|i| if skewed { 4 + u32::from(i % 7 == 0) } else { i * 5 % 11 }).collect();
    let mut order: Vec<u32> = (0..rows * 3).collect();
    order.sort_by_key(|&a| experts[a as usize]);
    let offsets: Vec<u32> = (0..12).map(|e| experts.iter().filter(|&&x| x < e).count() as u32).collect();
    (c.u32(&offsets), c.u32(&order))
}

#[test]
fn expert_gate_up_and_down() {
    for (i, rows) in ROWS.into_iter().enumerate() {
        let formats = [(Q4, Q4), (Q8, Q4), (PLAIN, PLAIN)][i % 3];
        let (mut c, dims) = (Case::new(21), moe_dims(rows));
        let (offsets, order) = grouping(&mut c, rows, i % 2 == 1);
        // Gate and up lie in one stack with twice the stride, as fused tensors do.
        let fused = c.matrix(11 * 192, 128, formats.0);
        let other = c.matrix(11 * 192, 128, formats.1);
        let kernel = ExpertGateUp {
            args: ExpertGateUpArgs { dims, gate_format: fused.format, up_format: other.format, stride_rows: 192 },
            x: c.bf16(rows * 128, 1.0),
            offsets,
            order,
            gate_codes: fused.codes,
            gate_scales: fused.scales,
            gate_biases: fused.biases,
            up_codes: other.codes,
            up_scales: other.scales,
            up_biases: other.biases,
            y: c.poison(2 * rows * 3 * 96),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, {formats:?}"));
        let mut c = Case::new(22);
        let (offsets, order) = grouping(&mut c, rows, i % 2 == 0);
        let down = c.matrix(11 * 128, 96, [Q8, PLAIN][i % 2]);
        let kernel = ExpertDown {
            args: ExpertDownArgs { dims, format: down.format, stride_rows: 128 },
            act: c.bf16(rows * 3 * 96, 1.0),
            offsets,
            order,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            y: c.poison(2 * rows * 3 * 128),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
    }
}

#[test]
fn combine() {
    for rows in ROWS {
        let (mut c, dims) = (Case::new(23), moe_dims(rows));
        let kernel = Combine {
            args: CombineArgs { dims },
            y: c.bf16(rows * 3 * 128, 1.0),
            scores: c.f32(rows * 3, 0.0, 1.0),
            shared_y: c.bf16(rows * 128, 1.0),
            shared: c.f32(rows, 0.0, 1.0),
            h: c.bf16(rows * 128, 2.0),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"));
    }
}

#[test]
fn experts_steps() {
    for formats in [[Q4, Q4, Q4], [Q8, Q4, PLAIN], [PLAIN, Q8, Q8]] {
        let (mut c, dims) = (Case::new(24), moe_dims(1));
        let (gate, up) = (c.matrix(11 * 96, 128, formats[0]), c.matrix(11 * 96, 128, formats[1]));
        let (shared_gate, shared_up) = (c.matrix(64, 128, formats[1]), c.matrix(64, 128, formats[2]));
        let kernel = ExpertsGateUpStep {
            args: ExpertsGateUpStepArgs {
                dims,
                gate_format: gate.format,
                up_format: up.format,
                shared_gate_format: shared_gate.format,
                shared_up_format: shared_up.format,
                stride_rows: 96,
            },
            h: c.bf16(128, 3.0),
            gain: c.f32(128, 0.5, 1.5),
            logits: c.f32(11, -3.0, 3.0),
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
            experts: c.poison(12),
            scores: c.poison(12),
            act: c.poison(2 * 3 * 96),
            shared_act: c.poison(2 * 64),
        };
        c.check(kernel.dispatch(), &format!("{formats:?}"));
        let mut c = Case::new(25);
        let down_format = if formats[0] == Q4 { Q8 } else { formats[0] };
        let (down, shared_down) = (c.matrix(11 * 128, 96, down_format), c.matrix(128, 64, formats[1]));
        let kernel = ExpertsDownStep {
            args: ExpertsDownStepArgs {
                dims,
                format: down.format,
                shared_format: shared_down.format,
                stride_rows: 128,
            },
            act: c.bf16(3 * 96, 1.0),
            shared_act: c.bf16(64, 1.0),
            experts: c.u32(&[7, 0, 10]),
            scores: c.f32(3, 0.0, 1.0),
            shared: c.f32(1, 0.0, 1.0),
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            shared_codes: shared_down.codes,
            shared_scales: shared_down.scales,
            shared_biases: shared_down.biases,
            h: c.bf16(128, 2.0),
        };
        c.check(kernel.dispatch(), &format!("{formats:?}"));
    }
}
