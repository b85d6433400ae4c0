//! Metal's lasting objects: device, libraries, pipelines, buffers, residency sets, archives.

use crate::command;
use crate::foundation::{array, fail, string, text};
use crate::machine::{self, machine};
use crate::runtime::{self, Body as Any, Id, Imp, Sel, objc_release, objc_retain};
use soft_metal::{KernelInfo, Library, Mode};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// The family of Metal 4, and the first of Apple's.
const METAL4: isize = 5002;
const APPLE1: isize = 1001;
/// The first version of the language with bfloat, and the type of the constants.
const LANGUAGE_MIN: usize = (3 << 16) + 1;
/// The version of the language with tensor operations.
const LANGUAGE_TENSORS: usize = 4 << 16;
const UINT: usize = 33;

/// A lasting object of Metal.
pub enum Body {
    Device,
    Options(Mutex<Options>),
    Constants(Mutex<Vec<(u32, u32)>>),
    PipelineDescriptor(Mutex<usize>),
    ResidencyDescriptor,
    ArchiveDescriptor(Mutex<Option<String>>),
    Library(Arc<Library>),
    Function(Arc<Function>),
    Pipeline(Arc<Function>),
    Buffer(Buffer),
    Residency(Mutex<Residency>),
    Archive(Mutex<usize>),
    Fence,
}

/// How a text is to be compiled.
#[derive(Default)]
pub struct Options {
    language: usize,
    strict: bool,
}

/// A kernel with its constants.
pub struct Function {
    /// The compiled file.
    pub library: Arc<Library>,
    /// What its text says of it.
    pub info: KernelInfo,
    /// Index and value.
    pub constants: Vec<(u32, u32)>,
}

/// Pages of the process.
pub struct Buffer {
    pub start: usize,
    pub bytes: usize,
    /// Its name.
    pub label: OnceLock<String>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        machine::remove_buffer(self.start);
    }
}

/// Buffers that stay resident.
#[derive(Default)]
pub struct Residency {
    pending: HashMap<usize, isize>,
    /// First addresses.
    pub resident: HashSet<usize>,
}

fn make(body: Body) -> Id {
    runtime::object(Any::Metal(body))
}

fn body(id: Id) -> &'static Body {
    match runtime::body(id) {
        Any::Metal(body) => body,
        _ => panic!("expected an object of Metal"),
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The kernel of a pipeline.
pub fn pipeline(id: Id) -> &'static Arc<Function> {
    match body(id) {
        Body::Pipeline(function) => function,
        _ => panic!("expected a pipeline"),
    }
}

/// The pages of a buffer.
pub fn buffer(id: Id) -> &'static Buffer {
    match body(id) {
        Body::Buffer(buffer) => buffer,
        _ => panic!("expected a buffer"),
    }
}

/// What a residency set holds.
pub fn residency(id: Id) -> &'static Mutex<Residency> {
    match body(id) {
        Body::Residency(set) => set,
        _ => panic!("expected a residency set"),
    }
}

/// Objects that are made by `new`.
pub fn new(class: &str) -> Body {
    match class {
        "MTLBinaryArchiveDescriptor" => Body::ArchiveDescriptor(Mutex::default()),
        "MTLCompileOptions" => Body::Options(Mutex::default()),
        "MTLComputePipelineDescriptor" => Body::PipelineDescriptor(Mutex::default()),
        "MTLFunctionConstantValues" => Body::Constants(Mutex::default()),
        "MTLResidencySetDescriptor" => Body::ResidencyDescriptor,
        _ => panic!("the fake makes no {class}"),
    }
}

/// Methods.
pub fn method(body: &Body, selector: &str) -> Option<Imp> {
    Some(match (body, selector) {
        (Body::Device, selector) => return device_method(selector),
        (Body::Options(_), "setLanguageVersion:") => set_language as Imp,
        (Body::Options(_), "setMathMode:") => set_math_mode as Imp,
        (Body::Options(_), "setFastMathEnabled:") => set_fast_math as Imp,
        (Body::Constants(_), "setConstantValue:type:atIndex:") => set_constant as Imp,
        (Body::PipelineDescriptor(_), "setComputeFunction:") => set_function as Imp,
        (Body::PipelineDescriptor(_), "setBinaryArchives:") => ignore as Imp,
        (Body::ArchiveDescriptor(_), "setUrl:") => set_url as Imp,
        (Body::Buffer(_), "length") => buffer_length as Imp,
        (Body::Buffer(_), "setLabel:") => set_label as Imp,
        (Body::Library(_), "newFunctionWithName:constantValues:error:") => new_function as Imp,
        (Body::Pipeline(_), "maxTotalThreadsPerThreadgroup") => threads_max as Imp,
        (Body::Pipeline(_), "threadExecutionWidth") => width as Imp,
        (Body::Residency(_), "addAllocation:") => add_allocation as Imp,
        (Body::Residency(_), "removeAllocation:") => remove_allocation as Imp,
        (Body::Residency(_), "commit") => commit_residency as Imp,
        (Body::Residency(_), "requestResidency") => ignore as Imp,
        (Body::Archive(_), "addComputePipelineFunctionsWithDescriptor:error:") => archive_add as Imp,
        (Body::Archive(_), "serializeToURL:error:") => archive_write as Imp,
        _ => return None,
    })
}

fn device_method(selector: &str) -> Option<Imp> {
    Some(match selector {
        "name" => device_name as Imp,
        "supportsFamily:" => supports_family as Imp,
        "hasUnifiedMemory" => unified_memory as Imp,
        "recommendedMaxWorkingSetSize" => working_set as Imp,
        "maxBufferLength" => buffer_bytes_max as Imp,
        "newCommandQueue" => command::new_queue as Imp,
        "newFence" => new_fence as Imp,
        "newLibraryWithSource:options:error:" => new_library as Imp,
        "newComputePipelineStateWithDescriptor:options:reflection:error:" => new_pipeline as Imp,
        "newBufferWithBytesNoCopy:length:options:deallocator:" => new_buffer as Imp,
        "newResidencySetWithDescriptor:error:" => new_residency as Imp,
        "newBinaryArchiveWithDescriptor:error:" => new_archive as Imp,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> Id {
    make(Body::Device)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCopyAllDevices() -> Id {
    runtime::object(array(vec![make(Body::Device)]))
}

extern "C-unwind" fn ignore(_: Id, _: Sel) {}

extern "C-unwind" fn device_name(_: Id, _: Sel) -> Id {
    runtime::autoreleased(string(machine().name))
}

extern "C-unwind" fn supports_family(_: Id, _: Sel, family: isize) -> bool {
    let machine = machine();
    if family == METAL4 { machine.metal4 } else { (APPLE1..APPLE1 + machine.family).contains(&family) }
}

extern "C-unwind" fn unified_memory(_: Id, _: Sel) -> bool {
    machine().unified_memory
}

extern "C-unwind" fn working_set(_: Id, _: Sel) -> u64 {
    machine().working_set_bytes
}

extern "C-unwind" fn buffer_bytes_max(_: Id, _: Sel) -> usize {
    machine().buffer_bytes_max
}

extern "C-unwind" fn new_fence(_: Id, _: Sel) -> Id {
    make(Body::Fence)
}

extern "C-unwind" fn set_language(this: Id, _: Sel, version: usize) {
    if let Body::Options(options) = body(this) {
        lock(options).language = version;
    }
}

extern "C-unwind" fn set_math_mode(this: Id, _: Sel, mode: isize) {
    if let Body::Options(options) = body(this) {
        lock(options).strict = mode == 0;
    }
}

extern "C-unwind" fn set_fast_math(this: Id, _: Sel, fast: bool) {
    if let Body::Options(options) = body(this) {
        lock(options).strict = !fast;
    }
}

extern "C-unwind" fn set_constant(this: Id, _: Sel, value: *const u32, kind: usize, index: usize) {
    assert_eq!(kind, UINT, "function constants are of type uint");
    if let Body::Constants(constants) = body(this) {
        // SAFETY: the caller passes the address of a value of the type it names.
        lock(constants).push((index as u32, unsafe { *value }));
    }
}

extern "C-unwind" fn set_function(this: Id, _: Sel, function: Id) {
    if let Body::PipelineDescriptor(held) = body(this) {
        // The descriptor is dropped before the function in the backend; a reference of its own would hide a mistake.
        *lock(held) = function as usize;
    }
}

extern "C-unwind" fn set_url(this: Id, _: Sel, url: Id) {
    if let Body::ArchiveDescriptor(path) = body(this) {
        *lock(path) = (!url.is_null()).then(|| text(url));
    }
}

/// Compiles a text with the software Metal; what was compiled before in this process is taken again.
fn compile(source: &str) -> Result<Arc<Library>, String> {
    static COMPILED: LazyLock<Mutex<HashMap<u64, Arc<Library>>>> = LazyLock::new(Default::default);
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let key = hasher.finish();
    let mut compiled = lock(&COMPILED);
    if let Some(library) = compiled.get(&key) {
        return Ok(Arc::clone(library));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/metal-host/text");
    let path = folder.join(format!("{key:016x}.metal"));
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, source)).map_err(|e| e.to_string())?;
    let library = Arc::new(Library::compile(&path, &[], &[], Mode::Plain).map_err(|e| e.to_string())?);
    compiled.insert(key, Arc::clone(&library));
    Ok(library)
}

extern "C-unwind" fn new_library(_: Id, _: Sel, source: Id, options: Id, error: *mut Id) -> Id {
    let Body::Options(options) = body(options) else { panic!("expected compile options") };
    let options = lock(options);
    assert!(options.language >= LANGUAGE_MIN, "bfloat needs version 3.1 of the language");
    assert!(options.strict, "the kernels are written for strict floating-point rules");
    let source = text(source);
    let tensors = source.contains("#define LILY_TENSOR_OPS 1");
    let hardware = machine().metal4 && machine().family >= 10;
    assert_eq!(tensors, hardware, "tensor operations are used where there is hardware for them");
    assert!(!tensors || options.language >= LANGUAGE_TENSORS, "tensor operations need version 4 of the language");
    match compile(&source) {
        Ok(library) => {
            machine::count(|c| c.libraries += 1);
            make(Body::Library(library))
        }
        Err(message) => {
            fail(error, "MTLLibraryErrorDomain", 3, message);
            null_mut()
        }
    }
}

extern "C-unwind" fn new_function(this: Id, _: Sel, name: Id, constants: Id, error: *mut Id) -> Id {
    let (Body::Library(library), Body::Constants(constants)) = (body(this), body(constants)) else {
        panic!("expected a library and constants")
    };
    let (name, constants) = (text(name), lock(constants).clone());
    let Some(info) = library.kernel(&name) else {
        fail(error, "MTLLibraryErrorDomain", 5, format!("function {name} was not found in the library"));
        return null_mut();
    };
    if let Some(index) = info.constants.iter().find(|i| !constants.iter().any(|(c, _)| c == *i)) {
        fail(error, "MTLLibraryErrorDomain", 3, format!("function constant {index} of {name} has no value"));
        return null_mut();
    }
    make(Body::Function(Arc::new(Function { library: Arc::clone(library), info: info.clone(), constants })))
}

extern "C-unwind" fn new_pipeline(
    _: Id,
    _: Sel,
    descriptor: Id,
    _options: usize,
    _reflection: *mut Id,
    _error: *mut Id,
) -> Id {
    let Body::PipelineDescriptor(function) = body(descriptor) else { panic!("expected a pipeline descriptor") };
    match body(*lock(function) as Id) {
        Body::Function(function) => {
            machine::count(|c| c.pipelines += 1);
            make(Body::Pipeline(Arc::clone(function)))
        }
        _ => panic!("expected a function"),
    }
}

extern "C-unwind" fn threads_max(_: Id, _: Sel) -> usize {
    machine().threads_max
}

extern "C-unwind" fn width(_: Id, _: Sel) -> usize {
    32
}

extern "C-unwind" fn new_buffer(_: Id, _: Sel, pages: usize, bytes: usize, options: usize, free: *const c_void) -> Id {
    const SHARED_UNTRACKED: usize = 1 << 8;
    assert_eq!(options, SHARED_UNTRACKED, "buffers are shared and not tracked");
    assert!(pages.is_multiple_of(4096) && bytes.is_multiple_of(4096) && bytes > 0, "whole pages: {pages:#x} {bytes}");
    assert!(bytes <= machine().buffer_bytes_max, "a buffer of {bytes} bytes");
    assert!(free.is_null(), "the backend owns its pages");
    machine::add_buffer(pages, bytes);
    make(Body::Buffer(Buffer { start: pages, bytes, label: OnceLock::new() }))
}

extern "C-unwind" fn buffer_length(this: Id, _: Sel) -> usize {
    buffer(this).bytes
}

extern "C-unwind" fn set_label(this: Id, _: Sel, label: Id) {
    assert!(buffer(this).label.set(text(label)).is_ok(), "a buffer is named once");
}

extern "C-unwind" fn new_residency(_: Id, _: Sel, _descriptor: Id, _error: *mut Id) -> Id {
    assert!(!machine::lacks("newResidencySetWithDescriptor:error:"), "this system has no residency sets");
    make(Body::Residency(Mutex::default()))
}

fn change_residency(this: Id, allocation: Id, by: isize) {
    let start = buffer(allocation).start;
    *lock(residency(this)).pending.entry(start).or_default() += by;
}

extern "C-unwind" fn add_allocation(this: Id, _: Sel, allocation: Id) {
    change_residency(this, allocation, 1);
}

extern "C-unwind" fn remove_allocation(this: Id, _: Sel, allocation: Id) {
    change_residency(this, allocation, -1);
}

extern "C-unwind" fn commit_residency(this: Id, _: Sel) {
    let mut set = lock(residency(this));
    for (start, by) in std::mem::take(&mut set.pending) {
        if by > 0 {
            set.resident.insert(start);
        } else {
            assert!(set.resident.remove(&start), "a buffer is removed that was never added");
        }
    }
}

extern "C-unwind" fn new_archive(_: Id, _: Sel, descriptor: Id, error: *mut Id) -> Id {
    let Body::ArchiveDescriptor(path) = body(descriptor) else { panic!("expected an archive descriptor") };
    let stored = lock(path).as_ref().map(std::fs::read_to_string);
    match stored {
        Some(Ok(content)) if content.starts_with("fake archive") => make(Body::Archive(Mutex::new(0))),
        Some(_) => {
            fail(error, "MTLBinaryArchiveDomain", 1, "not an archive".into());
            null_mut()
        }
        None => make(Body::Archive(Mutex::new(0))),
    }
}

extern "C-unwind" fn archive_add(this: Id, _: Sel, _descriptor: Id, _error: *mut Id) -> bool {
    if let Body::Archive(count) = body(this) {
        *lock(count) += 1;
    }
    true
}

extern "C-unwind" fn archive_write(this: Id, _: Sel, url: Id, error: *mut Id) -> bool {
    let Body::Archive(count) = body(this) else { panic!("expected an archive") };
    match std::fs::write(text(url), format!("fake archive of {}", lock(count))) {
        Ok(()) => {
            machine::count(|c| c.archives += 1);
            true
        }
        Err(e) => {
            fail(error, "MTLBinaryArchiveDomain", 2, e.to_string());
            false
        }
    }
}

/// Takes a reference for as long as the value lives.
pub struct Held(pub Id);

impl Held {
    pub fn new(id: Id) -> Self {
        Self(objc_retain(id))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        objc_release(self.0);
    }
}

// SAFETY: objects are counted atomically, and what they hold is behind mutexes.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}
