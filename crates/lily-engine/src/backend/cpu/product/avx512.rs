//! Widening with AVX-512, and the helpers that it shares with the bfloat16 unit.

use std::arch::x86_64::*;

use super::unit::Body;
use super::wide::Widen;
use crate::backend::cpu::isa::Avx512;
use crate::weights::Float;

/// Runs a body compiled for this instruction set.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter<B: Body>(body: B) {
    body.call();
}

// SAFETY (every block below): the token exists only on a machine with the instructions; pointers are the caller's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Widen for Avx512 {
    const TILE_X: usize = 4;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        unsafe { enter(body) }
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> [__m512; 8] {
        unsafe {
            let codes = _mm512_loadu_si512(codes.cast());
            [
                low_bits::<0xF>(codes),
                low_bits::<0xF>(_mm512_srli_epi32::<4>(codes)),
                low_bits::<0xF>(_mm512_srli_epi32::<8>(codes)),
                low_bits::<0xF>(_mm512_srli_epi32::<12>(codes)),
                low_bits::<0xF>(_mm512_srli_epi32::<16>(codes)),
                low_bits::<0xF>(_mm512_srli_epi32::<20>(codes)),
                low_bits::<0xF>(_mm512_srli_epi32::<24>(codes)),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<28>(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> [__m512; 8] {
        unsafe {
            let (a, b) = (_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast()));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            let even = _mm512_permutex2var_epi32(a, even, b);
            let odd = _mm512_permutex2var_epi32(a, odd, b);
            [
                low_bits::<0xFF>(even),
                low_bits::<0xFF>(_mm512_srli_epi32::<8>(even)),
                low_bits::<0xFF>(_mm512_srli_epi32::<16>(even)),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(even)),
                low_bits::<0xFF>(odd),
                low_bits::<0xFF>(_mm512_srli_epi32::<8>(odd)),
                low_bits::<0xFF>(_mm512_srli_epi32::<16>(odd)),
                _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> __m512 {
        unsafe { lane_scales::<GROUP>(scales, block) }
    }

    #[inline(always)]
    unsafe fn any_scales(self, float: Float, group: usize, scales: *const u8, block: usize) -> __m512 {
        unsafe { any_lane_scales(float, group, scales, block) }
    }

    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> __m512 {
        unsafe { load_any(float, source, count) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}

/// For each lane, the bytes of its group's bfloat16 among the scales of a block, in the upper half of its 32 bits.
const fn scale_control(group: usize) -> [u8; 64] {
    let mut control = [0x80; 64];
    let mut lane = 0;
    while lane < 16 {
        let scale = lane * 8 / group;
        control[lane * 4 + 2] = 2 * scale as u8;
        control[lane * 4 + 3] = 2 * scale as u8 + 1;
        lane += 1;
    }
    control
}

/// [`scale_control`] of a group of 32, 64 and 128.
static SCALE_CONTROLS: [[u8; 64]; 3] = [scale_control(32), scale_control(64), scale_control(128)];

/// The bfloat16 scales of the 128-element block `block`, widened, each in the lanes of its group.
///
/// # Safety
/// The machine has AVX-512 F and BW; the block's scales are readable.
#[inline(always)]
pub(super) unsafe fn lane_scales<const GROUP: usize>(scales: *const u8, block: usize) -> __m512 {
    // SAFETY: the caller's; unaligned reads of exactly the block's scales.
    unsafe {
        let first = scales.add(block * (256 / GROUP));
        let repeated = match GROUP {
            32 => _mm512_set1_epi64(first.cast::<i64>().read_unaligned()),
            64 => _mm512_set1_epi32(first.cast::<i32>().read_unaligned()),
            _ => _mm512_set1_epi16(first.cast::<i16>().read_unaligned()),
        };
        let control = &SCALE_CONTROLS[GROUP.trailing_zeros() as usize - 5];
        _mm512_castsi512_ps(_mm512_shuffle_epi8(repeated, _mm512_loadu_si512(control.as_ptr().cast())))
    }
}

/// As [`lane_scales`], for scales of any type and group.
///
/// # Safety
/// The machine has AVX-512 F, BW and VL; the block's scales are readable.
#[inline(always)]
pub(super) unsafe fn any_lane_scales(float: Float, group: usize, scales: *const u8, block: usize) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let count = 128 / group;
        let values = load_any(float, scales.add(block * count * float.bytes()), count);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let lanes_of_a_group = _mm_cvtsi32_si128(group.trailing_zeros() as i32 - 3);
        _mm512_permutexvar_ps(_mm512_srl_epi32(lanes, lanes_of_a_group), values)
    }
}

/// `count` values, at most 16, widened, and zeros.
///
/// # Safety
/// The machine has AVX-512 F, BW and VL; the values are readable.
#[inline(always)]
pub(super) unsafe fn load_any(float: Float, source: *const u8, count: usize) -> __m512 {
    // SAFETY: the caller's; masked-off elements are not touched.
    unsafe {
        let mask = ((1_u32 << count) - 1) as __mmask16;
        match float {
            Float::Bf16 => {
                let half = _mm256_maskz_loadu_epi16(mask, source.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            }
            Float::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, source.cast())),
            Float::F32 => _mm512_maskz_loadu_ps(mask, source.cast()),
        }
    }
}

/// The lane sums of four vectors. Within 128 bits `(0 + 2) + (1 + 3)`, then quarters `(0 + 2) + (1 + 3)`.
///
/// # Safety
/// The machine has AVX-512 F and DQ.
#[inline(always)]
pub(super) unsafe fn sum4([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
    // SAFETY: the caller's.
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        let v = _mm512_add_ps(low, high);
        let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let mut sums = [0.0; 4];
        _mm_storeu_ps(sums.as_mut_ptr(), v);
        sums
    }
}

/// The bits of `MASK` of each 32-bit word, as `f32`.
#[inline(always)]
unsafe fn low_bits<const MASK: i32>(words: __m512i) -> __m512 {
    // SAFETY: callers hold the token.
    unsafe { _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(MASK))) }
}
