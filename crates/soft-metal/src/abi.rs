//! What compiled kernels and the run time share; the twin of shim/sm/abi.h.

/// Lanes of a SIMD-group.
pub const LANES: usize = 32;
/// Most bytes that a lane brings to a meeting.
pub const SLOT_BYTES: usize = 1024;
/// Most buffers of a kernel.
pub const BUFFERS: usize = 32;

/// One launch, the same for all of its threads.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Launch {
    pub buffers: [u64; BUFFERS],
    pub threadgroups: [u32; 3],
    pub threads: u32,
}

/// One thread of a threadgroup.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    pub lane: u32,
    pub simdgroup: u32,
    pub index: u32,
    pub simdgroups: u32,
    pub group: [u32; 3],
    pub reserved: u32,
    pub launch: *const Launch,
    pub arena: u64,
    pub arena_used: *mut u32,
}

/// Where the values of a SIMD-group's lanes meet.
#[repr(C, align(64))]
pub struct Area {
    pub mask: u32,
    pub done: u32,
    pub reserved: [u32; 14],
    pub slots: [u8; LANES * SLOT_BYTES],
    pub result: [u8; 16 << 10],
}

/// What a lane gets from a meeting.
#[repr(C)]
pub struct Meeting {
    pub area: *mut Area,
    pub lane: u64,
}

/// Entries of the run time, called through the library's table. `site` is the address that the call returns to.
#[repr(C)]
pub struct Runtime {
    pub meet: unsafe extern "C" fn(value: *const u8, bytes: u32, site: usize) -> Meeting,
    pub simdgroup_barrier: unsafe extern "C" fn(flags: u32, site: usize),
    pub threadgroup_barrier: unsafe extern "C" fn(flags: u32, site: usize),
    pub thread_index: unsafe extern "C" fn() -> u32,
    pub access: unsafe extern "C" fn(address: usize, bytes: usize, kind: u32, site: usize),
    pub copy_16: unsafe extern "C" fn(to: *mut [u8; 16], value: *const [u8; 16], site: usize),
    pub end_copies: unsafe extern "C" fn(),
    pub wait_copies: unsafe extern "C" fn(under_way: u32),
    pub any_at_barrier: unsafe extern "C" fn(id: u32, threads: u32, says: u32, site: usize) -> u32,
    pub wait_for_inputs: unsafe extern "C" fn(),
    pub start_product: unsafe extern "C" fn(run: RunProduct, operands: *const u64, bytes: u32),
    pub end_products: unsafe extern "C" fn(),
    pub wait_products: unsafe extern "C" fn(under_way: u32),
}

/// What does a product, in its library.
pub type RunProduct = unsafe extern "C" fn(operands: *const u64);

/// A kernel's entry in its library.
pub type Entry = unsafe extern "C" fn(*const Thread);

/// A kernel's parameter, as its library describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameter {
    pub kind: u32,
    pub index: u32,
    pub space: u32,
    pub is_const: u32,
    pub element: u32,
    pub bytes: u32,
}
