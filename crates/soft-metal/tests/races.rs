//! What nothing orders is found in every order of lanes and named by both lines; what is ordered is not reported.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{ORDERS, buffer, device, library, run};
use half::bf16;
use soft_metal::{Binding, Buffer, Launch, Library, Mode, Order};
use std::sync::LazyLock;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| library("races", Mode::Races));

/// Runs a kernel on zeroed buffers of 4 KiB; gives what is wrong with it.
fn fault(order: Order, kernel: &str, buffers: usize, groups: u32) -> Option<String> {
    let buffers: Vec<Buffer> = (0..buffers).map(|_| Buffer::zeroed(4096).unwrap()).collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    run(&LIBRARY, order, kernel, &buffers, &[], groups, 64).err().map(|fault| fault.to_string())
}

fn clean(kernel: &str, buffers: usize, groups: u32) {
    for order in ORDERS {
        assert_eq!(fault(order, kernel, buffers, groups), None, "{order:?}");
    }
}

/// Line of tests/races.metal that a comment marks.
fn line(mark: &str) -> String {
    let text = include_str!("races.metal");
    format!("races.metal:{}", text.lines().position(|l| l.ends_with(&format!("// LINE {mark}"))).unwrap() + 1)
}

/// The kernel must be refused in every order, with both lines in one report and these words.
fn races(kernel: &str, buffers: usize, groups: u32, lines: [&str; 2], words: &[&str]) {
    for order in ORDERS {
        let fault = fault(order, kernel, buffers, groups).unwrap_or_else(|| panic!("{kernel} passes in {order:?}"));
        let told = fault.lines().any(|report| {
            lines.iter().all(|mark| report.contains(&line(mark))) && words.iter().all(|word| report.contains(word))
        });
        assert!(told, "no report has {:?} and {words:?}: {fault}", lines.map(line));
    }
}

#[test]
fn ordered_kernels_are_clean() {
    clean("sum", 2, 3);
    clean("exchange", 2, 1);
    clean("in_place", 1, 4);
    clean("through_device", 2, 1);
    clean("counters", 2, 4);
    clean("tiles", 3, 1);
}

#[test]
fn instrumented_kernels_compute_the_same() {
    let a: Vec<u8> = (0..1024).flat_map(|i| bf16::from_f32((i % 7) as f32 - 3.0).to_le_bytes()).collect();
    let b: Vec<u8> = (0..1024).flat_map(|i| bf16::from_f32((i % 5) as f32 - 2.0).to_le_bytes()).collect();
    let (left, right, c) = (buffer(&a), buffer(&b), Buffer::new(1024).unwrap());
    run(&LIBRARY, Order::Random(3), "tiles", &[&left, &right, &c], &[], 1, 64)
        .unwrap_or_else(|fault| panic!("{fault}"));
    let value = |i: usize, m: i32| (i as i32 % (2 * m + 1) - m) as f32;
    for (e, c) in c.to_vec().chunks(4).enumerate() {
        let (i, j) = (e / 16, e % 16);
        let expect: f32 = (0..64).map(|k| value(64 * i + k, 3) * value(16 * k + j, 2)).sum();
        assert_eq!(f32::from_le_bytes(c.try_into().unwrap()), expect, "{i} {j}");
    }
}

#[test]
fn missing_threadgroup_barriers_are_found() {
    let words = ["between SIMD-groups of one threadgroup", "threadgroup memory", "mem_threadgroup"];
    races("sum_no_barrier", 2, 1, ["first", "reads"], &words);
    races("sum_no_second", 2, 1, ["reads", "second"], &words);
}

#[test]
fn a_barrier_orders_the_memory_that_its_flags_name() {
    races("sum_wrong_flags", 2, 1, ["first", "reads"], &["mem_threadgroup"]);
    races("sum_no_flags", 2, 1, ["first", "reads"], &["mem_threadgroup"]);
    let fault = fault(Order::Forward, "through_device_wrong", 2, 1).expect("a race");
    assert!(fault.contains("mem_device") && fault.contains("buffer 0 `x`"), "{fault}");
}

#[test]
fn lanes_are_ordered_by_simdgroup_barriers_only() {
    races("exchange_unordered", 2, 1, ["put", "get"], &["between lanes of one SIMD-group", "simdgroup_barrier"]);
}

#[test]
fn threadgroups_are_not_ordered() {
    races("everybody", 1, 2, ["everybody", "everybody"], &["between threadgroups", "another dispatch"]);
    races("neighbours", 1, 2, ["other", "own"], &["between threadgroups"]);
    races("read_by_all", 2, 3, ["all", "one"], &["between threadgroups"]);
}

#[test]
fn atomics_are_ordered_among_themselves_only() {
    races("counter_read_plainly", 2, 2, ["atomic", "plain"], &["changed atomically", "read"]);
}

#[test]
fn accesses_are_held_to_the_bindings() {
    let (x, y) = (Buffer::zeroed(4096).unwrap(), Buffer::zeroed(4096).unwrap());
    let bound = Binding { buffer: &x, offset: 256, bytes: 256, early: false };
    let buffers = [bound, (&y).into()];
    let launch = Launch {
        kernel: "outside",
        buffers: &buffers,
        args: &[],
        constants: &[],
        threadgroups: [1, 1, 1],
        threads: 64,
    };
    let fault = device(Order::Forward).launch(&LIBRARY, &launch).expect_err("outside").to_string();
    let place = "byte 256 of buffer 0 `x`, of which 256 bytes are bound";
    assert!(fault.contains(place) && fault.contains(&line("outside")), "{fault}");
    let fault = self::fault(Order::Forward, "undeclared_arena", 1, 1).expect("outside");
    assert!(fault.contains("byte 256 of threadgroup memory") && fault.contains(&line("arena")), "{fault}");
}

/// Line of tests/spans.metal where a kernel touches memory.
fn marked(kernel: &str) -> String {
    let text = include_str!("spans.metal");
    format!("spans.metal:{}", text.lines().position(|l| l.ends_with(&format!("// LINE {kernel}"))).unwrap() + 1)
}

/// Runs two kernels of two libraries in one span, on the same buffer or on parts of it; gives what is wrong with the second.
fn in_a_span(first: &str, second: &str, shift: usize, barrier: bool) -> Option<String> {
    static OTHER: LazyLock<Library> = LazyLock::new(|| library("spans", Mode::Races));
    let (x, y) = (Buffer::zeroed(4096).unwrap(), Buffer::zeroed(4096).unwrap());
    let mut device = device(Order::Forward);
    let mut run = |library: &Library, kernel: &str, offset: usize, barrier: bool| {
        if barrier {
            device.begin_span(std::iter::once(x.address()..x.address() + 4096));
        }
        let buffers = [Binding { buffer: &x, offset, bytes: 256, early: false }, (&y).into()];
        let count = if kernel == "reads" { 2 } else { 1 };
        let launch = Launch {
            kernel,
            buffers: &buffers[..count],
            args: &[],
            constants: &[],
            threadgroups: [1, 1, 1],
            threads: 64,
        };
        device.launch(library, &launch).err().map(|fault| fault.to_string())
    };
    assert_eq!(run(&LIBRARY, first, 0, true), None);
    run(&OTHER, second, shift, barrier)
}

#[test]
fn dispatches_of_a_span_must_not_be_in_each_others_way() {
    for second in ["writes", "reads"] {
        let fault = in_a_span("in_place", second, 64, false).unwrap_or_else(|| panic!("{second} passes"));
        let words = ["between dispatches of one span", "races.metal:48", &marked(second)];
        assert!(words.iter().all(|word| fault.contains(word)), "{fault}");
        assert_eq!(in_a_span("in_place", second, 64, true), None, "a barrier orders them");
        assert_eq!(in_a_span("in_place", second, 256, false), None, "other bytes");
    }
}
