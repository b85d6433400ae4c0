//! A plan as a GPU takes it: pipelines, dispatches in stages, buffers and arguments.
//!
//! Dispatches are ordered by stage. Those of one stage may overlap; between stages there is a barrier, and nowhere else.
//! Every stage but the first holds only dispatches that conflict with one of the stage before, so no barrier is idle.

use super::layout::{Layout, Place};
use crate::backend::BackendError;
use crate::kernel::{Constant, Param};
use crate::plan::{Dispatch, Plan, Slot, stages::stages};

/// A kernel with its function constants: what a pipeline is made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipelineKey {
    /// Entry name.
    pub entry: &'static str,
    /// Function constants.
    pub constants: Vec<(Constant, u32)>,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Index into [`EncodeList::pipelines`].
    pub pipeline: usize,
    /// Index of the dispatch in the plan.
    pub dispatch: usize,
    /// Place of every buffer, in binding order.
    pub buffers: Vec<Place>,
    /// Argument struct, bound after the last buffer.
    pub args: Vec<u8>,
    /// Threadgroups in each dimension.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Whether no dispatch before it in the plan writes any of the session's state that it touches, or its step, so that it may read
    /// them before those have ended.
    pub state_is_there: bool,
}

/// The dispatches of a plan, stage by stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodeList {
    /// Pipelines that the plan needs, each once.
    pub pipelines: Vec<PipelineKey>,
    /// Dispatches of each stage.
    pub stages: Vec<Vec<Encoded>>,
}

impl EncodeList {
    /// Encodes a plan.
    ///
    /// # Errors
    /// If a buffer is bound at a place that kernels cannot load from.
    pub fn new(plan: &Plan, layout: &Layout) -> Result<Self, BackendError> {
        let mut list = Self::default();
        let mut written: Vec<Slot> = Vec::new();
        for (index, (dispatch, stage)) in plan.dispatches.iter().zip(stages(plan)).enumerate() {
            let mut encoded = list.encode(index, dispatch, layout)?;
            let is_state = |slot: Slot| matches!(layout.place(slot), Place::State { .. });
            let early = |(param, slot): &(&Param, Slot)| is_state(*slot) || param.name == "step";
            let state: Vec<_> = dispatch.bindings().filter(early).collect();
            encoded.state_is_there = !state.iter().any(|(_, slot)| written.iter().any(|w| w.overlaps(*slot)));
            written.extend(state.iter().filter(|(param, _)| param.access.writes()).map(|(_, slot)| *slot));
            if list.stages.len() <= stage {
                list.stages.resize(stage + 1, Vec::new());
            }
            list.stages[stage].push(encoded);
        }
        Ok(list)
    }

    fn encode(&mut self, index: usize, dispatch: &Dispatch, layout: &Layout) -> Result<Encoded, BackendError> {
        let launch = (dispatch.contract.launch)(&dispatch.args);
        let key = PipelineKey { entry: dispatch.contract.name, constants: launch.constants };
        let pipeline = self.pipelines.iter().position(|p| *p == key).unwrap_or_else(|| {
            self.pipelines.push(key);
            self.pipelines.len() - 1
        });
        let buffers = dispatch.bindings().map(|(param, slot)| {
            let place = layout.place(slot);
            place.aligned().then_some(place).ok_or_else(|| BackendError::Binding {
                kernel: dispatch.contract.name,
                parameter: param.name,
                offset: place.offset(),
            })
        });
        Ok(Encoded {
            pipeline,
            dispatch: index,
            buffers: buffers.collect::<Result<_, _>>()?,
            args: dispatch.args.clone(),
            threadgroups: launch.threadgroups,
            threads: launch.threads,
            state_is_there: true,
        })
    }

    /// All dispatches with their stages, in the order of encoding.
    pub fn dispatches(&self) -> impl Iterator<Item = (usize, &Encoded)> {
        self.stages.iter().enumerate().flat_map(|(stage, dispatches)| dispatches.iter().map(move |d| (stage, d)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::layout::{FileFacts, Limits};
    use crate::kernel::launch;
    use crate::model::{Model, Traits};
    use crate::outline::outline;
    use crate::plan::stages::conflict;
    use crate::shape::Shape;
    use crate::weights::{Float, Format};

    fn model() -> (Model, Layout) {
        let affine = |bits| Format::Affine { bits, group: 64, scale: Float::Bf16 };
        let shape = Shape::qwen36_35b_a3b();
        launch::check(&shape).unwrap();
        let model = Model::for_sessions(&outline(&shape, affine(4), affine(8)), Traits::GPU, 512, 8192, 3);
        let limits = Limits { page_bytes: 16384, buffer_bytes_max: 1 << 34 };
        let layout = Layout::new(&model.table, &[FileFacts { bytes: 1 << 35, mapped: true }], limits).unwrap();
        (model, layout)
    }

    #[test]
    fn every_conflict_has_a_barrier_between_and_no_barrier_is_idle() {
        let (model, layout) = model();
        for plan in [model.decode(4096, true), model.prefill(512, true), model.prefill(3, false)] {
            let list = EncodeList::new(&plan, &layout).unwrap();
            assert_eq!(list.dispatches().count(), plan.dispatches.len());
            let mut stage_of = vec![usize::MAX; plan.dispatches.len()];
            list.dispatches().for_each(|(stage, d)| stage_of[d.dispatch] = stage);
            for (j, later) in plan.dispatches.iter().enumerate() {
                let mut needed = stage_of[j] == 0;
                for (i, earlier) in plan.dispatches[..j].iter().enumerate().filter(|(_, e)| conflict(e, later)) {
                    assert!(stage_of[i] < stage_of[j], "{} {i} and {} {j}", earlier.contract.name, later.contract.name);
                    needed |= stage_of[i] + 1 == stage_of[j];
                }
                assert!(needed, "{} {j} could run a stage earlier", later.contract.name);
            }
        }
    }

    #[test]
    fn state_that_the_plan_itself_writes_is_not_there_yet() {
        let (model, layout) = model();
        let classes = [model.decode_class(100); 3];
        let early = |plan: &Plan| -> Vec<(&'static str, bool)> {
            let list = EncodeList::new(plan, &layout).unwrap();
            let mut early: Vec<_> = list.dispatches().map(|(_, d)| (d.dispatch, d.state_is_there)).collect();
            early.sort_unstable();
            early.into_iter().map(|(i, early)| (plan.dispatches[i].contract.name, early)).collect()
        };
        for plan in [model.decode(4096, true), model.decode_batch(&classes, true)] {
            assert!(early(&plan).iter().all(|(_, early)| *early));
        }
        let rows = early(&model.verify(&classes, true));
        for kernel in ["delta_step", "attend_blocks"] {
            let found: Vec<bool> = rows.iter().filter(|(name, _)| *name == kernel).map(|(_, early)| *early).collect();
            assert!(found.chunks(3).all(|layer| layer == [true, false, false]), "{kernel}: {found:?}");
        }
        assert!(early(&model.prefill(512, true)).contains(&("attend", false)));
    }

    #[test]
    fn pipelines_are_shared_and_arguments_are_the_dispatch_s() {
        let (model, layout) = model();
        let plan = model.decode(4096, true);
        let list = EncodeList::new(&plan, &layout).unwrap();
        for (i, key) in list.pipelines.iter().enumerate() {
            assert!(!list.pipelines[..i].contains(key), "{key:?} twice");
        }
        assert!(list.pipelines.len() < 20, "{} pipelines", list.pipelines.len());
        for (_, encoded) in list.dispatches() {
            let dispatch = &plan.dispatches[encoded.dispatch];
            let launch = (dispatch.contract.launch)(&dispatch.args);
            let key = &list.pipelines[encoded.pipeline];
            assert_eq!((key.entry, &key.constants), (dispatch.contract.name, &launch.constants));
            assert_eq!((encoded.threadgroups, encoded.threads), (launch.threadgroups, launch.threads));
            assert_eq!(encoded.args, dispatch.args);
            let places: Vec<Place> = dispatch.slots.iter().map(|slot| layout.place(*slot)).collect();
            assert_eq!(encoded.buffers, places);
        }
    }

    #[test]
    fn a_place_that_kernels_cannot_load_from_is_an_error() {
        let (model, layout) = model();
        let mut plan = model.prefill(1, true);
        let slot = &mut plan.dispatches[0].slots[0];
        (slot.offset, slot.bytes) = (2, slot.bytes - 2);
        let message = EncodeList::new(&plan, &layout).unwrap_err().to_string();
        assert!(message.contains("`tokens` of kernel `embed`") && message.contains("offset"), "{message}");
    }
}
