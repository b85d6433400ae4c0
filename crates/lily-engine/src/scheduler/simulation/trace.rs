//! What happened in a simulation, word for word and in order, so that two runs of a seed can be compared.

use std::sync::{Arc, Mutex, PoisonError};

/// Keeps what it is told, if somebody wants to read it.
#[derive(Clone, Default)]
pub struct Trace(Option<Arc<Mutex<Vec<String>>>>);

impl Trace {
    /// One that somebody will read.
    pub fn kept() -> Self {
        Self(Some(Arc::default()))
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if let Some(lines) = &self.0 {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(what());
        }
    }

    /// What it was told.
    pub fn lines(&self) -> Vec<String> {
        self.0.as_ref().map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
    }
}
