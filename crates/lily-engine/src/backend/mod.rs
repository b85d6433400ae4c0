//! Backends: devices that run plans.
//!
//! A [`Device`] is what is known before a model is on it; loading one gives a [`Backend`], which owns the memory behind
//! a model's buffers and executes the dispatches of a plan, honouring their hazards. Backends know kernels and buffers,
//! not models, sessions or tokens.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod gpu;
mod host;
mod kept;
#[cfg(any(target_os = "macos", lily_fake_metal))]
pub mod metal;
#[cfg(any(test, feature = "script"))]
pub mod script;
#[cfg(any(test, feature = "script"))]
pub mod stand_in;

pub use kept::Kept;

use crate::checkpoint::Checkpoint;
use crate::kernel::launch::UnsupportedShape;
use crate::model::Traits;
use crate::plan::{BufferTable, Plan, Slot};
use crate::shape::Shape;
use std::any::Any;
use std::str::FromStr;
use std::sync::Arc;

/// Why a device cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Not the memory that was asked for.
    #[error("cannot allocate {bytes} bytes for {what}; close other programs or ask for a shorter context (--context)")]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// The instruction set named in the environment or on the command line cannot be used.
    #[error(transparent)]
    Isa(#[from] cpu::isa::IsaError),
    /// There is no such backend in this build.
    #[error("unknown backend `{name}`; expected auto, cpu, metal or cuda")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Metal was asked for where there is none.
    #[error("the Metal backend needs macOS on Apple silicon, and this is {system}; use --backend cpu")]
    NoMetal {
        /// Operating system and architecture.
        system: String,
    },
    /// CUDA was asked for where it cannot be had.
    #[error("the CUDA backend cannot be used: {message}; use --backend cpu")]
    NoCuda {
        /// Why.
        message: String,
    },
    /// No device of this machine will do.
    #[error(
        "no GPU here will do: expected unified memory and Apple's family {} (M1) or newer, found {found}; use --backend cpu",
        gpu::facts::APPLE_FAMILY_MIN
    )]
    NoGpu {
        /// Names of the devices.
        found: String,
    },
    /// The kernels are not made for such a model.
    #[error(transparent)]
    Shape(#[from] UnsupportedShape),
    /// A buffer is longer than the device can bind.
    #[error("{what} has {:.1} MB and a buffer of this device at most {:.1}; ask for a shorter context (--context)",
        *bytes as f64 / 1e6, *most as f64 / 1e6)]
    TooLong {
        /// What it holds.
        what: String,
        /// Its size.
        bytes: usize,
        /// The longest.
        most: usize,
    },
    /// A plan binds a buffer where kernels cannot load from.
    #[error(
        "`{parameter}` of kernel `{kernel}` is bound at offset {offset}; expected a multiple of {}; this is a bug of lily",
        gpu::layout::LOAD_ALIGN
    )]
    Binding {
        /// The kernel.
        kernel: &'static str,
        /// Its parameter.
        parameter: &'static str,
        /// Offset into the device's buffer.
        offset: usize,
    },
    /// A kernel cannot be compiled or specialised for the device.
    #[error("kernel `{kernel}` cannot be compiled for this device: {message}")]
    Compile {
        /// Entry name, or the file if that is refused.
        kernel: String,
        /// The compiler's words.
        message: String,
    },
    /// The device gives something up that it should have.
    #[error("the device refuses {what}: {message}")]
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// Its words.
        message: String,
    },
    /// A kernel failed while it ran.
    #[error("the GPU failed in {kernel} (stage {stage} of {stages}): {message}")]
    Fault {
        /// The kernel, or what is known of it.
        kernel: String,
        /// Its stage, from 1.
        stage: usize,
        /// Stages of the plan.
        stages: usize,
        /// The system's words.
        message: String,
    },
}

/// Which backend to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The best of this machine: Metal on macOS, an NVIDIA GPU where this build and the machine have what it takes, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of an Apple machine.
    Metal,
    /// An NVIDIA GPU.
    Cuda,
}

impl FromStr for BackendChoice {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        match name {
            "auto" => Ok(BackendChoice::Auto),
            "cpu" => Ok(BackendChoice::Cpu),
            "metal" => Ok(BackendChoice::Metal),
            "cuda" => Ok(BackendChoice::Cuda),
            name => Err(BackendError::Unknown { name: name.to_owned() }),
        }
    }
}

/// Memory that a device can give to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// How much, in bytes.
    pub bytes: usize,
    /// Whose limit that is, for the refusal of a model that does not fit.
    pub limit: &'static str,
}

/// A device without a model.
pub trait Device {
    /// What plans for it depend on.
    fn traits(&self) -> Traits;

    /// What it can give to a model; `None` where nobody says.
    fn memory(&self) -> Option<DeviceMemory>;

    /// Whether its kernels can run such a model.
    ///
    /// # Errors
    /// If they cannot, with the dimension.
    fn check(&self, _shape: &Shape) -> Result<(), BackendError> {
        Ok(())
    }

    /// Puts a checkpoint on it: vectors and scratch are allocated, weights mapped.
    ///
    /// # Errors
    /// If the device has no memory for them, or cannot run the kernels.
    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError>;
}

/// The GPU of this machine through Metal.
///
/// # Errors
/// If this is no Apple machine, or one whose GPU will not do.
pub fn metal_device() -> Result<Box<dyn Device>, BackendError> {
    #[cfg(any(target_os = "macos", lily_fake_metal))]
    return Ok(Box::new(metal::MetalDevice::open()?));
    #[cfg(not(any(target_os = "macos", lily_fake_metal)))]
    Err(BackendError::NoMetal { system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH) })
}

/// An NVIDIA GPU of this machine.
///
/// # Errors
/// If this build has no CUDA backend, or the machine no driver or no GPU that it was made for.
pub fn cuda_device() -> Result<Box<dyn Device>, BackendError> {
    #[cfg(feature = "cuda")]
    return Ok(Box::new(cuda::CudaDevice::open()?));
    #[cfg(not(feature = "cuda"))]
    Err(BackendError::NoCuda { message: "this build has none; build with `--features cuda`".into() })
}

/// A plan that a backend has made ready to run many times.
pub struct Program {
    plan: Plan,
    ready: Box<dyn Any + Send>,
}

impl Program {
    /// A plan with what the backend needs beside it.
    pub fn new(plan: Plan, ready: impl Any + Send) -> Self {
        Self { plan, ready: Box::new(ready) }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the backend that made it keeps with it.
    ///
    /// # Panics
    /// If another backend made it: a broken invariant of the engine.
    pub fn ready<T: Any>(&self) -> &T {
        self.ready.downcast_ref().expect("a program of this backend")
    }
}

/// The state buffers of one session on a device.
pub trait State: Send {
    /// Copies bytes out.
    fn read(&self, slot: Slot, out: &mut [u8]);
    /// Copies bytes in.
    fn write(&mut self, slot: Slot, bytes: &[u8]);

    /// Keeps the bytes of these slots, one after another.
    fn keep(&self, slots: &[Slot]) -> Box<dyn Kept> {
        // One allocation: a prompt waits for this copy.
        let mut bytes = vec![0; slots.iter().map(|slot| slot.bytes).sum()];
        let mut rest = &mut bytes[..];
        for slot in slots {
            let (part, behind) = rest.split_at_mut(slot.bytes);
            self.read(*slot, part);
            rest = behind;
        }
        Box::new(bytes)
    }

    /// Takes kept bytes back: for each slot as many as it has, from an offset on.
    ///
    /// # Panics
    /// If there are not as many, or a state of another backend kept them: broken invariants of the engine.
    fn take(&mut self, kept: &dyn Kept, parts: &[(Slot, usize)]) {
        let bytes = kept.host().expect("bytes that this backend kept, or a file's");
        parts.iter().for_each(|(slot, offset)| self.write(*slot, &bytes[*offset..][..slot.bytes]));
    }

    /// Makes the bytes of these slots zero.
    fn zero(&mut self, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.write(*slot, &vec![0; slot.bytes]));
    }

    /// For the backend that made it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// A device that runs the plans of one model.
pub trait Backend: Send {
    /// What it is, for people: device and instruction set.
    fn describe(&self) -> String;

    /// What decides the bits of a state: one that was saved under the same name may be restored.
    fn numerics(&self) -> String {
        self.describe()
    }

    /// State buffers of a new session, all zero.
    ///
    /// # Errors
    /// If the device has no memory for them.
    fn new_state(&self) -> Result<Box<dyn State>, BackendError>;

    /// Makes a plan ready to run many times.
    ///
    /// # Errors
    /// If a kernel of it cannot be compiled.
    fn prepare(&mut self, plan: Plan) -> Result<Program, BackendError> {
        Ok(Program::new(plan, ()))
    }

    /// Starts a plan on the states of its sessions, one for each place that the plan's slots name. It may still be running when this returns; [`Backend::wait`] must come before
    /// anything reads or writes scratch or state from the host.
    ///
    /// # Errors
    /// As [`Backend::run`].
    fn submit(&mut self, program: &Program, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        self.run(program.plan(), states)
    }

    /// Waits until at most `under_way` submissions are still running, oldest first.
    ///
    /// # Errors
    /// If a submission failed on the device; the state it ran on is then undefined.
    fn wait_until(&mut self, _under_way: usize) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for everything that was submitted.
    ///
    /// # Errors
    /// As [`Backend::wait_until`].
    fn wait(&mut self) -> Result<(), BackendError> {
        self.wait_until(0)
    }

    /// Runs a plan on the states of its sessions; results can be read when it returns.
    ///
    /// # Errors
    /// If the device fails; the states are then undefined.
    ///
    /// # Panics
    /// If a state belongs to another backend: a broken invariant of the engine.
    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError>;

    /// Runs a plan one dispatch after another and gives the seconds that each took, in the plan's order; `None` where
    /// the device cannot say. What a device spends between two dispatches counts as the later one's.
    ///
    /// # Errors
    /// As [`Backend::run`].
    fn time(&mut self, _plan: &Plan, _states: &mut [&mut dyn State]) -> Result<Option<Vec<f64>>, BackendError> {
        Ok(None)
    }

    /// Copies bytes into a scratch buffer.
    fn write(&mut self, slot: Slot, bytes: &[u8]);

    /// Copies bytes out of a scratch buffer.
    fn read(&self, slot: Slot, out: &mut [u8]);

    /// Bytes per second that its memory moves at most, measured now; `None` where that is the host's memory.
    ///
    /// # Errors
    /// If the device has no memory left to measure with.
    fn bandwidth(&mut self) -> Result<Option<f64>, BackendError> {
        Ok(None)
    }

    /// Copies bytes out of a scratch buffer that a submission may be using, but not writing these bytes.
    fn peek(&self, slot: Slot, out: &mut [u8]) {
        self.read(slot, out);
    }
}
