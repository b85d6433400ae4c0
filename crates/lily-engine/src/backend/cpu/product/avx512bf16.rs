//! Blocks of 128 weights as bfloat16, multiplied by `vdpbf16ps`.
//!
//! A block is four vectors ("planes") of 32 bfloat16. Seen as 32-bit words, word `i` of plane `k` holds the elements
//! `8i + k` and `8i + 4 + k`: the order in which 4-bit codes come out of a 512-bit load by shifts of its 16-bit words.
//! Codes are at most 8 bits, so they are exact in bfloat16, and products of two bfloat16 are exact in `f32`. The
//! instruction treats subnormal inputs and results as 0.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::unit::{Body, Unit};
use crate::weights::Float;

/// Proof that the machine has what [`crate::backend::cpu::isa::Isa::Avx512Bf16`] says.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16(());

impl Avx512Bf16 {
    /// # Safety
    /// The machine runs `Isa::Avx512Bf16`.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// bfloat16 of the integers 0..16, twice: `vpermw` looks at five bits of an index.
static NIBBLES: [u16; 32] = {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = ((i % 16) as f32).to_bits().wrapping_shr(16) as u16;
        i += 1;
    }
    table
};

/// For [`Unit::arrange`]: within 128 bits, elements 0..8 become the pairs (0, 4), (1, 5), (2, 6), (3, 7).
const PAIRS: [u8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

/// Runs a body compiled for this instruction set.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")]
#[inline(never)]
unsafe fn enter<B: Body>(body: B) {
    body.call();
}

// SAFETY (every block below): the token exists only on a machine with the instructions; pointers are the caller's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Unit for Avx512Bf16 {
    type X = bf16;
    type V = __m512;
    type Block = [__m512bh; 4];
    const LANES: usize = 16;
    const TILE_X: usize = 6;
    const TILE_W: usize = 2;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        unsafe { enter(body) }
    }

    #[inline(always)]
    unsafe fn arrange(self, source: *const bf16, target: *mut bf16) {
        unsafe {
            // After the byte shuffle, word `4g + k` of a vector is the pair `k` of its `g`-th eight elements; the rest
            // gathers word `k` of every four.
            let pairs = _mm512_broadcast_i32x4(_mm_loadu_si128(PAIRS.as_ptr().cast()));
            let a = _mm512_shuffle_epi8(_mm512_loadu_si512(source.cast()), pairs);
            let b = _mm512_shuffle_epi8(_mm512_loadu_si512(source.add(32).cast()), pairs);
            let c = _mm512_shuffle_epi8(_mm512_loadu_si512(source.add(64).cast()), pairs);
            let d = _mm512_shuffle_epi8(_mm512_loadu_si512(source.add(96).cast()), pairs);
            let low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
            let (ab01, ab23) = (_mm512_permutex2var_epi32(a, low, b), _mm512_permutex2var_epi32(a, high, b));
            let (cd01, cd23) = (_mm512_permutex2var_epi32(c, low, d), _mm512_permutex2var_epi32(c, high, d));
            let planes = [
                _mm512_shuffle_i64x2::<0b01_00_01_00>(ab01, cd01),
                _mm512_shuffle_i64x2::<0b11_10_11_10>(ab01, cd01),
                _mm512_shuffle_i64x2::<0b01_00_01_00>(ab23, cd23),
                _mm512_shuffle_i64x2::<0b11_10_11_10>(ab23, cd23),
            ];
            for (k, plane) in planes.into_iter().enumerate() {
                _mm512_storeu_si512(target.add(32 * k).cast(), plane);
            }
        }
    }

    #[inline(always)]
    unsafe fn arrange_dense(self, source: *const bf16, target: *mut bf16) {
        unsafe { target.copy_from_nonoverlapping(source, Self::BLOCK) }
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> Self::Block {
        unsafe {
            let table = _mm512_loadu_si512(NIBBLES.as_ptr().cast());
            let codes = _mm512_loadu_si512(codes.cast());
            [
                look_up(table, codes),
                look_up(table, _mm512_srli_epi16::<4>(codes)),
                look_up(table, _mm512_srli_epi16::<8>(codes)),
                look_up(table, _mm512_srli_epi16::<12>(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> Self::Block {
        unsafe { from_bytes(_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())) }
    }

    #[inline(always)]
    unsafe fn packed(self, bits: usize, codes: *const u8) -> Self::Block {
        unsafe { from_bytes(unpack_64(bits, codes), unpack_64(bits, codes.add(8 * bits))) }
    }

    #[inline(always)]
    unsafe fn dense(self, float: Float, elements: *const u8) -> Self::Block {
        debug_assert_eq!(float, Float::Bf16, "other plain elements are multiplied as f32");
        unsafe {
            [
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(elements.cast())),
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(elements.add(64).cast())),
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(elements.add(128).cast())),
                transmute::<__m512i, __m512bh>(_mm512_loadu_si512(elements.add(192).cast())),
            ]
        }
    }

    #[inline(always)]
    fn ones(self) -> Self::Block {
        unsafe { [transmute::<__m512i, __m512bh>(_mm512_set1_epi16(0x3F80)); 4] }
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> Self::V {
        unsafe { super::avx512::lane_scales::<GROUP>(scales, block) }
    }

    #[inline(always)]
    unsafe fn any_scales(self, float: Float, group: usize, scales: *const u8, block: usize) -> Self::V {
        unsafe { super::avx512::any_lane_scales(float, group, scales, block) }
    }

    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> Self::V {
        unsafe { super::avx512::load_any(float, source, count) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(source) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(target, v) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn dot(self, block: &Self::Block, x: *const bf16) -> Self::V {
        unsafe {
            let mut sum = _mm512_setzero_ps();
            for (k, &plane) in block.iter().enumerate() {
                let x = transmute::<__m512i, __m512bh>(_mm512_load_si512(x.add(32 * k).cast()));
                sum = _mm512_dpbf16_ps(sum, plane, x);
            }
            sum
        }
    }

    #[inline(always)]
    fn sum4(self, vectors: [Self::V; 4]) -> [f32; 4] {
        unsafe { super::avx512::sum4(vectors) }
    }
}

/// bfloat16 of the lowest four bits of each 16-bit word.
#[inline(always)]
unsafe fn look_up(table: __m512i, words: __m512i) -> __m512bh {
    // SAFETY: callers hold the token.
    unsafe { transmute::<__m512i, __m512bh>(_mm512_permutexvar_epi16(words, table)) }
}

/// 64 codes of `bits` bits, at most 6, as bytes.
///
/// Each 64-bit word first receives the `bits` bytes that hold its eight codes, then every byte of it the eight bits that
/// start at its code.
#[inline(always)]
unsafe fn unpack_64(bits: usize, source: *const u8) -> __m512i {
    const EACH: i64 = 0x0101_0101_0101_0101;
    // SAFETY: callers hold the token, and `8 * bits` bytes are readable; masked-off bytes are not touched.
    unsafe {
        let word_numbers = _mm512_setr_epi64(0, EACH, 2 * EACH, 3 * EACH, 4 * EACH, 5 * EACH, 6 * EACH, 7 * EACH);
        // Word 7 starts at byte 42 at most, so the products of byte numbers do not reach the next byte.
        let starts = _mm512_mullo_epi16(word_numbers, _mm512_set1_epi16(bits as i16));
        let bytes = _mm512_add_epi8(starts, _mm512_set1_epi64(0x0706_0504_0302_0100));
        let bit_numbers = _mm512_set1_epi64(0x0706_0504_0302_0100 * bits as i64);
        let packed = _mm512_maskz_loadu_epi8((1 << (8 * bits)) - 1, source.cast());
        let words = _mm512_permutexvar_epi8(bytes, packed);
        let spread = _mm512_multishift_epi64_epi8(bit_numbers, words);
        _mm512_and_si512(spread, _mm512_set1_epi8((1 << bits) - 1))
    }
}

/// A block of 128 bytes as bfloat16, exactly: byte `k` of the 32-bit words of `a`, then of `b`, in plane `k`.
#[inline(always)]
unsafe fn from_bytes(a: __m512i, b: __m512i) -> [__m512bh; 4] {
    // SAFETY: callers hold the token.
    unsafe {
        [
            from_words(a, b),
            from_words(_mm512_srli_epi32::<8>(a), _mm512_srli_epi32::<8>(b)),
            from_words(_mm512_srli_epi32::<16>(a), _mm512_srli_epi32::<16>(b)),
            from_words(_mm512_srli_epi32::<24>(a), _mm512_srli_epi32::<24>(b)),
        ]
    }
}

/// bfloat16 of the lowest byte of each 32-bit word of `a`, then of `b`.
#[inline(always)]
unsafe fn from_words(a: __m512i, b: __m512i) -> __m512bh {
    // SAFETY: callers hold the token.
    unsafe {
        let low = _mm512_set1_epi32(0xFF);
        let (a, b) = (_mm512_and_si512(a, low), _mm512_and_si512(b, low));
        _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(b), _mm512_cvtepi32_ps(a))
    }
}
