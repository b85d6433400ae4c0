//! What the text for NVIDIA's GPUs uses besides Metal: each instruction against what PTX says of it, and the rules of an early start.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[expect(dead_code, reason = "its launches are of Apple's GPUs")]
mod common;

use common::{ORDERS, buffer};
use half::bf16;
use soft_metal::kernels::Text;
use soft_metal::{Binding, Buffer, Device, Fault, Launch, Library, Mode, Order, Settings};
use std::path::Path;
use std::sync::LazyLock;

fn library(mode: Mode) -> Library {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvidia.metal");
    Library::compile(&source, &[], Text::Nvidia.defines(), mode).unwrap_or_else(|error| panic!("{error}"))
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| library(Mode::Plain));
static WATCHED: LazyLock<Library> = LazyLock::new(|| library(Mode::Races));

fn run(
    library: &Library,
    order: Order,
    kernel: &str,
    buffers: &[Binding<'_>],
    args: &[u8],
    threads: u32,
) -> Result<(), Fault> {
    let launch = Launch { kernel, buffers, args, constants: &[], threadgroups: [1; 3], threads };
    let mut device = Device::new(Settings { order, ..Settings::default() });
    device.launch(library, &launch).map(|_| ())
}

/// What a kernel writes to buffers of so many words, in every order and watched, always the same.
fn results(kernel: &str, inputs: &[&Buffer], outputs: &[usize], threads: u32) -> Vec<Vec<u32>> {
    let one = |library: &Library, order| -> Vec<Vec<u32>> {
        let written: Vec<Buffer> = outputs.iter().map(|words| Buffer::new(4 * words).unwrap()).collect();
        let bindings: Vec<Binding<'_>> = inputs.iter().copied().chain(&written).map(Binding::from).collect();
        run(library, order, kernel, &bindings, &[], threads).unwrap_or_else(|fault| panic!("{fault}"));
        written.iter().map(|out| words(&out.to_vec())).collect()
    };
    let first = one(&LIBRARY, Order::Forward);
    for order in ORDERS {
        assert!(one(&LIBRARY, order) == first && one(&WATCHED, order) == first, "{kernel} in {order:?}");
    }
    first
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}

/// Small integers, so that sums are exact.
fn bf16s(count: usize, seed: usize) -> (Vec<f32>, Buffer) {
    let values: Vec<f32> = (0..count).map(|i| ((i * seed + i / 7) % 11) as f32 - 5.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
    (values, buffer(&bytes))
}

#[test]
fn instructions_on_words() {
    let number = |i: u32, seed: u32| (i + 1).wrapping_mul(seed).rotate_left(i);
    let (a, b): (Vec<u32>, Vec<u32>) = (0..32).map(|i| (number(i, 0x9e37_79b1), number(i, 0x85eb_ca77))).unzip();
    let bytes = |x: &[u32]| buffer(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let found = results("words", &[&bytes(&a), &bytes(&b)], &[8 * 32], 32).remove(0);
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let got = &found[8 * i..8 * i + 8];
        let byte = |n: usize| [a.to_le_bytes(), b.to_le_bytes()].concat()[n];
        assert_eq!(got[0], u32::from_le_bytes([byte(0), byte(4), byte(2), byte(6)]), "0x6240");
        assert_eq!(got[1], u32::from_le_bytes([byte(5), byte(1), byte(7), byte(3)]), "0x3715");
        assert_eq!(got[2], a & 0x00ff_00ff | b);
        let pairs = || a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        assert_eq!(got[3], pairs().map(|(a, b)| u32::from(a) * u32::from(b)).sum::<u32>() + 5);
        assert_eq!(got[4] as i32, pairs().map(|(a, b)| i32::from(a) * i32::from(b as i8)).sum::<i32>() + 5);
        let half = |word: u32, upper: bool| bf16::from_bits((word >> if upper { 16 } else { 0 }) as u16).to_f64();
        for upper in [false, true] {
            let exact = half(a, upper) * half(b, upper) + half(a, upper);
            let rounded = bf16::from_bits((got[5] >> if upper { 16 } else { 0 }) as u16);
            // The nearest: no neighbour is nearer.
            let off = |x: bf16| (x.to_f64() - exact).abs();
            let [below, above] = [-1, 1].map(|d| bf16::from_bits(rounded.to_bits().wrapping_add_signed(d)));
            let nearest = exact.is_nan() || off(rounded) <= off(below).min(off(above)) || !exact.is_finite();
            assert!(nearest || exact.abs() > f64::from(f32::MAX), "{a:#x} {b:#x}: {exact} became {rounded}");
        }
        let [low, high] = [a, b].map(|x| u32::from(bf16::from_f32(f32::from_bits(x)).to_bits()));
        assert!(f32::from_bits(a).is_nan() || f32::from_bits(b).is_nan() || got[6] == high << 16 | low);
        let power = (8.0 * i as f32 - 140.0).exp2();
        assert_eq!(f32::from_bits(got[7]), if power < f32::MIN_POSITIVE { 0.0 } else { power });
    }
}

#[test]
fn products_of_a_simdgroup() {
    let ((a, left), (b, right)) = (bf16s(256, 3), bf16s(128, 5));
    let found = results("fragments", &[&left, &right], &[128, 32], 32);
    let product = |i: usize, j: usize| 1.0 + (0..16).map(|k| a[16 * i + k] * b[16 * j + k]).sum::<f32>();
    let want: Vec<f32> = (0..128).map(|n| product(n / 8, n % 8)).collect();
    assert_eq!(floats(&found[0]), want);
    let transposed = |n: usize| u32::from(bf16::from_f32(a[16 * (n % 8) + n / 8]).to_bits());
    let want: Vec<u32> = (0..32).map(|n| transposed(2 * n + 1) << 16 | transposed(2 * n)).collect();
    assert_eq!(found[1], want);
}

#[test]
fn products_of_four_simdgroups() {
    let ((a, left), (b, right)) = (bf16s(128 * 64, 3), bf16s(128 * 64, 5));
    for n in [64, 128] {
        let found = results(&format!("products_{n}"), &[&left, &right], &[64 * n, 64 * n, 64 * 64], 128);
        let sum = |i: usize, right: &dyn Fn(usize) -> f32| (0..64).map(|k| a[64 * i + k] * right(k)).sum::<f32>();
        let by = |columns: usize, right: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..64 * columns).map(|at| sum(at / columns, &|k| right(k, at % columns))).collect()
        };
        assert_eq!(floats(&found[0]), by(n, &|k, j| b[64 * j + k]), "{n} rows");
        // Columns 64 and further lie in rows 64 and further.
        assert_eq!(floats(&found[1]), by(n, &|k, j| b[64 * (j / 64 * 64 + k) + j % 64]), "{n} columns");
        assert_eq!(floats(&found[2]), by(64, &|k, j| b[64 * j + k]), "both staged");
    }
}

#[test]
fn copies_are_there_when_they_have_been_waited_for() {
    let x = buffer(&(0..128_u32).flat_map(|i| (i + 1).to_le_bytes()).collect::<Vec<u8>>());
    for order in ORDERS {
        // Batches that may still be under way, and how much of them is there.
        for (under_way, first, second) in [(0_u32, true, true), (1, true, false), (2, false, false)] {
            let y = Buffer::new(4 * 256).unwrap();
            let bindings = [(&x).into(), (&y).into()];
            run(&LIBRARY, order, "copies", &bindings, &under_way.to_le_bytes(), 32).unwrap();
            let found = words(&y.to_vec());
            let late = order != Order::Forward;
            let want = |there: bool, word: u32| if there || !late { word } else { u32::MAX };
            assert!((0..128).all(|i| found[i as usize] == want(first, i + 1)), "{order:?}, {under_way}");
            assert!(found[128..].iter().all(|word| *word == want(second, 0)), "{order:?}, {under_way}");
        }
    }
}

#[test]
fn products_are_done_when_they_have_been_waited_for() {
    let x = buffer(&bf16::ONE.to_le_bytes().repeat(128 * 64));
    for (library, order) in [&LIBRARY, &WATCHED].into_iter().flat_map(|library| ORDERS.map(|order| (library, order))) {
        // Batches that may still be under way, and how much of them is done.
        for (under_way, first, second) in [(0_u32, true, true), (1, true, false), (2, false, false)] {
            let y = Buffer::new(4 * 256).unwrap();
            run(library, order, "late_products", &[(&x).into(), (&y).into()], &under_way.to_le_bytes(), 128).unwrap();
            let want = |done: bool| if done || order == Order::Reverse { 16.5 } else { 0.5 };
            let found = floats(&words(&y.to_vec()));
            assert!(
                found.chunks(2).all(|pair| pair == [want(first), want(second)]),
                "{order:?}, {under_way}: {found:?}"
            );
        }
    }
}

#[test]
fn some_threads_wait_for_each_other() {
    for order in ORDERS {
        for asks in [vec![], vec![3], vec![100], vec![3, 100]] {
            let bytes: Vec<u8> = (0..128_usize).flat_map(|i| u32::from(asks.contains(&i)).to_le_bytes()).collect();
            let (x, y) = (buffer(&bytes), Buffer::new(4 * 128).unwrap());
            run(&LIBRARY, order, "ask", &[(&x).into(), (&y).into()], &64_u32.to_le_bytes(), 128).unwrap();
            let any = |half: usize| u32::from(asks.iter().any(|i| i / 64 == half));
            let want: Vec<u32> = (0..128).map(|i| any(i / 64)).collect();
            assert_eq!(words(&y.to_vec()), want, "{order:?}, {asks:?}");
        }
    }
    let (x, y) = (Buffer::zeroed(512).unwrap(), Buffer::new(512).unwrap());
    let error = run(&LIBRARY, Order::Forward, "ask", &[(&x).into(), (&y).into()], &65_u32.to_le_bytes(), 128);
    assert!(error.unwrap_err().to_string().contains("nvidia.metal"), "more than there are would wait for ever");
}

#[test]
fn what_others_write_is_not_touched_early() {
    let (x, y) = (Buffer::zeroed(128).unwrap(), Buffer::new(128).unwrap());
    let line = |mark: &str| {
        let text = include_str!("nvidia.metal");
        format!("nvidia.metal:{}", text.lines().position(|l| l.ends_with(&format!("// LINE {mark}"))).unwrap() + 1)
    };
    let fault = |kernel: &str, early: bool| {
        let input = Binding { early, ..(&x).into() };
        run(&WATCHED, Order::Forward, kernel, &[input, (&y).into()], &[], 32).err().map(|fault| fault.to_string())
    };
    for (kernel, mark, word) in [("reads_early", "reads early", "read"), ("writes_early", "writes early", "written")] {
        let fault = fault(kernel, false).unwrap_or_else(|| panic!("{kernel} passes"));
        assert!(fault.contains(&line(mark)) && fault.contains(&format!("{word} before wait_for_inputs")), "{fault}");
    }
    assert_eq!(fault("reads_early", true), None);
    assert!(fault("writes_early", true).is_some(), "no write is early");
    assert_eq!(fault("never_waits", false), None, "it is started when all is there");
}
