//! What a GPU leaves undefined is refused, with the line of the kernel text.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{ORDERS, buffer, device, library, run};
use soft_metal::{Binding, Buffer, Counts, Divergence, Fault, Launch, Library, Mode, Order};
use std::sync::LazyLock;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| library("faults", Mode::Plain));

const THREADS: usize = 64;

fn launch(order: Order, kernel: &str, buffers: &[&Buffer], args: &[u8]) -> Result<Counts, Fault> {
    run(&LIBRARY, order, kernel, buffers, args, 1, THREADS as u32)
}

#[test]
fn a_missing_barrier_gives_a_wrong_result_in_some_order() {
    let results: Vec<f32> = ORDERS
        .iter()
        .map(|order| {
            let (input, output) = (buffer(&1.0f32.to_le_bytes().repeat(THREADS)), Buffer::new(4).unwrap());
            launch(*order, "scan_unordered", &[&input, &output], &[]).unwrap_or_else(|fault| panic!("{fault}"));
            f32::from_le_bytes(output.to_vec().try_into().unwrap())
        })
        .collect();
    assert!(results[0].is_nan(), "forward, the first SIMD-group sums what the second has not written: {results:?}");
    assert_eq!(results[1], 64.0, "backward, all is there");
}

/// Line of tests/faults.metal that a comment marks.
fn line(mark: &str) -> usize {
    let text = include_str!("faults.metal");
    text.lines().position(|l| l.ends_with(&format!("// LINE {mark}"))).unwrap() + 1
}

/// The faults kernel must fail, with these words, at the marked line.
fn refused(what: u32, mark: &str, words: &str) {
    for order in ORDERS {
        let (x, y) = (buffer(&[0; 4 * THREADS + 16]), Buffer::new(4 * THREADS).unwrap());
        let args = [what.to_le_bytes(), 0u32.to_le_bytes()].concat();
        let fault = launch(order, "faults", &[&x, &y], &args).expect_err(mark).to_string();
        let place = format!("faults.metal:{}", line(mark));
        assert!(fault.contains(&place), "{place} is not in: {fault}");
        assert!(fault.contains(words), "`{words}` is not in: {fault}");
        assert!(fault.contains("kernel `faults`"), "{fault}");
    }
}

#[test]
fn accesses_outside_are_refused() {
    refused(1, "read", "byte 16384 of buffer 0 `x`, of which 272 bytes are bound");
    refused(2, "write", "of buffer 1 `y`");
    refused(3, "aligned", "not aligned");
    refused(4, "array", "outside of its array");
    refused(5, "divide", "divided by zero");
    let (x, y) = (buffer(&[0; 4 * THREADS]), Buffer::new(4 * THREADS).unwrap());
    let args = [12u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
    let fault = launch(Order::Forward, "faults", &[&x, &y], &args).expect_err("slack").to_string();
    assert!(fault.contains("right before or behind the buffer of `y`"), "{fault}");
    refused(10, "arena", "byte 32768 of threadgroup memory, of which 32752 bytes are declared");
}

#[test]
fn divided_simdgroups_are_refused() {
    for order in ORDERS {
        let (x, y) = (buffer(&[0; 4 * THREADS]), Buffer::new(4 * THREADS).unwrap());
        let args = [6u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
        let fault = launch(order, "faults", &[&x, &y], &args).expect_err("divided").to_string();
        // Either branch may be the one that waits.
        let (one, other) = (line("divided"), line("divided") + 1);
        for line in [one, other] {
            assert!(fault.contains(&format!("faults.metal:{line}")), "{line} is not in: {fault}");
        }
    }
    refused(7, "returned", "returned before this call");
    refused(9, "deserted", "others have returned");
    refused(11, "half", "others have returned");
    let (x, y) = (buffer(&[0; 4 * THREADS]), Buffer::new(4 * THREADS).unwrap());
    let args = [8u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
    let fault = launch(Order::Forward, "faults", &[&x, &y], &args).expect_err("barrier").to_string();
    assert!(fault.contains("some threads wait at this barrier, others at"), "{fault}");
}

#[test]
fn divided_simdgroups_are_served_and_counted_where_asked() {
    for order in ORDERS {
        let (x, y) = (buffer(&[0; 4 * THREADS]), Buffer::new(4 * THREADS).unwrap());
        let args = [6u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
        let buffers: [Binding<'_>; 2] = [(&x).into(), (&y).into()];
        let launch = Launch {
            kernel: "faults",
            buffers: &buffers,
            args: &args,
            constants: &[],
            threadgroups: [1, 1, 1],
            threads: THREADS as u32,
        };
        let mut device = device(order);
        device.settings.divergence = Divergence::Serve;
        let counts = device.launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(counts.divergent, 4, "two sides of two SIMD-groups");
    }
}

#[test]
fn a_full_stack_is_refused() {
    let y = buffer(&[0; 4 * THREADS]);
    let fault = launch(Order::Forward, "stack", &[&y], &[]).expect_err("stack").to_string();
    assert!(fault.contains("the stack of thread"), "{fault}");
}
