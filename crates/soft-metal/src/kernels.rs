//! The kernels of lily's `kernels/` folder, found by name and compiled when first asked for.

use crate::compile::{CompileError, Mode, NVIDIA};
use crate::fault::Fault;
use crate::launch::{Binding, Device, Launch};
use crate::library::{Element, KernelInfo, Library};
use crate::worker::Counts;
use lily_engine::backend::gpu::nvidia;
use lily_engine::kernel::{Access, Contract, Param};
use lily_engine::plan::Dispatch;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// The folder of the kernel text: the repository's, or the one that `LILY_KERNELS` names (`cargo xtask mutants` does).
pub fn folder() -> PathBuf {
    std::env::var_os("LILY_KERNELS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels"), PathBuf::from)
}

/// File that has each kernel.
fn files() -> &'static HashMap<String, PathBuf> {
    static FILES: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut files = HashMap::new();
        let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "metal")) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let names = text.lines().filter_map(|line| line.strip_prefix("kernel void ")?.split('(').next());
            files.extend(names.map(|name| (name.to_owned(), path.clone())));
        }
        files
    })
}

/// How kernels are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How they are instrumented.
    pub mode: Mode,
    /// Whose text it is.
    pub text: Text,
}

/// The text that a kind of device runs, where it has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Text {
    /// Matrix tiles of SIMD-group matrices.
    Metal,
    /// Matrix tiles of Metal 4 tensor operations.
    Metal4,
    /// The instructions of NVIDIA's GPUs, which shim/sm/ptx.h says in C++; buffers are aligned, and kernels start early.
    Nvidia,
}

impl Text {
    /// Macros that choose it.
    pub fn defines(self) -> &'static [&'static str] {
        match self {
            Text::Metal => &[],
            Text::Metal4 => &["LILY_TENSOR_OPS"],
            Text::Nvidia => &["LILY_ALIGNED", "LILY_EARLY_START", NVIDIA],
        }
    }

    /// Bytes between a stored matrix's first byte and a multiple of 16: no better than the device's host code promises.
    pub fn weight_shift(self) -> usize {
        if self == Text::Nvidia { 0 } else { 4 }
    }
}

impl Variant {
    /// Uninstrumented, with SIMD-group matrices.
    pub const PLAIN: Variant = Variant { mode: Mode::Plain, text: Text::Metal };
}

/// The library that has a kernel; it stays for the life of the process.
///
/// # Errors
/// If no file of the folder begins a line with `kernel void` and the name, or its file cannot be compiled.
pub fn library(kernel: &str, variant: Variant) -> Result<&'static Library, CompileError> {
    static LIBRARIES: Mutex<Option<HashMap<(PathBuf, Variant), &'static Library>>> = Mutex::new(None);
    let missing =
        || CompileError::Library(format!("no file of kernels/ has a line that begins `kernel void {kernel}(`"));
    let path = files().get(kernel).ok_or_else(missing)?;
    let mut libraries = LIBRARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let libraries = libraries.get_or_insert_default();
    if let Some(library) = libraries.get(&(path.clone(), variant)) {
        return Ok(library);
    }
    let library = Library::compile(path, &[folder()], variant.text.defines(), variant.mode)?;
    let library: &'static Library = Box::leak(Box::new(library));
    libraries.insert((path.clone(), variant), library);
    Ok(library)
}

/// Parameters besides stored matrices that are weights, the step or the session's state.
const EARLY: [&str; 12] =
    ["gain", "q_gain", "k_gain", "taps", "a_log", "dt_bias", "inv_freq", "step", "window", "state", "keys", "values"];

/// Whether what is bound may be read before the kernels before this one have ended; a host sees to it where they write state.
pub fn is_early(param: &Param) -> bool {
    param.element == "u8" || EARLY.contains(&param.name)
}

/// Runs a dispatch of the engine with these buffers, in the contract's order.
///
/// # Errors
/// If the kernel does what it must not.
///
/// # Panics
/// If the kernel cannot be compiled, or its text and its contract disagree: broken invariants of the repository.
pub fn run(
    device: &mut Device,
    variant: Variant,
    dispatch: &Dispatch,
    buffers: &[Binding<'_>],
) -> Result<Counts, Fault> {
    let contract = dispatch.contract;
    let library = library(contract.name, variant).unwrap_or_else(|error| panic!("cannot compile {error}"));
    if let Some(info) = library.kernel(contract.name) {
        agree(info, contract).unwrap_or_else(|difference| panic!("{difference}"));
    }
    let shape = (contract.launch)(&dispatch.args);
    let constants: Vec<(u32, u32)> = shape.constants.iter().map(|&(c, value)| (c as u32, value)).collect();
    let launch = Launch {
        kernel: contract.name,
        buffers,
        args: &dispatch.args,
        constants: &constants,
        threadgroups: match variant.text {
            Text::Nvidia => nvidia::grid(contract.name, shape.threadgroups),
            _ => shape.threadgroups,
        },
        threads: shape.threads,
    };
    device.launch(library, &launch)
}

/// Whether a kernel's text and its contract agree on names, element types, access and arguments.
///
/// # Errors
/// The first difference.
pub fn agree(info: &KernelInfo, contract: &Contract) -> Result<(), String> {
    let fail = |message: String| Err(format!("kernel `{}` ({}): {message}", contract.name, info.place));
    let count = contract.params.len();
    let device = info.buffers.iter().filter(|b| Some(*b) != info.args()).count();
    if device != count {
        return fail(format!("the text has {device} device buffers, the contract {count}"));
    }
    for (i, (param, buffer)) in contract.params.iter().zip(&info.buffers).enumerate() {
        let element = match param.element {
            "bf16" => Element::Bfloat,
            "f32" => Element::Float,
            "u32" => Element::Uint,
            "u8" => Element::Uchar,
            other => return fail(format!("`{other}` of `{}` is not known as an element type", param.name)),
        };
        let is_const = param.access == Access::Read;
        let (name, found) = (&buffer.name, (buffer.index as usize, buffer.element, buffer.is_const));
        if name != param.name || found != (i, element, is_const) {
            let wanted = (i, element, is_const);
            let what = "(index, element, const)";
            return fail(format!(
                "{what} of `{name}` is {found:?} in the text, {wanted:?} of `{}` in the contract",
                param.name
            ));
        }
    }
    match info.args() {
        Some(args) if args.index as usize == count => Ok(()),
        _ => fail(format!("the argument struct is not buffer {count} in constant memory")),
    }
}
