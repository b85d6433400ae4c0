//! What this machine is, how fast it reads memory, and how much of it this process took.

use lily_engine::backend::cpu::isa::Isa;
use lily_engine::memory::available_bytes;
use nix::sys::resource::{UsageWho, getrusage};
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
    /// Version of the GPU's driver: NVIDIA's, or that of macOS, which brings its own; none where there is neither.
    pub driver: Option<String>,
    /// Instruction sets that kernels exist for, slowest first.
    pub instruction_sets: Vec<&'static str>,
    /// Memory that could be used, in bytes; none where the system does not say.
    pub available_bytes: Option<usize>,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        Self {
            processor: processor().unwrap_or_else(|| "unknown".to_owned()),
            driver: driver(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            instruction_sets: Isa::supported().map(Isa::name).collect(),
            available_bytes: available_bytes(),
        }
    }
}

fn processor() -> Option<String> {
    if cfg!(target_os = "macos") {
        return said("sysctl", &["-n", "machdep.cpu.brand_string"]);
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, name) = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "))?;
    Some(name.to_owned())
}

fn driver() -> Option<String> {
    if cfg!(target_os = "macos") {
        return said("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}"));
    }
    nvidia_version(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The version of the kernel module: the first word of its line that begins as a version does.
fn nvidia_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    line.split_whitespace().find(is_version).map(str::to_owned)
}

/// What a program of the system says.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|text| !text.is_empty())
}

/// Most memory of this process that was resident at once, mapped files included; `None` where the system does not say.
pub fn peak_resident_bytes() -> Option<u64> {
    // Linux counts from the program's start only here; `getrusage` has what started it, too.
    if cfg!(target_os = "linux") { peak_of_status() } else { peak_of_usage() }
}

fn peak_of_status() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

fn peak_of_usage() -> Option<u64> {
    // Apple's systems say bytes, others kilobytes.
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    u64::try_from(usage.max_rss()).ok().filter(|peak| *peak > 0).map(|peak| peak * unit)
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

    /// What Macs are asked can be asked everywhere.
    #[test]
    fn the_peak_of_memory_holds_what_was_written() {
        const WRITTEN: usize = 64 << 20;
        let written = std::hint::black_box(vec![1u8; WRITTEN]);
        for peak in [peak_of_usage(), peak_resident_bytes()] {
            assert!(peak.is_some_and(|peak| (WRITTEN as u64..1 << 40).contains(&peak)), "{peak:?}");
        }
        drop(written);
    }

    #[test]
    fn the_driver_says_its_version_in_several_ways() {
        let check = |line: &str, expect| assert_eq!(nvidia_version(line).as_deref(), expect, "{line}");
        check(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
            Some("535.104.05"),
        );
        check(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\nGCC version: 12.2.0",
            Some("580.159.04"),
        );
        check("GCC version: gcc 12.2.0", None);
    }
}
