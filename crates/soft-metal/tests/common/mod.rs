//! What the tests of launches share.

use soft_metal::{Binding, Buffer, Counts, Device, Fault, Launch, Library, Mode, Order, Settings};
use std::path::Path;

/// Orders of lanes that every test runs in.
pub const ORDERS: [Order; 4] = [Order::Forward, Order::Reverse, Order::Random(1), Order::Random(2)];

/// Compiles a file of this folder.
pub fn library(name: &str, mode: Mode) -> Library {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.metal"));
    Library::compile(&source, &[], &[], mode).unwrap_or_else(|error| panic!("{error}"))
}

/// A device with an order.
pub fn device(order: Order) -> Device {
    Device::new(Settings { order, ..Settings::default() })
}

/// A buffer with contents.
pub fn buffer(bytes: &[u8]) -> Buffer {
    Buffer::from_bytes(bytes).unwrap()
}

/// One launch without function constants.
pub fn run(
    library: &Library,
    order: Order,
    kernel: &str,
    buffers: &[&Buffer],
    args: &[u8],
    groups: u32,
    threads: u32,
) -> Result<Counts, Fault> {
    let buffers: Vec<Binding<'_>> = buffers.iter().map(|b| (*b).into()).collect();
    let launch = Launch { kernel, buffers: &buffers, args, constants: &[], threadgroups: [groups, 1, 1], threads };
    device(order).launch(library, &launch)
}
