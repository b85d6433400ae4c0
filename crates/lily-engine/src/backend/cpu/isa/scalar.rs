//! Portable vectors: eight lanes of plain Rust, which the compiler may turn into whatever the target always has.

use half::bf16;

use super::Simd;

/// Portable Rust.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

const LANES: usize = 8;

#[inline(always)]
fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Folds halves onto each other until one lane is left.
#[inline(always)]
fn fold(mut v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            v[i] = f(v[i], v[i + width]);
        }
        width /= 2;
    }
    v[0]
}

impl Simd for Scalar {
    type V = [f32; LANES];
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::V {
        std::array::from_fn(|i| source[i])
    }

    #[inline(always)]
    fn load_bf16(self, source: &[bf16]) -> Self::V {
        std::array::from_fn(|i| f32::from_bits(u32::from(source[i].to_bits()) << 16))
    }

    #[inline(always)]
    fn store(self, target: &mut [f32], v: Self::V) {
        target[..LANES].copy_from_slice(&v);
    }

    #[inline(always)]
    fn store_bf16(self, target: &mut [bf16], v: Self::V) {
        target[..LANES].copy_from_slice(&v.map(bf16::from_f32));
    }

    #[inline(always)]
    fn round_bf16(self, v: Self::V) -> Self::V {
        map(v, |x| bf16::from_f32(x).to_f32())
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    // Not `mul_add`: without the instruction at compile time that is a library call per lane.
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        map(a, f32::abs)
    }

    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        map(a, f32::sqrt)
    }

    // Adding and subtracting 1.5 * 2^23 leaves no fraction bits, rounded as every addition is; the sign is
    // put back for -0.
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const SHIFT: f32 = 12_582_912.0;
        map(a, |x| ((x + SHIFT) - SHIFT).copysign(x))
    }

    #[inline(always)]
    fn exp2_integral(self, a: Self::V) -> Self::V {
        map(a, |x| f32::from_bits(((x as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        fold(v, |a, b| a + b)
    }

    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        fold(v, f32::max)
    }
}
