//! The two ends of the model.

use super::*;

pub fn embed(device: &dyn Runs) {
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
        c.check(kernel.dispatch(), &format!("{rows} rows, {format:?}"), device);
    }
}

pub fn head_and_arg_max(device: &dyn Runs) {
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
        c.check(kernel.dispatch(), &format!("vocab {vocab}, {format:?}"), device);
        let mut c = Case::new(3);
        let logits = c.f32(vocab, -1.0, 1.0);
        let kernel = ArgMax { args: ArgMaxArgs { vocab }, logits, token: c.poison(4) };
        c.check(kernel.dispatch(), &format!("vocab {vocab}"), device);
    }
}

pub fn arg_max_takes_the_lowest_of_equals(device: &dyn Runs) {
    let mut c = Case::new(4);
    let values = [1.0_f32, 3.0, 3.0, 2.0, 3.0];
    let logits = c.bytes(bytemuck::cast_slice(&values).to_vec());
    let kernel = ArgMax { args: ArgMaxArgs { vocab: 5 }, logits, token: c.poison(4) };
    for (way, run) in device.ways() {
        assert_eq!(run(&c, &kernel.dispatch()), [1_u32.to_le_bytes()], "{way}");
    }
}
