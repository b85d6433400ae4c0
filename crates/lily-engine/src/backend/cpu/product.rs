//! Products of bfloat16 activations with stored weights: `out = x · Wᵀ`, the bulk of all arithmetic.
//!
//! Codes are used as they lie in the checkpoint's mapped files, exactly, with `f32` sums; scales and biases apply per
//! group in `f32`; no weight is rounded on the way and no activation is quantised. Activations are rearranged once
//! ([`Operand`]) and then multiplied with any number of matrices. A result depends on its activation row, its weight row
//! and the instruction set alone: never on the other rows of a call, their number, or how work was split into tasks
//! (`tile` says why). Rounding results, residuals and activations are the caller's; so is splitting work over threads.

use std::ops::Range;

use half::{bf16, f16};

use super::isa::Isa;
use super::pool::{Pool, SharedMut};
use crate::weights::{Float, Format};
use tile::{AnyGroups, Bf16Groups, Bytes, Codes, Dense, Groups, Nibbles, NoGroups, Packed, Work};
use unit::{Body, Unit};
use wide::Wide;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
mod reference;
mod scalar;
#[cfg(test)]
mod tests;
mod tile;
mod unit;
mod wide;

pub use reference::{reference_product, weight};

/// One matrix `[rows, cols]` (outputs x inputs) as it lies in mapped bytes, rows without gaps, no alignment assumed.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    /// How elements are stored.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a multiple of 32 and of the group where quantised.
    pub cols: usize,
    /// Codes or plain elements: `rows * format.row_bytes(cols)` bytes.
    pub codes: &'a [u8],
    /// Scales: `rows * format.scale_row_bytes(cols)` bytes; empty for plain elements.
    pub scales: &'a [u8],
    /// Biases: as many.
    pub biases: &'a [u8],
}

/// The arrangement of activations that a product with some format needs on some instruction set. Operands of equal
/// layout are interchangeable: with one scale group size, those of all quantised formats are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    isa: Isa,
    /// Elements that share a sum; 0 for plain weights.
    group: usize,
}

impl Layout {
    /// The layout for products with matrices of this format.
    pub fn of(isa: Isa, format: Format) -> Self {
        match format {
            Format::Affine { group, .. } => Self { isa, group: usize::from(group) },
            // The bfloat16 unit would round other plain weights.
            Format::Dense(float) if isa == Isa::Avx512Bf16 && float != Float::Bf16 => {
                Self { isa: Isa::Avx512, group: 0 }
            }
            Format::Dense(_) => Self { isa, group: 0 },
        }
    }

    /// Group sums of a row.
    fn groups(self, cols: usize) -> usize {
        cols.checked_div(self.group).unwrap_or(0)
    }

    /// Calls `visit` with the unit that reads and writes this layout.
    fn visit<V: Visit>(self, visit: V) {
        assert!(self.isa.is_supported(), "this machine cannot run CPU instruction set {:?}", self.isa.name());
        // SAFETY (of each `new`): the assertion above.
        match self.isa {
            Isa::Scalar => visit.visit(Wide(super::isa::Scalar)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as said.
            Isa::Avx2 => visit.visit(Wide(unsafe { super::isa::Avx2::new() })),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as said.
            Isa::Avx512 => visit.visit(Wide(unsafe { super::isa::Avx512::new() })),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as said.
            Isa::Avx512Bf16 => visit.visit(unsafe { avx512bf16::Avx512Bf16::new() }),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as said.
            Isa::Neon => visit.visit(Wide(unsafe { super::isa::Neon::new() })),
            #[allow(unreachable_patterns, reason = "reached only for sets of another architecture")]
            _ => unreachable!("supported sets have an arm"),
        }
    }
}

/// Something to do with a unit.
trait Visit {
    fn visit<U: Unit>(self, unit: U);
}

/// One cache line, so that operand rows are aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory for an [`Operand`], kept between uses: it grows to the largest operand and is not given back.
#[derive(Default)]
pub struct OperandScratch {
    lines: Vec<Line>,
}

/// Sizes of an operand's rows, in bytes.
#[derive(Clone, Copy)]
struct RowSizes {
    /// Offset of the group sums: the elements, up to a whole block.
    sums_offset: usize,
    /// From one row to the next.
    stride: usize,
}

/// Activation rows, rearranged for products with weights of one [`Layout`].
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    layout: Layout,
    rows: usize,
    cols: usize,
    sizes: RowSizes,
    lines: &'a [Line],
}

impl<'a> Operand<'a> {
    /// Rearranges `x`, `[rows, cols]` row-major, on the calling thread.
    ///
    /// # Panics
    /// `x` does not have `rows * cols` elements, or `cols` does not suit the layout.
    pub fn prepare(layout: Layout, x: &[bf16], cols: usize, scratch: &'a mut OperandScratch) -> Self {
        let (sizes, rows) = reserve(layout, x, cols, scratch);
        let lines = &mut scratch.lines[..rows * sizes.stride / size_of::<Line>()];
        layout.visit(Arrange { layout, x, cols, sizes, lines: &mut *lines });
        Self { layout, rows, cols, sizes, lines }
    }

    /// As [`Operand::prepare`], by all threads of a pool where there are enough rows.
    ///
    /// # Panics
    /// As [`Operand::prepare`].
    pub fn prepare_on(pool: &Pool, layout: Layout, x: &[bf16], cols: usize, scratch: &'a mut OperandScratch) -> Self {
        const ROWS_PER_TASK: usize = 16;
        let (sizes, rows) = reserve(layout, x, cols, scratch);
        let row_lines = sizes.stride / size_of::<Line>();
        let lines = &mut scratch.lines[..rows * row_lines];
        let shared = SharedMut::new(&mut *lines);
        pool.run(rows.div_ceil(ROWS_PER_TASK), &|task, _| {
            let range = task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK);
            // SAFETY: tasks have different rows.
            let lines = unsafe { shared.range_mut(range.start * row_lines..range.end * row_lines) };
            let x = &x[range.start * cols..range.end * cols];
            layout.visit(Arrange { layout, x, cols, sizes, lines });
        });
        Self { layout, rows, cols, sizes, lines }
    }

    /// What this operand can be multiplied with.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Activation rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// Checks sizes and makes room. Returns the row sizes and the number of rows.
fn reserve(layout: Layout, x: &[bf16], cols: usize, scratch: &mut OperandScratch) -> (RowSizes, usize) {
    struct Sizes<'a>(Layout, usize, &'a mut RowSizes);
    impl Visit for Sizes<'_> {
        fn visit<U: Unit>(self, _: U) {
            let Self(layout, cols, sizes) = self;
            sizes.sums_offset = cols.next_multiple_of(U::BLOCK) * size_of::<U::X>();
            let sums = layout.groups(cols).next_multiple_of(U::LANES);
            sizes.stride = (sizes.sums_offset + sums * size_of::<f32>()).next_multiple_of(size_of::<Line>());
        }
    }
    assert!(cols > 0 && x.len().is_multiple_of(cols), "{} activations in rows of {cols}", x.len());
    check_cols(layout.group, cols);
    let rows = x.len() / cols;
    let mut sizes = RowSizes { sums_offset: 0, stride: 0 };
    layout.visit(Sizes(layout, cols, &mut sizes));
    let lines = rows * sizes.stride / size_of::<Line>();
    if scratch.lines.len() < lines {
        scratch.lines.resize(lines, Line([0; 64]));
    }
    (sizes, rows)
}

fn check_cols(group: usize, cols: usize) {
    if group > 0 {
        assert!(matches!(group, 32 | 64 | 128), "groups of {group}: expected 32, 64 or 128");
        assert!(cols.is_multiple_of(group), "{cols} inputs do not divide into groups of {group}");
    }
}

/// Rearranges rows.
struct Arrange<'a> {
    layout: Layout,
    x: &'a [bf16],
    cols: usize,
    sizes: RowSizes,
    lines: &'a mut [Line],
}

impl Visit for Arrange<'_> {
    fn visit<U: Unit>(self, unit: U) {
        let Self { layout, x, cols, sizes, lines } = self;
        let bytes = lines.as_mut_ptr().cast::<u8>();
        assert_eq!(size_of_val(lines), x.len() / cols * sizes.stride);
        for (row, x) in x.chunks_exact(cols).enumerate() {
            // SAFETY: the assertion; a row's bytes are `stride`.
            let target = unsafe { bytes.add(row * sizes.stride) };
            unit.enter(ArrangeRow { unit, layout, x, target, sums_offset: sizes.sums_offset });
        }
    }
}

/// Rearranges one row and adds up its groups. `target` has room for it.
struct ArrangeRow<'a, U> {
    unit: U,
    layout: Layout,
    x: &'a [bf16],
    target: *mut u8,
    sums_offset: usize,
}

impl<U: Unit> Body for ArrangeRow<'_, U> {
    #[inline(always)]
    fn call(self) {
        let Self { unit, layout, x, target, sums_offset } = self;
        let group = layout.group;
        let elements = target.cast::<U::X>();
        // SAFETY: `reserve` made room for whole blocks and, after them, for the sums rounded up to whole vectors.
        unsafe {
            let sums = target.add(sums_offset).cast::<f32>();
            sums.write_bytes(0, layout.groups(x.len()).next_multiple_of(U::LANES));
            for (block, x) in x.chunks(U::BLOCK).enumerate() {
                let mut padded = [bf16::ZERO; 128];
                let source = if x.len() == U::BLOCK {
                    x.as_ptr()
                } else {
                    padded[..x.len()].copy_from_slice(x);
                    padded.as_ptr()
                };
                let target = elements.add(block * U::BLOCK);
                if group == 0 {
                    unit.arrange_dense(source, target);
                    continue;
                }
                unit.arrange(source, target);
                let mut lanes = [0.0_f32; 16];
                unit.store(lanes.as_mut_ptr(), unit.dot(&unit.ones(), target));
                for (lane, sum) in lanes.iter().enumerate().take(x.len() / 8) {
                    *sums.add((block * U::BLOCK + 8 * lane) / group) += sum;
                }
            }
        }
    }
}

/// Which activation rows to multiply.
#[derive(Clone, Debug)]
pub enum XRows<'a> {
    /// Consecutive rows of the operand.
    Range(Range<usize>),
    /// These rows, in this order; results are in the same order.
    List(&'a [u32]),
}

impl XRows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            XRows::Range(range) => range.len(),
            XRows::List(list) => list.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Multiplies activation rows with weight rows: `out[i * w_rows.len() + w]` is the product of the `i`-th of `x_rows` with
/// weight row `w_rows.start + w`. Runs on the calling thread and allocates nothing.
///
/// # Panics
/// Rows outside the operand or the matrix, slices of the wrong length, or an operand of another layout than
/// [`Layout::of`] the matrix.
pub fn product(view: &MatrixView<'_>, operand: &Operand<'_>, x_rows: XRows<'_>, w_rows: Range<usize>, out: &mut [f32]) {
    let layout = operand.layout;
    assert_eq!(layout, Layout::of(layout.isa, view.format), "operand prepared for another format");
    assert_eq!(view.cols, operand.cols, "inputs of the matrix and of the operand");
    check_cols(layout.group, view.cols);
    assert!(w_rows.start <= w_rows.end && w_rows.end <= view.rows, "weight rows {w_rows:?} of {}", view.rows);
    assert_eq!(view.codes.len(), view.rows * view.format.row_bytes(view.cols), "bytes of codes");
    assert_eq!(view.scales.len(), view.rows * view.format.scale_row_bytes(view.cols), "bytes of scales");
    assert_eq!(view.biases.len(), view.scales.len(), "bytes of biases");
    assert_eq!(out.len(), x_rows.len() * w_rows.len(), "results");
    match &x_rows {
        XRows::Range(range) => assert!(range.end <= operand.rows, "rows {range:?} of {}", operand.rows),
        XRows::List(list) => {
            assert!(list.iter().all(|&row| (row as usize) < operand.rows), "a row beyond {}", operand.rows);
        }
    }
    if !out.is_empty() {
        layout.visit(Multiply { view, operand, x_rows, w_rows, out });
    }
}

/// A checked call of [`product`].
struct Multiply<'a> {
    view: &'a MatrixView<'a>,
    operand: &'a Operand<'a>,
    x_rows: XRows<'a>,
    w_rows: Range<usize>,
    out: &'a mut [f32],
}

impl Visit for Multiply<'_> {
    fn visit<U: Unit>(self, unit: U) {
        let Format::Affine { bits, group, scale } = self.view.format else {
            let Format::Dense(float) = self.view.format else { unreachable!("affine was handled") };
            return self.run(unit, Dense(float), NoGroups);
        };
        match (bits, group, scale) {
            (4, 32, Float::Bf16) => self.run(unit, Nibbles, Bf16Groups::<32>),
            (4, 64, Float::Bf16) => self.run(unit, Nibbles, Bf16Groups::<64>),
            (4, 128, Float::Bf16) => self.run(unit, Nibbles, Bf16Groups::<128>),
            (8, 64, Float::Bf16) => self.run(unit, Bytes, Bf16Groups::<64>),
            (4, _, float) => self.run(unit, Nibbles, AnyGroups { group: group.into(), float }),
            (8, _, float) => self.run(unit, Bytes, AnyGroups { group: group.into(), float }),
            (2 | 3 | 5 | 6, _, float) => {
                self.run(unit, Packed(bits.into()), AnyGroups { group: group.into(), float });
            }
            _ => panic!("codes of {bits} bits: expected 2, 3, 4, 5, 6 or 8"),
        }
    }
}

impl Multiply<'_> {
    fn run<U: Unit, C: Codes<U>, G: Groups<U>>(self, unit: U, kind: C, groups: G) {
        let Self { view, operand, x_rows, w_rows, out } = self;
        let row_bytes = view.format.row_bytes(view.cols);
        let scale_row_bytes = view.format.scale_row_bytes(view.cols);
        let work = Work {
            unit,
            kind,
            groups,
            codes: view.codes[w_rows.start * row_bytes..].as_ptr(),
            scales: view.scales[w_rows.start * scale_row_bytes..].as_ptr(),
            biases: view.biases[w_rows.start * scale_row_bytes..].as_ptr(),
            row_bytes,
            scale_row_bytes,
            cols: view.cols,
            sums_offset: operand.sizes.sums_offset,
        };
        let first = operand.lines.as_ptr().cast::<u8>();
        let x_row = |i: usize| {
            let row = match &x_rows {
                XRows::Range(range) => range.start + i,
                XRows::List(list) => list[i] as usize,
            };
            first.wrapping_add(row * operand.sizes.stride)
        };
        // SAFETY: `product` has checked that rows, columns and bytes agree with each other.
        unsafe { work.run(w_rows.len(), x_rows.len(), x_row, out.as_mut_ptr()) };
    }
}

/// A good number of weight rows for one task of a product of `x_rows` activation rows over `threads` threads: a multiple
/// of 4, such that every thread gets as many tasks.
///
/// With few activation rows, memory is the limit, and it is read faster in long runs: on two threads of Zen 4, tasks of
/// 64 KiB reach 30 GB/s, of 512 KiB 43. With many, a task's weights should stay in the second-level cache beside the
/// activation rows that pass by, and several tasks a thread even out the end.
pub fn rows_per_task(format: Format, rows: usize, cols: usize, x_rows: usize, threads: usize) -> usize {
    let (task_bytes, least_tasks) = if x_rows <= 4 { (512 << 10, 1) } else { (64 << 10, 4) };
    let bytes_per_thread = rows * format.total_row_bytes(cols) / threads;
    let tasks_per_thread = bytes_per_thread.div_ceil(task_bytes).max(least_tasks);
    rows.div_ceil(threads * tasks_per_thread).next_multiple_of(4).max(4)
}

/// Reads one element.
///
/// # Safety
/// `float.bytes()` bytes are readable at `source`.
#[inline(always)]
unsafe fn read_float(float: Float, source: *const u8) -> f32 {
    // SAFETY: the caller's; no alignment is assumed.
    unsafe {
        match float {
            Float::Bf16 => f32::from_bits(u32::from(source.cast::<u16>().read_unaligned().to_le()) << 16),
            Float::F16 => f16::from_bits(source.cast::<u16>().read_unaligned().to_le()).to_f32(),
            Float::F32 => f32::from_bits(source.cast::<u32>().read_unaligned().to_le()),
        }
    }
}

/// Unpacks codes of `bits` bits from a little-endian bit stream, eight for every `bits` bytes.
///
/// Eight codes are spread over the bytes of a word in three steps: halves to 32 bits, quarters to 16, codes to 8.
#[inline(always)]
fn unpack(bits: usize, packed: &[u8], codes: &mut [u8]) {
    for (start, codes) in (0..packed.len()).step_by(bits).zip(codes.chunks_exact_mut(8)) {
        let mut word = match packed[start..].first_chunk() {
            Some(&bytes) => u64::from_le_bytes(bytes) & low_ones(8 * bits),
            None => packed[start..start + bits].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        for (codes, spacing) in [(4, 32), (2, 16), (1, 8)] {
            let width = codes * bits;
            // The lower field of every pair of fields.
            let low = u64::MAX / (u64::MAX >> (64 - 2 * spacing)) * low_ones(width);
            word = (word & low) | (word << (spacing - width) & low << spacing);
        }
        codes.copy_from_slice(&word.to_le_bytes());
    }
}

/// A word whose lowest `count` bits are set; `count` is below 64.
const fn low_ones(count: usize) -> u64 {
    (1 << count) - 1
}
