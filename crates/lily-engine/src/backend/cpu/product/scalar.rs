//! Widening in portable Rust.

use super::unit::Body;
use super::wide::Widen;
use crate::backend::cpu::isa::{Scalar, Simd};

impl Widen for Scalar {
    const TILE_X: usize = 4;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        body.call();
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> [Self::V; 8] {
        // SAFETY: the caller's block.
        let words: [u32; Self::LANES] = std::array::from_fn(|lane| unsafe { word(codes.add(4 * lane)) });
        std::array::from_fn(|plane| words.map(|word| (word >> (4 * plane) & 0xF) as i32 as f32))
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> [Self::V; 8] {
        // SAFETY: the caller's block.
        let words: [[u32; Self::LANES]; 2] =
            std::array::from_fn(|half| std::array::from_fn(|lane| unsafe { word(codes.add(8 * lane + 4 * half)) }));
        std::array::from_fn(|plane| words[plane / 4].map(|word| (word >> (8 * (plane % 4)) & 0xFF) as i32 as f32))
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> Self::V {
        let mut lanes = self.zero();
        for (lane, value) in lanes.iter_mut().enumerate() {
            let index = (block * 8 * Self::LANES + 8 * lane) / GROUP;
            // SAFETY: one of the block's groups.
            *value = unsafe { super::read_float(crate::weights::Float::Bf16, scales.add(2 * index)) };
        }
        lanes
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}

/// Four bytes, the first lowest.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn word(bytes: *const u8) -> u32 {
    // SAFETY: the caller's; no alignment is assumed.
    u32::from_le(unsafe { bytes.cast::<u32>().read_unaligned() })
}
