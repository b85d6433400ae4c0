//! The Metal backend's host code: what it encodes, what it keeps, and how it fails.

use fake_metal::{Bound, Failure, Machine, Session, begin};
use lily_engine::backend::gpu::encode::EncodeList;
use lily_engine::backend::gpu::layout::{FileFacts, Layout, Limits, Place};
use lily_engine::backend::metal::MetalDevice;
use lily_engine::backend::{Backend, BackendChoice, BackendError, Device};
use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{Engine, EngineError, EngineOptions};
use lily_engine::kernel::Step;
use lily_engine::model::{Model, Traits};
use lily_engine::plan::Plan;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONTEXT: usize = 96;
const CHUNK: usize = 16;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&root().join("tests/golden/checkpoints/mlx/base-q4g64")).unwrap_or_else(|e| panic!("{e}"))
}

fn options(backend: BackendChoice) -> EngineOptions {
    EngineOptions { context_tokens: CONTEXT, chunk_tokens: Some(CHUNK), backend, ..EngineOptions::for_this_machine() }
}

fn engine(backend: BackendChoice) -> Result<Engine, EngineError> {
    Engine::new(checkpoint(), &options(backend))
}

/// No archive is kept unless a test wants one.
fn begin_without_cache(machine: Machine) -> Session {
    let session = begin(machine);
    // SAFETY: tests hold the session while they look at the environment, one at a time.
    unsafe { std::env::set_var("LILY_METAL_CACHE", "") };
    session
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|i| (7 * i + 3) % 90).collect()
}

fn logits(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
    let mut session = engine.new_session()?;
    engine.advance(&mut session, tokens, &[], &mut |_, _| ControlFlow::Continue(()))?;
    Ok(session.logits().unwrap().to_vec())
}

/// A loaded model below the engine.
struct Loaded {
    model: Model,
    backend: Box<dyn Backend>,
    layout: Layout,
}

fn load() -> Loaded {
    let checkpoint = Arc::new(checkpoint());
    let model = Model::new(&checkpoint.weights, Traits::GPU, CHUNK, CONTEXT);
    let device = Box::new(MetalDevice::open().unwrap());
    let files: Vec<FileFacts> = (0..checkpoint.file_count())
        .map(|i| FileFacts { bytes: checkpoint.mapped_file(i).unwrap().len(), mapped: true })
        .collect();
    let limits = Limits { page_bytes: 4096, buffer_bytes_max: Machine::default().buffer_bytes_max };
    let layout = Layout::new(&model.table, &files, limits).unwrap();
    let backend = device.load(checkpoint, &model.table).unwrap();
    Loaded { model, backend, layout }
}

impl Loaded {
    fn begin_step(&mut self, tokens: &[u32], position: u32, window: u32) {
        let (scratch, step) = (&self.model.scratch, [position, window].map(u32::to_le_bytes).concat());
        assert_eq!(step.len(), size_of::<Step>());
        self.backend.write(scratch.step, &step);
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        self.backend.write(scratch.tokens.first(bytes.len()), &bytes);
    }
}

#[test]
fn a_plan_is_encoded_stage_by_stage_with_its_buffers_and_arguments() {
    let session = begin_without_cache(Machine::default());
    let mut loaded = load();
    let mut state = loaded.backend.new_state().unwrap();
    let model = loaded.model.clone();
    for (plan, tokens, position) in [
        (model.prefill(5, true), prompt(5), 0),
        (model.prefill(1, false), prompt(1), 5),
        (model.decode(6, true), prompt(1), 6),
    ] {
        loaded.begin_step(&tokens, position, 0);
        loaded.backend.run(&plan, &mut [state.as_mut()]).unwrap();
        let submissions = session.submissions();
        let list = EncodeList::new(&plan, &loaded.layout).unwrap();
        assert_eq!(submissions.len(), 1, "one submission a step");
        assert_eq!(submissions[0].len(), list.stages.len(), "a barrier between stages and nowhere else");
        let mut areas: HashMap<(u8, usize), usize> = HashMap::new();
        for (ran, wanted) in submissions[0].iter().zip(&list.stages) {
            assert_eq!(ran.len(), wanted.len());
            for (ran, wanted) in ran.iter().zip(wanted) {
                let key = &list.pipelines[wanted.pipeline];
                assert_eq!(ran.kernel, key.entry);
                let constants: Vec<(u32, u32)> = key.constants.iter().map(|&(c, v)| (c as u32, v)).collect();
                assert_eq!(ran.constants, constants, "{}", key.entry);
                assert_eq!((ran.threadgroups, ran.threads), (wanted.threadgroups, wanted.threads), "{}", key.entry);
                assert_eq!(ran.args, wanted.args, "{}", key.entry);
                assert_eq!(ran.buffers.len(), wanted.buffers.len(), "{}", key.entry);
                ran.buffers.iter().zip(&wanted.buffers).for_each(|(bound, place)| same(&mut areas, bound, *place));
            }
        }
        let mut starts: Vec<usize> = areas.values().copied().collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), areas.len(), "areas are buffers of their own");
    }
}

/// A place is always the same offset of the same buffer.
fn same(areas: &mut HashMap<(u8, usize), usize>, bound: &Bound, place: Place) {
    let area = match place {
        Place::Window { index, .. } => (0, index),
        Place::Owned { index, .. } => (1, index),
        Place::State { index, .. } => (2, index),
        Place::Nothing => (3, 0),
    };
    assert_eq!(bound.offset, place.offset());
    assert_eq!(*areas.entry(area).or_insert(bound.start), bound.start, "{place:?}");
}

#[test]
fn logits_are_those_of_the_cpu() {
    let _session = begin_without_cache(Machine::default());
    let (mut metal, mut cpu) = (engine(BackendChoice::Metal).unwrap(), engine(BackendChoice::Cpu).unwrap());
    assert_eq!(metal.device(), "Fake M1 (Metal, Apple family 7)");
    for length in [1, 2, 15, 16, 17, 40] {
        let (got, want) = (logits(&mut metal, &prompt(length)).unwrap(), logits(&mut cpu, &prompt(length)).unwrap());
        let scale = want.iter().fold(0f32, |m, x| m.max(x.abs()));
        let worst = got.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // How close the kernels come is tested with them; a wrong buffer or offset is off by as much as the logits are.
        assert!(worst <= 0.1 * scale, "{length} tokens: off by {worst} of {scale}");
    }
}

#[test]
fn a_device_with_tensor_hardware_uses_tensor_operations() {
    let session = begin_without_cache(Machine::default());
    let plain = logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(20)).unwrap();
    session.change(|machine| (machine.name, machine.family, machine.metal4) = ("Fake M4", 9, true));
    assert_eq!(logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(20)).unwrap(), plain);
    session.change(|machine| (machine.name, machine.family, machine.metal4) = ("Fake M5", 10, true));
    let mut tensors = engine(BackendChoice::Metal).unwrap();
    assert_eq!(tensors.device(), "Fake M5 (Metal, Apple family 10, Metal 4)");
    let got = logits(&mut tensors, &prompt(20)).unwrap();
    let scale = plain.iter().fold(0f32, |m, x| m.max(x.abs()));
    let worst = got.iter().zip(&plain).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    // The order of sums in a product is the tensor operation's own.
    assert!(worst <= 0.02 * scale, "off by {worst} of {scale}");
}

#[test]
fn nothing_is_left_behind() {
    let session = begin_without_cache(Machine::default());
    let mut engine = engine(BackendChoice::Metal).unwrap();
    let before = session.buffers().len();
    let one = engine.new_session().unwrap();
    let states = session.buffers().len() - before;
    assert!(states >= 1);
    drop(one);
    assert_eq!(session.buffers().len(), before, "a session's buffers go with it");
    logits(&mut engine, &prompt(20)).unwrap();
    let (live, buffers) = (session.live(), session.buffers().len());
    for _ in 0..3 {
        logits(&mut engine, &prompt(20)).unwrap();
    }
    assert_eq!((session.live(), session.buffers().len()), (live, buffers), "steps leave nothing behind");
    drop(engine);
    assert_eq!((session.live(), session.buffers().len()), (0, 0));
}

#[test]
fn weights_are_not_copied_and_buffers_are_few() {
    let session = begin_without_cache(Machine::default());
    let checkpoint = checkpoint();
    let file_bytes = checkpoint.mapped_file(0).unwrap().len();
    let engine = Engine::new(checkpoint, &options(BackendChoice::Metal)).unwrap();
    let buffers = session.buffers();
    assert!(buffers.len() <= 4, "{buffers:?}");
    assert!(buffers.iter().sum::<usize>() < 2 * file_bytes + engine.memory_plan().scratch_bytes, "{buffers:?}");
    assert!(buffers.iter().any(|b| *b <= file_bytes.next_multiple_of(4096) && *b > file_bytes / 2), "a window");
}

#[test]
fn a_failing_kernel_is_named_and_the_session_starts_over() {
    let session = begin_without_cache(Machine::default());
    let mut engine = engine(BackendChoice::Metal).unwrap();
    let want = logits(&mut engine, &prompt(20)).unwrap();
    let mut timeline = engine.new_session().unwrap();
    session.change(|machine| machine.failure = Some(Failure { kernel: "delta_scan", times: usize::MAX }));
    let advance = |engine: &mut Engine, timeline: &mut _| {
        engine.advance(timeline, &prompt(20), &[], &mut |_, _| ControlFlow::Continue(()))
    };
    let error = advance(&mut engine, &mut timeline).unwrap_err();
    let EngineError::Backend(BackendError::Fault { kernel, stage, stages, message }) = &error else {
        panic!("{error}")
    };
    assert_eq!(kernel, "kernel `delta_scan`");
    assert!(*stage > 2 && stage < stages, "stage {stage} of {stages}");
    assert!(message.contains("Address Fault") && error.to_string().contains("delta_scan"), "{error}");
    assert!(timeline.tokens().is_empty());
    session.change(|machine| machine.failure = None);
    advance(&mut engine, &mut timeline).unwrap();
    assert_eq!(timeline.logits().unwrap(), want);
    // Once only: the search finds nobody, and says so.
    session.change(|machine| machine.failure = Some(Failure { kernel: "route", times: 1 }));
    let message = logits(&mut engine, &prompt(20)).unwrap_err().to_string();
    assert!(message.contains("none of which fails alone"), "{message}");
    drop((timeline, engine));
    assert_eq!(session.live(), 0);
}

#[test]
fn two_steps_can_be_under_way() {
    let session = begin_without_cache(Machine::default());
    let mut loaded = load();
    let mut state = loaded.backend.new_state().unwrap();
    let rows = |loaded: &Loaded| {
        let mut bytes = vec![0; loaded.model.scratch.logits.bytes];
        loaded.backend.read(loaded.model.scratch.logits, &mut bytes);
        bytes
    };
    let plan = loaded.model.decode(0, true);
    let embed = Plan { dispatches: plan.dispatches[..1].to_vec(), ..Plan::default() };
    let (embed, all) = (loaded.backend.prepare(embed).unwrap(), loaded.backend.prepare(plan).unwrap());
    loaded.begin_step(&[5], 0, 0);
    loaded.backend.submit(&embed, &mut [state.as_mut()]).unwrap();
    assert!(session.submissions().is_empty(), "nothing has been waited for");
    loaded.backend.submit(&all, &mut [state.as_mut()]).unwrap();
    loaded.backend.wait().unwrap();
    assert_eq!(session.submissions().len(), 2);
    let want = rows(&loaded);
    // A third one waits for the first. The state must be a fresh one, as the step changed it.
    let mut state = loaded.backend.new_state().unwrap();
    loaded.begin_step(&[5], 0, 0);
    loaded.backend.submit(&embed, &mut [state.as_mut()]).unwrap();
    loaded.backend.submit(&embed, &mut [state.as_mut()]).unwrap();
    loaded.backend.submit(&all, &mut [state.as_mut()]).unwrap();
    assert_eq!(session.submissions().len(), 1);
    loaded.backend.wait().unwrap();
    assert_eq!(rows(&loaded), want);
}

#[test]
fn an_engine_that_goes_while_a_step_is_under_way_waits_for_it() {
    let session = begin_without_cache(Machine::default());
    let mut loaded = load();
    let mut state = loaded.backend.new_state().unwrap();
    loaded.begin_step(&[5], 0, 0);
    let program = loaded.backend.prepare(loaded.model.decode(0, true)).unwrap();
    loaded.backend.submit(&program, &mut [state.as_mut()]).unwrap();
    drop((state, program, loaded));
    assert_eq!((session.submissions().len(), session.live()), (1, 0));
}

#[test]
fn devices_that_will_not_do_are_refused() {
    let session = begin_without_cache(Machine { family: 6, ..Machine::default() });
    let message = engine(BackendChoice::Metal).err().unwrap().to_string();
    assert!(message.contains("family 7 (M1) or newer, found Fake M1"), "{message}");
    session.change(|machine| (machine.family, machine.unified_memory) = (7, false));
    assert!(matches!(engine(BackendChoice::Metal), Err(EngineError::Backend(BackendError::NoGpu { .. }))));
    session.change(|machine| (machine.unified_memory, machine.working_set_bytes) = (true, 100_000));
    let message = engine(BackendChoice::Metal).err().unwrap().to_string();
    assert!(message.contains("recommendedMaxWorkingSetSize") && message.contains("KV cache"), "{message}");
    session.change(|machine| (machine.working_set_bytes, machine.buffer_bytes_max) = (1 << 30, 8192));
    assert!(matches!(engine(BackendChoice::Metal), Err(EngineError::Backend(BackendError::TooLong { .. }))));
    session.change(|machine| (machine.buffer_bytes_max, machine.threads_max) = (1 << 30, 64));
    let mut small = engine(BackendChoice::Metal).unwrap();
    let message = logits(&mut small, &prompt(3)).unwrap_err().to_string();
    assert!(message.contains("threads") && message.contains("kernel `"), "{message}");
    drop(small);
    assert_eq!(session.live(), 0);
}

#[test]
fn areas_are_cut_to_what_the_device_takes() {
    let session = begin_without_cache(Machine::default());
    let want = logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(20)).unwrap();
    let most = 96 << 10;
    session.change(|machine| machine.buffer_bytes_max = most);
    let mut cut = engine(BackendChoice::Metal).unwrap();
    assert!(session.buffers().len() > 4 && session.buffers().iter().all(|b| *b <= most), "{:?}", session.buffers());
    assert_eq!(logits(&mut cut, &prompt(20)).unwrap(), want);
}

#[test]
fn a_system_without_residency_sets_or_math_modes_will_do() {
    let session = begin_without_cache(Machine::default());
    let want = logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(3)).unwrap();
    session.change(|machine| machine.lacks = &["newResidencySetWithDescriptor:error:", "setMathMode:"]);
    assert_eq!(logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(3)).unwrap(), want);
    assert_eq!(session.live(), 0);
}

#[test]
fn pipelines_are_made_once_and_kept_on_disk() {
    let session = begin(Machine::default());
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("new/folder");
    // SAFETY: as in `begin_without_cache`.
    unsafe { std::env::set_var("LILY_METAL_CACHE", &cache) };
    let mut metal = engine(BackendChoice::Metal).unwrap();
    logits(&mut metal, &prompt(CHUNK as u32)).unwrap();
    let first = session.counts();
    assert!(first.pipelines > 5 && first.libraries > 2, "{first:?}");
    let files = || std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    // A prompt takes one plan or two: its last token is computed apart where the state before it is kept.
    assert!(files().len() == 1 && (1..=2).contains(&first.archives), "{:?}, {first:?}", files());
    logits(&mut metal, &prompt(CHUNK as u32)).unwrap();
    assert_eq!(session.counts(), first, "the second run compiles nothing");
    drop(metal);
    // What is there is opened; what is broken is written anew.
    let path = cache.join(&files()[0]);
    std::fs::write(&path, "rubbish").unwrap();
    logits(&mut engine(BackendChoice::Metal).unwrap(), &prompt(CHUNK as u32)).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("fake archive"));
    assert_eq!(session.live(), 0);
}
