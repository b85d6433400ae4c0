//! Sixteen lanes of AVX-512.

use std::arch::x86_64::*;

use half::bf16;

use super::{Kernel, Simd};

/// Proof that the machine has AVX-512 F, BW, DQ and VL, and what [`super::Avx2`] proves.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
    #[inline(always)]
    pub(in crate::backend::cpu) unsafe fn new() -> Self {
        Self(())
    }
}

/// Runs a kernel compiled for AVX-512.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

const LANES: usize = 16;

/// bfloat16 bits of each lane (nearest, ties to even, NaN made quiet), in the upper half of its 32 bits.
///
/// Not `vcvtneps2bf16`: that treats subnormal numbers as 0, unlike the other instruction sets.
#[inline(always)]
unsafe fn rounded_bits(v: __m512) -> __m512i {
    // SAFETY: callers hold the token.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let rounded = _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x0040_0000));
        _mm512_and_si512(rounded, _mm512_set1_epi32(0xFFFF_0000_u32 as i32))
    }
}

// SAFETY (every block below): the token exists only on a machine with the instructions, and loads and stores go through
// slices checked to hold a whole vector.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::V {
        let source = &source[..LANES];
        unsafe { _mm512_loadu_ps(source.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, source: &[bf16]) -> Self::V {
        let source = &source[..LANES];
        unsafe {
            let half = _mm256_loadu_si256(source.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        }
    }

    #[inline(always)]
    fn store(self, target: &mut [f32], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe { _mm512_storeu_ps(target.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_bf16(self, target: &mut [bf16], v: Self::V) {
        let target = &mut target[..LANES];
        unsafe {
            let half = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded_bits(v)));
            _mm256_storeu_si256(target.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn round_bf16(self, v: Self::V) -> Self::V {
        unsafe { _mm512_castsi512_ps(rounded_bits(v)) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { _mm512_sqrt_ps(a) }
    }

    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn exp2_integral(self, a: Self::V) -> Self::V {
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }

    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
}
