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
        let mut bytes = [0; 8 * Self::LANES];
        // SAFETY: the caller's block.
        unsafe {
            super::unpack(4, std::slice::from_raw_parts(codes, 4 * Self::LANES), &mut bytes);
            self.bytes(bytes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> [Self::V; 8] {
        let mut planes = [self.zero(); 8];
        for lane in 0..Self::LANES {
            for (plane, values) in planes.iter_mut().enumerate() {
                // SAFETY: the caller's block.
                values[lane] = f32::from(unsafe { *codes.add(8 * lane + plane) });
            }
        }
        planes
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
    unsafe fn prefetch(self, _: *const u8) {}
}
