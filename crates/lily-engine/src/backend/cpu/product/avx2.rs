//! Widening with AVX2.

use std::arch::x86_64::*;

use super::unit::Body;
use super::wide::{Widen, one_scale, read_floats};
use crate::backend::cpu::isa::Avx2;
use crate::weights::Float;

/// Each lane's group among two scales repeated through the vector: lanes 0..4 and 4..8, value in the upper half.
static TWO_SCALES: [u8; 32] = {
    let mut control = [0x80; 32];
    let mut lane = 0;
    while lane < 8 {
        control[lane * 4 + 2] = 2 * (lane / 4) as u8;
        control[lane * 4 + 3] = 2 * (lane / 4) as u8 + 1;
        lane += 1;
    }
    control
};

/// Runs a body compiled for this instruction set.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter<B: Body>(body: B) {
    body.call();
}

// SAFETY (every block below): the token exists only on a machine with the instructions; pointers are the caller's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Widen for Avx2 {
    const TILE_X: usize = 4;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        unsafe { enter(body) }
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> [__m256; 8] {
        unsafe {
            let codes = _mm256_loadu_si256(codes.cast());
            [
                low_bits::<0xF>(codes),
                low_bits::<0xF>(_mm256_srli_epi32::<4>(codes)),
                low_bits::<0xF>(_mm256_srli_epi32::<8>(codes)),
                low_bits::<0xF>(_mm256_srli_epi32::<12>(codes)),
                low_bits::<0xF>(_mm256_srli_epi32::<16>(codes)),
                low_bits::<0xF>(_mm256_srli_epi32::<20>(codes)),
                low_bits::<0xF>(_mm256_srli_epi32::<24>(codes)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> [__m256; 8] {
        unsafe {
            let a = _mm256_castsi256_ps(_mm256_loadu_si256(codes.cast()));
            let b = _mm256_castsi256_ps(_mm256_loadu_si256(codes.add(32).cast()));
            // Even 32-bit words (elements 0..4 of every eight) and odd ones; the shuffle works within 128 bits, so the
            // 64-bit quarters are put in order afterwards.
            let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            let even = _mm256_permute4x64_epi64::<0b11_01_10_00>(even);
            let odd = _mm256_permute4x64_epi64::<0b11_01_10_00>(odd);
            [
                low_bits::<0xFF>(even),
                low_bits::<0xFF>(_mm256_srli_epi32::<8>(even)),
                low_bits::<0xFF>(_mm256_srli_epi32::<16>(even)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(even)),
                low_bits::<0xFF>(odd),
                low_bits::<0xFF>(_mm256_srli_epi32::<8>(odd)),
                low_bits::<0xFF>(_mm256_srli_epi32::<16>(odd)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> __m256 {
        unsafe {
            if GROUP >= 64 {
                return one_scale(self, GROUP, scales, block);
            }
            let two = scales.add(4 * block).cast::<i32>().read_unaligned();
            let control = _mm256_loadu_si256(TWO_SCALES.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_set1_epi32(two), control))
        }
    }

    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> __m256 {
        unsafe {
            match float {
                Float::Bf16 if count == 8 => {
                    let half = _mm_loadu_si128(source.cast());
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
                }
                Float::F16 if count == 8 => _mm256_cvtph_ps(_mm_loadu_si128(source.cast())),
                Float::F32 if count == 8 => _mm256_loadu_ps(source.cast()),
                _ => {
                    let mut lanes = [0.0; 8];
                    read_floats(float, source, &mut lanes[..count]);
                    _mm256_loadu_ps(lanes.as_ptr())
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}

/// The bits of `MASK` of each 32-bit word, as `f32`.
#[inline(always)]
unsafe fn low_bits<const MASK: i32>(words: __m256i) -> __m256 {
    // SAFETY: callers hold the token.
    unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(MASK))) }
}
