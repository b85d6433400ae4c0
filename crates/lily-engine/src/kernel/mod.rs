//! Kernel contracts: what every kernel of the model takes, writes, costs and computes, declared once.
//!
//! [`kernel!`] turns one declaration into an argument struct, a builder with named buffers, typed host views and a
//! [`Contract`]. The plan is made of the builders; hazards, byte counts and FLOPs follow from the contract; every
//! backend implements it and is compared with its reference function. This module does not run anything.

mod attention;
pub mod codegen;
mod delta;
mod embed;
pub mod launch;
mod linear;
mod moe;
pub mod quant;
mod sample;
pub mod signature;
pub mod source;
mod unfused;

pub(crate) use attention::attend_reference;
pub use attention::*;
pub(crate) use delta::decay_of;
pub use delta::*;
pub use embed::*;
pub use launch::{Constant, Launch};
pub(crate) use linear::sigmoid;
pub use linear::*;
pub(crate) use moe::top_k;
pub use moe::*;
pub use sample::*;
pub use unfused::*;

use crate::plan::{Dispatch, Slot};
use crate::weights::{Float, Format};
use bytemuck::{Pod, Zeroable};

/// How a kernel touches one of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Written in full; what was there before does not matter.
    Write,
    /// Read and written, or written in part.
    Update,
}

impl Access {
    /// Whether the kernel changes the buffer.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// One buffer parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name, as in the kernel text.
    pub name: &'static str,
    /// Element type: `bf16`, `f32`, `u32`, or `u8` for stored matrices.
    pub element: &'static str,
    /// How it is touched.
    pub access: Access,
}

/// Work of one dispatch: the fewest bytes it must move through memory and the arithmetic it does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights, scales and biases included.
    pub weight_bytes: f64,
    /// Bytes of KV cache and recurrent state, read plus written.
    pub state_bytes: f64,
    /// Bytes of activations, read plus written.
    pub activation_bytes: f64,
    /// Floating-point operations; a multiply-add counts 2.
    pub flops: f64,
}

impl Cost {
    /// All bytes.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.state_bytes + self.activation_bytes
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
        self.activation_bytes += other.activation_bytes;
        self.flops += other.flops;
    }
}

/// Values that change from step to step; kernels read them from a device buffer, so that a plan can be replayed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Step {
    /// Tokens in the state before this step: the position of its first row.
    pub position: u32,
    /// Half of the convolution window that holds the past (0 or 1); the step writes the other half.
    pub window: u32,
}

/// A struct of kernel arguments as the kernel text must declare it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// Names and Rust types of its fields, in order.
    pub fields: &'static [(&'static str, &'static str)],
}

/// What is known of a kernel apart from its code.
pub struct Contract {
    /// Entry name, the same in every kernel text.
    pub name: &'static str,
    /// First line of its documentation.
    pub doc: &'static str,
    /// Buffers in binding order; the arguments are bound after the last of them.
    pub params: &'static [Param],
    /// Arguments.
    pub layout: Layout,
    /// Launch on a GPU with these argument bytes.
    pub launch: fn(&[u8]) -> Launch,
    /// Cost of a dispatch with these argument bytes at this step.
    pub cost: fn(&[u8], Step) -> Cost,
    /// Runs the reference function on host memory.
    pub reference: fn(&[u8], HostSlices<'_>),
    /// Largest error of a backend, relative to the largest reference magnitude of the output (at least 1e-3 of it per
    /// element is never asked for): bf16 outputs round to 2^-9, fp32 outputs differ by order of summation.
    pub tolerance: f32,
}

impl Contract {
    /// Whether GPUs have this kernel. Plans for GPUs attend over blocks whatever the context, so attention in one kernel
    /// is for CPUs alone; `Traits::split_attention` of the model decides.
    pub fn on_gpu(&self) -> bool {
        !std::ptr::eq(self, AttendStep::contract())
    }
}

impl std::fmt::Debug for Contract {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contract({})", self.name)
    }
}

/// A buffer of a dispatch as host memory.
#[derive(Debug)]
pub enum HostSlice<'a> {
    /// Read only.
    Read(&'a [u8]),
    /// May be written; aliases nothing else of the same dispatch.
    Write(&'a mut [u8]),
}

/// Most buffers a kernel has.
pub const MAX_BUFFERS: usize = 20;

/// The buffers of one dispatch, handed out in binding order to a kernel's typed views.
pub struct HostSlices<'a> {
    slices: [Option<HostSlice<'a>>; MAX_BUFFERS],
    next: usize,
}

impl<'a> HostSlices<'a> {
    /// Takes the buffers in binding order.
    ///
    /// # Panics
    /// If there are more than [`MAX_BUFFERS`].
    pub fn new(slices: impl IntoIterator<Item = HostSlice<'a>>) -> Self {
        let mut all = [const { None }; MAX_BUFFERS];
        slices.into_iter().enumerate().for_each(|(i, slice)| all[i] = Some(slice));
        Self { slices: all, next: 0 }
    }

    fn take(&mut self) -> HostSlice<'a> {
        self.next += 1;
        self.slices[self.next - 1].take().expect("a dispatch binds as many buffers as its contract has")
    }

    /// The next buffer, which the contract only reads.
    ///
    /// # Panics
    /// If the binding does not fit the contract: a broken invariant of the plan.
    pub fn read<T: Pod>(&mut self) -> &'a [T] {
        match self.take() {
            HostSlice::Read(bytes) => bytemuck::cast_slice(bytes),
            HostSlice::Write(bytes) => bytemuck::cast_slice(bytes),
        }
    }

    /// The next buffer, which the contract writes.
    ///
    /// # Panics
    /// If the binding does not fit the contract: a broken invariant of the plan.
    pub fn write<T: Pod>(&mut self) -> &'a mut [T] {
        match self.take() {
            HostSlice::Write(bytes) => bytemuck::cast_slice_mut(bytes),
            HostSlice::Read(_) => panic!("a dispatch binds for reading what its contract writes"),
        }
    }
}

/// [`Format`] as it stands in kernel arguments: `bits | group << 8 | scale << 16`; plain elements have 0 bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct PackedFormat(pub u32);

impl From<Format> for PackedFormat {
    fn from(format: Format) -> Self {
        let (bits, group, float) = match format {
            Format::Affine { bits, group, scale } => (bits as u32, group as u32, scale),
            Format::Dense(float) => (0, 0, float),
        };
        PackedFormat(bits | group << 8 | (float as u32) << 16)
    }
}

impl PackedFormat {
    /// The format it stands for.
    pub fn format(self) -> Format {
        let float = match self.0 >> 16 {
            0 => Float::Bf16,
            1 => Float::F16,
            _ => Float::F32,
        };
        match self.0 & 0xff {
            0 => Format::Dense(float),
            bits => Format::Affine { bits: bits as u8, group: (self.0 >> 8) as u8, scale: float },
        }
    }
}

/// Bytes that a `[rows, cols]` matrix of this format occupies.
fn matrix_bytes(format: PackedFormat, rows: u32, cols: u32) -> f64 {
    rows as f64 * format.format().total_row_bytes(cols as usize) as f64
}

/// FLOPs of `vectors` products with a `[rows, cols]` matrix.
fn product_flops(vectors: u32, rows: u32, cols: u32) -> f64 {
    2.0 * vectors as f64 * rows as f64 * cols as f64
}

/// A kernel's builder: everything one dispatch needs.
pub trait Kernel {
    /// The contract it belongs to.
    fn contract() -> &'static Contract;
    /// The dispatch it describes.
    fn dispatch(self) -> Dispatch;
}

macro_rules! access {
    (read) => {
        $crate::kernel::Access::Read
    };
    (write) => {
        $crate::kernel::Access::Write
    };
    (update) => {
        $crate::kernel::Access::Update
    };
}
pub(crate) use access;

macro_rules! view_type {
    (read, $lt:lifetime, $t:ty) => { &$lt [$t] };
    ($other:ident, $lt:lifetime, $t:ty) => { &$lt mut [$t] };
}
pub(crate) use view_type;

macro_rules! view_take {
    (read, $slices:ident, $t:ty) => {
        $slices.read::<$t>()
    };
    ($other:ident, $slices:ident, $t:ty) => {
        $slices.write::<$t>()
    };
}
pub(crate) use view_take;

/// Declares a struct of dimensions that several kernels take as part of their arguments.
macro_rules! dims {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $fdoc:literal])+ $field:ident: $ty:ty),* $(,)? }) => {
        $(#[doc = $doc])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $($(#[doc = $fdoc])+ pub $field: $ty),* }

        impl $name {
            /// The struct as kernel texts declare it.
            pub const LAYOUT: $crate::kernel::Layout = $crate::kernel::Layout {
                name: stringify!($name),
                fields: &[$((stringify!($field), stringify!($ty))),*],
            };
        }
    };
}
pub(crate) use dims;

/// Declares a kernel. See the module documentation for what follows from it.
///
/// `Name` is the builder and `views` the host views; the two share the argument struct `args`. Buffers are listed in
/// binding order as `name: access element`.
macro_rules! kernel {
    (
        $(#[doc = $doc:literal])+
        $name:ident, $entry:literal, args $args:ident, views $views:ident {
            args { $($(#[doc = $adoc:literal])* $arg:ident: $aty:ty),* $(,)? }
            buffers { $($buf:ident: $access:ident $elem:ident),* $(,)? }
            launch: $launch:expr,
            cost: $cost:expr,
            tolerance: $tolerance:expr,
            reference: $reference:expr $(,)?
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// Arguments by value.
            pub args: $args,
            $(
                #[doc = concat!("Buffer of ", stringify!($elem), ", ", stringify!($access), ".")]
                pub $buf: $crate::plan::Slot,
            )*
        }

        #[doc = concat!("Arguments of [`", stringify!($name), "`].")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $args { $($(#[doc = $adoc])* pub $arg: $aty),* }

        #[doc = concat!("Host memory of one [`", stringify!($name), "`] dispatch.")]
        #[allow(missing_docs)]
        pub struct $views<'a> {
            pub args: $args,
            $(pub $buf: $crate::kernel::view_type!($access, 'a, $elem)),*
        }

        impl<'a> $views<'a> {
            /// Binds the buffers of a dispatch.
            pub fn bind(args: &[u8], mut slices: $crate::kernel::HostSlices<'a>) -> Self {
                Self {
                    args: bytemuck::pod_read_unaligned(args),
                    $($buf: $crate::kernel::view_take!($access, slices, $elem)),*
                }
            }
        }

        impl $crate::kernel::Kernel for $name {
            fn contract() -> &'static $crate::kernel::Contract {
                static CONTRACT: $crate::kernel::Contract = $crate::kernel::Contract {
                    name: $entry,
                    doc: concat!($($doc, "\n"),+),
                    params: &[$($crate::kernel::Param {
                        name: stringify!($buf),
                        element: stringify!($elem),
                        access: $crate::kernel::access!($access),
                    }),*],
                    layout: $crate::kernel::Layout {
                        name: stringify!($args),
                        fields: &[$((stringify!($arg), stringify!($aty))),*],
                    },
                    launch: |args| {
                        let launch: fn($args) -> $crate::kernel::Launch = $launch;
                        launch(bytemuck::pod_read_unaligned(args))
                    },
                    cost: |args, step| {
                        let cost: fn($args, $crate::kernel::Step) -> $crate::kernel::Cost = $cost;
                        cost(bytemuck::pod_read_unaligned(args), step)
                    },
                    reference: |args, slices| {
                        let reference: fn($views<'_>) = $reference;
                        reference($views::bind(args, slices))
                    },
                    tolerance: $tolerance,
                };
                &CONTRACT
            }

            fn dispatch(self) -> $crate::plan::Dispatch {
                $crate::plan::Dispatch::new(
                    <Self as $crate::kernel::Kernel>::contract(),
                    bytemuck::bytes_of(&self.args),
                    vec![$(self.$buf),*],
                )
            }
        }
    };
}
pub(crate) use kernel;

/// The three buffers of a stored matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSlots {
    /// Codes or plain elements.
    pub codes: Slot,
    /// Scales.
    pub scales: Slot,
    /// Biases.
    pub biases: Slot,
    /// Storage format.
    pub format: PackedFormat,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// Rows from one expert to the next.
    pub expert_stride_rows: u32,
}
