//! From the kernels' PTX, which the build put into the binary, to functions.
//!
//! The driver compiles a kernel when a plan first needs it with its function constants; it keeps what it compiled on disk.

use super::driver::{Context, Function};
use crate::backend::BackendError;
use crate::backend::gpu::encode::PipelineKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A kernel as the build made it.
struct Ptx {
    name: &'static str,
    text: &'static str,
    threadgroup_bytes: u32,
    /// Whether it has something to do before it waits for the kernels before it.
    early: bool,
}

// The table `KERNELS`; `CONSTANT`, which with an index and a semicolon stands for a function constant in a text; `ENTRY`, what
// the names of entries begin with.
include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// Functions by kernel and constants, for the life of the process, as the context is.
type Functions = HashMap<PipelineKey, Function>;

/// The functions of a GPU.
pub(super) struct Library {
    context: Arc<Context>,
}

impl Library {
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// The function of a key, compiled at its first use; `threads` must fit a block.
    pub fn function(&self, key: &PipelineKey, threads: u32) -> Result<Function, BackendError> {
        static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
        let mut functions = FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(|held| held.into_inner());
        let failed = |message| BackendError::Compile { kernel: key.entry.to_owned(), message };
        let function = match functions.get(key) {
            Some(function) => *function,
            None => {
                let function = self.compile(key).map_err(failed)?;
                functions.insert(key.clone(), function);
                function
            }
        };
        if threads > function.threads_max {
            let most = function.threads_max;
            return Err(failed(format!("it needs {threads} threads in a block; the device offers {most}")));
        }
        Ok(function)
    }

    fn compile(&self, key: &PipelineKey) -> Result<Function, String> {
        let kernel = KERNELS.iter().find(|k| k.name == key.entry).ok_or("no kernel text has it")?;
        let constants = key.constants.iter().map(|&(constant, value)| (constant as u32, value));
        let text = constants.fold(kernel.text.to_owned(), |text, (index, value)| {
            text.replace(&format!("{CONSTANT}{index};"), &format!("{value};"))
        });
        let entry = format!("{ENTRY}{}", kernel.name);
        let function = Function::compile(&self.context, &text, &entry, kernel.threadgroup_bytes)?;
        Ok(Function { early: kernel.early, ..function })
    }
}
