//! Measures the CPU backend's matrix products: decode against the machine's read bandwidth, prefill in GFLOP/s.
//!
//! `cargo run --release -p lily-engine --example products [-- --threads N] [--cpu NAME]`
//!
//! Every figure is the median of its repetitions, with the range. Decode walks through more than a gibibyte of weights, so
//! nothing stays in a cache; the bandwidth ceiling is measured over the same bytes, before and after.

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
const FOUR_BITS: Format = Format::Affine { bits: 4, group: 64, scale: Float::Bf16 };
const EIGHT_BITS: Format = Format::Affine { bits: 8, group: 64, scale: Float::Bf16 };

/// Times `f`, repeated, and describes `amount / seconds / 1e9`: median and range.
fn rate(amount: f64, repetitions: usize, mut f: impl FnMut()) -> (f64, String) {
    let mut rates: Vec<f64> = (0..repetitions)
        .map(|_| {
            let start = Instant::now();
            f();
            amount / start.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let median = rates[repetitions / 2];
    (median, format!("{median:7.1}  ({:.1} to {:.1})", rates[0], rates[repetitions - 1]))
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

fn bandwidth(pool: &Pool, isa: Isa, bytes: &[u8]) -> (f64, String) {
    let floats: &[f32] = bytemuck::cast_slice(bytes);
    rate(bytes.len() as f64, 9, || {
        let part = floats.len().div_ceil(pool.threads() * 64);
        pool.run(pool.threads() * 64, &|task, _| {
            let range = (task * part).min(floats.len())..((task + 1) * part).min(floats.len());
            black_box(isa.dispatch(ReadAll(&floats[range])));
        });
    })
}

/// One matrix after the other out of a pool of bytes.
fn matrices(bytes: &[u8], format: Format, rows: usize, cols: usize) -> Vec<MatrixView<'_>> {
    let (codes, scales) = (rows * format.row_bytes(cols), rows * format.scale_row_bytes(cols));
    let parts = bytes.chunks_exact(codes + 2 * scales).map(|bytes| (&bytes[..codes], bytes[codes..].split_at(scales)));
    parts.map(|(codes, (scales, biases))| MatrixView { format, rows, cols, codes, scales, biases }).collect()
}

fn multiply(pool: &Pool, view: &MatrixView<'_>, operand: &Operand<'_>, out: &mut [f32]) {
    let step = rows_per_task(view.format, view.rows, view.cols, pool.threads());
    let shared = SharedMut::new(out);
    let x_rows = operand.rows();
    pool.run(view.rows.div_ceil(step), &|task, _| {
        let rows = task * step..((task + 1) * step).min(view.rows);
        // SAFETY: tasks have different rows.
        let out = unsafe { shared.range_mut(rows.start * x_rows..rows.end * x_rows) };
        product(view, operand, XRows::Range(0..x_rows), rows, out);
    });
}

fn activations(rows: usize, cols: usize) -> Vec<bf16> {
    (0..rows * cols).map(|i| bf16::from_f32((i as f32 * 0.7).sin())).collect()
}

fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next()?;
    args.next()
}

fn main() {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = option("--threads").map_or(available, |n| n.parse().expect("--threads takes a number"));
    let isa = option("--cpu").map_or_else(Isa::detect, |name| Isa::parse(&name).unwrap_or_else(|e| panic!("{e}")));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{} with {threads} threads; load average {}", isa.name(), load.trim());
    let pool = Pool::new(threads);

    let words: Vec<u64> = (0..WORKING_SET_BYTES as u64 / 8)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_3FFF | 0x3C00)
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&words);

    println!("fork-join of all threads, us        {:7.2}", fork_join_us(&pool));
    let (ceiling, text) = bandwidth(&pool, isa, bytes);
    println!("read bandwidth, GB/s                {text}");

    println!("\ndecode, GB/s of weights             median   (range)  of ceiling");
    for (name, format) in [("4-bit", FOUR_BITS), ("8-bit", EIGHT_BITS), ("bf16", Format::Dense(Float::Bf16))] {
        for (rows, cols) in [(8192, 2048), (512, 2048), (2048, 512), (2048, 4096)] {
            let views = matrices(bytes, format, rows, cols);
            let total: usize = views.iter().map(|view| view.rows * view.format.total_row_bytes(cols)).sum();
            let (x, mut scratch, mut out) = (activations(1, cols), OperandScratch::default(), vec![0.0; rows]);
            let (median, text) = rate(total as f64, 7, || {
                for view in &views {
                    let operand = Operand::prepare(Layout::of(isa, format), &x, cols, &mut scratch);
                    multiply(&pool, view, &operand, &mut out);
                }
            });
            println!("{name:6} {rows:5} x {cols:4}                  {text}  {:5.1} %", 100.0 * median / ceiling);
        }
    }
    let (_, text) = bandwidth(&pool, isa, bytes);
    println!("read bandwidth again, GB/s          {text}");

    println!("\nprefill, GFLOP/s                     median   (range)");
    for (name, format) in [("4-bit", FOUR_BITS), ("8-bit", EIGHT_BITS), ("bf16", Format::Dense(Float::Bf16))] {
        for (rows, cols) in [(8192, 2048), (1024, 2048), (2048, 512)] {
            for x_rows in [1, 4, 16, 64, 512] {
                let views = matrices(bytes, format, rows, cols);
                let flops = 2.0 * (rows * cols * x_rows) as f64;
                let count = ((3e10 / flops) as usize).clamp(1, views.len());
                let (x, mut scratch) = (activations(x_rows, cols), OperandScratch::default());
                let mut out = vec![0.0; rows * x_rows];
                let (_, text) = rate(flops * count as f64, 5, || {
                    for view in &views[..count] {
                        let operand = Operand::prepare_on(&pool, Layout::of(isa, format), &x, cols, &mut scratch);
                        multiply(&pool, view, &operand, &mut out);
                    }
                });
                println!("{name:6} {rows:5} x {cols:4}, {x_rows:3} rows        {text}");
            }
        }
    }
}
