//! Every operation that the shim models, on every type, in every order of lanes; and everything that must be refused.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{ORDERS, buffer, device, library, run};
use half::{bf16, f16};
use soft_metal::{Binding, Buffer, Counts, Device, Element, Fault, Launch, Library, Order, Settings};
use std::sync::LazyLock;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| library("ops", soft_metal::Mode::Plain));

const THREADS: usize = 64;

fn launch(order: Order, kernel: &str, buffers: &[&Buffer], args: &[u8]) -> Result<Counts, Fault> {
    run(&LIBRARY, order, kernel, buffers, args, 1, THREADS as u32)
}

/// A scalar type of kernels.
trait Scalar: Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;
    fn of(x: f64) -> Self;
    fn f64(self) -> f64;
    fn bytes(values: &[Self]) -> Vec<u8>;
    fn values(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! scalar {
    ($t:ty, $name:literal, $of:expr, $f64:expr) => {
        impl Scalar for $t {
            const NAME: &'static str = $name;
            fn of(x: f64) -> Self {
                let of: fn(f64) -> $t = $of;
                of(x)
            }
            fn f64(self) -> f64 {
                let f64: fn($t) -> f64 = $f64;
                f64(self)
            }
            fn bytes(values: &[Self]) -> Vec<u8> {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            fn values(bytes: &[u8]) -> Vec<Self> {
                let chunks = bytes.chunks_exact(size_of::<$t>());
                chunks.map(|c| <$t>::from_le_bytes(c.try_into().unwrap())).collect()
            }
        }
    };
}
scalar!(f32, "float", |x| x as f32, |x| x as f64);
scalar!(f16, "half", f16::from_f64, f16::to_f64);
scalar!(bf16, "bfloat", |x| bf16::from_f32(x as f32), bf16::to_f64);
scalar!(i32, "int", |x| x as i64 as i32, |x| x as f64);
scalar!(u32, "uint", |x| x as i64 as u32, |x| x as f64);
scalar!(i16, "short", |x| x as i64 as i16, |x| x as f64);
scalar!(u16, "ushort", |x| x as i64 as u16, |x| x as f64);
scalar!(i8, "char", |x| x as i64 as i8, |x| x as f64);
scalar!(u8, "uchar", |x| x as i64 as u8, |x| x as f64);

/// Runs a kernel of one input and one output of `rows` results per thread in every order; gives the rows.
fn rows<X: Scalar, Y: Scalar>(kernel: &str, x: &[X], rows: usize) -> Vec<Vec<Y>> {
    let mut first: Option<Vec<u8>> = None;
    for order in ORDERS {
        let (input, output) = (buffer(&X::bytes(x)), Buffer::new(rows * THREADS * size_of::<Y>()).unwrap());
        launch(order, kernel, &[&input, &output], &[]).unwrap_or_else(|fault| panic!("{fault}"));
        let bytes = output.to_vec();
        assert_eq!(*first.get_or_insert_with(|| bytes.clone()), bytes, "{kernel} in {order:?}");
    }
    Y::values(&first.unwrap()).chunks(THREADS).map(<[Y]>::to_vec).collect()
}

/// Lanes of the SIMD-group of a thread.
fn group(thread: usize) -> std::ops::Range<usize> {
    thread / 32 * 32..thread / 32 * 32 + 32
}

fn check_reductions<T: Scalar>() {
    // Small values, so that products stay exact in every type but wrap in none.
    let x: Vec<T> = (0..THREADS).map(|i| T::of(if i % 11 == 5 { 2.0 } else { 1.0 })).collect();
    let kernel = format!("reductions_{}", T::NAME);
    let got = rows::<T, T>(&kernel, &x, 8);
    let v: Vec<f64> = x.iter().map(|x| x.f64()).collect();
    for t in 0..THREADS {
        let all = &v[group(t)];
        let before = &v[group(t).start..t];
        let through = &v[group(t).start..=t];
        let expect = [
            all.iter().sum(),
            all.iter().product(),
            all.iter().copied().fold(f64::MAX, f64::min),
            all.iter().copied().fold(f64::MIN, f64::max),
            through.iter().sum(),
            before.iter().sum(),
            through.iter().product(),
            before.iter().product(),
        ];
        for (row, expect) in expect.iter().enumerate() {
            assert_eq!(got[row][t].f64(), *expect, "{kernel}, row {row}, thread {t}");
        }
    }
}

#[test]
fn reductions() {
    check_reductions::<f32>();
    check_reductions::<f16>();
    check_reductions::<i32>();
    check_reductions::<u32>();
    check_reductions::<i16>();
    check_reductions::<u16>();
    check_reductions::<i8>();
    check_reductions::<u8>();
}

macro_rules! check_bits {
    ($t:ty, $wide:ty) => {
        let x: Vec<$t> =
            (0..THREADS).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) as $t).collect();
        let kernel = format!("bits_{}", <$t as Scalar>::NAME);
        let got = rows::<$t, $t>(&kernel, &x, 14);
        for t in 0..THREADS {
            let v = x[t];
            let all = &x[group(t)];
            let expect: [$t; 14] = [
                all.iter().fold(!0, |a, b| a & b),
                all.iter().fold(0, |a, b| a | b),
                all.iter().fold(0, |a, b| a ^ b),
                v.count_ones() as $t,
                v.leading_zeros() as $t,
                v.trailing_zeros() as $t,
                v.reverse_bits(),
                v.rotate_left(3),
                ((v as $wide * 77) >> <$t>::BITS) as $t,
                // Four bits from the third; signed types extend the sign.
                (((v << (<$t>::BITS - 6)) as $t) >> (<$t>::BITS - 4)),
                (v & !(7 << 1)) | 5 << 1,
                v.saturating_add(100),
                v.saturating_sub(100),
                (v as $wide).abs_diff(9) as $t,
            ];
            for (row, expect) in expect.iter().enumerate() {
                assert_eq!(got[row][t], *expect, "{kernel}, row {row}, thread {t}, of {v}");
            }
        }
    };
}

#[test]
fn bits() {
    check_bits!(i32, i64);
    check_bits!(u32, i64);
    check_bits!(i16, i64);
    check_bits!(u16, i64);
    check_bits!(i8, i64);
    check_bits!(u8, i64);
}

fn check_moves<T: Scalar>() {
    let x: Vec<T> = (0..THREADS).map(|i| T::of(i as f64 + 1.0)).collect();
    let kernel = format!("moves_{}", T::NAME);
    let got = rows::<T, T>(&kernel, &x, 8);
    for (t, _) in x.iter().enumerate() {
        let (first, lane) = (group(t).start, t % 32);
        let from = [
            (lane * 7 + 3) % 32,
            lane ^ 5,
            if lane >= 3 { lane - 3 } else { lane },
            if lane + 3 < 32 { lane + 3 } else { lane },
            (lane + 29) % 32,
            (lane + 3) % 32,
            9,
            0,
        ];
        for (row, from) in from.iter().enumerate() {
            assert_eq!(got[row][t], x[first + from], "{kernel}, row {row}, thread {t}");
        }
    }
}

#[test]
fn moves() {
    check_moves::<f32>();
    check_moves::<f16>();
    check_moves::<i32>();
    check_moves::<u32>();
    check_moves::<i16>();
    check_moves::<u16>();
    check_moves::<u8>();
}

#[test]
fn votes() {
    let x: Vec<u32> = (0..THREADS).map(|i| if i < 32 { (i % 3 == 0) as u32 } else { 1 }).collect();
    let got = rows::<u32, u32>("votes", &x, 6);
    for t in 0..THREADS {
        let ballot = group(t).filter(|i| x[*i] != 0).fold(0u32, |m, i| m | 1 << (i % 32));
        let expect = [ballot, 1, (t >= 32) as u32, (t % 32 == 0) as u32, u32::MAX, 1];
        assert_eq!(got.iter().map(|row| row[t]).collect::<Vec<_>>(), expect, "thread {t}");
    }
}

fn check_functions<T: Scalar>(tolerance: f64) {
    let x: Vec<T> = (0..THREADS).map(|i| T::of((i as f64 - 31.3) * 0.17)).collect();
    let kernel = format!("functions_{}", T::NAME);
    let got = rows::<T, T>(&kernel, &x, 28);
    for t in 0..THREADS {
        let (v, w) = (x[t].f64(), x[(t + 1) % THREADS].f64());
        let expect = [
            v.exp(),
            v.exp2(),
            v.abs().ln(),
            v.abs().log2(),
            v.abs().sqrt(),
            1.0 / v.abs().sqrt(),
            v.sin(),
            v.cos(),
            v.tanh(),
            v.floor(),
            v.ceil(),
            v.round(),
            v.round_ties_even(),
            v.trunc(),
            v - v.floor(),
            v.abs().powf(w),
            v.min(w),
            v.max(w),
            v.clamp(-1.0, 1.0),
            v * w + 2.0,
            if v < w { w } else { v },
            if v > 0.0 { 1.0 } else { -1.0 },
            v.clamp(0.0, 1.0),
            v.exp(),
            v.exp(),
            v.abs().copysign(w),
            v % w,
            4.0,
        ];
        for (row, expect) in expect.iter().enumerate() {
            let error = (got[row][t].f64() - expect).abs();
            assert!(
                error <= tolerance * expect.abs().max(0.1),
                "{kernel}, row {row} of {v}: {:?}, not {expect}",
                got[row][t]
            );
        }
    }
}

#[test]
fn functions() {
    check_functions::<f32>(2e-6);
    check_functions::<f16>(1.1e-3);
}

#[test]
fn conversions() {
    let x: Vec<f32> = (0..THREADS).map(|i| (i as f32 - 20.0) * 1.2345).collect();
    let got = rows::<f32, f32>("conversions", &x, 16);
    for t in 0..THREADS {
        let v = x[t];
        let (h, b) = (f16::from_f32(v), bf16::from_f32(v));
        let round_b = |x: f32| bf16::from_f32(x).to_f32();
        let round_h = |x: f32| f16::from_f32(x).to_f32();
        let expect = [
            h.to_f32(),
            b.to_f32(),
            v as i32 as f32,
            v as i16 as f32,
            v as i32 as i8 as f32,
            v as i32 as u8 as f32,
            v as i64 as f32,
            -v,
            bf16::from_f32(h.to_f32()).to_f32(),
            f16::from_f32(b.to_f32()).to_f32(),
            // Arithmetic of bfloat and half rounds at every step.
            round_b(round_b(b.to_f32() * b.to_f32()) + 1.0),
            round_h(round_h(h.to_f32() * h.to_f32()) + 1.0),
            1.75,
            (v != 0.0) as u32 as f32,
            f32::from_bits(v.to_bits() & 0xffff_0000),
            (v + 300.0) as u16 as f32,
        ];
        for (row, expect) in expect.iter().enumerate() {
            assert_eq!(got[row][t], *expect, "row {row} of {v}");
        }
    }
}

#[test]
fn vectors() {
    let x: Vec<f32> = (0..32).map(|i| (i as f32 - 10.0) * 0.5).collect();
    let packed: Vec<u32> = (0..4 * THREADS as u32).map(|i| i * 3 + 256).collect();
    for order in ORDERS {
        let (input, output) = (buffer(&f32::bytes(&x)), Buffer::new(16 * THREADS * 4).unwrap());
        let (p, pairs) = (buffer(&u32::bytes(&packed)), Buffer::new(16 * THREADS).unwrap());
        launch(order, "vectors", &[&input, &output, &p, &pairs], &[]).unwrap_or_else(|fault| panic!("{fault}"));
        let got = f32::values(&output.to_vec());
        for t in 0..THREADS {
            let v: [f32; 4] = x[4 * (t % 8)..][..4].try_into().unwrap();
            let q: [u32; 4] = packed[4 * t..][..4].try_into().unwrap();
            let any = v.iter().any(|v| *v > 3.0) as u32 as f32;
            let expect = [
                v[0] + 2.0 * v[1] + 3.0 * v[2] + 4.0 * v[3],
                v[1],
                v[3],
                2.0 * v[0],
                5.0,
                v[0].trunc() + v[3],
                v[0].max(1.0) + v[1].clamp(0.0, 2.0) + v[2].min(2.0),
                if v[2] < v[0] { v[0] } else { v[2] },
                any + 2.0,
                q.iter().sum::<u32>() as f32,
                (q[1] as u8 & 15) as f32,
                v[2] + 1.0,
                3.0,
                v[0] + v[1],
                (v[2] + v[0]) / 2.0 + v[0] * v[0] + v[0],
                (q[0] >> 8 & 255) as f32,
            ];
            for (row, expect) in expect.iter().enumerate() {
                assert_eq!(got[row * THREADS + t], *expect, "row {row}, thread {t}");
            }
        }
        assert_eq!(f32::values(&pairs.to_vec())[..4], x[..4]);
    }
}

fn check_matrices<T: Scalar>() {
    // Small integers: every product and sum is exact in every type.
    let a: Vec<T> = (0..64).map(|i| T::of((i * 7 % 11) as f64 - 5.0)).collect();
    let b: Vec<T> = (0..64).map(|i| T::of((i * 5 % 13) as f64 - 6.0)).collect();
    let kernel = format!("matrices_{}", T::NAME);
    for order in ORDERS {
        let (left, right) = (buffer(&T::bytes(&a)), buffer(&T::bytes(&b)));
        let (sums, copies) = (Buffer::new(192 * 4).unwrap(), Buffer::new(128 * size_of::<T>()).unwrap());
        let buffers: [Binding<'_>; 4] = [(&left).into(), (&right).into(), (&sums).into(), (&copies).into()];
        let launch = Launch {
            kernel: &kernel,
            buffers: &buffers,
            args: &[],
            constants: &[],
            threadgroups: [1, 1, 1],
            threads: 32,
        };
        device(order).launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        let (sums, copies) = (f32::values(&sums.to_vec()), T::values(&copies.to_vec()));
        let product = |i: usize, j: usize, turned: bool| -> f64 {
            (0..8).map(|k| a[8 * i + k].f64() * b[if turned { 8 * j + k } else { 8 * k + j }].f64()).sum()
        };
        for (i, j) in (0..64).map(|e| (e / 8, e % 8)) {
            assert_eq!(sums[8 * i + j] as f64, product(i, j, false) + 1.0, "{kernel} {i} {j}");
            assert_eq!(sums[64 + 8 * i + j] as f64, product(i, j, true), "{kernel} turned {i} {j}");
            assert_eq!(sums[128 + 8 * j + i] as f64, product(i, j, false), "{kernel} shared {i} {j}");
            assert_eq!(copies[8 * i + j], a[8 * i + j], "{kernel} copy {i} {j}");
            assert_eq!(copies[64 + 8 * i + j].f64(), if i == j { 2.0 } else { 0.0 }, "{kernel} unit {i} {j}");
        }
    }
}

#[test]
fn matrices() {
    check_matrices::<f32>();
    check_matrices::<f16>();
    check_matrices::<bf16>();
}

#[test]
fn the_origin_of_a_tile_is_column_and_row() {
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let (input, output) = (buffer(&f32::bytes(&x)), Buffer::new(64 * 4).unwrap());
    let buffers: [Binding<'_>; 2] = [(&input).into(), (&output).into()];
    let launch = Launch {
        kernel: "matrix_origin",
        buffers: &buffers,
        args: &[],
        constants: &[],
        threadgroups: [1, 1, 1],
        threads: 32,
    };
    device(Order::Forward).launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
    let expect: Vec<f32> = (0..64).map(|e| ((e / 8 + 1) * 16 + 8 + e % 8) as f32).collect();
    assert_eq!(f32::values(&output.to_vec()), expect);
}

#[test]
fn atomics() {
    // Enough threadgroups that several operating-system threads share them.
    const GROUPS: usize = 256;
    let total = GROUPS * THREADS;
    for order in ORDERS {
        let u = buffer(&u32::bytes(&[0, 0, u32::MAX, 0, 0, 0, 0, 0, 0]));
        let (s, f) = (buffer(&i32::bytes(&[0, 0])), buffer(&f32::bytes(&[0.0])));
        let tickets = Buffer::new(total * 4).unwrap();
        let buffers: [Binding<'_>; 4] = [(&u).into(), (&s).into(), (&f).into(), (&tickets).into()];
        let launch = Launch {
            kernel: "atomics",
            buffers: &buffers,
            args: &[],
            constants: &[],
            threadgroups: [GROUPS as u32, 1, 1],
            threads: THREADS as u32,
        };
        let counts = device(order).launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(counts.threads as usize, total);
        let sum = (THREADS * (THREADS - 1) / 2) as u32;
        let all = total as u32;
        let expect = [all, u32::MAX, 0, 0, 63, 3 * all, 42, GROUPS as u32 * sum, GROUPS as u32 * 5];
        assert_eq!(u32::values(&u.to_vec()), expect);
        assert_eq!(i32::values(&s.to_vec()), [-2 * total as i32, -63]);
        assert_eq!(f32::values(&f.to_vec()), [total as f32 * 0.5]);
        let mut tickets = u32::values(&tickets.to_vec());
        tickets.sort();
        assert!(tickets.iter().enumerate().all(|(i, t)| i as u32 == *t), "every ticket is drawn once");
    }
}

#[test]
fn builtins() {
    let groups = [3u32, 2, 2];
    let output = Buffer::new(3 * 2 * 2 * 40 * 8 * 4).unwrap();
    let buffers: [Binding<'_>; 1] = [(&output).into()];
    let launch =
        Launch { kernel: "builtins", buffers: &buffers, args: &[], constants: &[], threadgroups: groups, threads: 40 };
    device(Order::Random(5)).launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
    let got = u32::values(&output.to_vec());
    for (z, y, x, t) in (0..480).map(|i| (i / 240, i / 120 % 2, i / 40 % 3, i % 40)) {
        let at = ((z * 2 + y) * 120 + x * 40 + t) as usize * 8;
        let grid = x * 40 + t + 1000 * y + 100_000 * z;
        assert_eq!(got[at..at + 8], [grid, t + 1000 * t, t / 32, t % 32, 2 + 3200, 223, 120, 40]);
    }
}

#[test]
fn function_constants() {
    let x: Vec<f32> = (0..THREADS).map(|i| i as f32).collect();
    let input = buffer(&f32::bytes(&x));
    let run = |constants: &[(u32, u32)]| {
        let output = Buffer::new(THREADS * 4).unwrap();
        let buffers: [Binding<'_>; 2] = [(&input).into(), (&output).into()];
        let launch = Launch {
            kernel: "constants",
            buffers: &buffers,
            args: &[],
            constants,
            threadgroups: [1, 1, 1],
            threads: THREADS as u32,
        };
        device(Order::Forward).launch(&LIBRARY, &launch).map(|_| f32::values(&output.to_vec()))
    };
    let got = run(&[(0, 3), (3, 0.5f32.to_bits()), (5, 0)]).unwrap();
    assert!(got.iter().enumerate().all(|(i, y)| *y == 3.0 * i as f32 + 0.5));
    let got = run(&[(0, 2), (3, 1.0f32.to_bits()), (5, 1)]).unwrap();
    assert!(got.iter().enumerate().all(|(i, y)| *y == -2.0 * i as f32 - 1.0));
    let fault = run(&[(0, 2), (5, 1)]).unwrap_err().to_string();
    assert!(fault.contains("uses function constant 3"), "{fault}");
    let info = LIBRARY.kernel("constants").unwrap();
    assert_eq!(info.constants, [0, 3, 5], "used by the kernel or by what it calls; 9 is not");
    assert_eq!(LIBRARY.constants().len(), 4);
}

#[test]
fn signatures() {
    let info = LIBRARY.kernel("matrices_bfloat").unwrap();
    let seen: Vec<_> = info.buffers.iter().map(|b| (b.name.as_str(), b.index, b.element, b.is_const)).collect();
    let expect = [
        ("a", 0, Element::Bfloat, true),
        ("b", 1, Element::Bfloat, true),
        ("y", 2, Element::Float, false),
        ("z", 3, Element::Bfloat, false),
    ];
    assert_eq!(seen, expect);
    let scan = LIBRARY.kernel("scan").unwrap();
    assert_eq!(scan.args().map(|a| a.element_bytes), Some(8));
    assert!(scan.place.contains("ops.metal:"));
}

fn scan_args(count: u32, scale: f32) -> Vec<u8> {
    [count.to_le_bytes(), scale.to_le_bytes()].concat()
}

#[test]
fn threadgroup_memory_and_barriers() {
    let x: Vec<f32> = (0..4096).map(|i| (i % 17) as f32).collect();
    for order in ORDERS {
        let (input, output) = (buffer(&f32::bytes(&x)), Buffer::new(16 * 4).unwrap());
        let buffers: [Binding<'_>; 2] = [(&input).into(), (&output).into()];
        let launch = Launch {
            kernel: "scan",
            buffers: &buffers,
            args: &scan_args(4000, 2.0),
            constants: &[],
            threadgroups: [16, 1, 1],
            threads: 256,
        };
        let counts = device(order).launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!((counts.barriers, counts.threadgroup_bytes), (16 * 9, 4096 + 16));
        let expect: Vec<f32> =
            (0..16).map(|g| (g * 256..g * 256 + 256).filter(|i| *i < 4000).map(|i| x[i] * 2.0).sum()).collect();
        assert_eq!(f32::values(&output.to_vec()), expect);
    }
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let x = buffer(&[0; 256]);
    let fails = |kernel: &str, buffers: &[&Buffer], args: &[u8], words: &str| {
        let fault = launch(Order::Forward, kernel, buffers, args).expect_err(words).to_string();
        assert!(fault.contains(words), "`{words}` is not in: {fault}");
    };
    fails("scan", &[&x], &scan_args(1, 1.0), "takes 2 device buffers, but 1 are bound");
    fails("scan", &[&x, &x], &[0; 12], "`args` has 8 bytes, but the host's argument struct 12");
    fails("votes", &[&x, &x], &[0; 4], "takes no arguments");
    fails("nothing", &[], &[], "there is no kernel `nothing`");
}

#[test]
#[ignore = "measures; run with --ignored --nocapture"]
fn speed() {
    for (kernel, threads, groups, name) in [
        ("bench_sum", 256, 16, "simd_sum"),
        ("bench_barrier", 256, 16, "threadgroup_barrier"),
        ("bench_matrix", 128, 16, "8x8x8 product"),
    ] {
        let y = Buffer::zeroed(4 * 4096).unwrap();
        let buffers: [Binding<'_>; 1] = [(&y).into()];
        let launch = Launch {
            kernel,
            buffers: &buffers,
            args: &1000u32.to_le_bytes(),
            constants: &[],
            threadgroups: [groups, 1, 1],
            threads,
        };
        let mut device = Device::new(Settings { workers: 1, ..Settings::default() });
        let best = (0..5)
            .map(|_| {
                let start = std::time::Instant::now();
                device.launch(&LIBRARY, &launch).unwrap_or_else(|fault| panic!("{fault}"));
                start.elapsed()
            })
            .min()
            .unwrap();
        let ns = best.as_nanos() as f64 / (1000 * groups * threads) as f64;
        println!("{name}: {ns:.1} ns per lane, {:.2} us per SIMD-group", ns * 0.032);
    }
}
