//! Dependencies and stages of a plan, derived from declared reads and writes.
//!
//! Two dispatches conflict when one writes a byte that the other touches. The stage of a dispatch is one more than the
//! highest stage of an earlier dispatch it conflicts with; dispatches of one stage may run at the same time, and a
//! device needs a barrier only between stages.

use super::{Dispatch, Plan};

/// Whether the order of two dispatches matters.
pub fn conflict(a: &Dispatch, b: &Dispatch) -> bool {
    a.bindings()
        .any(|(pa, sa)| b.bindings().any(|(pb, sb)| (pa.access.writes() || pb.access.writes()) && sa.overlaps(sb)))
}

/// The stage of every dispatch, from 0.
pub fn stages(plan: &Plan) -> Vec<usize> {
    let mut stages = Vec::with_capacity(plan.dispatches.len());
    for (i, dispatch) in plan.dispatches.iter().enumerate() {
        let earlier = plan.dispatches[..i].iter().zip(&stages);
        let stage = earlier.filter(|(e, _)| conflict(e, dispatch)).map(|(_, s): (_, &usize)| s + 1).max().unwrap_or(0);
        stages.push(stage);
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{RmsNorm, RmsNormArgs};
    use crate::plan::{BufferTable, Home, Slot};

    fn norm(x: Slot, gain: Slot, y: Slot) -> RmsNorm {
        RmsNorm { args: RmsNormArgs { rows: 1, width: 8, eps: 1e-6 }, x, gain, y }
    }

    #[test]
    fn hazards_make_stages() {
        let mut table = BufferTable::default();
        let gain = table.add("gain", 32, Home::Vector(vec![1.0; 8]));
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| table.add(name, 16, Home::Scratch));
        let mut plan = Plan::default();
        plan.push(norm(a, gain, b)); // stage 0
        plan.push(norm(a, gain, c)); // only reads are shared: stage 0
        plan.push(norm(b, gain, d)); // read after write: stage 1
        plan.push(norm(d, gain, a)); // read after write of d: stage 2
        plan.push(norm(c, gain, b)); // write after the read of b in stage 1: stage 2
        assert_eq!(stages(&plan), [0, 0, 1, 2, 2]);
    }

    #[test]
    fn disjoint_halves_do_not_conflict() {
        let mut table = BufferTable::default();
        let gain = table.add("gain", 32, Home::Vector(vec![1.0; 8]));
        let x = table.add("x", 16, Home::Scratch);
        let y = table.add("y", 32, Home::Scratch);
        let mut plan = Plan::default();
        plan.push(norm(x, gain, y.part(0, 16)));
        plan.push(norm(x, gain, y.part(16, 16)));
        plan.push(norm(y.part(8, 16), gain, x));
        assert_eq!(stages(&plan), [0, 0, 1]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn a_dispatch_may_not_alias_what_it_writes() {
        let mut table = BufferTable::default();
        let gain = table.add("gain", 32, Home::Vector(vec![1.0; 8]));
        let x = table.add("x", 16, Home::Scratch);
        Plan::default().push(norm(x, gain, x));
    }
}
