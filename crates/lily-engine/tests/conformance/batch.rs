//! Decode kernels with several rows: the reference's results, and the bits that each row has alone.

use super::*;

const BATCHES: [u32; 4] = [2, 3, 5, 8];
const FORMATS: [Format; 4] = [Q4, Q8, PLAIN, RARE[3]];

/// Checks the dispatch of `rows` rows that `make(first, rows)` builds, and that its rows have the bits they have alone.
fn check(c: Case, rows: u32, make: &dyn Fn(u32, u32) -> Dispatch, label: &str, device: &dyn Runs) {
    for (way, run) in device.ways() {
        let together = run(&c, &make(0, rows));
        let mut alone = vec![Vec::new(); together.len()];
        for row in 0..rows {
            run(&c, &make(row, 1)).into_iter().zip(&mut alone).for_each(|(bytes, all)| all.extend(bytes));
        }
        assert!(together == alone, "{label} {way}: a row has other bits than alone");
    }
    let dispatch = make(0, rows);
    c.check(dispatch, label, device);
}

/// Rows `first..first + rows` of a buffer of rows of so many bytes.
fn part(slot: Slot, row_bytes: u32, first: u32, rows: u32) -> Slot {
    slot.part((first * row_bytes) as usize, (rows * row_bytes) as usize)
}

/// Every batch with some format, every format with some batch; widths inside one staged stretch and over several, and of so
/// many groups that a GPU may copy the codes of a row that is alone.
fn shapes() -> impl Iterator<Item = (u32, Format, u32)> {
    let widths = [128, 1152, 2176, 384];
    let each = (0..6).map(move |i| (BATCHES[i % 4], FORMATS[(i + i / 4) % 4], widths[(i + 1) % 4]));
    each.chain([(2, Q4, 2048), (3, Q8, 1024)])
}

pub fn project_rows(device: &dyn Runs) {
    for (rows, format, width) in shapes() {
        let mut c = Case::new(40);
        // Rows start at multiples of 4 bytes, as those of models do that decode in batches.
        let outputs = [70, 64, 2, 6];
        let m: [MatrixSlots; 4] =
            std::array::from_fn(|j| c.matrix(outputs[j], width, if j == 1 && width < 2048 { Q8 } else { format }));
        let (h, gain) = (c.bf16(rows * width, 3.0), c.f32(width, 0.5, 1.5));
        let y = outputs.map(|n| c.poison(2 * n * rows));
        let make = |first, rows| {
            let y: [Slot; 4] = std::array::from_fn(|i| part(y[i], 2 * outputs[i], first, rows));
            let kernel = Project {
                args: ProjectArgs { rows, width, outputs, formats: m.map(|m| m.format), eps: 1e-6 },
                h: part(h, 2 * width, first, rows),
                gain,
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
            kernel.dispatch()
        };
        check(c, rows, &make, &format!("{rows} rows of {width}, {format:?}"), device);
    }
}

pub fn matvec_add_rows(device: &dyn Runs) {
    for (rows, format, cols) in shapes() {
        let mut c = Case::new(41);
        let m = c.matrix(34, cols, format);
        let (x, h) = (c.bf16(rows * cols, 1.0), c.bf16(rows * 34, 2.0));
        let make = |first, rows| {
            let kernel = MatVecAdd {
                args: MatVecAddArgs { rows, cols, outputs: 34, format: m.format },
                x: part(x, 2 * cols, first, rows),
                codes: m.codes,
                scales: m.scales,
                biases: m.biases,
                h: part(h, 2 * 34, first, rows),
            };
            kernel.dispatch()
        };
        check(c, rows, &make, &format!("{rows} rows of {cols}, {format:?}"), device);
    }
}

pub fn merge_matvec_add_rows(device: &dyn Runs) {
    // Fewer blocks than are merged at a time, and more.
    for (rows, format, head_dim, blocks) in [(2, Q4, 64, 3), (5, Q8, 128, 6), (8, Q4, 256, 9)] {
        let heads = 4;
        let dims = |rows| AttentionDims { rows, heads, kv_heads: 1, head_dim, rotary_dim: 16, eps: 1e-6 };
        let mut c = Case::new(42);
        let (cols, partial_bytes) = (heads * head_dim, dims(1).partial_bytes(blocks) as u32);
        let m = c.matrix(34, cols, format);
        let (q_raw, h) = (c.bf16(rows * 2 * cols, 2.0), c.bf16(rows * 34, 2.0));
        let partials = c.f32(rows * partial_bytes / 4, 0.5, 3.0);
        let make = |first, rows| {
            let kernel = MergeMatVecAdd {
                args: MergeMatVecAddArgs { dims: dims(rows), blocks, outputs: 34, format: m.format },
                q_raw: part(q_raw, 4 * cols, first, rows),
                partials: part(partials, partial_bytes, first, rows),
                codes: m.codes,
                scales: m.scales,
                biases: m.biases,
                h: part(h, 2 * 34, first, rows),
            };
            kernel.dispatch()
        };
        check(c, rows, &make, &format!("{rows} rows, heads of {head_dim}, {format:?}"), device);
    }
}

pub fn head_rows(device: &dyn Runs) {
    for (rows, format, width) in shapes() {
        let (mut c, vocab) = (Case::new(43), 290);
        let m = c.matrix(vocab, width, format);
        let (h, gain) = (c.bf16(rows * width, 4.0), c.f32(width, 0.5, 1.5));
        let logits = c.poison(4 * rows * vocab);
        let make = |row, rows| {
            let kernel = Head {
                args: HeadArgs { row, rows, width, vocab, eps: 1e-6, format: m.format },
                h,
                gain,
                codes: m.codes,
                scales: m.scales,
                biases: m.biases,
                logits: part(logits, 4 * vocab, row, rows),
            };
            kernel.dispatch()
        };
        check(c, rows, &make, &format!("{rows} rows of {width}, {format:?}"), device);
    }
}

fn moe_dims(rows: u32, width: u32) -> MoeDims {
    MoeDims { rows, width, experts: 11, top_k: 3, expert_width: 96, shared_width: 64, eps: 1e-6 }
}

pub fn router_step_rows(device: &dyn Runs) {
    for (rows, format, width) in shapes() {
        let (mut c, experts) = (Case::new(44), moe_dims(1, width).experts);
        let (router, shared) = (c.matrix(experts, width, format), c.matrix(1, width, Q8));
        let (h, gain) = (c.bf16(rows * width, 2.0), c.f32(width, 0.5, 1.5));
        let (logits, scales) = (c.poison(4 * rows * experts), c.poison(4 * rows));
        let make = |first, rows| {
            let dims = moe_dims(rows, width);
            let kernel = RouterStep {
                args: RouterStepArgs { dims, router_format: router.format, shared_format: shared.format },
                h: part(h, 2 * width, first, rows),
                gain,
                router_codes: router.codes,
                router_scales: router.scales,
                router_biases: router.biases,
                shared_codes: shared.codes,
                shared_scales: shared.scales,
                shared_biases: shared.biases,
                logits: part(logits, 4 * experts, first, rows),
                shared: part(scales, 4, first, rows),
            };
            kernel.dispatch()
        };
        check(c, rows, &make, &format!("{rows} rows of {width}, {format:?}"), device);
    }
}

pub fn experts_rows(device: &dyn Runs) {
    let (rows, width) = (3, 128);
    let d = moe_dims(rows, width);
    let (experts, k) = (d.experts, d.top_k);
    let mut c = Case::new(45);
    let gate = c.matrix(experts * d.expert_width, width, Q4);
    let up = c.matrix(experts * d.expert_width, width, Q4);
    let (shared_gate, shared_up) = (c.matrix(d.shared_width, width, Q4), c.matrix(d.shared_width, width, Q8));
    let (h, gain) = (c.bf16(rows * width, 3.0), c.f32(width, 0.5, 1.5));
    let logits = c.f32(rows * experts, -4.0, 4.0);
    let (chosen, scores) = (c.poison(4 * rows * k), c.poison(4 * rows * k));
    let (act, shared_act) = (c.poison(2 * rows * k * d.expert_width), c.poison(2 * rows * d.shared_width));
    let make = |first, rows| {
        let kernel = ExpertsGateUpStep {
            args: ExpertsGateUpStepArgs {
                dims: moe_dims(rows, width),
                gate_format: gate.format,
                up_format: up.format,
                shared_gate_format: shared_gate.format,
                shared_up_format: shared_up.format,
                stride_rows: d.expert_width,
            },
            h: part(h, 2 * width, first, rows),
            gain,
            logits: part(logits, 4 * experts, first, rows),
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
            experts: part(chosen, 4 * k, first, rows),
            scores: part(scores, 4 * k, first, rows),
            act: part(act, 2 * k * d.expert_width, first, rows),
            shared_act: part(shared_act, 2 * d.shared_width, first, rows),
        };
        kernel.dispatch()
    };
    check(c, rows, &make, "gate and up", device);

    let mut c = Case::new(46);
    let down = c.matrix(experts * width, 64, Q4);
    let shared_down = c.matrix(width, d.shared_width, Q8);
    let (act, shared_act) = (c.bf16(rows * k * 64, 1.0), c.bf16(rows * d.shared_width, 1.0));
    let chosen = c.u32(&(0..rows * k).map(|i| (i * 7 + 3) % experts).collect::<Vec<_>>());
    let (scores, shared) = (c.f32(rows * k, 0.0, 1.0), c.f32(rows, 0.0, 1.0));
    let h = c.bf16(rows * width, 2.0);
    let make = |first, rows| {
        let kernel = ExpertsDownStep {
            args: ExpertsDownStepArgs {
                dims: MoeDims { expert_width: 64, ..moe_dims(rows, width) },
                format: down.format,
                shared_format: shared_down.format,
                stride_rows: width,
            },
            act: part(act, 2 * k * 64, first, rows),
            shared_act: part(shared_act, 2 * d.shared_width, first, rows),
            experts: part(chosen, 4 * k, first, rows),
            scores: part(scores, 4 * k, first, rows),
            shared: part(shared, 4, first, rows),
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            shared_codes: shared_down.codes,
            shared_scales: shared_down.scales,
            shared_biases: shared_down.biases,
            h: part(h, 2 * width, first, rows),
        };
        kernel.dispatch()
    };
    check(c, rows, &make, "down", device);
}
