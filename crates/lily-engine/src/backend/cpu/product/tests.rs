//! Every format on every instruction set of this machine against the reference, and bit-equality of all ways to split.

use super::*;

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Roughly normal, variance 1.
    fn normal(&mut self) -> f32 {
        let sum: u64 = (0..12).map(|_| self.next() >> 40).sum();
        (sum as f64 / f64::from(1 << 24) - 6.0) as f32
    }

    fn activations(&mut self, count: usize) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(self.normal())).collect()
    }
}

/// A matrix with its bytes, each array at an odd address.
struct Owned {
    format: Format,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

fn float_bytes(float: Float, value: f32) -> Vec<u8> {
    match float {
        Float::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        Float::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Float::F32 => value.to_le_bytes().to_vec(),
    }
}

impl Owned {
    /// Random codes; scales around `scale`, of both signs, and biases around `bias`.
    fn random(random: &mut Random, format: Format, rows: usize, cols: usize, scale: f32, bias: f32) -> Self {
        let mut floats = |float, count: usize, size: f32| -> Vec<u8> {
            let bytes = (0..count).flat_map(|_| float_bytes(float, random.normal() * size));
            std::iter::once(0xAA).chain(bytes).collect()
        };
        let (codes, scales, biases) = match format {
            Format::Dense(float) => (floats(float, rows * cols, scale), vec![0xAA], vec![0xAA]),
            Format::Affine { group, scale: float, .. } => {
                let count = rows * cols / usize::from(group);
                let (scales, biases) = (floats(float, count, scale), floats(float, count, bias));
                let bytes = 1 + rows * format.row_bytes(cols);
                ((0..bytes).map(|_| random.next() as u8).collect(), scales, biases)
            }
        };
        Self { format, rows, cols, codes, scales, biases }
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView {
            format: self.format,
            rows: self.rows,
            cols: self.cols,
            codes: &self.codes[1..],
            scales: &self.scales[1..],
            biases: &self.biases[1..],
        }
    }
}

fn affine(bits: u8, group: u8, scale: Float) -> Format {
    Format::Affine { bits, group, scale }
}

fn all_formats() -> Vec<Format> {
    let floats = [Float::Bf16, Float::F16, Float::F32];
    let mut formats: Vec<Format> = floats.map(Format::Dense).to_vec();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            formats.extend(floats.map(|scale| affine(bits, group, scale)));
        }
    }
    formats
}

fn multiply(isa: Isa, view: &MatrixView<'_>, x: &[bf16]) -> Vec<f32> {
    let mut scratch = OperandScratch::default();
    let operand = Operand::prepare(Layout::of(isa, view.format), x, view.cols, &mut scratch);
    let mut out = vec![f32::NAN; operand.rows() * view.rows];
    product(view, &operand, XRows::Range(0..operand.rows()), 0..view.rows, &mut out);
    out
}

/// Compares with the reference. A lane's sum is a chain of at most 8 products, a block's scaled sum and the biases for
/// each block, and a few additions across lanes; each step rounds by at most 2^-24 of what the magnitudes add up to.
/// Subnormal partial sums may be dropped.
fn check(isa: Isa, view: &MatrixView<'_>, x: &[bf16]) {
    let got = multiply(isa, view, x);
    let mut want = vec![0.0; got.len()];
    reference_product(view, x, &mut want);
    let steps = (view.cols / 32 + view.cols / 128 + 24) as f64;
    for (i, x) in x.chunks_exact(view.cols).enumerate() {
        for row in 0..view.rows {
            let magnitudes: f64 = (0..view.cols).map(|col| x[col].to_f64().abs() * magnitude(view, row, col)).sum();
            let largest_scale = magnitude(view, row, 0).max(1.0);
            let tolerance = magnitudes * steps * 2f64.powi(-24) + largest_scale * view.cols as f64 * 2f64.powi(-126);
            let (got, want) = (f64::from(got[i * view.rows + row]), want[i * view.rows + row]);
            let error = (got - want).abs();
            let (format, cols, isa) = (view.format, view.cols, isa.name());
            assert!(error <= tolerance, "({i}, {row}) of {format:?}, {cols} inputs, {isa}: {got}, want {want}");
        }
    }
}

/// What bounds the magnitude of a weight's parts: `|scale| * largest code + |bias|`.
fn magnitude(view: &MatrixView<'_>, row: usize, col: usize) -> f64 {
    let Format::Affine { bits, group, scale: float } = view.format else { return weight(view, row, col).abs() };
    let index = row * (view.cols / usize::from(group)) + col / usize::from(group);
    let [scale, bias] = [view.scales, view.biases].map(|bytes| reference::element(float, bytes, index).abs());
    scale * f64::from((1_u32 << bits) - 1) + bias
}

#[test]
fn every_format_matches_the_reference_at_awkward_sizes() {
    let mut random = Random(1);
    for isa in Isa::supported() {
        for format in all_formats() {
            for cols in [32, 64, 96, 128, 160, 192, 320, 2048] {
                if matches!(format, Format::Affine { group, .. } if cols % usize::from(group) != 0) {
                    continue;
                }
                let rows = 1 + random.below(9);
                let x_rows = [1, 2, 3, 4, 5, 6, 7, 11, 17][random.below(9)];
                let owned = Owned::random(&mut random, format, rows, cols, 0.02, 0.1);
                check(isa, &owned.view(), &random.activations(x_rows * cols));
            }
        }
    }
}

#[test]
fn tall_operands_match_the_reference() {
    let mut random = Random(2);
    for isa in Isa::supported() {
        for x_rows in [33, 65] {
            for format in [affine(4, 64, Float::Bf16), affine(8, 64, Float::Bf16), Format::Dense(Float::Bf16)] {
                let owned = Owned::random(&mut random, format, 5, 256, 0.02, 0.1);
                check(isa, &owned.view(), &random.activations(x_rows * 256));
            }
        }
    }
}

#[test]
fn extreme_scales_and_biases_match_the_reference() {
    let mut random = Random(3);
    for isa in Isa::supported() {
        for float in [Float::Bf16, Float::F32] {
            for (scale, bias) in [(1e30, -1e32), (1e-30, -1e-29), (1e-39, 1e-38), (0.0, 5.0), (1.0, 0.0)] {
                for bits in [3, 4, 8] {
                    let owned = Owned::random(&mut random, affine(bits, 32, float), 5, 160, scale, bias);
                    check(isa, &owned.view(), &random.activations(3 * 160));
                }
            }
        }
    }
}

#[test]
fn zeros_and_single_elements_are_exact() {
    let mut random = Random(4);
    for isa in Isa::supported() {
        for format in all_formats() {
            let cols = 256;
            let owned = Owned::random(&mut random, format, 3, cols, 1.0, 1.0);
            let view = owned.view();
            assert!(multiply(isa, &view, &vec![bf16::ZERO; cols]).iter().all(|&y| y == 0.0));
            // One activation of 1: two roundings at most, of scale * code and of the sum with the bias.
            for col in (0..cols).step_by(3) {
                let mut x = vec![bf16::ZERO; cols];
                x[col] = bf16::ONE;
                for (row, &got) in multiply(isa, &view, &x).iter().enumerate() {
                    let tolerance = 2f64.powi(-23) * magnitude(&view, row, col);
                    let want = weight(&view, row, col);
                    let isa = isa.name();
                    assert!(
                        (f64::from(got) - want).abs() <= tolerance,
                        "({row}, {col}) {format:?} {isa}: {got} {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_how_work_is_split() {
    let mut random = Random(5);
    for isa in Isa::supported() {
        for format in all_formats() {
            for cols in [128, 384, 640] {
                let (rows, x_rows) = (11, 19);
                let owned = Owned::random(&mut random, format, rows, cols, 0.02, 0.1);
                let (view, x) = (owned.view(), random.activations(x_rows * cols));
                let whole = multiply(isa, &view, &x);
                let mut scratch = OperandScratch::default();
                let operand = Operand::prepare(Layout::of(isa, format), &x, cols, &mut scratch);
                for _ in 0..12 {
                    let (w0, x0) = (random.below(rows), random.below(x_rows));
                    let w1 = w0 + 1 + random.below(rows - w0);
                    let x1 = x0 + 1 + random.below(x_rows - x0);
                    let list: Vec<u32> = (0..random.below(9)).map(|_| random.below(x_rows) as u32).collect();
                    let ways = [(XRows::Range(x0..x1), (x0..x1).collect()), {
                        let indices: Vec<usize> = list.iter().map(|&i| i as usize).collect();
                        (XRows::List(&list), indices)
                    }];
                    for (selection, indices) in ways {
                        let mut out = vec![f32::NAN; indices.len() * (w1 - w0)];
                        product(&view, &operand, selection, w0..w1, &mut out);
                        for (i, &x) in indices.iter().enumerate() {
                            for w in w0..w1 {
                                let (got, want) = (out[i * (w1 - w0) + w - w0], whole[x * rows + w]);
                                assert_eq!(got.to_bits(), want.to_bits(), "{format:?} {cols} {}", isa.name());
                            }
                        }
                    }
                }
                // Rows alone, prepared alone in used scratch: a decode step next to a prefill.
                for (x, whole) in x.chunks_exact(cols).zip(whole.chunks_exact(rows)) {
                    assert_eq!(multiply(isa, &view, x).as_slice(), whole, "{format:?} {}", isa.name());
                    let alone = Operand::prepare(Layout::of(isa, format), x, cols, &mut scratch);
                    let mut out = vec![f32::NAN; rows];
                    product(&view, &alone, XRows::Range(0..1), 0..rows, &mut out);
                    assert_eq!(out.as_slice(), whole, "{format:?} {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn preparing_on_a_pool_changes_nothing() {
    let (mut random, pool) = (Random(6), Pool::new(2));
    for isa in Isa::supported() {
        for format in [affine(4, 64, Float::Bf16), Format::Dense(Float::Bf16)] {
            let cols = 192;
            let x = random.activations(37 * cols);
            let (mut alone, mut together) = (OperandScratch::default(), OperandScratch::default());
            let layout = Layout::of(isa, format);
            let a = Operand::prepare(layout, &x, cols, &mut alone);
            let b = Operand::prepare_on(&pool, layout, &x, cols, &mut together);
            assert_eq!((a.rows(), a.cols(), a.layout()), (b.rows(), b.cols(), b.layout()));
            assert!(a.lines.iter().zip(b.lines).all(|(a, b)| a.0 == b.0), "{format:?} {}", isa.name());
        }
    }
}

#[test]
fn one_operand_serves_all_widths_of_a_group() {
    for isa in Isa::supported() {
        let layouts = [2, 3, 4, 5, 6, 8].map(|bits| Layout::of(isa, affine(bits, 64, Float::Bf16)));
        assert!(layouts.iter().all(|&layout| layout == layouts[0]));
        assert_ne!(layouts[0], Layout::of(isa, affine(4, 32, Float::Bf16)));
        assert_ne!(layouts[0], Layout::of(isa, Format::Dense(Float::Bf16)));
    }
}

#[test]
fn tasks_are_long_for_decode_and_many_for_prefill() {
    let format = affine(4, 64, Float::Bf16);
    // (rows, cols, activation rows) -> weight rows a task, on two threads.
    let table = [
        ((8192, 2048, 1), 456),
        ((512, 2048, 1), 256),
        ((2048, 512, 4), 1024),
        ((8192, 2048, 64), 60),
        ((512, 2048, 16), 52),
        ((64, 2048, 16), 8),
        ((1, 2048, 1), 4),
    ];
    for ((rows, cols, x_rows), want) in table {
        assert_eq!(rows_per_task(format, rows, cols, x_rows, 2), want, "{rows} x {cols} by {x_rows}");
    }
}

#[test]
#[should_panic(expected = "operand prepared for another format")]
fn an_operand_of_another_layout_is_refused() {
    let mut random = Random(7);
    let owned = Owned::random(&mut random, affine(4, 64, Float::Bf16), 1, 64, 1.0, 1.0);
    let mut scratch = OperandScratch::default();
    let layout = Layout::of(Isa::detect(), affine(4, 32, Float::Bf16));
    let operand = Operand::prepare(layout, &[bf16::ONE; 64], 64, &mut scratch);
    product(&owned.view(), &operand, XRows::Range(0..1), 0..1, &mut [0.0]);
}

#[test]
#[should_panic(expected = "bytes of codes")]
fn a_view_with_missing_bytes_is_refused() {
    let mut random = Random(8);
    let format = affine(4, 64, Float::Bf16);
    let owned = Owned::random(&mut random, format, 2, 64, 1.0, 1.0);
    let mut view = owned.view();
    view.codes = &view.codes[1..];
    let mut scratch = OperandScratch::default();
    let operand = Operand::prepare(Layout::of(Isa::detect(), format), &[bf16::ONE; 64], 64, &mut scratch);
    product(&view, &operand, XRows::Range(0..1), 0..2, &mut [0.0; 2]);
}

#[test]
fn codes_are_read_in_the_order_in_which_mlx_packs_them() {
    // `mlx.core.quantize` of sin(1.7 i) for i in 0..32, group 32: the packed bytes, and its codes of the first elements.
    type Golden = (u8, &'static [u8], [u32; 8]);
    let goldens: [Golden; 4] = [
        (2, &[242, 241, 180, 120, 60, 61, 46, 95], [2, 0, 3, 3, 1, 0, 3, 3]),
        (3, &[68, 175, 220, 209, 11, 126, 240, 163, 23, 252, 224, 39], [4, 0, 5, 7, 2, 1, 7, 6]),
        (4, &[8, 250, 36, 222, 81, 159, 144, 95, 209, 46, 244, 10, 248, 6, 252, 51], [8, 0, 10, 15, 4, 2, 14, 13]),
        (
            6,
            &[
                32, 128, 250, 144, 97, 211, 197, 244, 151, 192, 248, 87, 196, 124, 31, 79, 159, 2, 223, 159, 9, 175,
                190, 44,
            ],
            [32, 0, 40, 62, 16, 6, 54, 52],
        ),
    ];
    for (bits, codes, want) in goldens {
        let (one, zero) = (1.0_f32.to_le_bytes(), 0.0_f32.to_le_bytes());
        let format = affine(bits, 32, Float::F32);
        let view = MatrixView { format, rows: 1, cols: 32, codes, scales: &one, biases: &zero };
        for (col, want) in want.into_iter().enumerate() {
            assert_eq!(weight(&view, 0, col), f64::from(want), "{bits} bits, element {col}");
        }
    }
}
