//! What the tile text needs from an instruction set.
//!
//! Quantised weights are taken in blocks of `8 * LANES` consecutive elements of a row, and lane `i` of every vector
//! works on the elements `8i..8i + 8` of the block. Groups hold 32, 64 or 128 elements, so a lane never mixes groups, and
//! one multiplication of a block's partial sums by a vector of scales applies every group's scale.

use crate::weights::Float;

/// An instruction set's way to multiply one block of weights by one block of an operand row.
///
/// A value is the proof that the machine has the instructions. Pointers of the unsafe functions must be readable (or
/// writable) for the stated number of elements; none needs alignment except operand blocks (64 bytes).
pub(super) trait Unit: Copy {
    /// Element of an operand row.
    type X: Copy;
    /// `LANES` sums.
    type V: Copy;
    /// Weights of one block, ready to multiply.
    type Block: Copy;
    /// Lanes of a vector of `f32` sums.
    const LANES: usize;
    /// Elements of a block.
    const BLOCK: usize = 8 * Self::LANES;
    /// Tallest tile in activation rows, at most 6; chosen so that a tile's sums stay in registers.
    const TILE_X: usize;
    /// Tile width in weight rows, 1 or 2.
    const TILE_W: usize;

    /// Runs the body in a function compiled for this instruction set.
    fn enter<B: Body>(self, body: B);

    /// Writes `BLOCK` elements at `source` to `BLOCK` elements at `target` in the order in which [`Unit::nibbles`],
    /// [`Unit::bytes`] and [`Unit::packed`] blocks meet them.
    unsafe fn arrange(self, source: *const half::bf16, target: *mut Self::X);
    /// As [`Unit::arrange`], in the order of [`Unit::dense`] blocks.
    unsafe fn arrange_dense(self, source: *const half::bf16, target: *mut Self::X);

    /// `BLOCK` 4-bit codes.
    unsafe fn nibbles(self, codes: *const u8) -> Self::Block;
    /// `BLOCK` 8-bit codes.
    unsafe fn bytes(self, codes: *const u8) -> Self::Block;
    /// `BLOCK` codes of `bits` bits each, a little-endian bit stream.
    #[inline(always)]
    unsafe fn packed(self, bits: usize, codes: *const u8) -> Self::Block {
        let mut unpacked = [0_u8; 128];
        // SAFETY: the caller's codes, `bits` bytes for every eight elements; the array holds the largest block.
        unsafe {
            let packed = std::slice::from_raw_parts(codes, Self::BLOCK / 8 * bits);
            super::unpack(bits, packed, &mut unpacked[..Self::BLOCK]);
            self.bytes(unpacked.as_ptr())
        }
    }
    /// `BLOCK` plain elements of type `float`.
    unsafe fn dense(self, float: Float, elements: *const u8) -> Self::Block;
    /// `BLOCK` ones.
    fn ones(self) -> Self::Block;

    /// The scales of each lane's group, in block `block` of a row whose bfloat16 scales start at `scales`.
    unsafe fn scales<const GROUP: usize>(self, scales: *const u8, block: usize) -> Self::V;
    /// As [`Unit::scales`], for scales of any type and group.
    unsafe fn any_scales(self, float: Float, group: usize, scales: *const u8, block: usize) -> Self::V;
    /// `count` values at `source` (at most `LANES`), widened, and zeros.
    unsafe fn load_any(self, float: Float, source: *const u8, count: usize) -> Self::V;
    /// `LANES` floats.
    unsafe fn load(self, source: *const f32) -> Self::V;
    /// Stores `LANES` floats.
    unsafe fn store(self, target: *mut f32, v: Self::V);
    /// Asks for the cache line at `address`, which need not be mapped, in the second-level cache.
    fn prefetch(self, address: *const u8);

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// `a * b + c`
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Per lane, the sum of the products of a block and an operand block, in a fixed order.
    unsafe fn dot(self, block: &Self::Block, x: *const Self::X) -> Self::V;
    /// The sums of the lanes of four vectors; each sum's order is fixed and the same in every position.
    fn sum4(self, vectors: [Self::V; 4]) -> [f32; 4];
}

/// A function body; `call` and all that it calls with vectors must be `#[inline(always)]` to be compiled with the features
/// of [`Unit::enter`]. Closures and library functions that take them (`array::map`, `array::from_fn`) are not.
pub(super) trait Body {
    fn call(self);
}
