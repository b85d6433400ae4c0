//! The tile text: one for all formats, instruction sets and tile shapes.
//!
//! **Order of operations.** For one activation row and one weight row: the lanes' sums start at 0; block after block,
//! the block's partial sums (started at 0) times the scales are added; then, `LANES` groups at a time, biases times the
//! group sums of the activations are added; then the lanes are summed. Nothing in it depends on the other rows of a
//! tile, so a result is the same bits whatever the tile, the call or the task it is computed in.

use super::unit::{Body, Unit};
use crate::weights::Float;

/// How a row's weights become blocks.
pub(super) trait Codes<U: Unit>: Copy {
    /// Bytes of a block of `elements` elements.
    fn bytes(self, elements: usize) -> usize;
    /// The block at `source`.
    ///
    /// # Safety
    /// `bytes(U::BLOCK)` bytes are readable at `source`.
    unsafe fn block(self, unit: U, source: *const u8) -> U::Block;
}

/// 4-bit codes.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;
/// 8-bit codes.
#[derive(Clone, Copy)]
pub(super) struct Bytes;
/// Codes of any number of bits up to 8.
#[derive(Clone, Copy)]
pub(super) struct Packed(pub(super) usize);
/// Plain elements.
#[derive(Clone, Copy)]
pub(super) struct Dense(pub(super) Float);

impl<U: Unit> Codes<U> for Nibbles {
    #[inline(always)]
    fn bytes(self, elements: usize) -> usize {
        elements / 2
    }
    #[inline(always)]
    unsafe fn block(self, unit: U, source: *const u8) -> U::Block {
        // SAFETY: the caller's.
        unsafe { unit.nibbles(source) }
    }
}

impl<U: Unit> Codes<U> for Bytes {
    #[inline(always)]
    fn bytes(self, elements: usize) -> usize {
        elements
    }
    #[inline(always)]
    unsafe fn block(self, unit: U, source: *const u8) -> U::Block {
        // SAFETY: the caller's.
        unsafe { unit.bytes(source) }
    }
}

impl<U: Unit> Codes<U> for Packed {
    #[inline(always)]
    fn bytes(self, elements: usize) -> usize {
        elements / 8 * self.0
    }
    #[inline(always)]
    unsafe fn block(self, unit: U, source: *const u8) -> U::Block {
        // SAFETY: the caller's.
        unsafe { unit.packed(self.0, source) }
    }
}

impl<U: Unit> Codes<U> for Dense {
    #[inline(always)]
    fn bytes(self, elements: usize) -> usize {
        elements * self.0.bytes()
    }
    #[inline(always)]
    unsafe fn block(self, unit: U, source: *const u8) -> U::Block {
        // SAFETY: the caller's.
        unsafe { unit.dense(self.0, source) }
    }
}

/// How a row's scales and biases are read.
pub(super) trait Groups<U: Unit>: Copy {
    /// Elements that share a scale; 0 where there are none.
    fn group(self) -> usize;
    /// Bytes of one scale.
    fn bytes(self) -> usize;
    /// The scale of each lane in block `block`.
    ///
    /// # Safety
    /// The scales of the block's groups are readable in the row's scales that start at `scales`.
    unsafe fn scales(self, unit: U, scales: *const u8, block: usize) -> U::V;
    /// `count` values (at most `LANES`) and zeros.
    ///
    /// # Safety
    /// They are readable at `source`.
    unsafe fn values(self, unit: U, source: *const u8, count: usize) -> U::V;
}

/// bfloat16 scales, one for `GROUP` elements.
#[derive(Clone, Copy)]
pub(super) struct Bf16Groups<const GROUP: usize>;
/// Scales of any type and group.
#[derive(Clone, Copy)]
pub(super) struct AnyGroups {
    pub(super) group: usize,
    pub(super) float: Float,
}
/// No scales: plain elements.
#[derive(Clone, Copy)]
pub(super) struct NoGroups;

impl<U: Unit, const GROUP: usize> Groups<U> for Bf16Groups<GROUP> {
    #[inline(always)]
    fn group(self) -> usize {
        GROUP
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        2
    }
    #[inline(always)]
    unsafe fn scales(self, unit: U, scales: *const u8, block: usize) -> U::V {
        // SAFETY: the caller's.
        unsafe { unit.scales::<GROUP>(scales, block) }
    }
    #[inline(always)]
    unsafe fn values(self, unit: U, source: *const u8, count: usize) -> U::V {
        // SAFETY: the caller's.
        unsafe { unit.load_any(Float::Bf16, source, count) }
    }
}

impl<U: Unit> Groups<U> for AnyGroups {
    #[inline(always)]
    fn group(self) -> usize {
        self.group
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        self.float.bytes()
    }
    #[inline(always)]
    unsafe fn scales(self, unit: U, scales: *const u8, block: usize) -> U::V {
        // SAFETY: the caller's.
        unsafe { unit.any_scales(self.float, self.group, scales, block) }
    }
    #[inline(always)]
    unsafe fn values(self, unit: U, source: *const u8, count: usize) -> U::V {
        // SAFETY: the caller's.
        unsafe { unit.load_any(self.float, source, count) }
    }
}

impl<U: Unit> Groups<U> for NoGroups {
    #[inline(always)]
    fn group(self) -> usize {
        0
    }
    #[inline(always)]
    fn bytes(self) -> usize {
        0
    }
    #[inline(always)]
    unsafe fn scales(self, unit: U, _: *const u8, _: usize) -> U::V {
        unit.splat(1.0)
    }
    #[inline(always)]
    unsafe fn values(self, unit: U, _: *const u8, _: usize) -> U::V {
        unit.splat(0.0)
    }
}

/// Largest block in bytes: 128 elements of 4 bytes.
const MAX_BLOCK_BYTES: usize = 512;
/// How far ahead of the block in work codes are asked for, in bytes; rows follow each other in memory. Into the second-level
/// cache: requests to the first are too few in flight to hide main memory (13 GB/s a thread on Zen 4, against 22 so).
const PREFETCH_BYTES: usize = 8192;
/// How many rows ahead scales and biases are asked for.
const PREFETCH_ROWS: usize = 4;

/// One call's weights and operand, as pointers that the call has checked.
#[derive(Clone, Copy)]
pub(super) struct Work<U, C, G> {
    pub(super) unit: U,
    pub(super) kind: C,
    pub(super) groups: G,
    /// First weight row of the call.
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) biases: *const u8,
    /// Bytes from one weight row to the next.
    pub(super) row_bytes: usize,
    pub(super) scale_row_bytes: usize,
    pub(super) cols: usize,
    /// Bytes from the start of an operand row to its group sums.
    pub(super) sums_offset: usize,
}

impl<U: Unit, C: Codes<U>, G: Groups<U>> Work<U, C, G> {
    /// The lanes' sums of `W` weight rows from `row` on by `X` operand rows.
    ///
    /// # Safety
    /// The pointers of `self` and `x` hold such rows.
    #[inline(always)]
    unsafe fn accumulate<const W: usize, const X: usize>(&self, row: usize, x: [*const u8; X]) -> [[U::V; X]; W] {
        let Self { unit, kind, groups, .. } = *self;
        let mut sums = [[unit.splat(0.0); X]; W];
        let block_bytes = kind.bytes(U::BLOCK);
        let x_bytes = U::BLOCK * size_of::<U::X>();
        let blocks = self.cols / U::BLOCK;
        // SAFETY: every access below stays inside the rows that the caller vouches for.
        unsafe {
            let codes: [*const u8; W] = std::array::from_fn(|w| self.codes.add((row + w) * self.row_bytes));
            let scales: [*const u8; W] = std::array::from_fn(|w| self.scales.add((row + w) * self.scale_row_bytes));
            for b in 0..blocks {
                let mut weights = [unit.ones(); W];
                let mut scale = [unit.splat(0.0); W];
                for w in 0..W {
                    weights[w] = kind.block(unit, codes[w].add(b * block_bytes));
                    scale[w] = groups.scales(unit, scales[w], b);
                    for line in (0..block_bytes).step_by(64) {
                        unit.prefetch(codes[w].wrapping_add(b * block_bytes + PREFETCH_BYTES + line));
                    }
                }
                for i in 0..X {
                    let x = x[i].add(b * x_bytes).cast();
                    for w in 0..W {
                        sums[w][i] = unit.fma(unit.dot(&weights[w], x), scale[w], sums[w][i]);
                    }
                }
            }
            let tail = self.cols % U::BLOCK;
            if tail > 0 {
                for w in 0..W {
                    let (weights, scale) = self.tail_block(codes[w], scales[w], blocks, tail);
                    for i in 0..X {
                        let partial = unit.dot(&weights, x[i].add(blocks * x_bytes).cast());
                        sums[w][i] = unit.fma(partial, scale, sums[w][i]);
                    }
                }
            }
            self.add_biases(row, x, &mut sums);
        }
        sums
    }

    /// The last, incomplete block of a row, filled up with zero weights.
    ///
    /// # Safety
    /// As for [`Self::accumulate`].
    #[inline(always)]
    unsafe fn tail_block(&self, codes: *const u8, scales: *const u8, block: usize, tail: usize) -> (U::Block, U::V) {
        let Self { unit, kind, groups, .. } = *self;
        let mut padded = [0_u8; MAX_BLOCK_BYTES];
        let mut padded_scales = [0_u8; 16];
        let start = block * kind.bytes(U::BLOCK);
        // SAFETY: the rest of the row, and the scales of its groups: a block is incomplete only where it is longer than
        // a group, and then it starts at a group's start and holds at most four groups of at most four bytes.
        unsafe {
            padded.as_mut_ptr().copy_from_nonoverlapping(codes.add(start), kind.bytes(tail));
            if groups.group() > 0 {
                let first = block * U::BLOCK / groups.group() * groups.bytes();
                let bytes = tail / groups.group() * groups.bytes();
                padded_scales.as_mut_ptr().copy_from_nonoverlapping(scales.add(first), bytes);
            }
            (kind.block(unit, padded.as_ptr()), groups.scales(unit, padded_scales.as_ptr(), 0))
        }
    }

    /// Adds biases times group sums.
    ///
    /// # Safety
    /// As for [`Self::accumulate`].
    #[inline(always)]
    unsafe fn add_biases<const W: usize, const X: usize>(
        &self,
        row: usize,
        x: [*const u8; X],
        sums: &mut [[U::V; X]; W],
    ) {
        let Self { unit, groups, .. } = *self;
        if groups.group() == 0 {
            return;
        }
        let count = self.cols / groups.group();
        for first in (0..count).step_by(U::LANES) {
            for (w, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the row has `count` biases, and operand rows have that many sums, rounded up to a vector.
                unsafe {
                    let biases = self.biases.add((row + w) * self.scale_row_bytes + first * groups.bytes());
                    let biases = groups.values(unit, biases, (count - first).min(U::LANES));
                    for i in 0..X {
                        let x_sums = unit.load(x[i].add(self.sums_offset).cast::<f32>().add(first));
                        sums[i] = unit.fma(biases, x_sums, sums[i]);
                    }
                }
            }
        }
    }

    /// `W` weight rows, at most four, by one operand row: one after the other, so that memory is read in order.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn column<const W: usize>(&self, row: usize, x: *const u8, out: *mut f32) {
        for line in (0..W * self.scale_row_bytes).step_by(64) {
            let ahead = (row + PREFETCH_ROWS) * self.scale_row_bytes + line;
            self.unit.prefetch(self.scales.wrapping_add(ahead));
            self.unit.prefetch(self.biases.wrapping_add(ahead));
        }
        let mut sums = [self.unit.splat(0.0); 4];
        if W == 4 {
            // SAFETY: the caller's.
            let rows = unsafe { self.accumulate::<W, 1>(row, [x]) };
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = row[0];
            }
        } else {
            // SAFETY: the caller's.
            sums[0] = unsafe { self.accumulate::<1, 1>(row, [x]) }[0][0];
        }
        let results = self.unit.sum4(sums);
        // SAFETY: the caller's; `W` results.
        unsafe { out.copy_from_nonoverlapping(results.as_ptr(), W) };
    }

    /// Sums the lanes and writes the results.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn finish<const W: usize, const X: usize>(&self, sums: [[U::V; X]; W], out: *mut f32, stride: usize) {
        for first in (0..W * X).step_by(4) {
            let mut four = [self.unit.splat(0.0); 4];
            for (k, vector) in (first..W * X).zip(&mut four) {
                *vector = sums[k % W][k / W];
            }
            let results = self.unit.sum4(four);
            for (k, result) in (first..W * X).zip(results) {
                // SAFETY: the caller's.
                unsafe { *out.add(k / W * stride + k % W) = result };
            }
        }
    }

    /// Computes `w_rows` weight rows by all operand rows; result `(i, w)` goes to `out[i * w_rows + w]`.
    ///
    /// Operand rows are the outer loop: a tile of them stays in the first-level cache while the call's weights, chosen
    /// small enough by the caller, come from the second.
    ///
    /// # Safety
    /// `x_row(i)` is an operand row for every `i` below `x_rows`; as for [`Self::accumulate`], and `out` is writable.
    pub(super) unsafe fn run(&self, w_rows: usize, x_rows: usize, x_row: impl Fn(usize) -> *const u8, out: *mut f32) {
        let tiles = x_rows.div_ceil(U::TILE_X);
        let mut start = 0;
        for tile in 0..tiles {
            let end = x_rows * (tile + 1) / tiles;
            // SAFETY: the caller's.
            let out = unsafe { out.add(start * w_rows) };
            let row = |i: usize| x_row(start + i);
            match end - start {
                1 => self.strip::<1>(w_rows, std::array::from_fn(row), out),
                2 => self.strip::<2>(w_rows, std::array::from_fn(row), out),
                3 => self.strip::<3>(w_rows, std::array::from_fn(row), out),
                4 => self.strip::<4>(w_rows, std::array::from_fn(row), out),
                5 => self.strip::<5>(w_rows, std::array::from_fn(row), out),
                6 => self.strip::<6>(w_rows, std::array::from_fn(row), out),
                rows => unreachable!("a tile of {rows} rows"),
            }
            start = end;
        }
    }

    fn strip<const X: usize>(&self, w_rows: usize, x: [*const u8; X], out: *mut f32) {
        self.unit.enter(Strip { work: *self, w_rows, x, out });
    }
}

/// All weight rows of a call by `X` operand rows; result `(i, w)` goes to `out + i * w_rows + w`. [`Work::run`] vouches
/// for the pointers.
struct Strip<U, C, G, const X: usize> {
    work: Work<U, C, G>,
    w_rows: usize,
    x: [*const u8; X],
    out: *mut f32,
}

impl<U: Unit, C: Codes<U>, G: Groups<U>, const X: usize> Body for Strip<U, C, G, X> {
    #[inline(always)]
    fn call(self) {
        let Self { work, w_rows, x, out } = self;
        let mut row = 0;
        // SAFETY: `Work::run` vouches for rows below `w_rows`.
        unsafe {
            if X == 1 {
                while row + 4 <= w_rows {
                    work.column::<4>(row, x[0], out.add(row));
                    row += 4;
                }
                while row < w_rows {
                    work.column::<1>(row, x[0], out.add(row));
                    row += 1;
                }
                return;
            }
            if U::TILE_W == 2 {
                while row + 2 <= w_rows {
                    let sums = work.accumulate::<2, X>(row, x);
                    work.finish(sums, out.add(row), w_rows);
                    row += 2;
                }
            }
            while row < w_rows {
                let sums = work.accumulate::<1, X>(row, x);
                work.finish(sums, out.add(row), w_rows);
                row += 1;
            }
        }
    }
}
