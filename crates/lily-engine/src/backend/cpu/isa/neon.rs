//! Four lanes of Arm's Advanced SIMD.

use std::arch::aarch64::*;

use half::bf16;

use super::{Kernel, Simd};

/// Proof that the machine has Advanced SIMD.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// # Safety
    /// The machine has Advanced SIMD.
    #[inline(always)]
    pub(in crate::backend::cpu) unsafe fn new() -> Self {
        Self(())
    }
}

/// Runs a kernel compiled for Advanced SIMD.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

const LANES: usize = 4;

/// bfloat16 bits of each lane (nearest, ties to even, NaN made quiet), in the upper half of its 32 bits.
#[inline(always)]
unsafe fn rounded_bits(v: float32x4_t) -> uint32x4_t {
    // SAFETY: callers hold the token.
    unsafe {
        let bits = vreinterpretq_u32_f32(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vandq_u32(vbslq_u32(vceqq_f32(v, v), sum, quiet), vdupq_n_u32(0xFFFF_0000))
    }
}

// SAFETY (every block below): the token exists only on a machine with the instructions, and loads and stores go through
// slices checked to hold a whole vector.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::V {
        let source = &source[..LANES];
        unsafe { vld1q_f32(source.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, source: &[bf16]) -> Self::V {
        let source = &source[..LANES];
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(source.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store(self, target: &mut [f32], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe { vst1q_f32(target.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_bf16(self, target: &mut [bf16], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe { vst1_u16(target.as_mut_ptr().cast(), vshrn_n_u32::<16>(rounded_bits(v))) }
    }

    #[inline(always)]
    fn round_bf16(self, v: Self::V) -> Self::V {
        unsafe { vreinterpretq_f32_u32(rounded_bits(v)) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vdivq_f32(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmaxq_f32(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vminq_f32(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { vabsq_f32(a) }
    }

    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { vsqrtq_f32(a) }
    }

    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { vrndnq_f32(a) }
    }

    #[inline(always)]
    fn exp2_integral(self, a: Self::V) -> Self::V {
        unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        }
    }

    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        unsafe {
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        }
    }

    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        unsafe { vmaxvq_f32(v) }
    }
}
