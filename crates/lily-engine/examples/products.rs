//! Measures the CPU backend's matrix products: decode against the machine's read bandwidth, prefill in GFLOP/s.
//!
//! `cargo run --release -p lily-engine --example products [-- --threads N] [--cpu NAME]`
//!
//! Figures are medians of many short windows, with the best window beside them: on a busy machine only the best ones ran
//! undisturbed. Decode walks through more than a gibibyte of weights, so that nothing stays in a cache, and takes turns
//! with plain reads of the same bytes, which are the ceiling.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use half::bf16;
use lily_engine::backend::cpu::isa::{Isa, Kernel, Simd};
use lily_engine::backend::cpu::pool::{Pool, SharedMut};
use lily_engine::backend::cpu::product::{Layout, MatrixView, Operand, OperandScratch, XRows, product, rows_per_task};
use lily_engine::weights::{Float, Format};

/// Bytes of weights that decode walks through.
const WORKING_SET_BYTES: usize = 5 << 28;
/// Bytes of one decode window.
const WINDOW_BYTES: usize = 40 << 20;
/// Operations of one prefill window.
const WINDOW_FLOPS: usize = 2_000_000_000;
const FORMATS: [(&str, Format); 3] = [
    ("4-bit", Format::Affine { bits: 4, group: 64, scale: Float::Bf16 }),
    ("8-bit", Format::Affine { bits: 8, group: 64, scale: Float::Bf16 }),
    ("bf16 ", Format::Dense(Float::Bf16)),
];

/// Rates of repeated windows, in units of 1e9 a second.
#[derive(Default)]
struct Rates(Vec<f64>);

impl Rates {
    /// Times one window in which `f` does as much as it returns.
    fn time(&mut self, f: impl FnOnce() -> usize) {
        let start = Instant::now();
        let amount = f();
        self.0.push(amount as f64 / start.elapsed().as_secs_f64() / 1e9);
    }

    /// The median and the best.
    fn summary(mut self) -> (f64, f64) {
        self.0.sort_by(f64::total_cmp);
        (self.0[self.0.len() / 2], self.0[self.0.len() - 1])
    }
}

/// Reads all bytes, as floats, in the widest vectors.
struct ReadAll<'a>(&'a [f32]);

impl Kernel for ReadAll<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.zero(); 8];
        for chunk in self.0.chunks_exact(8 * S::LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.max(*sum, s.load(&chunk[i * S::LANES..]));
            }
        }
        sums.into_iter().map(|sum| s.reduce_max(sum)).fold(0.0, f32::max)
    }
}

/// Microseconds of a run in which every thread must take part: each task waits for all others. Median of 9.
fn fork_join_us(pool: &Pool) -> f64 {
    const RUNS: usize = 1000;
    let (met, mut started) = (AtomicUsize::new(0), 0);
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..RUNS {
                started += pool.threads();
                pool.run(pool.threads(), &|_, _| {
                    met.fetch_add(1, Ordering::SeqCst);
                    while met.load(Ordering::SeqCst) < started {
                        std::hint::spin_loop();
                    }
                });
            }
            start.elapsed().as_secs_f64() * 1e6 / RUNS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[4]
}

/// Reads `bytes` with all threads.
fn read(pool: &Pool, isa: Isa, bytes: &[u8]) -> usize {
    let floats: &[f32] = bytemuck::cast_slice(bytes);
    let parts: Vec<&[f32]> = floats.chunks(128 << 10).collect();
    pool.run(parts.len(), &|task, _| _ = black_box(isa.dispatch(ReadAll(parts[task]))));
    bytes.len()
}

/// As many matrices as `bytes` hold.
fn matrices(bytes: &[u8], format: Format, rows: usize, cols: usize) -> impl Iterator<Item = MatrixView<'_>> {
    let (codes, scales) = (rows * format.row_bytes(cols), rows * format.scale_row_bytes(cols));
    let parts = bytes.chunks_exact(codes + 2 * scales).map(move |bytes| (&bytes[..codes], &bytes[codes..]));
    parts.map(move |(codes, rest)| {
        let (scales, biases) = rest.split_at(scales);
        MatrixView { format, rows, cols, codes, scales, biases }
    })
}

/// Multiplies the whole matrix; returns its bytes.
fn multiply(pool: &Pool, view: &MatrixView<'_>, operand: &Operand<'_>, out: &mut [f32]) -> usize {
    let x_rows = operand.rows();
    let step = rows_per_task(view.format, view.rows, view.cols, x_rows, pool.threads());
    let shared = SharedMut::new(out);
    pool.run(view.rows.div_ceil(step), &|task, _| {
        let rows = task * step..((task + 1) * step).min(view.rows);
        // SAFETY: tasks have different rows.
        let out = unsafe { shared.range_mut(rows.start * x_rows..rows.end * x_rows) };
        product(view, operand, XRows::Range(0..x_rows), rows, out);
    });
    view.rows * view.format.total_row_bytes(view.cols)
}

fn activations(rows: usize, cols: usize) -> Vec<bf16> {
    (0..rows * cols).map(|i| bf16::from_f32((i as f32 * 0.7).sin())).collect()
}

fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next()?;
    args.next()
}

/// Decode: one activation row, weights from memory.
fn decode(pool: &Pool, isa: Isa, bytes: &[u8]) {
    println!("\ndecode, GB/s          median   best    reads: median   best    best / best");
    for (name, format) in FORMATS {
        for (rows, cols) in [(8192, 2048), (512, 2048), (2048, 512), (2048, 4096)] {
            let (x, mut scratch, mut out) = (activations(1, cols), OperandScratch::default(), vec![0.0; rows]);
            let (mut products, mut reads) = (Rates::default(), Rates::default());
            for (i, window) in bytes.chunks_exact(WINDOW_BYTES).enumerate() {
                if i % 2 == 0 {
                    reads.time(|| read(pool, isa, window));
                    continue;
                }
                products.time(|| {
                    let operand = Operand::prepare(Layout::of(isa, format), &x, cols, &mut scratch);
                    let views = matrices(window, format, rows, cols);
                    views.map(|view| multiply(pool, &view, &operand, &mut out)).sum()
                });
            }
            let ((median, best), (read_median, read_best)) = (products.summary(), reads.summary());
            let share = 100.0 * best / read_best;
            println!(
                "{name} {rows:5} x {cols:4}   {median:6.1} {best:6.1}          {read_median:6.1} {read_best:6.1}    {share:5.1} %"
            );
        }
    }
}

/// Prefill: many activation rows.
fn prefill(pool: &Pool, isa: Isa, bytes: &[u8]) {
    println!("\nprefill, GFLOP/s              median    best");
    for (name, format) in FORMATS {
        for (rows, cols) in [(8192, 2048), (1024, 2048), (2048, 512)] {
            for x_rows in [1, 4, 16, 64, 512] {
                let (x, mut scratch) = (activations(x_rows, cols), OperandScratch::default());
                let (mut out, mut rates) = (vec![0.0; rows * x_rows], Rates::default());
                let flops = 2 * rows * cols * x_rows;
                let views: Vec<_> = matrices(bytes, format, rows, cols).collect();
                for views in views.chunks((WINDOW_FLOPS / flops).clamp(1, views.len() / 10 + 1)).take(40) {
                    rates.time(|| {
                        for view in views {
                            let layout = Layout::of(isa, format);
                            let operand = Operand::prepare_on(pool, layout, &x, cols, &mut scratch);
                            multiply(pool, view, &operand, &mut out);
                        }
                        views.len() * flops
                    });
                }
                let (median, best) = rates.summary();
                println!("{name} {rows:5} x {cols:4}, {x_rows:3} rows   {median:7.1} {best:7.1}");
            }
        }
    }
}

fn main() {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = option("--threads").map_or(available, |n| n.parse().expect("--threads takes a number"));
    let isa = option("--cpu").map_or_else(Isa::detect, |name| Isa::parse(&name).unwrap_or_else(|e| panic!("{e}")));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{} with {threads} threads; load average {}", isa.name(), load.trim());
    let pool = Pool::new(threads);
    println!("fork-join of all threads: {:.2} us", fork_join_us(&pool));

    // Random codes, and 16-bit patterns that are small numbers wherever scales happen to lie.
    let words: Vec<u64> = (0..WORKING_SET_BYTES as u64 / 8)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & 0xBFFF_BFFF_BFFF_BFFF)
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    decode(&pool, isa, bytes);
    prefill(&pool, isa, bytes);
}
