//! The driver's objects with owners: what is created here is destroyed when its owner goes, and every call's result is
//! looked at.
//!
//! The library is looked for when a device is asked for, so that lily starts where there is none.

use super::refused;
use crate::backend::BackendError;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, OnceLock};

/// The first driver whose interface is used here, as the driver numbers itself.
const DRIVER_MIN: c_int = 12080;

/// The error of a call, if it is one.
pub(super) fn check(result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |ask: unsafe fn(CUresult, *mut *const i8) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes the address of a string that is never freed, or nothing.
        unsafe {
            let known = ask(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
            if known { CStr::from_ptr(text).to_string_lossy().into_owned() } else { String::new() }
        }
    };
    Err(format!("{} ({})", text(sys::cuGetErrorString), text(sys::cuGetErrorName)))
}

/// What a GPU says of itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub name: String,
    /// Compute capability: major, minor.
    pub capability: (i32, i32),
    /// The interface that the driver has, as 1000 major + 10 minor.
    pub driver: i32,
    pub memory_bytes: usize,
}

/// The context of a GPU that this process works in.
pub(super) struct Context {
    context: sys::CUcontext,
    pub facts: Facts,
}

// SAFETY: a context may be made current in any thread.
unsafe impl Send for Context {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the first GPU, opened once in the life of the process.
    ///
    /// # Errors
    /// If there is no driver, one that is too old, or no GPU; in words.
    pub fn open() -> Result<Arc<Self>, String> {
        static CONTEXT: OnceLock<Result<Arc<Context>, String>> = OnceLock::new();
        CONTEXT.get_or_init(|| Ok(Arc::new(Self::first()?))).clone()
    }

    fn first() -> Result<Self, String> {
        // SAFETY: loading the driver's library runs its initialisers, which it is made for; every pointer below is to a
        // live variable of the type that the call writes.
        unsafe {
            if !sys::is_culib_present() {
                return Err("there is no NVIDIA driver (libcuda) on this machine".into());
            }
            check(sys::cuInit(0))?;
            let mut driver = 0;
            check(sys::cuDriverGetVersion(&mut driver))?;
            if driver < DRIVER_MIN {
                let version = |v: c_int| format!("{}.{}", v / 1000, v % 1000 / 10);
                return Err(format!(
                    "the NVIDIA driver offers CUDA {}; expected {} or newer",
                    version(driver),
                    version(DRIVER_MIN)
                ));
            }
            let (mut count, mut device) = (0, 0);
            check(sys::cuDeviceGetCount(&mut count))?;
            if count == 0 {
                return Err("the NVIDIA driver finds no GPU".into());
            }
            check(sys::cuDeviceGet(&mut device, 0))?;
            let attribute = |attribute| {
                let mut value = 0;
                check(sys::cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value)
            };
            let capability = (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            let mut name = [0; 256];
            check(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let mut context = std::ptr::null_mut();
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check(sys::cuCtxSetCurrent(context))?;
            let (mut free, mut total) = (0, 0);
            check(sys::cuMemGetInfo_v2(&mut free, &mut total))?;
            Ok(Self { context, facts: Facts { name, capability, driver, memory_bytes: total } })
        }
    }

    /// Makes it the context of this thread, which the driver's calls work in.
    pub fn enter(&self) -> Result<(), BackendError> {
        // SAFETY: the context is never released.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }).map_err(refused("this thread"))
    }

    /// Memory that nobody has, now.
    pub fn free_bytes(&self) -> Result<usize, BackendError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two live variables.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }).map_err(refused("its memory's size"))?;
        Ok(free)
    }
}

/// Memory that comes and goes in the order of a stream: what is given back can be had again by what the stream does next, and
/// nobody waits for either.
pub(super) struct Pool {
    context: Arc<Context>,
    stream: Arc<Stream>,
    pool: sys::CUmemoryPool,
}

// SAFETY: pools may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Pool {}

impl Pool {
    /// An empty one, for what `stream` works with.
    pub fn new(context: &Arc<Context>, stream: &Arc<Stream>) -> Result<Arc<Self>, BackendError> {
        use sys::{CUmemAllocationType_enum as Kind, CUmemLocationType_enum as Where, CUmemPool_attribute_enum as Of};
        context.enter()?;
        let (mut device, mut raw) = (0, std::ptr::null_mut());
        // It keeps what it once had: there is room for it in the memory plan.
        let mut keep = u64::MAX;
        // SAFETY: live variables of the types that the calls ask for; properties of zeros stand for none.
        unsafe {
            check(sys::cuCtxGetDevice(&mut device)).map_err(refused("its number"))?;
            let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
            properties.allocType = Kind::CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location = sys::CUmemLocation { type_: Where::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
            check(sys::cuMemPoolCreate(&mut raw, &properties)).map_err(refused("a pool of memory"))?;
            let pool = Self { context: Arc::clone(context), stream: Arc::clone(stream), pool: raw };
            let threshold = Of::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            check(sys::cuMemPoolSetAttribute(raw, threshold, (&raw mut keep).cast()))
                .map_err(refused("a pool of memory"))?;
            Ok(Arc::new(pool))
        }
    }

    /// Memory with anything in it. `what` it is for stands in the error.
    pub fn memory(self: &Arc<Self>, what: &str, bytes: usize) -> Result<Memory, BackendError> {
        self.context.enter()?;
        let mut address = 0;
        // SAFETY: a live variable, a live pool and stream.
        let got =
            check(unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes.max(256), self.pool, self.stream.raw()) });
        got.map_err(|_| BackendError::OutOfMemory { what: what.to_owned(), bytes })?;
        Ok(Memory { context: Arc::clone(&self.context), address, bytes, pool: Some(Arc::clone(self)) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created by this value; all memory of it has been given back, because that holds on to it.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}

/// Memory of the GPU.
pub(super) struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    /// Where it came from, if it is not the driver's own.
    pool: Option<Arc<Pool>>,
}

impl Memory {
    /// Zeroed memory. `what` it is for stands in the error.
    pub fn zeroed(context: &Arc<Context>, stream: &Stream, what: &str, bytes: usize) -> Result<Self, BackendError> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: a live variable.
        let got = check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(256)) });
        got.map_err(|_| BackendError::OutOfMemory { what: what.to_owned(), bytes })?;
        let memory = Self { context: Arc::clone(context), address, bytes, pool: None };
        memory.zero(stream, 0, bytes)?;
        Ok(memory)
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes bytes zero, after what the stream has to do already.
    pub fn zero(&self, stream: &Stream, offset: usize, bytes: usize) -> Result<(), BackendError> {
        self.context.enter()?;
        let at = self.range(offset, bytes);
        // SAFETY: the memory is as long; the stream is the one that everything that uses it runs in.
        check(unsafe { sys::cuMemsetD8Async(at, 0, bytes, stream.raw()) }).map_err(refused("zeroed memory"))
    }

    /// Copies bytes from other memory, after what the stream has to do already.
    pub fn copy(
        &self,
        stream: &Stream,
        offset: usize,
        from: &Memory,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), BackendError> {
        self.context.enter()?;
        let (to, from) = (self.range(offset, bytes), from.range(from_offset, bytes));
        // SAFETY: both ranges are as long, and of different memory; the stream is the one that everything that uses them
        // runs in, and either is given back in its order.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) })
            .map_err(refused("a copy within its memory"))
    }

    /// Its first byte, for the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    fn range(&self, offset: usize, bytes: usize) -> u64 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at {offset} are outside of {}", self.bytes);
        self.address + offset as u64
    }

    /// Copies bytes in, after what the stream has to do already. `bytes` are read before this returns.
    pub fn write(&self, stream: &Stream, offset: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.context.enter()?;
        let to = self.range(offset, bytes.len());
        // SAFETY: both ranges are as long; pageable memory is staged before the call returns.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.raw()) })
            .map_err(refused("a copy to its memory"))
    }

    /// Copies bytes out, after what the stream has to do already.
    pub fn read(&self, stream: &Stream, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.context.enter()?;
        let from = self.range(offset, out.len());
        // SAFETY: both ranges are as long, and the copy has ended when `out` is given back.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), stream.raw()) })
            .and_then(|()| stream.wait())
            .map_err(refused("a copy from its memory"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After a fault nothing can be freed; the process is about to say so anyway.
        let _ = self.context.enter();
        // SAFETY: allocated by this value; work that uses it has ended, because submissions hold on to it, or comes before in
        // the pool's stream.
        let _ = unsafe {
            match &self.pool {
                Some(pool) => sys::cuMemFreeAsync(self.address, pool.stream.raw()),
                None => sys::cuMemFree_v2(self.address),
            }
        };
    }
}

/// A stream: what is put in runs in order.
pub(super) struct Stream {
    context: Arc<Context>,
    stream: sys::CUstream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, BackendError> {
        context.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a live variable.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) }).map_err(refused("a stream"))?;
        Ok(Self { context: Arc::clone(context), stream })
    }

    pub fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits for all that was put in.
    pub fn wait(&self) -> Result<(), String> {
        // SAFETY: a live stream.
        check(unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created by this value, used nowhere any more.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// A point in a stream.
pub(super) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Event {}

impl Event {
    /// The point up to which the stream has been filled.
    pub fn record(context: &Arc<Context>, stream: &Stream) -> Result<Self, String> {
        Self::with(context, stream, sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)
    }

    /// The same, and the time at which the stream comes there.
    pub fn timed(context: &Arc<Context>, stream: &Stream) -> Result<Self, String> {
        Self::with(context, stream, sys::CUevent_flags_enum::CU_EVENT_DEFAULT)
    }

    fn with(context: &Arc<Context>, stream: &Stream, flags: sys::CUevent_flags_enum) -> Result<Self, String> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a live variable, then a live event and stream.
        unsafe {
            check(sys::cuEventCreate(&mut event, flags as u32))?;
            let event = Self { context: Arc::clone(context), event };
            check(sys::cuEventRecord(event.event, stream.raw()))?;
            Ok(event)
        }
    }

    /// Seconds from an earlier point to this one; both are timed, and the stream has come to both.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, String> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: a live variable and two live events.
        check(unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.event, self.event) })?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Waits until the stream has come there.
    pub fn wait(&self) -> Result<(), String> {
        // SAFETY: a live event.
        check(unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created by this value; destroying one that has not come to pass is allowed.
        let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}

/// A kernel in the driver's hands.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub raw: sys::CUfunction,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Largest block.
    pub threads_max: u32,
    /// Whether it may start before those that it depends on have ended.
    pub early: bool,
}

// SAFETY: functions may be launched from any thread; modules are never unloaded.
unsafe impl Send for Function {}

impl Function {
    /// Compiles a text with one entry. The error is in the compiler's words.
    pub fn compile(context: &Context, text: &str, entry: &str, shared_bytes: u32) -> Result<Self, String> {
        use sys::CUfunction_attribute_enum as Of;
        use sys::CUjit_option_enum as Option;
        context.enter().map_err(|e| e.to_string())?;
        let text = std::ffi::CString::new(text).expect("PTX has no zero bytes");
        let entry = std::ffi::CString::new(entry).expect("an identifier");
        let mut log = vec![0_u8; 8 << 10];
        let mut options = [Option::CU_JIT_ERROR_LOG_BUFFER, Option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let (mut module, mut raw, mut threads_max) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the text ends with a zero, options and values are as many and of the kinds that the driver asks for, and
        // the log outlives the call.
        unsafe {
            let loaded = sys::cuModuleLoadDataEx(
                &mut module,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            );
            check(loaded).map_err(|error| {
                let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().trim().to_owned();
                if log.is_empty() { error } else { format!("{error}: {log}") }
            })?;
            check(sys::cuModuleGetFunction(&mut raw, module, entry.as_ptr()))?;
            if shared_bytes > 48 << 10 {
                let size = Of::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                check(sys::cuFuncSetAttribute(raw, size, shared_bytes as c_int))?;
            }
            check(sys::cuFuncGetAttribute(&mut threads_max, Of::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, raw))?;
        }
        Ok(Self { raw, shared_bytes, threads_max: threads_max as u32, early: false })
    }
}

/// Bytes of the copy that bandwidth is measured with: much more than any cache.
const COPY_BYTES: usize = 2 << 30;
/// Copies that are measured, after one that is not.
const COPIES: u32 = 8;

/// Bytes per second, read and written, of a copy within the GPU's memory.
pub(super) fn copy_bandwidth(context: &Arc<Context>, stream: &Stream) -> Result<f64, BackendError> {
    let area = || Memory::zeroed(context, stream, "a measurement of bandwidth", COPY_BYTES);
    let (from, to) = (area()?, area()?);
    // SAFETY: both areas are as long, and outlive the copies, which have ended when the stream was waited for.
    let copy = || check(unsafe { sys::cuMemcpyDtoDAsync_v2(to.address, from.address, COPY_BYTES, stream.raw()) });
    let timed = || {
        copy()?;
        stream.wait()?;
        let start = std::time::Instant::now();
        (0..COPIES).try_for_each(|_| copy())?;
        stream.wait()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let seconds = timed().map_err(refused("a copy within its memory"))?;
    Ok(2.0 * COPY_BYTES as f64 * f64::from(COPIES) / seconds)
}
