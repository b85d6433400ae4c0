//! Random numbers as a pure function of seed and index: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", 2011). No state, so a GPU kernel or a resumed session draws the same numbers.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of the Philox4x32 block function.
fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// Draw `index` of `seed`: 64 uniform bits. Key = seed (low word first), counter = (index low, index high, 0, 0), result =
/// output word 0 + 2^32 * output word 1.
pub fn draw(seed: u64, index: u64) -> u64 {
    let out = philox4x32_10([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(out[0]) | u64::from(out[1]) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the generator.
    #[test]
    fn known_answers() {
        let check = |counter, key, expect: [u32; 4]| assert_eq!(philox4x32_10(counter, key), expect);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn seeds_and_indices_give_different_draws() {
        assert_eq!(draw(7, 3), draw(7, 3));
        let draws = [draw(7, 3), draw(7, 4), draw(8, 3), draw(7 | 1 << 32, 3), draw(7, 3 | 1 << 32)];
        assert!((0..5).all(|i| (0..i).all(|j| draws[i] != draws[j])));
    }
}
