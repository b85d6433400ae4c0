//! Writes a checkpoint: lays its tensors out in shards first, then takes their bytes in any order and from any thread.
//!
//! Everything goes to a directory beside the wanted one, which is renamed when all is done: a checkpoint is there whole
//! or not at all.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::error::CheckpointError;
use super::{INDEX, SINGLE};

/// Largest shard; a single larger tensor gets a shard of its own.
pub(super) const SHARD_BYTES_MAX: usize = 5 << 30;
/// Data starts at a multiple of this, so that mapped tensors are as aligned as their sizes allow.
const HEADER_ALIGNMENT: usize = 64;

/// How far a conversion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written.
    pub done_bytes: usize,
    /// Bytes that will be written.
    pub total_bytes: usize,
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(super) struct OutTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) dims: Vec<usize>,
}

impl OutTensor {
    pub(super) fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Where a tensor's bytes go.
struct Spot {
    shard: usize,
    offset: usize,
    bytes: usize,
}

/// A checkpoint in the making; removed again if dropped before [`Writer::finish`].
pub(super) struct Writer {
    out: PathBuf,
    temporary: PathBuf,
    shards: Vec<File>,
    spots: Vec<Spot>,
    total_bytes: usize,
}

impl Writer {
    /// Creates the files, each of at most `shard_bytes_max` of tensors, and writes their headers.
    pub(super) fn create(out: &Path, tensors: &[OutTensor], shard_bytes_max: usize) -> Result<Self, CheckpointError> {
        refuse_existing(out)?;
        let temporary = temporary_beside(out)?;
        if temporary.exists() {
            fs::remove_dir_all(&temporary)
                .map_err(CheckpointError::io(&temporary, "remove what an earlier run left in"))?;
        }
        fs::create_dir_all(&temporary).map_err(CheckpointError::io(&temporary, "create"))?;
        let (shards, spots) = (Vec::new(), Vec::new());
        let mut writer = Self { out: out.to_owned(), temporary, shards, spots, total_bytes: 0 };

        let ranges = shard_ranges(tensors, shard_bytes_max);
        let mut weight_map = Map::new();
        for (shard, range) in ranges.iter().enumerate() {
            let name = match ranges.len() {
                1 => SINGLE.to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
            };
            for tensor in &tensors[range.clone()] {
                weight_map.insert(tensor.name.clone(), name.as_str().into());
            }
            writer.add_shard(&name, &tensors[range.clone()])?;
        }
        if ranges.len() > 1 {
            let index = json!({ "metadata": { "total_size": writer.total_bytes }, "weight_map": weight_map });
            writer.side_file(INDEX, &pretty(&index))?;
        }
        Ok(writer)
    }

    fn add_shard(&mut self, name: &str, tensors: &[OutTensor]) -> Result<(), CheckpointError> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
        let mut end = 0;
        for tensor in tensors {
            let begin = end;
            end += tensor.bytes();
            let entry =
                json!({ "dtype": tensor.dtype.to_string(), "shape": tensor.dims, "data_offsets": [begin, end] });
            header.insert(tensor.name.clone(), entry);
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize((8 + text.len()).next_multiple_of(HEADER_ALIGNMENT) - 8, b' ');
        let data_start = 8 + text.len();

        let path = self.temporary.join(name);
        let file = File::create(&path).map_err(CheckpointError::io(&path, "create"))?;
        let mut start = (text.len() as u64).to_le_bytes().to_vec();
        start.extend(text);
        file.write_all_at(&start, 0).map_err(CheckpointError::io(&path, "write"))?;
        file.set_len((data_start + end) as u64).map_err(CheckpointError::io(&path, "extend"))?;

        let shard = self.shards.len();
        let mut offset = data_start;
        for tensor in tensors {
            let bytes = tensor.bytes();
            self.spots.push(Spot { shard, offset, bytes });
            offset += bytes;
        }
        self.total_bytes += end;
        self.shards.push(file);
        Ok(())
    }

    /// Bytes of all tensors.
    pub(super) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Writes `bytes` at `offset` of the tensor `index`, counted as the tensors were given.
    ///
    /// # Panics
    /// If they do not fit in the tensor.
    pub(super) fn write(&self, index: usize, offset: usize, bytes: &[u8]) -> Result<(), CheckpointError> {
        let spot = &self.spots[index];
        assert!(offset + bytes.len() <= spot.bytes, "{} bytes at {offset} of {}", bytes.len(), spot.bytes);
        self.shards[spot.shard]
            .write_all_at(bytes, (spot.offset + offset) as u64)
            .map_err(CheckpointError::io(&self.temporary, "write to a shard in"))
    }

    /// Writes a small file beside the shards.
    pub(super) fn side_file(&self, name: &str, content: &[u8]) -> Result<(), CheckpointError> {
        let path = self.temporary.join(name);
        fs::write(&path, content).map_err(CheckpointError::io(&path, "write"))
    }

    /// Brings everything to the disk and gives the checkpoint its name.
    pub(super) fn finish(mut self) -> Result<(), CheckpointError> {
        for shard in self.shards.drain(..) {
            shard.sync_all().map_err(CheckpointError::io(&self.temporary, "flush a shard in"))?;
        }
        fs::rename(&self.temporary, &self.out).map_err(CheckpointError::io(&self.out, "move the finished files to"))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` there is nothing by this name; otherwise the half-written files go, as well as may be.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// An output that exists is never overwritten.
fn refuse_existing(out: &Path) -> Result<(), CheckpointError> {
    let found = match fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            None => return Ok(()),
            Some(_) => "a directory with files in it",
        },
        Err(_) if out.exists() => "a file",
        Err(_) => return Ok(()),
    };
    Err(CheckpointError::Request {
        subject: out.display().to_string(),
        expected: "a new or empty directory to write to".to_owned(),
        found: found.to_owned(),
        advice: "choose another one, or remove it first",
    })
}

fn temporary_beside(out: &Path) -> Result<PathBuf, CheckpointError> {
    let Some(name) = out.file_name() else {
        return Err(CheckpointError::Request {
            subject: out.display().to_string(),
            expected: "the name of a directory to write to".to_owned(),
            found: "a path without a name".to_owned(),
            advice: "name the output directory",
        });
    };
    let mut name = name.to_owned();
    name.push(".partial");
    Ok(out.with_file_name(name))
}

/// Consecutive tensors that go into one file each.
fn shard_ranges(tensors: &[OutTensor], bytes_max: usize) -> Vec<std::ops::Range<usize>> {
    let (mut ranges, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        if index > start && bytes + tensor.bytes() > bytes_max {
            ranges.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += tensor.bytes();
    }
    ranges.push(start..tensors.len());
    ranges
}

/// JSON as people like to read it.
pub(super) fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Runs `work` on every job on all cores, each with a scratch value of its thread's own; stops at the first error.
/// `work` returns how many bytes it has written; `progress` is called on the calling thread.
pub(super) fn run_jobs<J: Sync, S: Default>(
    jobs: &[J],
    total_bytes: usize,
    progress: &mut dyn FnMut(Progress),
    work: impl Fn(&J, &mut S) -> Result<usize, CheckpointError> + Sync,
) -> Result<(), CheckpointError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                let mut scratch = S::default();
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send(work(job, &mut scratch)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut done_bytes = 0;
        progress(Progress { done_bytes, total_bytes });
        for result in receiver {
            match result {
                Ok(bytes) => done_bytes += bytes,
                Err(error) => {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            progress(Progress { done_bytes, total_bytes });
        }
        Ok(())
    })
}
