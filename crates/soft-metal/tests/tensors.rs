//! Metal 4 tensor operations: operands in memory and in registers, transposed, ragged and accumulated.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{ORDERS, buffer, device, library};
use half::{bf16, f16};
use soft_metal::{Binding, Buffer, Device, Launch, Library, Mode, Order, Settings};
use std::sync::LazyLock;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| library("tensors", Mode::Plain));
static WATCHED: LazyLock<Library> = LazyLock::new(|| library("tensors", Mode::Races));

/// Small integers: every product and sum is exact in every type.
fn value(i: usize, m: usize) -> f32 {
    (i % m) as f32 - (m / 2) as f32
}

fn shape(m: usize, n: usize, k: usize) -> Vec<u8> {
    [m, n, k].iter().flat_map(|v| (*v as i32).to_le_bytes()).collect()
}

fn bf16s(count: usize, m: usize) -> Buffer {
    buffer(&(0..count).flat_map(|i| bf16::from_f32(value(i, m)).to_le_bytes()).collect::<Vec<u8>>())
}

fn f16s(count: usize, m: usize) -> Buffer {
    buffer(&(0..count).flat_map(|i| f16::from_f32(value(i, m)).to_le_bytes()).collect::<Vec<u8>>())
}

fn f32s(count: usize, m: usize) -> Buffer {
    buffer(&(0..count).flat_map(|i| value(i, m).to_le_bytes()).collect::<Vec<u8>>())
}

/// Runs a kernel of two inputs in every order and instrumented; gives what it writes.
fn product(kernel: &str, a: &Buffer, b: &Buffer, out: usize, args: &[u8], groups: [u32; 3], threads: u32) -> Vec<f32> {
    let mut results: Vec<Vec<u8>> = Vec::new();
    let runs = ORDERS.map(|order| (order, &*LIBRARY)).into_iter().chain([(Order::Forward, &*WATCHED)]);
    for (order, library) in runs {
        let c = Buffer::new(4 * out).unwrap();
        let buffers: [Binding<'_>; 3] = [a.into(), b.into(), (&c).into()];
        let launch = Launch { kernel, buffers: &buffers, args, constants: &[], threadgroups: groups, threads };
        device(order).launch(library, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        results.push(c.to_vec());
    }
    assert!(results.iter().all(|r| *r == results[0]), "{kernel}: the order of lanes shows");
    results[0].chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

#[test]
fn operands_in_device_memory() {
    // Ragged in all three dimensions: tiles are 16x32.
    for (m, n, k) in [(16usize, 32usize, 16usize), (21, 45, 19), (3, 70, 33)] {
        let groups = [n.div_ceil(32) as u32, m.div_ceil(16) as u32, 1];
        let got = product("memory_operands", &bf16s(m * k, 7), &bf16s(k * n, 5), m * n, &shape(m, n, k), groups, 128);
        for (i, j) in (0..m * n).map(|e| (e / n, e % n)) {
            let expect: f32 = (0..k).map(|p| value(i * k + p, 7) * value(p * n + j, 5)).sum();
            assert_eq!(got[i * n + j], expect + 1.0, "{m}x{n}x{k}, {i} {j}");
        }
    }
}

#[test]
fn operands_in_threadgroup_memory() {
    for (m, n, k) in [(16usize, 32usize, 32usize), (21, 45, 48)] {
        let groups = [n.div_ceil(32) as u32, m.div_ceil(16) as u32, 1];
        let got = product("staged_operands", &f16s(m * k, 7), &f16s(n * k, 5), m * n, &shape(m, n, k), groups, 32);
        for (i, j) in (0..m * n).map(|e| (e / n, e % n)) {
            let expect: f32 = (0..k).map(|p| value(i * k + p, 7) * value(j * k + p, 5)).sum();
            assert_eq!(got[i * n + j], expect, "{m}x{n}x{k}, {i} {j}");
        }
    }
}

#[test]
fn operands_in_registers() {
    let k = 48;
    let got = product("register_operands", &bf16s(k * 16, 7), &bf16s(k * 32, 5), 512, &shape(16, 32, k), [1, 1, 1], 32);
    for (i, j) in (0..512).map(|e| (e / 32, e % 32)) {
        let expect: f32 = (0..k).map(|p| value(p * 16 + i, 7) * value(p * 32 + j, 5)).sum();
        assert_eq!(got[i * 32 + j], expect, "{i} {j}");
    }
}

#[test]
fn one_thread_alone() {
    let got = product("single_thread", &f32s(128, 7), &f32s(64, 5), 128, &shape(8, 8, 8), [1, 1, 1], 2);
    for (t, i, j) in (0..128).map(|e| (e / 64, e / 8 % 8, e % 8)) {
        let expect: f32 = (0..8).map(|p| value(64 * t + 8 * i + p, 7) * value(8 * p + j, 5)).sum();
        assert_eq!(got[64 * t + 8 * i + j], expect, "thread {t}, {i} {j}");
    }
}

#[test]
fn a_product_needs_the_whole_simdgroup() {
    let (a, c) = (f32s(64, 7), Buffer::new(256).unwrap());
    let fault =
        common::run(&LIBRARY, Order::Forward, "divided", &[&a, &c], &[], 1, 32).expect_err("divided").to_string();
    let text = include_str!("tensors.metal");
    let line = text.lines().position(|l| l.ends_with("// LINE divided")).unwrap() + 1;
    assert!(fault.contains(&format!("tensors.metal:{line}")) && fault.contains("returned before"), "{fault}");
}

#[test]
#[ignore = "measures; run with --ignored --nocapture"]
fn speed() {
    let (a, c) = (Buffer::zeroed(4096).unwrap(), Buffer::new(2048).unwrap());
    let buffers: [Binding<'_>; 2] = [(&a).into(), (&c).into()];
    let args = shape(0, 0, 100);
    let launch = Launch {
        kernel: "bench",
        buffers: &buffers,
        args: &args,
        constants: &[],
        threadgroups: [1, 1, 1],
        threads: 32,
    };
    let mut device = Device::new(Settings { workers: 1, ..Settings::default() });
    let time = || {
        let start = std::time::Instant::now();
        device.launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        start.elapsed()
    };
    let best = std::iter::repeat_with(time).take(10).min().unwrap();
    println!("16x32x64 product: {:.2} GMAC/s", 100.0 * 16.0 * 32.0 * 64.0 / best.as_secs_f64() * 1e-9);
}
