//! What stands in plans where a mechanism is off.

use super::*;

pub fn dequantize(device: &dyn Runs) {
    let formats = [Q4, Q8, PLAIN].into_iter().chain(RARE);
    for (i, format) in formats.enumerate() {
        // Columns that fill a SIMD-group and that do not; experts that lie apart.
        let (experts, rows, cols, gap) = [(1, 7, 640, 0), (3, 4, 128, 5), (2, 1, 384, 1)][i % 3];
        let mut c = Case::new(31);
        let stride_rows = rows + gap;
        let m = c.matrix(experts * stride_rows, cols, format);
        let kernel = Dequantize {
            args: DequantizeArgs { experts, rows, cols, stride_rows, format: m.format },
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            y: c.poison(2 * experts * rows * cols),
        };
        c.check(kernel.dispatch(), &format!("{experts} of {rows} rows of {cols}, {gap} apart, {format:?}"), device);
    }
}

pub fn delta_update(device: &dyn Runs) {
    delta::steps().into_iter().for_each(|(c, _, update, label)| c.check(update.dispatch(), &label, device));
}

pub fn attend_prepared(device: &dyn Runs) {
    attention::at_borders(device, &|dims, position, reading, label| {
        let mut c = Case::new(32);
        // What lies behind the token's own key is never looked at.
        let mut cache = || {
            let row = dims.kv_width() as u32;
            let visible = (0..(position + 1) * row).map(|_| bf16::from_f32(c.uniform()));
            let values: Vec<bf16> = visible.chain((0..3 * row).map(|_| bf16::NAN)).collect();
            c.bytes(bytemuck::cast_slice(&values).to_vec())
        };
        let (keys, values) = (cache(), cache());
        let kernel = AttendPrepared {
            args: AttendPreparedArgs { dims, reading },
            step: c.u32(&[position, 0]),
            q: c.bf16(dims.q_width() as u32, 3.0),
            keys,
            values,
            partials: c.poison(dims.partial_bytes(reading.blocks) as u32),
        };
        c.check(kernel.dispatch(), &label, device);
    });
    attend_by_fine_weights(device);
}

/// Two keys, of which the second has a weight in the middle between two bf16.
fn attend_by_fine_weights(device: &dyn Runs) {
    let dims = AttentionDims { rows: 1, heads: 1, kv_heads: 1, head_dim: 64, rotary_dim: 16, eps: 1e-6 };
    let mut c = Case::new(34);
    let slot = |c: &mut Case, values: &[f32], rest: f32, rows: usize| {
        let all = std::iter::repeat_n(0.0, 64 * rows).chain(values.iter().copied());
        let all = all.chain(std::iter::repeat_n(rest, 64 - values.len()));
        c.bytes(all.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect())
    };
    let kernel = AttendPrepared {
        args: AttendPreparedArgs {
            dims,
            reading: CacheReading { packed: device.packed_queries(), ..CacheReading::new(1, 0) },
        },
        step: c.u32(&[1, 0]),
        // The weight is exp(-(5.5 + 0.0144) / 8) = 0.50193.
        q: slot(&mut c, &[1.0, 0.0144], 0.0, 0),
        keys: slot(&mut c, &[-5.5, -1.0], 0.0, 1),
        values: slot(&mut c, &[], 8.0, 1),
        partials: c.poison(dims.partial_bytes(1) as u32),
    };
    c.check(kernel.dispatch(), "a weight between two bf16", device);
}

pub fn experts_products_and_gate(device: &dyn Runs) {
    for (c, fused, products, label) in moe::gate_up_steps() {
        let mut gate = c.copy();
        c.check(products.dispatch(), &label, device);
        let dims = products.args.dims;
        let outputs = dims.top_k * dims.expert_width + dims.shared_width;
        let kernel = GateProducts {
            args: GateProductsArgs { dims },
            products: gate.f32(2 * outputs, -8.0, 8.0),
            act: fused.act,
            shared_act: fused.shared_act,
        };
        gate.check(kernel.dispatch(), &label, device);
    }
}

pub fn experts_each_step(device: &dyn Runs) {
    moe::down_steps().into_iter().for_each(|(c, _, each, label)| c.check(each.dispatch(), &label, device));
}
