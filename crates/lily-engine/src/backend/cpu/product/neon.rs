//! Widening with Advanced SIMD.

use std::arch::aarch64::*;

use super::unit::Body;
use super::wide::{Widen, one_scale, read_floats};
use crate::backend::cpu::isa::Neon;
use crate::weights::Float;

/// Runs a body compiled for this instruction set.
///
/// # Safety
/// The machine has the features below.
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn enter<B: Body>(body: B) {
    body.call();
}

// SAFETY (every block below): the token exists only on a machine with the instructions; pointers are the caller's.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument for all, given above")]
impl Widen for Neon {
    const TILE_X: usize = 4;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        unsafe { enter(body) }
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> [float32x4_t; 8] {
        unsafe {
            let codes = vreinterpretq_u32_u8(vld1q_u8(codes));
            [
                low_bits::<0xF>(codes),
                low_bits::<0xF>(vshrq_n_u32::<4>(codes)),
                low_bits::<0xF>(vshrq_n_u32::<8>(codes)),
                low_bits::<0xF>(vshrq_n_u32::<12>(codes)),
                low_bits::<0xF>(vshrq_n_u32::<16>(codes)),
                low_bits::<0xF>(vshrq_n_u32::<20>(codes)),
                low_bits::<0xF>(vshrq_n_u32::<24>(codes)),
                vcvtq_f32_u32(vshrq_n_u32::<28>(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> [float32x4_t; 8] {
        unsafe {
            let a = vreinterpretq_u32_u8(vld1q_u8(codes));
            let b = vreinterpretq_u32_u8(vld1q_u8(codes.add(16)));
            let (even, odd) = (vuzp1q_u32(a, b), vuzp2q_u32(a, b));
            [
                low_bits::<0xFF>(even),
                low_bits::<0xFF>(vshrq_n_u32::<8>(even)),
                low_bits::<0xFF>(vshrq_n_u32::<16>(even)),
                vcvtq_f32_u32(vshrq_n_u32::<24>(even)),
                low_bits::<0xFF>(odd),
                low_bits::<0xFF>(vshrq_n_u32::<8>(odd)),
                low_bits::<0xFF>(vshrq_n_u32::<16>(odd)),
                vcvtq_f32_u32(vshrq_n_u32::<24>(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> float32x4_t {
        unsafe { one_scale(self, GROUP, scales, block) }
    }

    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> float32x4_t {
        unsafe {
            match float {
                Float::Bf16 if count == 4 => {
                    let half = vreinterpret_u16_u8(vld1_u8(source));
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(half))
                }
                Float::F32 if count == 4 => vreinterpretq_f32_u8(vld1q_u8(source)),
                _ => {
                    let mut lanes = [0.0; 4];
                    read_floats(float, source, &mut lanes[..count]);
                    vld1q_f32(lanes.as_ptr())
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}

/// The bits of `MASK` of each 32-bit word, as `f32`.
#[inline(always)]
unsafe fn low_bits<const MASK: u32>(words: uint32x4_t) -> float32x4_t {
    // SAFETY: callers hold the token.
    unsafe { vcvtq_f32_u32(vandq_u32(words, vdupq_n_u32(MASK))) }
}
