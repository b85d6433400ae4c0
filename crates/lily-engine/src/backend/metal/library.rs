//! From kernel text to pipelines.
//!
//! A text is compiled when a plan first needs it, a pipeline for each set of function constants. Floating-point rules are
//! strict: the kernels say themselves where they want a fast function, and results must not depend on the compiler's mood.

use super::archive::Archive;
use super::device::DeviceRef;
use super::words;
use crate::backend::BackendError;
use crate::backend::gpu::encode::PipelineKey;
use crate::backend::gpu::facts::DeviceFacts;
use crate::kernel::launch::SIMD_WIDTH;
use crate::kernel::source;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice,
    MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLPipelineOption,
};
use std::collections::HashMap;
use std::ptr::NonNull;

/// Told to the kernel text where it is to use tensor operations.
const TENSOR_OPS: &str = "LILY_TENSOR_OPS";

/// A compiled and specialised kernel.
#[derive(Clone)]
pub(super) struct Pipeline(Retained<ProtocolObject<dyn MTLComputePipelineState>>);

impl Pipeline {
    pub(super) fn state(&self) -> &ProtocolObject<dyn MTLComputePipelineState> {
        &self.0
    }

    /// Whether the device can run threadgroups of so many threads.
    pub(super) fn check_threads(&self, key: &PipelineKey, threads: u32) -> Result<(), BackendError> {
        let (most, width) = (self.0.maxTotalThreadsPerThreadgroup(), self.0.threadExecutionWidth());
        if threads as usize <= most && width == SIMD_WIDTH as usize {
            return Ok(());
        }
        let message = format!(
            "it needs {threads} threads in SIMD-groups of {SIMD_WIDTH}; the device offers {most} in groups of {width}"
        );
        Err(BackendError::Compile { kernel: key.entry.to_owned(), message })
    }
}

/// Compiled texts and pipelines of a device.
pub(super) struct Libraries {
    device: DeviceRef,
    tensor_ops: bool,
    files: HashMap<&'static str, Retained<ProtocolObject<dyn MTLLibrary>>>,
    pipelines: HashMap<PipelineKey, Pipeline>,
    archive: Option<Archive>,
}

impl Libraries {
    pub(super) fn new(device: DeviceRef, facts: &DeviceFacts) -> Self {
        let archive = Archive::open(&device, facts);
        Self { device, tensor_ops: facts.tensor_ops(), files: HashMap::new(), pipelines: HashMap::new(), archive }
    }

    /// The pipeline of a key, compiled at its first use.
    pub(super) fn pipeline(&mut self, key: &PipelineKey) -> Result<Pipeline, BackendError> {
        if let Some(pipeline) = self.pipelines.get(key) {
            return Ok(pipeline.clone());
        }
        let pipeline = autoreleasepool(|_| self.build(key))?;
        self.pipelines.insert(key.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// Keeps what was compiled for the next start.
    pub(super) fn save(&mut self) {
        if let Some(archive) = &mut self.archive {
            archive.save();
        }
    }

    fn build(&mut self, key: &PipelineKey) -> Result<Pipeline, BackendError> {
        let failed = |message| BackendError::Compile { kernel: key.entry.to_owned(), message };
        let file = source::file_of(key.entry).ok_or_else(|| failed("no kernel text has it".into()))?;
        let values = MTLFunctionConstantValues::new();
        for (constant, value) in &key.constants {
            // SAFETY: the value is read during the call, as the type that is named.
            unsafe {
                values.setConstantValue_type_atIndex(
                    NonNull::from(value).cast(),
                    MTLDataType::UInt,
                    *constant as usize,
                );
            }
        }
        let function = self
            .library(file)?
            .newFunctionWithName_constantValues_error(&NSString::from_str(key.entry), &values)
            .map_err(|e| failed(words(&e)))?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(&function));
        if let Some(archive) = &self.archive {
            archive.offer(&descriptor);
        }
        let state = self
            .device
            .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, MTLPipelineOption::None, None)
            .map_err(|e| failed(words(&e)))?;
        if let Some(archive) = &mut self.archive {
            archive.add(&descriptor);
        }
        Ok(Pipeline(state))
    }

    /// The library of a file, compiled at its first use.
    fn library(&mut self, file: &'static str) -> Result<&ProtocolObject<dyn MTLLibrary>, BackendError> {
        if !self.files.contains_key(file) {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(if self.tensor_ops {
                MTLLanguageVersion::Version4_0
            } else {
                MTLLanguageVersion::Version3_1
            });
            if options.respondsToSelector(sel!(setMathMode:)) {
                options.setMathMode(MTLMathMode::Safe);
            } else {
                #[expect(deprecated, reason = "what macOS 14 has instead")]
                options.setFastMathEnabled(false);
            }
            let defines: &[&str] = if self.tensor_ops { &[TENSOR_OPS] } else { &[] };
            let text = NSString::from_str(&source::library(file, defines));
            let library = self
                .device
                .newLibraryWithSource_options_error(&text, Some(&options))
                .map_err(|e| BackendError::Compile { kernel: file.to_owned(), message: words(&e) })?;
            self.files.insert(file, library);
        }
        Ok(&self.files[file])
    }
}
