//! What is different about kernels where their text is NVIDIA's: threadgroups that do the work of several.

/// Kernels of such threadgroups, and of how many in x and in y: `SCAN_LANES` and `SCAN_COLUMNS` in delta_scan_staged.h, the tile of
/// router_mma.h, and the 128 queries of a tile of attend_tile_mma.h.
const WIDE: [(&str, [u32; 2]); 3] = [("delta_scan", [8, 1]), ("router", [2, 8]), ("attend", [2, 1])];

/// The blocks of a kernel that a contract gives so many threadgroups.
pub fn grid(kernel: &str, [x, y, z]: [u32; 3]) -> [u32; 3] {
    let [wide, tall] = WIDE.iter().find(|(name, _)| *name == kernel).map_or([1, 1], |(_, times)| *times);
    [x.div_ceil(wide), y.div_ceil(tall), z]
}
