//! Bytes of sessions' states that are kept for later, in the memory of the device that they are of.
//!
//! Where that is not the host's, a copy within it takes a hundredth of the time that one to the host takes, so what is kept
//! comes to the host only for a file. What to keep, and for how long, is the prefix cache's to decide.

use super::BackendError;
use std::any::Any;
use std::ops::Range;

/// Kept bytes. They never change.
pub trait Kept: Send + Sync {
    /// How many.
    fn bytes(&self) -> usize;

    /// Copies those from `offset` on to the host.
    ///
    /// # Errors
    /// If the device that has them has failed.
    ///
    /// # Panics
    /// If there are not as many: a broken invariant of the cache.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// A copy of parts of them, one after another.
    ///
    /// # Panics
    /// As [`Kept::read`], or if the device has failed.
    fn copy(&self, parts: &[Range<usize>]) -> Box<dyn Kept>;

    /// The bytes, where they are the host's.
    fn host(&self) -> Option<&[u8]>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

impl Kept for Vec<u8> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        out.copy_from_slice(&self[offset..][..out.len()]);
        Ok(())
    }

    fn copy(&self, parts: &[Range<usize>]) -> Box<dyn Kept> {
        let mut copy = Vec::with_capacity(parts.iter().map(Range::len).sum());
        parts.iter().for_each(|part| copy.extend_from_slice(&self[part.clone()]));
        Box::new(copy)
    }

    fn host(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
