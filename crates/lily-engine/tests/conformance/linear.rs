//! Norms and products.

use super::*;

pub fn rms_norm(device: &dyn Runs) {
    for (rows, scale) in MANY_ROWS.into_iter().zip([1.0, 1e-4, 3e4, 0.0].into_iter().cycle()) {
        let width = if rows == 3 { 2080 } else { 160 };
        let mut c = Case::new(5);
        let kernel = RmsNorm {
            args: RmsNormArgs { rows, width, eps: 1e-6 },
            x: c.bf16(rows * width, scale),
            gain: c.f32(width, 0.5, 1.5),
            y: c.poison(2 * rows * width),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, scale {scale}"), device);
    }
}

/// A product, and one added to what is there.
fn products(device: &dyn Runs, rows: u32, cols: u32, outputs: u32, format: Format, scale: f32) {
    let tile_rows = device.tile_heights()[rows as usize / 16 % 3];
    tile_products(device, [rows, cols, outputs], tile_rows, format, scale);
}

/// The same with tiles of this height.
fn tile_products(device: &dyn Runs, dims: [u32; 3], tile_rows: u32, format: Format, scale: f32) {
    let [rows, cols, outputs] = dims;
    let mut c = Case::new(6);
    let m = c.matrix(outputs, cols, format);
    let x = c.bf16(rows * cols, scale);
    let (codes, scales, biases) = (m.codes, m.scales, m.biases);
    let args = MatMulArgs { rows, cols, outputs, format: m.format, tile_rows };
    let plain = MatMul { args, x, codes, scales, biases, y: c.poison(2 * rows * outputs) };
    let h = c.bf16(rows * outputs, 2.0);
    let add = MatMulAdd { args: bytemuck::cast(args), x, codes, scales, biases, h };
    let label = format!("{rows} rows in tiles of {tile_rows}, {cols} to {outputs}, {format:?}");
    c.copy().check(plain.dispatch(), &label, device);
    c.check(add.dispatch(), &label, device);
}

pub fn matmul_and_matmul_add(device: &dyn Runs) {
    for (rows, format) in ROWS.into_iter().zip([Q4, Q8, PLAIN].into_iter().cycle()) {
        products(device, rows, 192, 77, format, 1.0);
    }
}

pub fn matmul_of_every_height(device: &dyn Runs) {
    for height in device.tile_heights() {
        for (rows, outputs) in [(height / 4, 130), (height * 3 / 4, 64), (height, 31), (height + 1, 129)] {
            tile_products(device, [rows, 128, outputs], height, Q4, 1.0);
        }
        // One row more than a GPU multiplies by at a time.
        for quarters in 1..4 {
            tile_products(device, [height * quarters / 4 + 1, 128, 33], height, Q4, 1.0);
        }
    }
}

pub fn matmul_of_every_format_and_width(device: &dyn Runs) {
    for (rows, format) in [1, 20, 40, 65].into_iter().cycle().zip(RARE) {
        products(device, rows, 256, 77, format, 1.0);
    }
    // Outputs around a tile, the least width, and inputs as large and as small as activations get.
    for (i, outputs) in [1, 31, 33, 63, 64, 65, 129].into_iter().enumerate() {
        products(device, [129, 3, 18][i % 3], 64, outputs, Q4, [1.0, 1e4, 1e-4][i % 3]);
    }
    // More steps than are under way at a time, and a last one that is not whole.
    for (rows, cols, outputs, format) in
        [(70, 448, 130, Q4), (129, 1088, 130, Q4), (40, 416, 77, PLAIN), (40, 416, 77, Q8)]
    {
        products(device, rows, cols, outputs, format, 1.0);
    }
    products(device, 34, 32, 40, Q8, 1.0);
    products(device, 34, 32, 40, PLAIN, 1.0);
}

pub fn gate_up(device: &dyn Runs) {
    for (rows, formats) in ROWS.into_iter().zip([(Q4, Q4), (Q8, Q4), (PLAIN, Q8)].into_iter().cycle()) {
        let mut c = Case::new(7);
        let (gate, up) = (c.matrix(70, 128, formats.0), c.matrix(70, 128, formats.1));
        let kernel = GateUp {
            args: GateUpArgs {
                rows,
                cols: 128,
                outputs: 70,
                gate_format: gate.format,
                up_format: up.format,
                tile_rows: device.tile_heights()[rows as usize / 16 % 3],
            },
            x: c.bf16(rows * 128, 1.0),
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            y: c.poison(2 * rows * 70),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, {formats:?}"), device);
    }
}

pub fn project(device: &dyn Runs) {
    let narrow = [([Q4; 4], 128), ([Q4, Q8, PLAIN, Q4], 128), ([PLAIN, PLAIN, Q8, Q8], 128)];
    // Rows of so many groups that a GPU may copy their codes.
    let wide = [([Q4; 4], 512), ([Q8; 4], 1024), ([Q4; 4], 2048), ([Q4; 4], 2560)];
    for (i, (formats, width)) in narrow.into_iter().chain(wide).enumerate() {
        let mut c = Case::new(8 + i as u64);
        // The third case leaves the last matrix out.
        let outputs = [100, 64, 3, if i == 2 { 0 } else { 5 }];
        let m: [MatrixSlots; 4] = std::array::from_fn(|j| c.matrix(outputs[j], width, formats[j]));
        let y = outputs.map(|n| c.poison(2 * n));
        let kernel = Project {
            args: ProjectArgs { rows: 1, width, outputs, formats: m.map(|m| m.format), eps: 1e-6 },
            h: c.bf16(width, 3.0),
            gain: c.f32(width, 0.5, 1.5),
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
        c.check(kernel.dispatch(), &format!("{formats:?}, {width} wide"), device);
    }
}

pub fn matvec_add(device: &dyn Runs) {
    // Rows shorter and longer than what a GPU takes at a time; few outputs, many, and a number that fits no tile.
    let usual = [(192, 77, Q4), (192, 77, Q8), (192, 77, PLAIN), (64, 1, Q4), (2080, 17, Q8), (4672, 33, Q4)];
    let rare = RARE.map(|format| (384, 19, format));
    // The least and the largest activations, and none, where a GPU makes whole numbers of them; and those that are just too small for
    // a unit of their own.
    let scaled = [0.0, 1e-38, 4e-35, 1e30].map(|scale| ((512, 40, Q4), scale));
    let all = usual.into_iter().chain(rare).map(|case| (case, 1.0)).chain(scaled);
    for ((cols, outputs, format), scale) in all {
        let mut c = Case::new(28);
        let m = c.matrix(outputs, cols, format);
        let kernel = MatVecAdd {
            args: MatVecAddArgs { rows: 1, cols, outputs, format: m.format },
            x: c.bf16(cols, scale),
            codes: m.codes,
            scales: m.scales,
            biases: m.biases,
            h: c.bf16(outputs, 2.0),
        };
        c.check(kernel.dispatch(), &format!("{outputs} outputs of {cols}, scale {scale}, {format:?}"), device);
    }
}
