//! The mechanisms that make plans for GPUs fast, and the switch of each.
//!
//! All are on. Turned off, a mechanism is replaced by what one would write without it, the tokens staying the same; so its
//! effect can be measured by running the engine against itself. The model asks here when it builds a plan; the engine asks
//! for the two that decide who chooses: the device or the host.

use std::fmt;
use std::str::FromStr;

/// A mechanism with a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mechanism {
    /// Prefill dequantises weights inside the matrix product; off: each matrix is expanded to bf16 in memory first.
    FusedDequantize,
    /// Prefill chooses and groups experts on the device; off: the host does it, inside every layer.
    DeviceRouting,
    /// Height of expert tiles follows the rows of an expert; off: always the lowest.
    TilesByLoad,
    /// DeltaNet carries its state through a chunk in registers; off: through memory every 32 tokens.
    RegisterScan,
    /// Dispatches without a hazard run at the same time; off: one after another.
    Concurrency,
    /// The device hands its token to the next step; off: the host chooses it and waits for each step.
    DeviceTokens,
    /// Gate, up and their gated activation in one kernel; off: products to memory, then the activation.
    FusedGateUp,
    /// Down projections with routing scores and the shared expert in one kernel; off: outputs to memory, then their sum.
    FusedDown,
    /// Queries and keys are prepared by the kernel that attends; off: by one before it.
    FusedQkPrep,
    /// The DeltaNet step ends with its gated norm; off: a kernel after it norms.
    FusedDeltaNorm,
    /// Neighbouring threads read neighbouring bytes of the cache; off: each reads its own stretch, element by element.
    CoalescedCache,
    /// Four query heads share each load of a cache row; off: each loads it.
    PackedQueries,
    /// In long contexts (from 32K tokens on, from 16K where it is off by default), attention splits the cache into blocks of
    /// fixed size; off: into as many as below.
    FixedBlocks,
}

impl Mechanism {
    /// All of them, with their names: first those of prefill, then of both phases, then of decode.
    pub const ALL: [(Mechanism, &'static str); 13] = [
        (Mechanism::FusedDequantize, "fused-dequantize"),
        (Mechanism::DeviceRouting, "device-routing"),
        (Mechanism::TilesByLoad, "tiles-by-load"),
        (Mechanism::RegisterScan, "register-scan"),
        (Mechanism::Concurrency, "concurrency"),
        (Mechanism::DeviceTokens, "device-tokens"),
        (Mechanism::FusedGateUp, "fused-gate-up"),
        (Mechanism::FusedDown, "fused-down"),
        (Mechanism::FusedQkPrep, "fused-qk-prep"),
        (Mechanism::FusedDeltaNorm, "fused-delta-norm"),
        (Mechanism::CoalescedCache, "coalesced-cache"),
        (Mechanism::PackedQueries, "packed-queries"),
        (Mechanism::FixedBlocks, "fixed-blocks"),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such mechanism.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mechanism `{name}`; expected one of {}", Mechanism::ALL.map(|(_, name)| name).join(", "))]
pub struct UnknownMechanism {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(mechanism, _)| *mechanism).ok_or_else(|| UnknownMechanism { name: name.to_owned() })
    }
}

/// Which mechanisms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mechanisms {
    /// A bit for each that is off.
    off: u32,
}

impl Mechanisms {
    /// Every one on.
    pub const ALL: Mechanisms = Mechanisms { off: 0 };

    /// Whether this one is on.
    pub fn has(self, mechanism: Mechanism) -> bool {
        self.off & 1 << mechanism as u32 == 0
    }

    /// Every one off.
    pub const NONE: Mechanisms = Mechanisms { off: (1 << Mechanism::ALL.len()) - 1 };

    /// Whether all that `other` has on are on here.
    pub fn include(self, other: Mechanisms) -> bool {
        self.off & !other.off == 0
    }

    /// Those that are on in both.
    pub fn and(self, other: Mechanisms) -> Self {
        Self { off: self.off | other.off }
    }

    /// With this one on.
    pub const fn with(self, mechanism: Mechanism) -> Self {
        Self { off: self.off & !(1 << mechanism as u32) }
    }

    /// With this one off.
    pub const fn without(self, mechanism: Mechanism) -> Self {
        Self { off: self.off | 1 << mechanism as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_mechanisms() {
        for (index, (mechanism, name)) in Mechanism::ALL.into_iter().enumerate() {
            assert_eq!(mechanism as usize, index);
            assert_eq!(name.parse(), Ok(mechanism));
            let others = Mechanisms::ALL.without(mechanism);
            assert!(Mechanism::ALL.iter().all(|(m, _)| others.has(*m) == (*m != mechanism)));
            assert!(!Mechanisms::NONE.has(mechanism));
            assert!(Mechanisms::ALL.include(others) && others.include(Mechanisms::NONE));
            assert!(!others.include(Mechanisms::ALL));
            assert_eq!((others.with(mechanism), Mechanisms::ALL.and(others)), (Mechanisms::ALL, others));
        }
        let error = "warp".parse::<Mechanism>().unwrap_err().to_string();
        assert!(error.starts_with("unknown mechanism `warp`; expected one of fused-dequantize, "), "{error}");
    }
}
