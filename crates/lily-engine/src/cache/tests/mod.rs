//! The prefix cache against a plain list of what was put in, its policy, and its directory under everything that can
//! happen to files.

mod disk;
mod policy;
mod tree;

use super::*;
use crate::backend::{BackendError, Kept};
use std::any::Any;

/// A state of a few bytes that tells which tokens it is of.
pub fn layout() -> StateLayout {
    StateLayout { snapshot_bytes: 24, row_bytes: vec![8, 3] }
}

/// A number that depends on every token.
pub fn digest(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &token| (hash ^ u64::from(token) ^ 0x55).wrapping_mul(0x100_0000_01b3))
}

/// The snapshot that belongs after `tokens`.
pub fn snapshot(tokens: &[u32]) -> Snapshot {
    let hash = digest(tokens);
    let bytes: Vec<u8> = [hash, !hash, hash.rotate_left(9)].into_iter().flat_map(u64::to_le_bytes).collect();
    Snapshot { window: (tokens.len() % 2) as u32, kept: kept(bytes) }
}

/// The rows that belong to a range of `tokens`.
pub fn rows(tokens: &[u32], range: Range<usize>) -> Rows {
    let mut buffers = [Vec::new(), Vec::new()];
    let count = range.len();
    for end in range.start + 1..=range.end {
        let hash = digest(&tokens[..end]).to_le_bytes();
        buffers[0].extend_from_slice(&hash);
        buffers[1].extend_from_slice(&hash[..3]);
    }
    Rows { tokens: count, kept: kept(buffers.concat()) }
}

/// Bytes somewhere else than on the host.
struct Elsewhere(Vec<u8>);

impl Kept for Elsewhere {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.0.read(offset, out)
    }

    fn copy(&self, parts: &[Range<usize>]) -> Box<dyn Kept> {
        let copied = self.0.copy(parts);
        Box::new(Elsewhere(all(&*copied)))
    }

    fn host(&self) -> Option<&[u8]> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes on the host or not, half of them each.
fn kept(bytes: Vec<u8>) -> Box<dyn Kept> {
    if bytes.iter().fold(0, |a, b| a ^ b) % 2 == 0 { Box::new(bytes) } else { Box::new(Elsewhere(bytes)) }
}

fn all(kept: &dyn Kept) -> Vec<u8> {
    let mut bytes = vec![0; kept.bytes()];
    kept.read(0, &mut bytes).unwrap();
    bytes
}

pub fn cache(options: &CacheOptions) -> PrefixCache {
    PrefixCache::open(options, options.bytes, layout(), || [7; 32]).unwrap()
}

pub fn put(cache: &mut PrefixCache, tokens: &[u32]) {
    cache.insert(tokens, || snapshot(tokens), |range| rows(tokens, range));
}

/// What `load` gave must be what belongs there.
pub fn check_state(tokens: &[u32], from: usize, (state, parts): (Arc<Snapshot>, Vec<RowsAt>)) {
    let expect = snapshot(tokens);
    assert_eq!((state.window, all(&*state.kept)), (expect.window, all(&*expect.kept)));
    let mut at = from;
    for part in &parts {
        assert_eq!(part.tokens.start, at, "rows in order, without a gap");
        at = part.tokens.end;
        let found = part.rows.kept.copy(&part.parts(&layout()));
        assert_eq!(all(&*found), all(&*rows(tokens, part.tokens.clone()).kept));
    }
    assert_eq!(at, tokens.len().max(from));
}

/// A small generator: the same seed, the same numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }

    /// A text over few tokens, so that texts have beginnings in common.
    pub fn text(&mut self, longest: usize) -> Vec<u32> {
        (0..1 + self.below(longest)).map(|_| self.below(3) as u32).collect()
    }
}
