//! What is kept of sessions' states: copies in the GPU's memory, made in the order of the stream that everything runs in. So
//! nobody waits for a copy, and none is made of what is still to be written.

use super::driver::{Context, Event, Memory as Area, Pool, Stream};
use super::refused;
use crate::backend::{BackendError, Kept};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// A part of an area.
pub(super) struct Part<'a> {
    pub area: &'a Area,
    pub offset: usize,
    pub bytes: usize,
}

/// Where sessions' states and what is kept of them have their memory.
pub(super) struct Keeper {
    context: Arc<Context>,
    pool: Arc<Pool>,
    stream: Arc<Stream>,
    /// For copies to the host, which somebody makes while the GPU computes.
    aside: Stream,
}

impl Keeper {
    /// One without memory so far, for states that `stream` works on.
    pub fn new(context: &Arc<Context>, stream: &Arc<Stream>) -> Result<Arc<Self>, BackendError> {
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            pool: Pool::new(context, stream)?,
            stream: Arc::clone(stream),
            aside: Stream::new(context)?,
        }))
    }

    /// Memory with anything in it.
    pub fn memory(&self, what: &str, bytes: usize) -> Result<Area, BackendError> {
        self.pool.memory(what, bytes)
    }

    /// Keeps these parts, one after another: in the GPU's memory, or on the host if others have taken what was there.
    ///
    /// # Panics
    /// If the device has failed.
    pub fn keep(self: &Arc<Self>, parts: &[Part]) -> Box<dyn Kept> {
        match self.kept(parts) {
            Ok(kept) => Box::new(kept),
            Err(BackendError::OutOfMemory { .. }) => Box::new(self.host_copy(parts)),
            Err(error) => panic!("{error}"),
        }
    }

    fn kept(self: &Arc<Self>, parts: &[Part]) -> Result<CudaKept, BackendError> {
        let area = self.memory("a remembered state", parts.iter().map(|part| part.bytes).sum())?;
        let mut at = 0;
        for part in parts {
            area.copy(&self.stream, at, part.area, part.offset, part.bytes)?;
            at += part.bytes;
        }
        let written = Event::record(&self.context, &self.stream).map_err(refused("a point in its work"))?;
        Ok(CudaKept { area, written, keeper: Arc::clone(self) })
    }

    fn host_copy(&self, parts: &[Part]) -> Vec<u8> {
        let mut bytes = vec![0; parts.iter().map(|part| part.bytes).sum()];
        let mut rest = &mut bytes[..];
        for part in parts {
            let (out, behind) = rest.split_at_mut(part.bytes);
            part.area.read(&self.stream, part.offset, out).unwrap_or_else(|error| panic!("{error}"));
            rest = behind;
        }
        bytes
    }

    /// Copies kept bytes, those from `from` on, into an area.
    ///
    /// # Panics
    /// If the device has failed.
    pub fn take(&self, kept: &dyn Kept, from: usize, to: &Part) {
        let copied = match kept.as_any().downcast_ref::<CudaKept>() {
            Some(kept) => to.area.copy(&self.stream, to.offset, &kept.area, from, to.bytes),
            None => {
                let bytes = kept.host().expect("bytes that this backend kept, or a file's");
                to.area.write(&self.stream, to.offset, &bytes[from..][..to.bytes])
            }
        };
        copied.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Kept bytes in the GPU's memory.
struct CudaKept {
    area: Area,
    /// When they are there.
    written: Event,
    keeper: Arc<Keeper>,
}

impl Kept for CudaKept {
    fn bytes(&self) -> usize {
        self.area.bytes()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.written.wait().map_err(refused("a copy within its memory"))?;
        self.area.read(&self.keeper.aside, offset, out)
    }

    fn copy(&self, parts: &[Range<usize>]) -> Box<dyn Kept> {
        let part = |part: &Range<usize>| Part { area: &self.area, offset: part.start, bytes: part.len() };
        self.keeper.keep(&parts.iter().map(part).collect::<Vec<_>>())
    }

    fn host(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
