//! Eight lanes of AVX2 with FMA.

use std::arch::x86_64::*;

use half::bf16;

use super::{Kernel, Simd};

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    #[inline(always)]
    pub(in crate::backend::cpu) unsafe fn new() -> Self {
        Self(())
    }
}

/// Runs a kernel compiled for AVX2.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

const LANES: usize = 8;

/// bfloat16 bits of each lane (nearest, ties to even, NaN made quiet), in the upper half of its 32 bits.
#[inline(always)]
unsafe fn rounded_bits(v: __m256) -> __m256i {
    // SAFETY: callers hold the token.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        let sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_and_si256(_mm256_blendv_epi8(sum, quiet, is_nan), _mm256_set1_epi32(0xFFFF_0000_u32 as i32))
    }
}

// SAFETY (every block below): the token exists only on a machine with the instructions, and loads and stores go through
// slices checked to hold a whole vector.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::V {
        let source = &source[..LANES];
        unsafe { _mm256_loadu_ps(source.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, source: &[bf16]) -> Self::V {
        let source = &source[..LANES];
        unsafe {
            let half = _mm_loadu_si128(source.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))
        }
    }

    #[inline(always)]
    fn store(self, target: &mut [f32], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe { _mm256_storeu_ps(target.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_bf16(self, target: &mut [bf16], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe {
            let bits = _mm256_srli_epi32(rounded_bits(v), 16);
            let packed = _mm256_packus_epi32(bits, bits);
            let packed = _mm256_permute4x64_epi64::<0b10_00>(packed);
            _mm_storeu_si128(target.as_mut_ptr().cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    fn round_bf16(self, v: Self::V) -> Self::V {
        unsafe { _mm256_castsi256_ps(rounded_bits(v)) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }

    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { _mm256_sqrt_ps(a) }
    }

    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn exp2_integral(self, a: Self::V) -> Self::V {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))
        }
    }

    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
}
