//! One file of the cache directory: a piece of a text after a piece that another file holds, and the state at its end.
//!
//! A head with its own checksum (what the file is, which tokens it covers), then cache rows and snapshot with theirs; all
//! numbers little-endian. Anything that is not exactly so is no file of this cache.

use super::state::{Rows, RowsAt, Snapshot, StateLayout, pieces};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// Name of a prefix: the hash of its tokens. Zero names the empty one.
pub(super) type Id = [u8; 32];

/// Version of the format; files of others are left alone.
pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"lilystat";
const FIXED_BYTES: usize = 8 + 4 + 4 + 32 + 32 + 32 + 8 + 8;
const HASH_BYTES: usize = 32;

/// The name of the prefix that `tokens` are.
pub(super) fn id_of(tokens: &[u32]) -> Id {
    if tokens.is_empty() { Id::default() } else { hash(tokens.iter().map(|token| token.to_le_bytes())) }
}

fn hash(parts: impl Iterator<Item = [u8; 4]>) -> Id {
    let mut hash = Sha256::new();
    parts.for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The prefix at whose end its snapshot is.
    pub id: Id,
    /// The prefix that it continues.
    pub parent: Id,
    /// Tokens of that prefix.
    pub start: usize,
    /// Tokens that it adds.
    pub tokens: Vec<u32>,
    /// Half of the convolution window that holds the past.
    window: u32,
}

/// A file to write.
pub(super) struct Draft {
    pub key: Id,
    pub id: Id,
    pub parent: Id,
    pub start: usize,
    pub tokens: Vec<u32>,
    /// Rows of exactly these tokens, in order.
    pub rows: Vec<RowsAt>,
    pub snapshot: Arc<Snapshot>,
}

/// Length of a file with so many tokens.
pub(super) fn file_bytes(layout: &StateLayout, tokens: usize) -> u64 {
    let per_token = 4 + layout.token_bytes();
    (FIXED_BYTES + tokens * per_token + layout.snapshot_bytes + 2 * HASH_BYTES) as u64
}

impl Draft {
    /// Writes the file's bytes.
    pub fn write(&self, layout: &StateLayout, file: impl Write) -> io::Result<()> {
        let mut file = Hashing { file, hash: Sha256::new() };
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.write_all(&self.snapshot.window.to_le_bytes())?;
        file.write_all(&self.key)?;
        file.write_all(&self.id)?;
        file.write_all(&self.parent)?;
        file.write_all(&(self.start as u64).to_le_bytes())?;
        file.write_all(&(self.tokens.len() as u64).to_le_bytes())?;
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        file.write_all(&tokens)?;
        file.end_part()?;
        for buffer in 0..layout.row_bytes.len() {
            for rows in &self.rows {
                let range = rows.parts(layout)[buffer].clone();
                pieces(&*rows.rows.kept, range, &mut |bytes| file.write_all(bytes))?;
            }
        }
        let state = &*self.snapshot.kept;
        pieces(state, 0..state.bytes(), &mut |bytes| file.write_all(bytes))?;
        file.end_part()?;
        file.file.flush()
    }
}

/// Writes what a hash has seen.
struct Hashing<W> {
    file: W,
    hash: Sha256,
}

impl<W: Write> Hashing<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes)
    }

    fn end_part(&mut self) -> io::Result<()> {
        let hash = std::mem::take(&mut self.hash).finalize();
        self.file.write_all(&hash)
    }
}

/// Reads the head of a file; `None` if it is none of this cache, or cut short.
pub(super) fn read_head(path: &Path, layout: &StateLayout, key: &Id) -> io::Result<Option<Head>> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    Ok(head(&mut file, length, layout, key)?.filter(|head| length == file_bytes(layout, head.tokens.len())))
}

/// Reads a whole file; `None` if it is none of this cache, or damaged.
pub(super) fn read(path: &Path, layout: &StateLayout, key: &Id) -> io::Result<Option<(Head, Rows, Snapshot)>> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let Some(head) = head(&mut file, length, layout, key)? else { return Ok(None) };
    if length != file_bytes(layout, head.tokens.len()) {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    let mut part = |bytes: usize| {
        let mut part = vec![0; bytes];
        file.read_exact(&mut part)?;
        hash.update(&part);
        Ok::<_, io::Error>(part)
    };
    let tokens = head.tokens.len();
    let rows = Rows { tokens, kept: Box::new(part(tokens * layout.token_bytes())?) };
    let snapshot = Snapshot { window: head.window, kept: Box::new(part(layout.snapshot_bytes)?) };
    let mut stored = Id::default();
    file.read_exact(&mut stored)?;
    Ok((stored == *hash.finalize()).then_some((head, rows, snapshot)))
}

fn head(file: &mut impl Read, length: u64, layout: &StateLayout, key: &Id) -> io::Result<Option<Head>> {
    let mut fixed = [0; FIXED_BYTES];
    if length < file_bytes(layout, 0) {
        return Ok(None);
    }
    file.read_exact(&mut fixed)?;
    let number = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
    let id = |at: usize| Id::try_from(&fixed[at..at + 32]).expect("32 bytes");
    let (window, start, count) = (number(12), long(112), long(120));
    // A count that the file has no bytes for must not decide how much is allocated.
    if fixed[..8] != MAGIC || number(8) != VERSION || id(16) != *key || window > 1 || count == 0 || count > length / 4 {
        return Ok(None);
    }
    let mut bytes = vec![0; 4 * count as usize];
    file.read_exact(&mut bytes)?;
    let mut stored = Id::default();
    file.read_exact(&mut stored)?;
    if stored != *Sha256::new().chain_update(fixed).chain_update(&bytes).finalize() {
        return Ok(None);
    }
    let tokens = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
    Ok(Some(Head { id: id(48), parent: id(80), start: start as usize, tokens, window }))
}
