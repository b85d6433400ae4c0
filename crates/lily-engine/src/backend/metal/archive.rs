//! Compiled pipelines kept on disk, so that the next start need not compile them.
//!
//! A binary archive per device and kernel text lies in the user's cache folder. It is a convenience: whatever goes wrong
//! with it means compiling again, never an error. An archive that another system version wrote does not match and is
//! written anew.

use super::device::DeviceRef;
use crate::backend::gpu::facts::DeviceFacts;
use crate::kernel::source;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice};
use std::path::{Path, PathBuf};

/// Names a folder to use instead of the user's cache; empty: keep nothing.
const FOLDER_VARIABLE: &str = "LILY_METAL_CACHE";

/// A binary archive and its file.
pub(super) struct Archive {
    archive: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    path: PathBuf,
    changed: bool,
}

// SAFETY: the archive may be used from any thread, one at a time, and it has one owner.
unsafe impl Send for Archive {}

impl Archive {
    /// Opens the archive of a device, or starts one; `None` where there is no place for it.
    pub(super) fn open(device: &DeviceRef, facts: &DeviceFacts) -> Option<Self> {
        let folder = match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) if folder.is_empty() => return None,
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(std::env::var_os("HOME")?).join("Library/Caches/lily/metal"),
        };
        let path = folder.join(format!("{:016x}.archive", source::fingerprint(&facts.name)));
        let descriptor = MTLBinaryArchiveDescriptor::new();
        let archive = autoreleasepool(|_| {
            if path.is_file() {
                descriptor.setUrl(Some(&url(&path)));
                if let Ok(archive) = device.newBinaryArchiveWithDescriptor_error(&descriptor) {
                    return Some(archive);
                }
                descriptor.setUrl(None);
            }
            device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
        });
        Some(Self { archive: archive?, path, changed: false })
    }

    /// Lets a pipeline be taken from the archive.
    pub(super) fn offer(&self, descriptor: &MTLComputePipelineDescriptor) {
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*self.archive])));
    }

    /// Puts a pipeline into the archive, unless it came from there.
    pub(super) fn add(&mut self, descriptor: &MTLComputePipelineDescriptor) {
        descriptor.setBinaryArchives(None);
        self.changed |= self.archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).is_ok();
    }

    /// Writes the archive if it has grown: aside and renamed, so that nobody reads half of it.
    pub(super) fn save(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let Some(folder) = self.path.parent() else { return };
        let partial = self.path.with_extension(format!("{}.partial", std::process::id()));
        let write = || autoreleasepool(|_| self.archive.serializeToURL_error(&url(&partial)).is_ok());
        if std::fs::create_dir_all(folder).is_ok() && write() {
            let _ = std::fs::rename(&partial, &self.path); // a convenience; the next start compiles again
        }
    }
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}
