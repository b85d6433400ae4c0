//! From the kernels' PTX, which the build put into the binary, to functions.
//!
//! The driver compiles a kernel when a plan first needs it with its function constants; it keeps what it compiled on disk.

use super::driver::{Context, Function};
use crate::backend::BackendError;
use crate::backend::gpu::encode::{Encoded, PipelineKey};
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
// the names of entries begin with; `STARTED`, what every kernel does first, and `STARTED_LATE`, what stands there in one that
// touches nothing before it has waited.
include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// Functions by kernel and constants, and by whether they wait first; for the life of the process, as the context is.
type Functions = HashMap<(PipelineKey, bool), Function>;

/// The functions of a GPU.
pub(super) struct Library {
    context: Arc<Context>,
}

impl Library {
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// The function of a key for a dispatch, compiled at its first use.
    pub fn function(&self, key: &PipelineKey, encoded: &Encoded) -> Result<Function, BackendError> {
        static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
        let mut functions = FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(|held| held.into_inner());
        let failed = |message| BackendError::Compile { kernel: key.entry.to_owned(), message };
        let kernel =
            KERNELS.iter().find(|k| k.name == key.entry).ok_or_else(|| failed("no kernel text has it".into()))?;
        let late = kernel.early && !encoded.state_is_there;
        let known = (key.clone(), late);
        let function = match functions.get(&known) {
            Some(function) => *function,
            None => {
                let function = self.compile(kernel, key, late).map_err(failed)?;
                functions.insert(known, function);
                function
            }
        };
        let (threads, most) = (encoded.threads, function.threads_max);
        if threads > most {
            return Err(failed(format!("it needs {threads} threads in a block; the device offers {most}")));
        }
        Ok(function)
    }

    fn compile(&self, kernel: &Ptx, key: &PipelineKey, late: bool) -> Result<Function, String> {
        let constants = key.constants.iter().map(|&(constant, value)| (constant as u32, value));
        let text = if late { kernel.text.replacen(STARTED, STARTED_LATE, 1) } else { kernel.text.to_owned() };
        let text = constants
            .fold(text, |text, (index, value)| text.replace(&format!("{CONSTANT}{index};"), &format!("{value};")));
        let entry = format!("{ENTRY}{}", kernel.name);
        let function = Function::compile(&self.context, &text, &entry, kernel.threadgroup_bytes)?;
        Ok(Function { early: kernel.early, ..function })
    }
}
