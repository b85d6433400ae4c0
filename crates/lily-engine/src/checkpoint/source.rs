//! Where a checkpoint's files come from: a directory on disk, or slices inside the binary.
//!
//! Knows nothing of what the files mean, except to recognise what is no checkpoint file at all (GGUF, git-lfs pointers).

use std::borrow::Cow;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::CheckpointError;

/// Files of a model that is part of the binary: name and content.
pub type EmbeddedFiles = &'static [(&'static str, &'static [u8])];

/// How GGUF files start.
const GGUF_MAGIC: &[u8] = b"GGUF";
/// How git-lfs pointer files start.
const LFS_MAGIC: &[u8] = b"version https://git-lfs.github.com/spec/";

/// A place with files.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Directory(PathBuf),
    Embedded(EmbeddedFiles),
}

/// The content of one file: mapped pages, part of the binary, or made up. No alignment is promised.
#[derive(Debug)]
pub(super) enum FileData {
    Map(Mmap),
    Static(&'static [u8]),
    /// Copied together at loading.
    Owned(Vec<u8>),
}

impl Deref for FileData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileData::Map(map) => map,
            FileData::Static(slice) => slice,
            FileData::Owned(buffer) => buffer,
        }
    }
}

impl Source {
    /// Checks that `path` is a directory; says what it is otherwise.
    pub(super) fn directory(path: &Path) -> Result<Self, CheckpointError> {
        let Ok(meta) = std::fs::metadata(path) else {
            return Err(CheckpointError::NotFound { path: path.to_owned() });
        };
        if meta.is_dir() {
            return Ok(Source::Directory(path.to_owned()));
        }
        refuse_foreign(&path.display().to_string(), &first_bytes(path)?)?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Err(CheckpointError::NotADirectory { path: path.to_owned(), parent })
    }

    /// The path, or a stand-in for it.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Source::Directory(path) => path.clone(),
            Source::Embedded(_) => PathBuf::from("(built-in model)"),
        }
    }

    /// A file's name for messages.
    pub(super) fn describe(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        match self {
            Source::Directory(path) => path.join(name).is_file(),
            Source::Embedded(files) => files.iter().any(|(n, _)| *n == name),
        }
    }

    /// Names of all files, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        match self {
            Source::Directory(path) => {
                let entries = std::fs::read_dir(path).map_err(CheckpointError::io(path, "list"))?;
                for entry in entries {
                    let entry = entry.map_err(CheckpointError::io(path, "list"))?;
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            Source::Embedded(files) => names.extend(files.iter().map(|(n, _)| (*n).to_owned())),
        }
        names.sort();
        Ok(names)
    }

    /// The whole of a small file; `None` where there is no such file.
    pub(super) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        if !self.exists(name) {
            return Ok(None);
        }
        let content = match self {
            Source::Directory(path) => {
                let path = path.join(name);
                Cow::Owned(std::fs::read(&path).map_err(CheckpointError::io(&path, "read"))?)
            }
            Source::Embedded(files) => {
                Cow::Borrowed(files.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, bytes)| *bytes))
            }
        };
        refuse_foreign(&self.describe(name), &content)?;
        Ok(Some(content))
    }

    /// Maps a large file.
    pub(super) fn map(&self, name: &str) -> Result<FileData, CheckpointError> {
        let data = match self {
            Source::Directory(directory) => {
                let path = directory.join(name);
                let file = File::open(&path).map_err(CheckpointError::io(&path, "open"))?;
                // SAFETY: the map is private to this process, read-only and outlives no borrow of it; that nobody truncates
                // or rewrites a checkpoint's files while a process serves from them is a documented condition of opening one.
                FileData::Map(unsafe { Mmap::map(&file) }.map_err(CheckpointError::io(&path, "map"))?)
            }
            Source::Embedded(files) => {
                let found = files.iter().find(|(n, _)| *n == name);
                FileData::Static(found.ok_or_else(|| CheckpointError::MissingFile { file: self.describe(name) })?.1)
            }
        };
        refuse_foreign(&self.describe(name), &data)?;
        Ok(data)
    }
}

/// Recognises files that people hand in by mistake.
fn refuse_foreign(file: &str, content: &[u8]) -> Result<(), CheckpointError> {
    if content.starts_with(GGUF_MAGIC) {
        return Err(CheckpointError::Gguf { path: PathBuf::from(file) });
    }
    if content.starts_with(LFS_MAGIC) {
        return Err(CheckpointError::LfsPointer { file: file.to_owned() });
    }
    Ok(())
}

/// Enough of a file's start to recognise it.
fn first_bytes(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    use std::io::Read;
    let file = File::open(path).map_err(CheckpointError::io(path, "open"))?;
    let mut start = Vec::new();
    file.take(LFS_MAGIC.len() as u64).read_to_end(&mut start).map_err(CheckpointError::io(path, "read"))?;
    Ok(start)
}
