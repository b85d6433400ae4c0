//! Instruction sets: which one this machine runs, and one vector vocabulary over all of them.
//!
//! A kernel is written once as a [`Kernel`], generic over [`Simd`], and [`Isa::dispatch`] instantiates it inside a
//! function compiled for the chosen instruction set. Matrix products need more than this vocabulary (see `product`).
//! Every operation is deterministic for a given instruction set; between sets, results may differ in the last bits
//! (lane counts change the order of sums, and only [`Scalar`] rounds `fma` twice).

use half::bf16;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable Rust, no intrinsics.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// As [`Isa::Avx512`], with BF16 dot products and VBMI byte permutations for matrix products.
    Avx512Bf16,
    /// Arm with Advanced SIMD.
    Neon,
}

/// Why an instruction set asked for by name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name means nothing.
    #[error("unknown CPU instruction set {name:?}: expected one of {}", Isa::names())]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The name is known, but this machine cannot run it.
    #[error("this machine cannot run CPU instruction set {name:?}; it can run: {}", Isa::supported_names())]
    Unsupported {
        /// What was asked for.
        name: &'static str,
    },
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

    /// The name that [`Isa::parse`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Neon => "neon",
        }
    }

    /// The best instruction set of this machine.
    pub fn detect() -> Isa {
        Self::supported().last().expect("scalar is always supported")
    }

    /// The instruction set with this name.
    ///
    /// # Errors
    /// The name is unknown, or this machine cannot run that instruction set.
    pub fn parse(name: &str) -> Result<Isa, IsaError> {
        let isa = Self::ALL.into_iter().find(|isa| isa.name() == name);
        let isa = isa.ok_or_else(|| IsaError::Unknown { name: name.to_owned() })?;
        if isa.is_supported() { Ok(isa) } else { Err(IsaError::Unsupported { name: isa.name() }) }
    }

    /// The instruction sets that this machine can run, slowest first.
    pub fn supported() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    /// Whether this machine can run it. Detection is cached by the standard library, so asking is cheap.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2,
                Isa::Avx512 => avx512,
                Isa::Avx512Bf16 => avx512 && has!("avx512bf16") && has!("avx512vbmi"),
                Isa::Neon => false,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            // Advanced SIMD is part of every 64-bit Arm target that Rust's standard library supports.
            matches!(self, Isa::Scalar) || (cfg!(target_arch = "aarch64") && matches!(self, Isa::Neon))
        }
    }

    /// Runs a kernel compiled for this instruction set.
    ///
    /// # Panics
    /// This machine cannot run the instruction set.
    #[inline]
    pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_supported(), "this machine cannot run CPU instruction set {:?}", self.name());
        match self {
            Isa::Scalar => kernel.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above says that the machine has the features that the function enables.
            Isa::Avx2 => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::run(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { neon::run(kernel) },
            #[allow(unreachable_patterns, reason = "reached only for sets of another architecture")]
            _ => unreachable!("supported sets have an arm"),
        }
    }

    fn names() -> String {
        Self::ALL.map(Isa::name).join(", ")
    }

    fn supported_names() -> String {
        Self::supported().map(Isa::name).collect::<Vec<_>>().join(", ")
    }
}

/// A computation written over any [`Simd`].
///
/// Mark the implementation of `run` `#[inline(always)]`, as well as every generic helper that it calls with the token:
/// only then is the body compiled with the instruction set's features. Closures, and library functions that take them
/// (`array::map`, `array::from_fn`), are inlined by chance alone: keep vectors out of them, or a kernel may become many
/// times slower.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// Computes with the given vectors.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vectors of `f32` and what kernels do with them.
///
/// A value of the implementing type is the proof that the machine has the instructions: only [`Isa::dispatch`] makes
/// one. Slices must hold at least [`Simd::LANES`] elements, except for the `_partial` forms; shorter ones panic.
pub trait Simd: Copy + Send + Sync + 'static {
    /// One vector.
    type V: Copy;
    /// Elements of a vector; a power of two, at most [`MAX_LANES`].
    const LANES: usize;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// The first lanes of `source`.
    fn load(self, source: &[f32]) -> Self::V;
    /// The first lanes of `source`, widened exactly.
    fn load_bf16(self, source: &[bf16]) -> Self::V;
    /// Writes the lanes to the start of `target`.
    fn store(self, target: &mut [f32], v: Self::V);
    /// Writes the lanes, rounded to the nearest bfloat16 (ties to even, NaN kept), to the start of `target`.
    fn store_bf16(self, target: &mut [bf16], v: Self::V);
    /// The lanes rounded to the nearest bfloat16 (ties to even, NaN kept), still as `f32`.
    fn round_bf16(self, v: Self::V) -> Self::V;

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`, correctly rounded
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once (twice on [`Scalar`])
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; where `a` is not NaN and `b` is, the result is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; where `a` is not NaN and `b` is, the result is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `|a|`
    fn abs(self, a: Self::V) -> Self::V;
    /// `√a`, correctly rounded
    fn sqrt(self, a: Self::V) -> Self::V;
    /// The nearest integer, ties to even; for `|a|` below 2^22.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^a` for integral `a` in `-127..=127`; -127 gives 0.
    fn exp2_integral(self, a: Self::V) -> Self::V;

    /// The sum of all lanes, in a fixed order: halves are added until one lane is left.
    fn reduce_add(self, v: Self::V) -> f32;
    /// The largest lane; no lane may be NaN.
    fn reduce_max(self, v: Self::V) -> f32;

    /// All lanes 0.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// `source` in the first lanes and 0 in the rest; `source` may be shorter than a vector.
    #[inline(always)]
    fn load_partial(self, source: &[f32]) -> Self::V {
        let mut lanes = [0.0; MAX_LANES];
        let count = source.len().min(Self::LANES);
        lanes[..count].copy_from_slice(&source[..count]);
        self.load(&lanes)
    }

    /// `source` widened in the first lanes and 0 in the rest; `source` may be shorter than a vector.
    #[inline(always)]
    fn load_bf16_partial(self, source: &[bf16]) -> Self::V {
        let mut lanes = [bf16::ZERO; MAX_LANES];
        let count = source.len().min(Self::LANES);
        lanes[..count].copy_from_slice(&source[..count]);
        self.load_bf16(&lanes)
    }

    /// Writes the first lanes to `target`, which may be shorter than a vector.
    #[inline(always)]
    fn store_partial(self, target: &mut [f32], v: Self::V) {
        let mut lanes = [0.0; MAX_LANES];
        self.store(&mut lanes, v);
        let count = target.len().min(Self::LANES);
        target[..count].copy_from_slice(&lanes[..count]);
    }

    /// Writes the first lanes, rounded, to `target`, which may be shorter than a vector.
    #[inline(always)]
    fn store_bf16_partial(self, target: &mut [bf16], v: Self::V) {
        let mut lanes = [bf16::ZERO; MAX_LANES];
        self.store_bf16(&mut lanes, v);
        let count = target.len().min(Self::LANES);
        target[..count].copy_from_slice(&lanes[..count]);
    }

    /// `e^a` within 2 units in the last place; results below about 2^-126 become 0, and NaN stays NaN.
    ///
    /// `e^a = 2^n e^r` with `n` the nearest integer to `a / ln 2`, so `|r| <= ln 2 / 2`; `e^r = 1 + r + r² q(r)`, where
    /// `q` is a minimax polynomial (relative error of `e^r` below 4e-9). The power of two is applied in two factors,
    /// because 2^128 is needed just below overflow.
    #[inline(always)]
    fn exp(self, a: Self::V) -> Self::V {
        const LN2_HIGH: f32 = 0.693_359_4; // 355/512: n * LN2_HIGH is exact
        const LN2_LOW: f32 = -2.121_944_4e-4;
        const Q: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_7];
        let a = self.max(self.splat(-87.4), self.min(self.splat(89.0), a));
        let n = self.round(self.mul(a, self.splat(std::f32::consts::LOG2_E)));
        let r = self.fma(n, self.splat(-LN2_HIGH), a);
        let r = self.fma(n, self.splat(-LN2_LOW), r);
        let mut q = self.splat(Q[4]);
        for c in [Q[3], Q[2], Q[1], Q[0]] {
            q = self.fma(q, r, self.splat(c));
        }
        let p = self.fma(self.mul(r, r), q, r);
        let p = self.add(p, self.splat(1.0));
        let scale = self.exp2_integral(self.sub(n, self.splat(1.0)));
        self.mul(self.add(p, p), scale)
    }

    /// `1 / (1 + e^-a)`
    #[inline(always)]
    fn sigmoid(self, a: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.zero(), a))))
    }

    /// `a · sigmoid(a)`
    #[inline(always)]
    fn silu(self, a: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(a, self.add(one, self.exp(self.sub(self.zero(), a))))
    }
}

/// The most lanes that a [`Simd`] vector has.
pub const MAX_LANES: usize = 16;
