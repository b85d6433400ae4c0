//! The exponential used for sampling, defined by its f32 operations so that every machine gets the same bits.
//!
//! Each `+ - *` below rounds once to f32 (no fused multiply-add, no reassociation). A kernel that wants to draw the same
//! tokens must be compiled that way too.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the first has few bits, so that its product with a small integer is exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// 1.5 * 2^23: adding it rounds a small number to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;
/// 1/n! for n = 7 down to 2.
const TAYLOR: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// e^x for x <= 0 (minus infinity included); 0 below -87. Exact at 0; relative error below 2e-7.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    let clamped = if x < -87.0 { -87.0 } else { x };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut poly = TAYLOR[0];
    for coefficient in &TAYLOR[1..] {
        poly = poly * r + coefficient;
    }
    let fraction = (poly * (r * r) + r) + 1.0;
    // The low bits of `shifted` hold n; moving n + 127 into the exponent field gives 2^n.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x < -87.0 { 0.0 } else { fraction * power }
}

/// Mass of a weight in [0, 1]: an integer, so that sums do not depend on their order. Unit 2^-40.
#[inline(always)]
pub fn mass(weight: f32) -> u64 {
    (weight * (1u64 << 40) as f32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_true_exponential() {
        let mut worst = 0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp_nonpositive(x)) - truth).abs() / truth);
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-88.0), 0.0);
        assert_eq!(mass(1.0), 1 << 40);
        assert_eq!(mass(0.0), 0);
    }

    /// Pins the bits: a change of the arithmetic would change every seeded text.
    #[test]
    fn pinned_bits() {
        let bits = [-0.1f32, -1.0, -5.5, -27.0, -80.0].map(|x| exp_nonpositive(x).to_bits());
        assert_eq!(bits, [1_063_756_653, 1_052_531_378, 998_632_019, 738_476_693, 96_464_058]);
    }
}
