//! Devices: which there are, what they can, and putting a model on one.

use super::library::Libraries;
use super::memory::Memory;
use super::submit::Submitter;
use super::{Metal, refused};
use crate::backend::gpu::facts::{APPLE_FAMILY_MIN, DeviceFacts, choose};
use crate::backend::gpu::layout::{FileFacts, Layout, Limits};
use crate::backend::{Backend, BackendError, Device, DeviceMemory};
use crate::checkpoint::Checkpoint;
use crate::kernel::launch;
use crate::model::Traits;
use crate::plan::BufferTable;
use crate::shape::Shape;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};
use std::ffi::c_int;
use std::sync::Arc;

// The system's default device needs CoreGraphics to be linked.
#[cfg_attr(target_vendor = "apple", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

unsafe extern "C" {
    safe fn getpagesize() -> c_int;
}

/// A reference to a device.
pub(super) type DeviceRef = Retained<ProtocolObject<dyn MTLDevice>>;

/// A GPU without a model.
pub struct MetalDevice {
    device: DeviceRef,
    facts: DeviceFacts,
}

impl MetalDevice {
    /// The GPU of this machine.
    ///
    /// # Errors
    /// If it has none that will do.
    pub fn open() -> Result<Self, BackendError> {
        autoreleasepool(|_| {
            // The system's choice comes first and, being in the list as well, twice.
            let all = MTLCreateSystemDefaultDevice().into_iter().chain(MTLCopyAllDevices().to_vec());
            let (devices, facts): (Vec<DeviceRef>, Vec<DeviceFacts>) = all.map(|d| (d.clone(), facts(&d))).unzip();
            let index = choose(&facts)?;
            Ok(Self { device: devices[index].clone(), facts: facts[index].clone() })
        })
    }

    fn limits(&self) -> Limits {
        Limits { page_bytes: getpagesize() as usize, buffer_bytes_max: self.facts.buffer_bytes_max }
    }
}

/// Apple's families that lily knows, newest first.
const FAMILIES: [(u8, MTLGPUFamily); 4] = [
    (10, MTLGPUFamily::Apple10),
    (9, MTLGPUFamily::Apple9),
    (8, MTLGPUFamily::Apple8),
    (APPLE_FAMILY_MIN, MTLGPUFamily::Apple7),
];

fn facts(device: &ProtocolObject<dyn MTLDevice>) -> DeviceFacts {
    let newest = FAMILIES.iter().find(|(_, family)| device.supportsFamily(*family));
    DeviceFacts {
        name: device.name().to_string(),
        apple_family: newest.map(|(number, _)| *number),
        metal4: device.supportsFamily(MTLGPUFamily::Metal4),
        unified_memory: device.hasUnifiedMemory(),
        working_set_bytes: device.recommendedMaxWorkingSetSize() as usize,
        buffer_bytes_max: device.maxBufferLength(),
    }
}

impl Device for MetalDevice {
    fn traits(&self) -> Traits {
        Traits::GPU
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let bytes = self.facts.working_set_bytes;
        Some(DeviceMemory { bytes, limit: "the GPU's working set (recommendedMaxWorkingSetSize)" })
    }

    fn check(&self, shape: &Shape) -> Result<(), BackendError> {
        Ok(launch::check(shape)?)
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let files: Vec<FileFacts> = (0..checkpoint.file_count())
            .map(|file| match checkpoint.mapped_file(file) {
                Some(content) => FileFacts { bytes: content.len(), mapped: true },
                None => FileFacts { bytes: 0, mapped: false },
            })
            .collect();
        let layout = Layout::new(table, &files, self.limits())?;
        let queue = self.device.newCommandQueue().ok_or_else(|| refused("a command queue"))?;
        let memory = Memory::new(&self.device, &queue, layout, checkpoint, table, self.limits().page_bytes)?;
        let family = self.facts.apple_family.unwrap_or(APPLE_FAMILY_MIN);
        let metal4 = if self.facts.metal4 { ", Metal 4" } else { "" };
        Ok(Box::new(Metal {
            description: format!("{} (Metal, Apple family {family}{metal4})", self.facts.name),
            submitter: Submitter::new(&self.device, queue)?,
            libraries: Libraries::new(self.device, &self.facts),
            memory,
        }))
    }
}
