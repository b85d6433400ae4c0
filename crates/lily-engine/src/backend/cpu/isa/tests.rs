//! Every instruction set of this machine against plain arithmetic.

use super::*;

/// What one vector operation gives for the first lanes of `a`, `b`, `c`.
struct Lanes<'a> {
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
}

#[derive(Debug, Clone, PartialEq)]
struct Answers {
    lanes: usize,
    elementwise: Vec<(&'static str, Vec<f32>)>,
    sum: f32,
    largest: f32,
}

impl Kernel for Lanes<'_> {
    type Output = Answers;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Answers {
        let (a, b, c) = (s.load(self.a), s.load(self.b), s.load(self.c));
        let mut elementwise = Vec::new();
        let results = [
            ("add", s.add(a, b)),
            ("sub", s.sub(a, b)),
            ("mul", s.mul(a, b)),
            ("div", s.div(a, b)),
            ("max", s.max(a, b)),
            ("min", s.min(a, b)),
            ("abs", s.abs(a)),
            ("sqrt", s.sqrt(s.abs(a))),
            ("round", s.round(a)),
            ("fma", s.fma(a, b, c)),
            ("round_bf16", s.round_bf16(a)),
        ];
        for (name, v) in results {
            let mut out = [0.0; MAX_LANES];
            s.store(&mut out, v);
            elementwise.push((name, out[..S::LANES].to_vec()));
        }
        Answers { lanes: S::LANES, elementwise, sum: s.reduce_add(a), largest: s.reduce_max(a) }
    }
}

fn wave(seed: f32) -> Vec<f32> {
    (0..MAX_LANES).map(|i| ((i as f32 + seed) * 1.37).sin() * 3.0 + seed * 0.01).collect()
}

#[test]
fn elementwise_operations_match_plain_arithmetic() {
    let (a, b, c) = (wave(0.3), wave(5.0), wave(9.0));
    for isa in Isa::supported() {
        let answers = isa.dispatch(Lanes { a: &a, b: &b, c: &c });
        for (name, got) in &answers.elementwise {
            for i in 0..answers.lanes {
                let (a, b, c) = (a[i], b[i], c[i]);
                let want = match *name {
                    "add" => a + b,
                    "sub" => a - b,
                    "mul" => a * b,
                    "div" => a / b,
                    "max" => a.max(b),
                    "min" => a.min(b),
                    "abs" => a.abs(),
                    "sqrt" => a.abs().sqrt(),
                    "round" => a.round_ties_even(),
                    "fma" if isa == Isa::Scalar => a * b + c,
                    "fma" => a.mul_add(b, c),
                    "round_bf16" => bf16::from_f32(a).to_f32(),
                    _ => unreachable!(),
                };
                assert_eq!(got[i].to_bits(), want.to_bits(), "{name} lane {i} on {}", isa.name());
            }
        }
        let mut halves = a[..answers.lanes].to_vec();
        while halves.len() > 1 {
            let (low, high) = halves.split_at(halves.len() / 2);
            halves = low.iter().zip(high).map(|(x, y)| x + y).collect();
        }
        assert_eq!(answers.sum.to_bits(), halves[0].to_bits(), "reduce_add on {}", isa.name());
        let largest = a[..answers.lanes].iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(answers.largest, largest, "reduce_max on {}", isa.name());
    }
}

/// Applies a one-vector function to a whole slice.
struct Map<'a> {
    function: &'static str,
    values: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for chunk in self.values.chunks_mut(S::LANES) {
            let v = s.load_partial(chunk);
            let v = match self.function {
                "exp" => s.exp(v),
                "sigmoid" => s.sigmoid(v),
                "silu" => s.silu(v),
                _ => unreachable!(),
            };
            s.store_partial(chunk, v);
        }
    }
}

fn ulp(x: f64) -> f64 {
    let x = x as f32;
    f64::from(f32::from_bits(x.abs().to_bits() + 1)) - f64::from(x.abs())
}

#[test]
fn exp_and_gates_are_within_two_ulp() {
    let inputs: Vec<f32> = (-870_000..=887_000).step_by(7).map(|i| i as f32 * 1e-4).collect();
    for isa in Isa::supported() {
        // Scalar rounds each fma twice, which costs the division-free exp one more unit at most.
        let bounds = [("exp", 2.0), ("sigmoid", 3.0), ("silu", 3.5)];
        for (function, bound) in bounds {
            let mut got = inputs.clone();
            isa.dispatch(Map { function, values: &mut got });
            for (&x, &y) in inputs.iter().zip(&got) {
                let exact = match function {
                    "exp" => f64::from(x).exp(),
                    "sigmoid" => 1.0 / (1.0 + (-f64::from(x)).exp()),
                    _ => f64::from(x) / (1.0 + (-f64::from(x)).exp()),
                };
                let tiny = 2f64.powi(-125) * f64::from(x.abs().max(1.0));
                let error = (f64::from(y) - exact).abs();
                let (name, ulps) = (isa.name(), error / ulp(exact));
                assert!(error <= tiny || ulps <= bound, "{function}({x}) = {y}, want {exact}: {ulps} ulp on {name}");
            }
        }
    }
}

#[test]
fn exp_has_the_right_ends() {
    for isa in Isa::supported() {
        let mut values = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.72, 88.73, -200.0, 200.0];
        isa.dispatch(Map { function: "exp", values: &mut values });
        assert_eq!(values[0], 1.0);
        assert_eq!(values[1], 1.0);
        assert_eq!(values[2], f32::INFINITY);
        assert_eq!(values[3], 0.0);
        assert!(values[4].is_nan(), "NaN on {}", isa.name());
        assert!(values[5].is_finite() && values[5] > 3.3e38, "{} on {}", values[5], isa.name());
        assert_eq!(values[6], f32::INFINITY);
        assert_eq!(values[7], 0.0);
        assert_eq!(values[8], f32::INFINITY);
    }
}

/// Rounds to bfloat16 through every store form.
struct Round<'a> {
    source: &'a [f32],
    target: &'a mut [bf16],
    widened: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let chunks = self.source.chunks(S::LANES).zip(self.target.chunks_mut(S::LANES));
        for ((source, target), widened) in chunks.zip(self.widened.chunks_mut(S::LANES)) {
            if source.len() == S::LANES {
                s.store_bf16(target, s.load(source));
                s.store(widened, s.load_bf16(target));
            } else {
                s.store_bf16_partial(target, s.load_partial(source));
                s.store_partial(widened, s.load_bf16_partial(target));
            }
        }
    }
}

#[test]
fn bf16_rounding_matches_half_for_every_exponent_tie_and_nan() {
    let mut bits: Vec<u32> = Vec::new();
    for upper in (0..=0xFFFF_u32).step_by(13) {
        for lower in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            bits.push(upper << 16 | lower);
        }
    }
    bits.extend([0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0001, 0x7F80_0000, 0xFF80_0000, 1, 0x8000_0001]);
    let source: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
    for isa in Isa::supported() {
        let mut target = vec![bf16::ZERO; source.len()];
        let mut widened = vec![0.0; source.len()];
        isa.dispatch(Round { source: &source, target: &mut target, widened: &mut widened });
        for ((x, got), wide) in source.iter().zip(&target).zip(&widened) {
            let want = bf16::from_f32(*x);
            let name = isa.name();
            assert_eq!(got.to_bits(), want.to_bits(), "{:#x} on {name}", x.to_bits());
            assert_eq!(wide.to_bits(), u32::from(want.to_bits()) << 16, "{:#x} on {name}", x.to_bits());
        }
    }
}

#[test]
fn names_round_trip_and_errors_say_what_can_be_used() {
    for isa in Isa::supported() {
        assert_eq!(Isa::parse(isa.name()), Ok(isa));
    }
    let unknown = Isa::parse("sse9").unwrap_err().to_string();
    assert!(unknown.contains("\"sse9\"") && unknown.contains("scalar, neon, avx2, avx512"), "{unknown}");
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let unsupported = Isa::parse(foreign).unwrap_err().to_string();
    assert!(unsupported.contains("can run: scalar"), "{unsupported}");
}
