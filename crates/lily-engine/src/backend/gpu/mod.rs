//! What GPU backends decide without a GPU: where buffers lie ([`layout`]), how a plan is encoded ([`encode`]), whether
//! a device will do ([`facts`]) and how many blocks NVIDIA's kernels have ([`nvidia`]). Host layers carry these decisions out and make none of their own.

pub mod encode;
pub mod facts;
pub mod layout;
pub mod nvidia;
