//! What this machine is and how fast it reads memory.

use lily_engine::backend::cpu::isa::Isa;
use lily_engine::memory::available_bytes;
use serde::Serialize;
use std::time::Instant;

/// A machine, as far as it matters to figures measured on it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor, as the system names it.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Operating system and architecture.
    pub system: String,
    /// Instruction sets that kernels exist for, slowest first.
    pub instruction_sets: Vec<&'static str>,
    /// Memory that could be used, in bytes; none where the system does not say.
    pub available_bytes: Option<usize>,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: processor.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            instruction_sets: Isa::supported().map(Isa::name).collect(),
            available_bytes: available_bytes(),
        }
    }
}

/// Bytes that are read over and over: far more than caches hold.
const STREAM_BYTES: usize = 1 << 30;
/// Passes, of which the median counts.
const PASSES: usize = 7;

/// Measured read bandwidth of `threads` threads together, in bytes per second: each sums its own part of a large array.
pub fn read_bandwidth(threads: usize) -> f64 {
    let bytes = available_bytes().map_or(STREAM_BYTES, |b| (b / 4).clamp(1 << 26, STREAM_BYTES));
    let words: Vec<u64> = (0..bytes as u64 / 8).collect();
    let part = words.len().div_ceil(threads);
    let mut seconds: Vec<f64> = (0..PASSES).map(|_| one_pass(&words, part)).collect();
    seconds.sort_unstable_by(f64::total_cmp);
    bytes as f64 / seconds[PASSES / 2]
}

fn one_pass(words: &[u64], part: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for chunk in words.chunks(part) {
            scope.spawn(|| std::hint::black_box(sum(chunk)));
        }
    });
    start.elapsed().as_secs_f64()
}

/// A sum that the compiler can keep in many registers, so that memory is the limit and not the additions.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    let mut blocks = words.chunks_exact(lanes.len());
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    let rest = blocks.remainder().iter();
    lanes.iter().chain(rest).fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_reads_every_word() {
        let words: Vec<u64> = (1..=1000).collect();
        assert_eq!(sum(&words), 500_500);
    }
}
