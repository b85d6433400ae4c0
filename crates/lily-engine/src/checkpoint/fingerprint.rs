//! A short name for what a checkpoint computes: the same files, the same name.

use super::Checkpoint;
use sha2::{Digest, Sha256};

/// Weight files up to this size are read whole.
const WHOLE_BYTES: usize = 64 << 20;
/// Of larger ones, so many samples are read, evenly spread, the ends included: reading all would take longer than loading.
const SAMPLES: usize = 256;
const SAMPLE_BYTES: usize = 4096;

impl Checkpoint {
    /// A hash of the dimensions and of the weight files: name, length and headers of each, and its content, of large files
    /// samples. Another quantisation or training changes every sample; a single flipped bit may go unseen.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(format!("{:?}", self.weights.shape));
        for (name, file) in self.file_names.iter().zip(&self.files) {
            hash.update(name);
            hash.update((file.len() as u64).to_le_bytes());
            let tensors = self.tensors.iter().filter(|t| self.file_names[t.range.file] == *name);
            tensors.for_each(|tensor| hash.update(format!("{} {:?} {:?};", tensor.name, tensor.dtype, tensor.range)));
            if file.len() <= WHOLE_BYTES {
                hash.update(&**file);
            } else {
                let step = (file.len() - SAMPLE_BYTES) / (SAMPLES - 1);
                (0..SAMPLES).for_each(|sample| hash.update(&file[sample * step..][..SAMPLE_BYTES]));
            }
        }
        hash.finalize().into()
    }
}
