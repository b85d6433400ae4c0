//! Dependencies and stages of a plan, derived from declared reads and writes.
//!
//! Two dispatches conflict when one writes a byte that the other touches. The stage of a dispatch is one more than the
//! highest stage of an earlier dispatch it conflicts with; dispatches of one stage may run at the same time, and a
//! device needs a barrier only between stages.

use super::{BufferId, Dispatch, Plan, Slot};
use std::collections::HashMap;

/// Whether the order of two dispatches matters.
pub fn conflict(a: &Dispatch, b: &Dispatch) -> bool {
    a.bindings()
        .any(|(pa, sa)| b.bindings().any(|(pb, sb)| (pa.access.writes() || pb.access.writes()) && sa.overlaps(sb)))
}

/// A touch of a buffer that a later dispatch may have to wait for.
struct Touch {
    slot: Slot,
    writes: bool,
    stage: usize,
}

/// The stage of every dispatch, from 0.
pub fn stages(plan: &Plan) -> Vec<usize> {
    if plan.serial {
        return (0..plan.dispatches.len()).collect();
    }
    let mut touched: HashMap<BufferId, Vec<Touch>> = HashMap::new();
    let mut stages = Vec::with_capacity(plan.dispatches.len());
    for dispatch in &plan.dispatches {
        let waits = dispatch.bindings().flat_map(|(param, slot)| {
            let before = touched.get(&slot.buffer).into_iter().flatten();
            let conflicts = before.filter(move |t| (t.writes || param.access.writes()) && t.slot.overlaps(slot));
            conflicts.map(|t| t.stage + 1)
        });
        let stage = waits.max().unwrap_or(0);
        for (param, slot) in dispatch.bindings() {
            let writes = param.access.writes();
            let touches = touched.entry(slot.buffer).or_default();
            if writes {
                // Whoever conflicts with what this covers conflicts with this as well, which is later.
                touches.retain(|t| t.stage == stage || !slot.covers(t.slot));
            }
            touches.push(Touch { slot, writes, stage });
        }
        stages.push(stage);
    }
    stages
}

/// For every dispatch the earlier ones that it must wait for, without those that others of them wait for already.
pub fn edges(plan: &Plan) -> Vec<Vec<usize>> {
    if plan.serial {
        return (0..plan.dispatches.len()).map(|index| index.checked_sub(1).into_iter().collect()).collect();
    }
    let mut touched: HashMap<BufferId, Vec<(Slot, bool, usize)>> = HashMap::new();
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(plan.dispatches.len());
    // All that a dispatch waits for, directly or not, a bit each.
    let words = plan.dispatches.len().div_ceil(64);
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(plan.dispatches.len());
    for (index, dispatch) in plan.dispatches.iter().enumerate() {
        let waits = dispatch.bindings().flat_map(|(param, slot)| {
            let earlier = touched.get(&slot.buffer).into_iter().flatten();
            let conflicts =
                earlier.filter(move |(s, writes, _)| (*writes || param.access.writes()) && s.overlaps(slot));
            conflicts.map(|(_, _, index)| *index)
        });
        let mut waits: Vec<usize> = waits.collect();
        waits.sort_unstable_by(|a, b| b.cmp(a));
        waits.dedup();
        let (mut all, mut direct) = (vec![0_u64; words], Vec::new());
        for earlier in waits {
            if all[earlier / 64] >> (earlier % 64) & 1 == 0 {
                direct.push(earlier);
                all.iter_mut().zip(&before[earlier]).for_each(|(all, bits)| *all |= bits);
                all[earlier / 64] |= 1 << (earlier % 64);
            }
        }
        for (param, slot) in dispatch.bindings() {
            let writes = param.access.writes();
            let touches = touched.entry(slot.buffer).or_default();
            if writes {
                // Whoever conflicts with what this covers waits for this, which waits for that.
                touches.retain(|(s, _, i)| *i == index || !slot.covers(*s));
            }
            touches.push((slot, writes, index));
        }
        edges.push(direct);
        before.push(all);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::synth::with_layers;
    use crate::kernel::{RmsNorm, RmsNormArgs};
    use crate::model::{Model, Traits};
    use crate::outline::outline;
    use crate::plan::{BufferTable, Home, Slot};
    use crate::shape::Shape;
    use crate::weights::{Float, Format};
    use std::collections::BTreeSet;

    /// The definition, dispatch against dispatch.
    fn by_definition(plan: &Plan) -> Vec<usize> {
        let mut stages: Vec<usize> = Vec::new();
        for (i, dispatch) in plan.dispatches.iter().enumerate() {
            let earlier = plan.dispatches[..i].iter().zip(&stages);
            let waits = earlier.filter(|(e, _)| conflict(e, dispatch)).map(|(_, s)| s + 1);
            let stage = waits.max().unwrap_or(0);
            stages.push(stage);
        }
        stages
    }

    #[test]
    fn stages_of_real_plans_are_those_of_the_definition() {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        let shape = with_layers(&Shape::qwen36_35b_a3b(), 8);
        let weights = outline(&shape, affine(4), affine(8));
        for traits in [Traits::CPU, Traits::GPU] {
            let model = Model::new(&weights, traits, 64, 40_000);
            for plan in
                [model.prefill(64, true), model.prefill(1, false), model.decode(100, true), model.decode(39_000, false)]
            {
                assert_eq!(stages(&plan), by_definition(&plan));
            }
        }
    }

    #[test]
    fn edges_of_real_plans_order_every_conflict_and_no_edge_is_idle() {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        let weights = outline(&with_layers(&Shape::qwen36_35b_a3b(), 8), affine(4), affine(8));
        let model = Model::new(&weights, Traits::GPU, 64, 40_000);
        for plan in [model.prefill(64, true), model.decode(100, true), model.decode(39_000, false)] {
            let edges = edges(&plan);
            let mut before: Vec<BTreeSet<usize>> = Vec::new();
            for (j, later) in plan.dispatches.iter().enumerate() {
                let mut all = BTreeSet::new();
                for &i in &edges[j] {
                    assert!(conflict(&plan.dispatches[i], later), "{i} and {j} do not conflict");
                    assert!(edges[j].iter().all(|k| !before[*k].contains(&i)), "{i} before {j} follows from others");
                    all.insert(i);
                    all.extend(&before[i]);
                }
                for (i, earlier) in plan.dispatches[..j].iter().enumerate() {
                    assert!(!conflict(earlier, later) || all.contains(&i), "{i} and {j} are not ordered");
                }
                before.push(all);
            }
        }
    }

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
        plan.push(norm(c, gain, b)); // write after that write: stage 3
        assert_eq!(stages(&plan), [0, 0, 1, 2, 2, 3]);
        plan.serial = true;
        assert_eq!(stages(&plan), [0, 1, 2, 3, 4, 5]);
        assert_eq!(edges(&plan), [vec![], vec![0], vec![1], vec![2], vec![3], vec![4]]);
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
