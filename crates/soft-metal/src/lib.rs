//! A software Metal, for tests: runs the kernel text that GPUs run, on a CPU, and refuses what a GPU would leave undefined.
//!
//! [`Library::compile`] turns a `.metal` file into a shared library by way of clang's OpenCL-C++ mode; [`Device::launch`]
//! runs a kernel of it with a fiber per thread, 32 lanes to a SIMD-group. [`kernels`] does so with lily's own kernel text,
//! and [`SoftMetal`] is that as a device of the engine. Errors name file and line of the kernel text.
//! What this does not show: that Apple's compiler takes the text, ordering of memory between threadgroups, and speed.
//!
//! Linux on x86-64 only; elsewhere the crate is empty.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod abi;
mod backend;
mod compile;
mod entries;
mod fault;
mod fiber;
pub mod kernels;
mod launch;
mod library;
mod memory;
mod race;
mod signal;
mod simdgroup;
mod symbols;
mod worker;

pub use backend::SoftMetal;
pub use compile::{CompileError, Mode};
pub use fault::Fault;
pub use launch::{Binding, Device, Launch, Settings};
pub use library::{BufferParameter, ConstantInfo, Element, KernelInfo, Library, Space};
pub use memory::Buffer;
pub use msl::{Place, RewriteError};
pub use worker::{Counts, Divergence, Order};
