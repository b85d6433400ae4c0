//! Metal kernel text for other compilers than Apple's.
//!
//! clang's OpenCL-C++ mode takes nearly Metal; [`rewrite()`] turns preprocessed text into what it takes entirely, and
//! headers below `shim/` supply Metal's library. [`clang`] runs the compiler. Two targets share all that: the software
//! Metal of tests (`crates/soft-metal`, which brings its own headers for what threads do together), and [`ptx`], the
//! assembly of NVIDIA GPUs. What this does not show is that Apple's compiler takes the text.

pub mod clang;
pub mod ptx;
pub mod rewrite;

pub use clang::{Clang, Error};
pub use rewrite::{ConstantText, KernelText, Place, RewriteError, Rewritten, Target, rewrite};

use std::path::{Path, PathBuf};

/// The folder of this crate's headers: `stubs` for the preprocessor, `common` for every target, `ptx`.
pub fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shim")
}
