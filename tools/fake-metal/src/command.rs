//! Queues, command buffers and encoders. Commands are checked when they are encoded and run when somebody waits.

use crate::foundation::error;
use crate::machine::{self, Bound, Recorded, Submission};
use crate::metal::{self, Function, Held, lock};
use crate::runtime::{self, Body as Any, Id, Imp, Sel};
use soft_metal::{Binding, Buffer, Device, Launch, Settings, Space};
use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, LazyLock, Mutex};

/// Alignment of offsets that kernels count on.
const ALIGN: usize = 4;
/// Statuses of a command buffer.
const COMMITTED: usize = 2;
const COMPLETED: usize = 4;
const FAILED: usize = 5;

/// An object that is there for a submission.
pub enum Body {
    Queue(Arc<Queue>),
    Commands(Arc<Mutex<Commands>>),
    Encoder(Mutex<Encoder>),
}

/// A queue.
#[derive(Default)]
pub struct Queue {
    residency: Mutex<Vec<Held>>,
    /// Committed and not yet run.
    waiting: Mutex<VecDeque<Arc<Mutex<Commands>>>>,
}

/// A command buffer.
pub struct Commands {
    queue: Arc<Queue>,
    status: usize,
    error: Option<String>,
    encoders: usize,
    spans: Vec<Vec<Dispatch>>,
}

/// A dispatch with what it needs to run.
struct Dispatch {
    function: Arc<Function>,
    recorded: Recorded,
}

/// An encoder.
pub struct Encoder {
    commands: Arc<Mutex<Commands>>,
    pipeline: Option<Arc<Function>>,
    buffers: Vec<Option<Bound>>,
    args: Option<(usize, Vec<u8>)>,
    spans: Vec<Vec<Dispatch>>,
    fence: (bool, bool),
}

fn body(id: Id) -> &'static Body {
    match runtime::body(id) {
        Any::Command(body) => body,
        _ => panic!("expected an object of a submission"),
    }
}

fn queue(id: Id) -> &'static Arc<Queue> {
    match body(id) {
        Body::Queue(queue) => queue,
        _ => panic!("expected a queue"),
    }
}

fn commands(id: Id) -> &'static Arc<Mutex<Commands>> {
    match body(id) {
        Body::Commands(commands) => commands,
        _ => panic!("expected a command buffer"),
    }
}

fn encoder(id: Id) -> std::sync::MutexGuard<'static, Encoder> {
    match body(id) {
        Body::Encoder(encoder) => lock(encoder),
        _ => panic!("expected an encoder"),
    }
}

/// Methods.
pub fn method(body: &Body, selector: &str) -> Option<Imp> {
    Some(match (body, selector) {
        (Body::Queue(_), "addResidencySet:") => add_residency as Imp,
        (Body::Queue(_), "commandBufferWithUnretainedReferences") => new_commands as Imp,
        (Body::Commands(_), "computeCommandEncoderWithDispatchType:") => new_encoder as Imp,
        (Body::Commands(_), "commit") => commit as Imp,
        (Body::Commands(_), "waitUntilCompleted") => wait as Imp,
        (Body::Commands(_), "status") => status as Imp,
        (Body::Commands(_), "error") => commands_error as Imp,
        (Body::Encoder(_), "waitForFence:") => wait_fence as Imp,
        (Body::Encoder(_), "updateFence:") => update_fence as Imp,
        (Body::Encoder(_), "setComputePipelineState:") => set_pipeline as Imp,
        (Body::Encoder(_), "setBuffer:offset:atIndex:") => set_buffer as Imp,
        (Body::Encoder(_), "setBytes:length:atIndex:") => set_bytes as Imp,
        (Body::Encoder(_), "memoryBarrierWithScope:") => barrier as Imp,
        (Body::Encoder(_), "dispatchThreadgroups:threadsPerThreadgroup:") => dispatch as Imp,
        (Body::Encoder(_), "endEncoding") => end as Imp,
        _ => return None,
    })
}

pub extern "C-unwind" fn new_queue(_: Id, _: Sel) -> Id {
    runtime::object(Any::Command(Body::Queue(Arc::default())))
}

extern "C-unwind" fn add_residency(this: Id, _: Sel, set: Id) {
    lock(&queue(this).residency).push(Held::new(set));
}

extern "C-unwind" fn new_commands(this: Id, _: Sel) -> Id {
    let queue = Arc::clone(queue(this));
    let commands = Commands { queue, status: 0, error: None, encoders: 0, spans: Vec::new() };
    runtime::autoreleased(Any::Command(Body::Commands(Arc::new(Mutex::new(commands)))))
}

extern "C-unwind" fn new_encoder(this: Id, _: Sel, kind: usize) -> Id {
    assert_eq!(kind, 1, "passes are concurrent");
    let commands = Arc::clone(commands(this));
    lock(&commands).encoders += 1;
    runtime::autoreleased(Any::Command(Body::Encoder(Mutex::new(Encoder {
        commands,
        pipeline: None,
        buffers: Vec::new(),
        args: None,
        spans: vec![Vec::new()],
        fence: (false, false),
    }))))
}

extern "C-unwind" fn commit(this: Id, _: Sel) {
    let commands = commands(this);
    let queue = {
        let mut commands = lock(commands);
        assert_eq!((commands.status, commands.encoders), (0, 0), "committed once, with its encoders ended");
        commands.status = COMMITTED;
        Arc::clone(&commands.queue)
    };
    lock(&queue.waiting).push_back(Arc::clone(commands));
}

extern "C-unwind" fn wait(this: Id, _: Sel) {
    let commands = commands(this);
    let queue = Arc::clone(&lock(commands).queue);
    loop {
        let status = lock(commands).status;
        assert!(status >= COMMITTED, "waiting for what was not committed would never end");
        if status >= COMPLETED {
            return;
        }
        let next = lock(&queue.waiting).pop_front().expect("what was committed and not run is waiting");
        run(&queue, &mut lock(&next));
    }
}

extern "C-unwind" fn status(this: Id, _: Sel) -> usize {
    lock(commands(this)).status
}

extern "C-unwind" fn commands_error(this: Id, _: Sel) -> Id {
    match &lock(commands(this)).error {
        Some(text) => runtime::autoreleased(error("MTLCommandBufferErrorDomain", 3, text.clone())),
        None => null_mut(),
    }
}

extern "C-unwind" fn wait_fence(this: Id, _: Sel, _fence: Id) {
    let mut encoder = encoder(this);
    assert!(encoder.spans.iter().all(Vec::is_empty), "a fence is waited for before the first dispatch");
    encoder.fence.0 = true;
}

extern "C-unwind" fn update_fence(this: Id, _: Sel, _fence: Id) {
    encoder(this).fence.1 = true;
}

extern "C-unwind" fn set_pipeline(this: Id, _: Sel, pipeline: Id) {
    let mut encoder = encoder(this);
    encoder.pipeline = Some(Arc::clone(metal::pipeline(pipeline)));
    // Bindings of the last kernel would still be there; a kernel that misses one must not find them.
    encoder.buffers.clear();
    encoder.args = None;
}

extern "C-unwind" fn set_buffer(this: Id, _: Sel, buffer: Id, offset: usize, index: usize) {
    let buffer = metal::buffer(buffer);
    assert!(offset < buffer.bytes && offset.is_multiple_of(ALIGN), "buffer {index} is bound at {offset}");
    let mut encoder = encoder(this);
    if encoder.buffers.len() <= index {
        encoder.buffers.resize(index + 1, None);
    }
    let nothing = buffer.label.get().is_some_and(|label| label == "nothing");
    encoder.buffers[index] = Some(Bound { start: buffer.start, bytes: buffer.bytes, offset, nothing });
}

extern "C-unwind" fn set_bytes(this: Id, _: Sel, bytes: *const u8, length: usize, index: usize) {
    assert!(length <= 4096, "setBytes takes up to 4 KB");
    // SAFETY: the caller passes so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec();
    encoder(this).args = Some((index, bytes));
}

extern "C-unwind" fn barrier(this: Id, _: Sel, scope: usize) {
    assert_eq!(scope, 1, "barriers are for buffers");
    let mut encoder = encoder(this);
    assert!(encoder.spans.last().is_some_and(|span| !span.is_empty()), "a barrier with nothing before it");
    encoder.spans.push(Vec::new());
}

/// `MTLSize`.
#[repr(C)]
struct Size {
    width: usize,
    height: usize,
    depth: usize,
}

extern "C-unwind" fn dispatch(this: Id, _: Sel, groups: Size, threads: Size) {
    let mut encoder = encoder(this);
    let function = Arc::clone(encoder.pipeline.as_ref().expect("a pipeline is set"));
    let (index, args) = encoder.args.clone().expect("arguments are set");
    assert_eq!(index, encoder.buffers.len(), "arguments come after the last buffer");
    assert_eq!((threads.height, threads.depth), (1, 1), "threadgroups have one dimension");
    let buffers = encoder.buffers.iter().map(|b| b.expect("no index is left out")).collect();
    let recorded = Recorded {
        kernel: function.info.name.clone(),
        constants: function.constants.clone(),
        buffers,
        args,
        threadgroups: [groups.width as u32, groups.height as u32, groups.depth as u32],
        threads: threads.width as u32,
    };
    let dispatch = Dispatch { function, recorded };
    let span = encoder.spans.last_mut().expect("there is always a span");
    span.iter().for_each(|other| check_independent(other, &dispatch));
    span.push(dispatch);
}

/// Two dispatches without a barrier between them: what one writes, the other must not touch. Lengths are not known here, so
/// only places that start at the same byte are seen.
fn check_independent(a: &Dispatch, b: &Dispatch) {
    let touches = |d: &Dispatch| -> Vec<(usize, bool)> {
        let device = d.function.info.buffers.iter().filter(|p| p.space == Space::Device);
        let bound = device.zip(&d.recorded.buffers).filter(|(_, b)| !b.nothing);
        bound.map(|(p, b)| (b.start + b.offset, !p.is_const)).collect()
    };
    let b_touches = touches(b);
    for (place, writes) in touches(a) {
        let hazard = b_touches.iter().any(|(other, other_writes)| *other == place && (writes || *other_writes));
        assert!(!hazard, "{} and {} need a barrier between them", a.recorded.kernel, b.recorded.kernel);
    }
}

extern "C-unwind" fn end(this: Id, _: Sel) {
    let mut encoder = encoder(this);
    assert_eq!(encoder.fence, (true, true), "buffers are not tracked, so passes are ordered by a fence");
    let spans = std::mem::take(&mut encoder.spans);
    let mut commands = lock(&encoder.commands);
    commands.encoders -= 1;
    commands.spans.extend(spans);
}

/// Runs a command buffer, up to the first kernel that fails.
fn run(queue: &Queue, commands: &mut Commands) {
    let result = commands.spans.iter().flatten().try_for_each(|dispatch| launch(queue, dispatch));
    let spans = commands.spans.iter().map(|span| span.iter().map(|d| d.recorded.clone()).collect());
    machine::record(spans.collect::<Submission>());
    commands.status = if result.is_ok() { COMPLETED } else { FAILED };
    commands.error = result.err();
}

fn launch(queue: &Queue, dispatch: &Dispatch) -> Result<(), String> {
    let recorded = &dispatch.recorded;
    let residency = lock(&queue.residency);
    for bound in &recorded.buffers {
        assert!(machine::has_buffer(bound.start, bound.bytes), "{}: a buffer is gone", recorded.kernel);
        let resident = |set: &Held| lock(metal::residency(set.0)).resident.contains(&bound.start);
        assert!(residency.is_empty() || residency.iter().any(resident), "{}: not resident", recorded.kernel);
    }
    if machine::fails(&recorded.kernel) {
        return Err("Caused GPU Address Fault Error".into());
    }
    let buffers: Vec<Buffer> = recorded.buffers.iter().map(over).collect();
    let bindings: Vec<Binding<'_>> = buffers
        .iter()
        .zip(&recorded.buffers)
        .map(|(buffer, bound)| Binding {
            buffer,
            offset: bound.offset,
            bytes: length(bound, &recorded.buffers),
            early: false,
        })
        .collect();
    let launch = Launch {
        kernel: &recorded.kernel,
        buffers: &bindings,
        args: &recorded.args,
        constants: &recorded.constants,
        threadgroups: recorded.threadgroups,
        threads: recorded.threads,
    };
    // One for all, as its stacks of fibers are dear.
    static DEVICE: LazyLock<Mutex<Device>> = LazyLock::new(|| Mutex::new(Device::new(Settings::default())));
    let mut device = lock(&DEVICE);
    device.launch(&dispatch.function.library, &launch).map(|_| ()).map_err(|fault| fault.to_string())
}

/// How long a binding is at most: Metal is told where one starts only, so up to where the next one starts.
fn length(bound: &Bound, all: &[Bound]) -> usize {
    if bound.nothing {
        return 0;
    }
    let later = all.iter().filter(|b| b.start == bound.start && b.offset > bound.offset).map(|b| b.offset);
    later.min().unwrap_or(bound.bytes) - bound.offset
}

/// The pages of a bound buffer.
fn over(bound: &Bound) -> Buffer {
    let start = NonNull::new(bound.start as *mut u8).expect("pages are not at address 0");
    // SAFETY: the backend keeps the pages for as long as the buffer object lives, which was asked just before.
    unsafe { Buffer::over(start, bound.bytes) }
}
