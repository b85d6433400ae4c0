//! Weights widened to `f32`, multiplied by fused multiply-adds: for instruction sets without bfloat16 dot products.
//!
//! A block is eight vectors ("planes"); lane `i` of plane `p` holds element `8i + p` of quantised weights, and element
//! `p * LANES + i` of plain ones.

use half::bf16;

use super::unit::{Body, Unit};
use crate::backend::cpu::isa::Simd;
use crate::weights::Float;

/// What widening needs beyond [`Simd`]. Pointers are readable for a block.
pub(super) trait Widen: Simd {
    /// See [`Unit::TILE_X`].
    const TILE_X: usize;
    /// See [`Unit::enter`].
    fn enter<B: Body>(self, body: B);
    /// `8 * LANES` 4-bit codes.
    unsafe fn nibbles(self, codes: *const u8) -> [Self::V; 8];
    /// `8 * LANES` 8-bit codes.
    unsafe fn bytes(self, codes: *const u8) -> [Self::V; 8];
    /// See [`Unit::scales`].
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> Self::V;
    /// See [`Unit::any_scales`].
    #[inline(always)]
    unsafe fn any_scales(self, float: Float, group: usize, scales: *const u8, block: usize) -> Self::V {
        let (first, step) = (block * 8 * Self::LANES / group, float.bytes());
        let mut lanes = [0.0; 16];
        for (lane, value) in lanes[..Self::LANES].iter_mut().enumerate() {
            // SAFETY: the caller's: the groups of the block.
            *value = unsafe { super::read_float(float, scales.add((first + 8 * lane / group) * step)) };
        }
        self.load(&lanes)
    }
    /// See [`Unit::load_any`].
    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> Self::V {
        let mut lanes = [0.0; 16];
        if float == Float::Bf16 && count == Self::LANES {
            for (lane, value) in lanes[..Self::LANES].iter_mut().enumerate() {
                // SAFETY: the caller's.
                *value = unsafe { super::read_float(Float::Bf16, source.add(2 * lane)) };
            }
        } else {
            // SAFETY: the caller's.
            unsafe { read_floats(float, source, &mut lanes[..count]) };
        }
        self.load(&lanes)
    }
    /// See [`Unit::prefetch`].
    fn prefetch(self, address: *const u8);
}

/// The unit over a widening instruction set.
#[derive(Clone, Copy)]
pub(super) struct Wide<S>(pub(super) S);

impl<S: Widen> Unit for Wide<S> {
    type X = f32;
    type V = S::V;
    type Block = [S::V; 8];
    const LANES: usize = S::LANES;
    const TILE_X: usize = S::TILE_X;
    const TILE_W: usize = 1;

    #[inline(always)]
    fn enter<B: Body>(self, body: B) {
        self.0.enter(body);
    }

    #[inline(always)]
    unsafe fn arrange(self, source: *const bf16, target: *mut f32) {
        for lane in 0..S::LANES {
            for plane in 0..8 {
                // SAFETY: inside the block.
                unsafe { *target.add(plane * S::LANES + lane) = (*source.add(8 * lane + plane)).to_f32() };
            }
        }
    }

    #[inline(always)]
    unsafe fn arrange_dense(self, source: *const bf16, target: *mut f32) {
        for plane in 0..8 {
            // SAFETY: inside the block.
            unsafe {
                let v = self.0.load_bf16(std::slice::from_raw_parts(source.add(plane * S::LANES), S::LANES));
                self.store(target.add(plane * S::LANES), v);
            }
        }
    }

    #[inline(always)]
    unsafe fn nibbles(self, codes: *const u8) -> Self::Block {
        // SAFETY: the caller's.
        unsafe { self.0.nibbles(codes) }
    }

    #[inline(always)]
    unsafe fn bytes(self, codes: *const u8) -> Self::Block {
        // SAFETY: the caller's.
        unsafe { self.0.bytes(codes) }
    }

    #[inline(always)]
    unsafe fn dense(self, float: Float, elements: *const u8) -> Self::Block {
        let mut block = [self.0.zero(); 8];
        for (plane, values) in block.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *values = unsafe { self.0.load_any(float, elements.add(plane * S::LANES * float.bytes()), S::LANES) };
        }
        block
    }

    #[inline(always)]
    fn ones(self) -> Self::Block {
        [self.0.splat(1.0); 8]
    }

    #[inline(always)]
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> Self::V {
        // SAFETY: the caller's.
        unsafe { self.0.scales::<GROUP>(scales, block) }
    }

    #[inline(always)]
    unsafe fn any_scales(self, float: Float, group: usize, scales: *const u8, block: usize) -> Self::V {
        // SAFETY: the caller's.
        unsafe { self.0.any_scales(float, group, scales, block) }
    }

    #[inline(always)]
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> Self::V {
        // SAFETY: the caller's.
        unsafe { self.0.load_any(float, source, count) }
    }

    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::V {
        // SAFETY: the caller's.
        self.0.load(unsafe { std::slice::from_raw_parts(source, S::LANES) })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: Self::V) {
        // SAFETY: the caller's.
        self.0.store(unsafe { std::slice::from_raw_parts_mut(target, S::LANES) }, v);
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        self.0.prefetch(address);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        self.0.splat(x)
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.0.fma(a, b, c)
    }

    #[inline(always)]
    unsafe fn dot(self, block: &Self::Block, x: *const f32) -> Self::V {
        let mut sum = self.0.zero();
        for (plane, &weights) in block.iter().enumerate() {
            // SAFETY: inside the operand block.
            sum = self.0.fma(weights, unsafe { self.load(x.add(plane * S::LANES)) }, sum);
        }
        sum
    }

    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
        [self.0.reduce_add(a), self.0.reduce_add(b), self.0.reduce_add(c), self.0.reduce_add(d)]
    }
}

/// Widens `values.len()` values. Not inlined: it is the slow way of rare formats, and would be copied into every tile.
///
/// # Safety
/// They are readable at `source`.
#[inline(never)]
pub(super) unsafe fn read_floats(float: Float, source: *const u8, values: &mut [f32]) {
    for (index, value) in values.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *value = unsafe { super::read_float(float, source.add(index * float.bytes())) };
    }
}

/// The scale of a block that lies within one group, in all lanes.
///
/// # Safety
/// The scale is readable.
#[inline(always)]
pub(super) unsafe fn one_scale<S: Simd>(simd: S, group: usize, scales: *const u8, block: usize) -> S::V {
    let index = block * 8 * S::LANES / group;
    // SAFETY: the caller's.
    simd.splat(unsafe { super::read_float(Float::Bf16, scales.add(2 * index)) })
}
