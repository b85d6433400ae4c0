//! A compiled kernel file in this process.

use crate::abi::{Entry, Parameter, Runtime};
use crate::compile::{self, CompileError, Mode, NVIDIA};
use crate::entries;
use crate::symbols;
use crate::worker::Machine;
use std::ffi::{CStr, CString, c_void};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Address space of a buffer parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `device`.
    Device,
    /// `constant`.
    Constant,
}

/// Element type of a buffer parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit float.
    Float,
    /// 16-bit float.
    Half,
    /// bfloat16.
    Bfloat,
    /// 32-bit unsigned, atomic or not.
    Uint,
    /// 32-bit signed, atomic or not.
    Int,
    /// 8-bit unsigned.
    Uchar,
    /// 16-bit unsigned.
    Ushort,
    /// Anything else: structs and vectors.
    Other,
}

/// A buffer parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferParameter {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its address space.
    pub space: Space,
    /// Whether the kernel may only read it.
    pub is_const: bool,
    /// Its element type.
    pub element: Element,
    /// Size of an element; of a struct, all of it.
    pub element_bytes: u32,
}

/// What a kernel's text says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its name for the host.
    pub name: String,
    /// Its buffers, by index.
    pub buffers: Vec<BufferParameter>,
    /// Indices of the function constants that it uses; they must be set at a launch.
    pub constants: Vec<u32>,
    /// File and line.
    pub place: String,
}

impl KernelInfo {
    /// The struct of arguments: the parameter in constant memory.
    pub fn args(&self) -> Option<&BufferParameter> {
        self.buffers.iter().find(|b| b.space == Space::Constant)
    }
}

/// A function constant of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantInfo {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// A compiled file, ready for launches.
pub struct Library {
    handle: *mut c_void,
    path: PathBuf,
    kernels: Vec<(KernelInfo, Entry)>,
    constants: Vec<ConstantInfo>,
    set_constant: unsafe extern "C" fn(u32, u32),
    mode: Mode,
    machine: Machine,
    /// Its own code and data.
    image: Range<usize>,
}

// SAFETY: the handle and entries are addresses of code; what is mutable, the function constants, is guarded by `LAUNCHES`.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Held during a launch: function constants are globals of a library, and a library is loaded once per process.
static LAUNCHES: Mutex<()> = Mutex::new(());

impl Library {
    /// Compiles a file, or takes what was compiled before from the same text. `includes` are searched for headers,
    /// `defines` are macros that the text sees as 1.
    ///
    /// # Errors
    /// If there is no compiler, or it or the rewriter refuses the text.
    pub fn compile(source: &Path, includes: &[PathBuf], defines: &[&str], mode: Mode) -> Result<Self, CompileError> {
        let compiled = compile::compile(source, includes, defines, mode)?;
        let machine = if defines.contains(&NVIDIA) { Machine::Nvidia } else { Machine::Apple };
        crate::signal::install();
        let name = CString::new(compiled.library.as_os_str().as_encoded_bytes()).expect("a path without zero bytes");
        // SAFETY: the library has no constructors but the instrumentation's empty one.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen, dlerror gives a string.
            let message = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(CompileError::Library(message.to_string_lossy().into_owned()));
        }
        let runtime = Runtime {
            meet: entries::meet,
            simdgroup_barrier: entries::simdgroup_barrier,
            threadgroup_barrier: entries::threadgroup_barrier,
            thread_index: entries::thread_index,
            access: entries::access,
            copy_16: entries::copy_16,
            end_copies: entries::end_copies,
            wait_copies: entries::wait_copies,
            any_at_barrier: entries::any_at_barrier,
            wait_for_inputs: entries::wait_for_inputs,
            start_product: entries::start_product,
            end_products: entries::end_products,
            wait_products: entries::wait_products,
        };
        // SAFETY: the symbols have these types: see support.c and the rewriter's generated text.
        let (init, set_constant) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn(*const Runtime, *mut [usize; 2])>(symbol(
                    handle, "sm_init",
                )?),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32, u32)>(symbol(handle, "sm_set_constant")?),
            )
        };
        let mut image = [0; 2];
        init(&runtime, &mut image);
        let mut kernels = Vec::new();
        for kernel in &compiled.rewritten.kernels {
            // SAFETY: as above; there is one description per parameter.
            let (entry, described) = unsafe {
                let entry = symbol(handle, &format!("sm_run_{}", kernel.name))?;
                let parameters = symbol(handle, &format!("sm_parameters_{}", kernel.name))? as *const Parameter;
                let described = std::slice::from_raw_parts(parameters, kernel.parameters.len());
                (std::mem::transmute::<*mut c_void, Entry>(entry), described)
            };
            let info = KernelInfo {
                name: kernel.name.clone(),
                buffers: buffers(&kernel.parameters, described),
                constants: kernel.constants.clone(),
                place: kernel.place.to_string(),
            };
            kernels.push((info, entry));
        }
        let constants = compiled.rewritten.constants.iter();
        let constants = constants.map(|c| ConstantInfo { index: c.index, name: c.name.clone() }).collect();
        let path = compiled.library;
        let image = image[0]..image[1];
        images().push((image.clone(), path.clone()));
        Ok(Self { handle, path, kernels, constants, set_constant, mode, machine, image })
    }

    /// All kernels, in order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelInfo> {
        self.kernels.iter().map(|(info, _)| info)
    }

    /// A kernel by its name for the host.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels().find(|k| k.name == name)
    }

    /// All function constants of the file.
    pub fn constants(&self) -> &[ConstantInfo] {
        &self.constants
    }

    /// How it is instrumented.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whose rules its kernels are held to.
    pub(crate) fn machine(&self) -> Machine {
        self.machine
    }

    pub(crate) fn entry(&self, name: &str) -> Option<(&KernelInfo, Entry)> {
        self.kernels.iter().find(|(info, _)| info.name == name).map(|(info, entry)| (info, *entry))
    }

    /// Sets function constants for a launch, which must end before the guard goes.
    pub(crate) fn set_constants(&self, values: &[(u32, u32)]) -> MutexGuard<'static, ()> {
        let guard = LAUNCHES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (index, value) in values {
            // SAFETY: no kernel runs, because this thread has the lock.
            unsafe { (self.set_constant)(*index, *value) };
        }
        guard
    }

    /// Addresses of its own code and data.
    pub(crate) fn image(&self) -> Range<usize> {
        self.image.clone()
    }

    /// File and line of the instruction at a code address.
    pub(crate) fn line(&self, site: usize) -> String {
        line_in(&self.path, self.image.start, site)
    }
}

/// Code and data of every library that is loaded, with its file.
fn images() -> MutexGuard<'static, Vec<(Range<usize>, PathBuf)>> {
    static IMAGES: Mutex<Vec<(Range<usize>, PathBuf)>> = Mutex::new(Vec::new());
    IMAGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// File and line of the instruction at a code address of this library, or of any other that is loaded.
pub(crate) fn line_of(site: usize, library: &Library) -> String {
    if library.image.contains(&site) {
        return library.line(site);
    }
    let found = images().iter().find(|(image, _)| image.contains(&site)).cloned();
    found.map_or_else(|| format!("code address {site:#x}"), |(image, path)| line_in(&path, image.start, site))
}

fn line_in(path: &Path, start: usize, site: usize) -> String {
    let offset = site.wrapping_sub(start) as u64;
    let line = symbols::lines(path, &[offset]).pop().flatten();
    line.unwrap_or_else(|| format!("code offset {offset:#x}"))
}

impl Drop for Library {
    fn drop(&mut self) {
        // Loaded twice, a library has one image; each of the two has an entry.
        let mut images = images();
        if let Some(own) = images.iter().position(|(image, _)| *image == self.image) {
            images.swap_remove(own);
        }
        // SAFETY: opened once by this value; nothing of it is used afterwards.
        unsafe { libc::dlclose(self.handle) };
    }
}

fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void, CompileError> {
    let text = CString::new(name).expect("an identifier");
    // SAFETY: an open library and a string.
    let address = unsafe { libc::dlsym(handle, text.as_ptr()) };
    if address.is_null() { Err(CompileError::Library(format!("{name} is missing"))) } else { Ok(address) }
}

fn buffers(names: &[String], described: &[Parameter]) -> Vec<BufferParameter> {
    let mut buffers: Vec<BufferParameter> = names
        .iter()
        .zip(described)
        .filter(|(_, p)| p.kind == 0)
        .map(|(name, p)| BufferParameter {
            name: name.clone(),
            index: p.index,
            space: if p.space == 2 { Space::Constant } else { Space::Device },
            is_const: p.is_const != 0,
            element: match p.element {
                1 => Element::Float,
                2 => Element::Half,
                3 => Element::Bfloat,
                4 => Element::Uint,
                5 => Element::Int,
                6 => Element::Uchar,
                7 => Element::Ushort,
                _ => Element::Other,
            },
            element_bytes: p.bytes,
        })
        .collect();
    buffers.sort_by_key(|b| b.index);
    buffers
}
