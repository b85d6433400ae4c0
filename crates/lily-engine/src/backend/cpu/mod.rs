//! The CPU backend: fast Rust kernels over the vector instructions of the machine, run by a small thread pool.

pub mod isa;
pub mod pool;
pub mod product;
