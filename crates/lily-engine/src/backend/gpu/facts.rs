//! Which device to take, from what the devices say of themselves.

use crate::backend::BackendError;

/// The oldest family that lily knows: M1.
pub const APPLE_FAMILY_MIN: u8 = 7;

/// The first family with hardware for tensor operations: M5.
const TENSOR_FAMILY_MIN: u8 = 10;

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Newest Apple family that it belongs to; `None` if none from [`APPLE_FAMILY_MIN`] on.
    pub apple_family: Option<u8>,
    /// Whether it has Metal 4.
    pub metal4: bool,
    /// Whether it reads the host's memory, mapped files included.
    pub unified_memory: bool,
    /// Memory that it can use with good performance, in bytes.
    pub working_set_bytes: usize,
    /// Longest buffer, in bytes.
    pub buffer_bytes_max: usize,
}

impl DeviceFacts {
    /// Whether to use tensor operations. Metal 4 has them on every device, but only emulates them where there is no
    /// hardware for them; matrix tiles keep to simdgroup_matrix there.
    pub fn tensor_ops(&self) -> bool {
        self.metal4 && self.apple_family.is_some_and(|family| family >= TENSOR_FAMILY_MIN)
    }

    fn usable(&self) -> bool {
        self.apple_family.is_some() && self.unified_memory
    }
}

/// Index of the device to take: the first usable one, so the system's own choice if that is usable.
///
/// # Errors
/// If none is, with what was found.
pub fn choose(devices: &[DeviceFacts]) -> Result<usize, BackendError> {
    devices.iter().position(DeviceFacts::usable).ok_or_else(|| {
        let found = devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ");
        BackendError::NoGpu { found: if found.is_empty() { "none".into() } else { found } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, apple_family: Option<u8>, unified_memory: bool) -> DeviceFacts {
        DeviceFacts {
            name: name.into(),
            apple_family,
            metal4: false,
            unified_memory,
            working_set_bytes: 1 << 34,
            buffer_bytes_max: 1 << 33,
        }
    }

    #[test]
    fn the_first_apple_gpu_with_unified_memory_is_taken() {
        let (intel, card, m1) = (device("Iris", None, true), device("Card", None, false), device("M1", Some(7), true));
        assert_eq!(choose(&[m1.clone(), card.clone()]).unwrap(), 0);
        assert_eq!(choose(&[intel.clone(), card.clone(), m1]).unwrap(), 2);
        let message = choose(&[intel, card]).unwrap_err().to_string();
        assert!(message.contains("Iris, Card") && message.contains("--backend cpu"), "{message}");
        assert!(choose(&[]).unwrap_err().to_string().contains("found none"));
    }
}
