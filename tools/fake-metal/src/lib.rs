//! A fake of Objective-C and Metal on Linux, for the host code of the Metal backend.
//!
//! The backend's own files are compiled against it unchanged and talk to it as they talk to macOS: by messages to
//! objects that are counted. Kernels run on the software Metal. The fake is strict where the real thing is undefined: it
//! panics on messages it does not know, on buffers that are not resident, not aligned or gone, on dispatches of one
//! stage that touch what another writes, and nothing runs before somebody waits for it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod command;
mod foundation;
mod machine;
mod metal;
mod runtime;

pub use machine::{Bound, Failure, Machine, Recorded, Session, Submission, begin};
