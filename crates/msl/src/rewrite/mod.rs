//! Turns preprocessed Metal text into text for clang's OpenCL-C++ mode.
//!
//! Works on tokens and knows just the constructs that lily's kernels may use; anything else is an error with file and
//! line, here or in the compiler. [`rewrite`] is the entry; [`items`] finds declarations, [`kernels`] turns entry
//! functions into callable ones, [`vectors`] constructors, casts and literals; [`lint`] holds the rules that Apple's
//! compiler would enforce and clang does not.

mod items;
mod kernels;
mod lint;
mod tokens;
mod vectors;

pub use tokens::Place;
use tokens::Tokens;

/// What the text is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The software Metal: function constants are globals, and a function for each kernel takes a thread.
    SoftMetal,
    /// The same where kernels are NVIDIA's: with their threadgroup memory, and they wait for those before them.
    SoftNvidia,
    /// NVIDIA's assembly: function constants are placeholders in it, kernels are its entries.
    Ptx,
}

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct RewriteError {
    /// Where.
    pub place: Place,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl RewriteError {
    fn new(place: &Place, message: impl Into<String>) -> Self {
        Self { place: place.clone(), message: message.into() }
    }
}

/// A kernel that the rewritten text exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelText {
    /// Its name for the host.
    pub name: String,
    /// Names of its parameters, in order.
    pub parameters: Vec<String>,
    /// Indices of the function constants that it or a function it uses names.
    pub constants: Vec<u32>,
    /// Whether it says itself where it waits for the kernels before it (`wait_for_inputs`).
    pub waits: bool,
    /// Where it is.
    pub place: Place,
}

/// A function constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantText {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_name: String,
}

/// Rewritten text and what it exports.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// Text for the compiler.
    pub text: String,
    /// Kernels, in order of the text.
    pub kernels: Vec<KernelText>,
    /// Function constants, in order of the text.
    pub constants: Vec<ConstantText>,
}

/// Rewrites a preprocessed file.
///
/// # Errors
/// At the first construct that is not understood, or that Apple's compiler would refuse.
pub fn rewrite(preprocessed: &str, target: Target) -> Result<Rewritten, RewriteError> {
    let mut tokens = Tokens::parse(preprocessed)?;
    let attributes = items::take_attributes(&mut tokens)?;
    let items = items::find(&tokens, &attributes)?;
    lint::check(&tokens, &items)?;
    let constants = kernels::function_constants(&mut tokens, &items, target)?;
    let exports = kernels::export(&mut tokens, &items, &attributes, &constants, target)?;
    vectors::rewrite(&mut tokens)?;
    let mut text = String::from("#include \"prelude.h\"\n");
    text.push_str("#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)\n");
    text.push_str(&tokens.render());
    text.push_str("\n#pragma clang attribute pop\n#line 1 \"generated\"\n");
    text.push_str(&exports.text);
    Ok(Rewritten { text, kernels: exports.kernels, constants })
}
