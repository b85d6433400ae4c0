//! The two ends of the model.

use super::*;

pub fn embed(device: &dyn Runs) {
    let formats = [Q4, Q8, PLAIN].into_iter().chain(RARE);
    for (rows, format) in ROWS.into_iter().cycle().zip(formats) {
        let mut c = Case::new(1);
        let m = c.matrix(40, 128, format);
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
    // The last two rows are wider than what a GPU stages of them at a time.
    let cases = [(1, 128, Q4), (63, 128, Q4), (200, 128, Q8), (130, 128, PLAIN), (77, 2112, Q4), (290, 2304, RARE[4])];
    for (vocab, width, format) in cases {
        let mut c = Case::new(2);
        let m = c.matrix(vocab, width, format);
        let kernel = Head {
            args: HeadArgs { row: 2, width, vocab, eps: 1e-6, format: m.format },
            h: c.bf16(3 * width, 4.0),
            gain: c.f32(width, 0.5, 1.5),
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
    let mut many = vec![-1.0_f32; 5000];
    (many[4997], many[1030], many[2054]) = (0.5, 0.5, 0.5);
    let zeros = [vec![-0.0], vec![0.0; 40]].concat();
    let cases = [(vec![1.0, 3.0, 3.0, 2.0, 3.0], 1), (many, 1030), (vec![f32::MIN; 70], 0), (zeros, 0)];
    for (values, want) in cases {
        let mut c = Case::new(4);
        let vocab = values.len() as u32;
        let logits = c.bytes(bytemuck::cast_slice(&values).to_vec());
        let kernel = ArgMax { args: ArgMaxArgs { vocab }, logits, token: c.poison(4) };
        for (way, run) in device.ways() {
            assert_eq!(run(&c, &kernel.dispatch()), [u32::to_le_bytes(want)], "{vocab} logits, {way}");
        }
    }
}
