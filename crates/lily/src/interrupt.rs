//! Ctrl-C: ends what is being generated, not the program; a second one, before the first was heeded, ends the program.

use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C was pressed. Clones share the answer.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over SIGINT.
    pub fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let refused = |e: std::io::Error| Failure::other(format_args!("cannot handle Ctrl-C: {e}"));
        // In this order: the first one only raises the flag, which arms the second.
        signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, Arc::clone(&flag))
            .map_err(refused)?;
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&flag)).map_err(refused)?;
        Ok(Self(flag))
    }

    /// Whether it was pressed since the last [`Self::clear`].
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets that it was pressed.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
