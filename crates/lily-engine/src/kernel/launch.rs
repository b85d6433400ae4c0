//! How a kernel is laid out on a GPU: threadgroups, threads and function constants as pure functions of its arguments.
//!
//! The numbers that host and kernel text must agree on stand here once and reach the text through
//! `kernels/generated/args.h` ([`super::codegen`]). The CPU backend splits work in its own way and uses none of this.

use crate::shape::Shape;

/// Function constants: shapes that decide unrolling, fixed when a kernel is specialised. The number of a variant is its
/// `[[function_constant]]` index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Constant {
    /// Storage of the first matrix, as [`super::PackedFormat`].
    Format0,
    /// Storage of the second matrix.
    Format1,
    /// Storage of the third matrix.
    Format2,
    /// Storage of the fourth matrix.
    Format3,
    /// Rows of a matrix-matrix tile: 16, 32, 64 or 128.
    TileRows,
    /// Key head size of DeltaNet.
    KeyDim,
    /// Head size of attention.
    HeadDim,
    /// Tokens after which a scan's state goes through memory; 0: never inside a chunk.
    BlockRows,
    /// Queries that share each load of a cache row.
    Packed,
    /// Whether neighbouring lanes read neighbouring bytes of the cache.
    Coalesced,
    /// Rows that a matrix-vector kernel multiplies at once.
    Batch,
}

impl Constant {
    /// All of them, in order of their indices.
    pub const ALL: [(Constant, &'static str); 11] = [
        (Constant::Format0, "FORMAT0"),
        (Constant::Format1, "FORMAT1"),
        (Constant::Format2, "FORMAT2"),
        (Constant::Format3, "FORMAT3"),
        (Constant::TileRows, "TILE_ROWS"),
        (Constant::KeyDim, "KEY_DIM"),
        (Constant::HeadDim, "HEAD_DIM"),
        (Constant::BlockRows, "BLOCK_ROWS"),
        (Constant::Packed, "PACKED"),
        (Constant::Coalesced, "COALESCED"),
        (Constant::Batch, "BATCH"),
    ];
}

/// One launch of a kernel on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Threadgroups in each dimension.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup, a multiple of 32; one-dimensional.
    pub threads: u32,
    /// Function constants to specialise with.
    pub constants: Vec<(Constant, u32)>,
}

impl Launch {
    /// A launch without function constants.
    pub fn new(threadgroups: [u32; 3], threads: u32) -> Self {
        Self { threadgroups, threads, constants: Vec::new() }
    }

    /// With matrices of these formats.
    pub fn formats(mut self, formats: &[super::PackedFormat]) -> Self {
        self.constants.extend(Constant::ALL.iter().zip(formats).map(|(&(constant, _), format)| (constant, format.0)));
        self
    }

    /// With tiles of so many rows.
    pub fn tile_rows(self, rows: u32) -> Self {
        self.constant(Constant::TileRows, rows)
    }

    /// With one more function constant.
    pub fn constant(mut self, constant: Constant, value: u32) -> Self {
        self.constants.push((constant, value));
        self
    }
}

/// Threads of a SIMD-group.
pub const SIMD_WIDTH: u32 = 32;
/// Outputs that a SIMD-group of a matrix-vector kernel computes at once.
pub const VECTOR_OUTPUTS: u32 = 4;
/// Outputs of a SIMD-group that computes a pair of products for each.
pub const GATED_OUTPUTS: u32 = 2;
/// SIMD-groups of a threadgroup that computes such pairs. With 9 the published model's 8 experts and shared expert, of
/// width 512, are 261 threadgroups: they all run at once where each of 132 multiprocessors takes two.
pub const GATED_SIMDGROUPS: u32 = 9;
/// SIMD-groups of a matrix-vector threadgroup.
pub const VECTOR_SIMDGROUPS: u32 = 8;
/// Most rows that a matrix-vector kernel multiplies at once: tokens of different sessions in one decode step.
pub const BATCH_MAX: u32 = 8;
/// Outputs that a SIMD-group takes of a matrix with few: more SIMD-groups then share them.
pub const NARROW_OUTPUTS: u32 = 2;
/// Outputs of a threadgroup of the experts' down projection.
pub const DOWN_OUTPUTS: u32 = 8;
/// Blocks of the vocabulary that a threadgroup of the head takes, which share its prologue.
const HEAD_BLOCKS: u32 = 4;
/// Threads of a decode step of a value head.
pub const DELTA_STEP_THREADS: u32 = 512;
/// Threads of a block of decode attention.
pub const BLOCK_THREADS: u32 = 256;
/// Most experts: a SIMD-group keeps all logits in registers when it chooses.
pub const EXPERTS_MAX: u32 = 512;
/// Largest key head of DeltaNet.
pub const KEY_DIM_MAX: u32 = 256;
/// Largest value head of DeltaNet.
pub const VALUE_DIM_MAX: u32 = 256;
/// Largest head of attention.
pub const HEAD_DIM_MAX: u32 = 256;
/// Outputs of a matrix-matrix tile.
pub const TILE_OUTPUTS: u32 = 64;
/// Outputs of a matrix-matrix tile that one SIMD-group computes.
pub const SIMDGROUP_OUTPUTS: u32 = 32;
/// Rows of router activations that share one reading of the router.
pub const ROUTER_ROWS: u32 = 4;
/// Rows that a SIMD-group prepares for the delta rule, which share a reading of the convolution's taps.
pub const PREP_ROWS: u32 = 8;
/// Neighbouring elements that a thread of `combine` takes.
pub const COMBINE_ELEMENTS: u32 = 8;
/// SIMD-groups of kernels in which a SIMD-group does one row, head or column.
pub const ROW_SIMDGROUPS: u32 = 4;
/// SIMD-groups of an attention threadgroup. There are threadgroups for strips of 8 queries; where kernel text has larger ones, some
/// have nothing to do.
pub const ATTEND_SIMDGROUPS: u32 = 8;
/// Threads of kernels that work element by element or reduce a row.
pub const ROW_THREADS: u32 = 256;

/// Threadgroups that compute pairs of products for so many outputs.
pub fn gated_threadgroups(outputs: u32) -> u32 {
    outputs.div_ceil(GATED_OUTPUTS * GATED_SIMDGROUPS)
}

/// A dimension that no kernel of a device was written for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {kernels} kernels take {expected} as {what}, this model has {found}; run it with {instead}")]
pub struct UnsupportedShape {
    /// Whose kernels.
    pub kernels: &'static str,
    /// Options that run it.
    pub instead: &'static str,
    /// The dimension.
    pub what: &'static str,
    /// What the kernels take.
    pub expected: &'static str,
    /// What the model has.
    pub found: usize,
}

/// Whether the GPU kernels can run a model. A host asks before it makes a plan for a GPU.
///
/// # Errors
/// If a dimension does not fit the registers or the threadgroup memory that a kernel has set aside for it.
pub fn check(shape: &Shape) -> Result<(), UnsupportedShape> {
    let (kernels, instead) = ("GPU", "--backend cpu");
    let refuse = |what, expected, found| Err(UnsupportedShape { kernels, instead, what, expected, found });
    let (head, key, value) = (shape.attention.head_dim, shape.delta.key_dim, shape.delta.value_dim);
    if ![64, 128, 256].contains(&head) {
        return refuse("size of an attention head", "64, 128 or 256", head);
    }
    if key % 32 != 0 || key > KEY_DIM_MAX as usize {
        return refuse("size of a key head of DeltaNet", "multiples of 32 up to 256", key);
    }
    if value % 4 != 0 || value > VALUE_DIM_MAX as usize {
        return refuse("size of a value head of DeltaNet", "multiples of 4 up to 256", value);
    }
    if shape.moe.experts > EXPERTS_MAX as usize {
        return refuse("number of experts", "up to 512", shape.moe.experts);
    }
    if shape.moe.top_k > super::TOP_K_MAX {
        return refuse("experts per token", "up to 16", shape.moe.top_k);
    }
    if shape.vocab > super::SAMPLE_VOCAB_MAX {
        return refuse("vocabulary", "up to 262,144", shape.vocab);
    }
    Ok(())
}

/// What the kernel text must know, by name.
pub const GEOMETRY: &[(&str, u32)] = &[
    ("SIMD_WIDTH", SIMD_WIDTH),
    ("VECTOR_OUTPUTS", VECTOR_OUTPUTS),
    ("GATED_OUTPUTS", GATED_OUTPUTS),
    ("GATED_SIMDGROUPS", GATED_SIMDGROUPS),
    ("VECTOR_SIMDGROUPS", VECTOR_SIMDGROUPS),
    ("BATCH_MAX", BATCH_MAX),
    ("NARROW_OUTPUTS", NARROW_OUTPUTS),
    ("DOWN_OUTPUTS", DOWN_OUTPUTS),
    ("DELTA_STEP_THREADS", DELTA_STEP_THREADS),
    ("BLOCK_THREADS", BLOCK_THREADS),
    ("EXPERTS_MAX", EXPERTS_MAX),
    ("TOP_K_MAX", super::TOP_K_MAX as u32),
    ("KEY_DIM_MAX", KEY_DIM_MAX),
    ("VALUE_DIM_MAX", VALUE_DIM_MAX),
    ("HEAD_DIM_MAX", HEAD_DIM_MAX),
    ("TILE_OUTPUTS", TILE_OUTPUTS),
    ("SIMDGROUP_OUTPUTS", SIMDGROUP_OUTPUTS),
    ("ROUTER_ROWS", ROUTER_ROWS),
    ("PREP_ROWS", PREP_ROWS),
    ("COMBINE_ELEMENTS", COMBINE_ELEMENTS),
    ("ROW_SIMDGROUPS", ROW_SIMDGROUPS),
    ("ATTEND_SIMDGROUPS", ATTEND_SIMDGROUPS),
    ("ROW_THREADS", ROW_THREADS),
];

/// Threadgroups of a matrix-vector kernel with so many outputs.
pub fn vector_threadgroups(outputs: u32) -> u32 {
    outputs.div_ceil(VECTOR_OUTPUTS * VECTOR_SIMDGROUPS)
}

/// A matrix-vector kernel over so many outputs.
pub fn vector(outputs: u32) -> Launch {
    Launch::new([vector_threadgroups(outputs), 1, 1], VECTOR_SIMDGROUPS * SIMD_WIDTH)
}

/// A kernel in which a SIMD-group does one of so many items of `x`, for each of `y`.
pub fn items(x: u32, y: u32) -> Launch {
    Launch::new([x.div_ceil(ROW_SIMDGROUPS), y, 1], ROW_SIMDGROUPS * SIMD_WIDTH)
}

/// A matrix-vector kernel over few outputs.
pub fn narrow_vector(outputs: u32) -> Launch {
    let threadgroups = outputs.div_ceil(NARROW_OUTPUTS * VECTOR_SIMDGROUPS);
    Launch::new([threadgroups, 1, 1], VECTOR_SIMDGROUPS * SIMD_WIDTH)
}

/// The matrix-vector kernel over the vocabulary.
pub fn head(vocab: u32) -> Launch {
    let threadgroups = vector_threadgroups(vocab).div_ceil(HEAD_BLOCKS);
    Launch::new([threadgroups, 1, 1], VECTOR_SIMDGROUPS * SIMD_WIDTH)
}

/// Heights of the matrix-matrix tiles of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileHeights {
    /// Rows of the lowest tile, 16 or 32.
    pub least: u32,
    /// Rows of the tallest of a dense kernel, 64 or 128.
    pub most: u32,
    /// Tiles that keep the device busy: a dense product with fewer takes lower ones.
    pub busy: u32,
    /// Whether a tile multiplies with no more rows than it has, so that a tall one wastes none.
    pub exact: bool,
}

impl TileHeights {
    /// Height of the tiles of a dense kernel that computes so many products.
    pub fn dense(self, rows: u32, outputs: u32, products: u32) -> u32 {
        let mut height = rows.next_power_of_two().clamp(self.least, self.most);
        let tiles = |height| outputs.div_ceil(tile_outputs(height, products)) * rows.div_ceil(height);
        while height > self.least && tiles(height) < self.busy {
            height /= 2;
        }
        height
    }

    /// Height of an expert's tiles by the rows an expert gets on average: a tall tile reads weights less often, a low one
    /// wastes fewer rows.
    pub fn of_experts(self, assignments: u32, experts: u32) -> u32 {
        match assignments / experts.max(1) {
            0..=16 => self.least,
            17..=48 if !self.exact => 32,
            _ => 64,
        }
    }
}

/// Outputs of a tile of so many rows that computes so many products.
fn tile_outputs(tile_rows: u32, products: u32) -> u32 {
    if tile_rows == 128 && products == 1 { 2 * TILE_OUTPUTS } else { TILE_OUTPUTS }
}

/// A matrix-matrix kernel with so many tiles of so many rows. On most GPUs a SIMD-group computes 16 or 32 rows of 32 outputs,
/// so that a tile of 16 rows has two SIMD-groups and one of 32 or 64 rows four; one of 128 rows has eight.
pub fn tiled(outputs: u32, products: u32, tiles: u32, tile_rows: u32) -> Launch {
    let simdgroups = match tile_rows {
        16 => 2,
        32 | 64 => 4,
        _ => 8,
    };
    let columns = outputs.div_ceil(tile_outputs(tile_rows, products));
    Launch::new([columns, tiles, 1], simdgroups * SIMD_WIDTH).tile_rows(tile_rows)
}

/// Most tiles that so many assignments can make: every expert may leave one tile unfilled.
pub fn expert_tiles(assignments: u32, experts: u32, tile_rows: u32) -> u32 {
    assignments / tile_rows + experts.min(assignments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_of_tiles_follow_the_rows_and_keep_the_device_busy() {
        let usual = TileHeights { least: 16, most: 64, busy: 0, exact: false };
        assert_eq!([1, 16, 17, 33, 500].map(|rows| usual.dense(rows, 8192, 1)), [16, 16, 32, 64, 64]);
        assert_eq!([16, 17, 49].map(|load| usual.of_experts(8 * load, 8)), [16, 32, 64]);
        let wide = TileHeights { least: 32, most: 128, busy: 128, exact: true };
        // Tiles of 128 rows have 128 outputs, unless they compute two products.
        assert_eq!(wide.dense(2048, 2048, 1), 128);
        assert_eq!([512, 32].map(|outputs| wide.dense(2048, outputs, 1)), [64, 32]);
        assert_eq!([(512, 1), (512, 2)].map(|(outputs, products)| wide.dense(2048, outputs, products)), [64, 128]);
        assert_eq!([1, 100].map(|rows| wide.dense(rows, 8192, 1)), [32, 64]);
        assert_eq!([16, 17, 49].map(|load| wide.of_experts(8 * load, 8)), [32, 64, 64]);
        assert_eq!(tiled(200, 1, 3, 128).threadgroups, [2, 3, 1]);
        assert_eq!(tiled(200, 2, 3, 128).threadgroups, [4, 3, 1]);
    }

    #[test]
    fn the_limits_of_the_kernels_are_checked() {
        let shape = Shape::qwen36_35b_a3b();
        assert_eq!(check(&shape), Ok(()));
        let with = |change: fn(&mut Shape)| {
            let mut shape = shape.clone();
            change(&mut shape);
            check(&shape).unwrap_err().to_string()
        };
        let heads = with(|s| s.attention.head_dim = 96);
        let wanted = "the GPU kernels take 64, 128 or 256 as size of an attention head, this model has 96; ";
        assert!(heads.starts_with(wanted), "{heads}");
        assert!(with(|s| s.delta.key_dim = 288).contains("key head"));
        assert!(with(|s| s.delta.key_dim = 40).contains("key head"));
        assert!(with(|s| s.delta.value_dim = 126).contains("value head"));
        assert!(with(|s| s.delta.value_dim = 260).contains("value head"));
        assert!(with(|s| s.moe.experts = 513).contains("experts"));
        assert!(with(|s| s.moe.top_k = 17).contains("per token"));
    }
}
