//! The prefixes in the cache directory: an index over its files, which ones are read, written and given up.
//!
//! Each file continues the text of another (its parent) up to a snapshot; a chain of them from a beginning gives a state.
//! What was used longest ago goes first, but never a file that others continue. Files of other models, versions and
//! engines lie in directories of their own and count towards the budget; whatever else lies there is left alone.

use super::CacheError;
use super::file::{self, Draft, Id, file_bytes, id_of};
use super::state::{Rows, RowsAt, Snapshot, StateLayout};
use super::tree::{Match, Tree};
use super::writer::{PARTIAL, Writer};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Most files that wait to be written; each may hold memory that the cache in memory has given up.
const PENDING_MAX: usize = 8;
const ENDING: &str = "prefix";
/// A partial file as old as this is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Says what time it is.
pub(super) type Clock = Box<dyn Fn() -> SystemTime + Send>;

struct Entry {
    parent: Id,
    start: usize,
    tokens: Vec<u32>,
    bytes: u64,
    used: SystemTime,
    /// Still to be written.
    pending: bool,
}

impl Entry {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// A file of another model, version or engine.
struct Other {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

pub(super) struct Disk {
    folder: PathBuf,
    key: Id,
    layout: StateLayout,
    limit_bytes: u64,
    bytes: u64,
    entries: HashMap<Id, Entry>,
    children: HashMap<Id, Vec<Id>>,
    others: Vec<Other>,
    pending: usize,
    writer: Writer,
    pub failures: u64,
    /// For the order of use.
    clock: Clock,
    /// Whether what was written is noticed at once, and not only when somebody waits for it.
    notices: bool,
}

impl Disk {
    /// Opens a directory, which is made if it is not there, and reads the heads of its files.
    pub fn open(dir: &Path, limit_bytes: u64, key: Id, layout: StateLayout) -> Result<Self, CacheError> {
        let fail = |source| CacheError { dir: dir.to_owned(), source };
        let name: String = key[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = dir.join(format!("{name}-v{}", file::VERSION));
        create_dir(&folder).map_err(fail)?;
        let mut disk = Self {
            writer: Writer::start(layout.clone()).map_err(fail)?,
            folder,
            key,
            layout,
            limit_bytes,
            bytes: 0,
            entries: HashMap::new(),
            children: HashMap::new(),
            others: Vec::new(),
            pending: 0,
            failures: 0,
            clock: Box::new(SystemTime::now),
            notices: true,
        };
        disk.scan(dir).map_err(fail)?;
        disk.make_room(0);
        Ok(disk)
    }

    /// See [`super::PrefixCache::make_repeatable`].
    #[cfg(test)]
    pub fn make_repeatable(&mut self, clock: Clock) {
        (self.clock, self.notices) = (clock, false);
    }

    /// Files, and their bytes, those of other models included.
    pub fn size(&self) -> (usize, u64) {
        (self.entries.values().filter(|entry| !entry.pending).count(), self.bytes)
    }

    /// What the files have for `tokens`, of which a snapshot may cover the first `usable` at most.
    pub fn find(&self, tokens: &[u32], usable: usize) -> Match {
        let mut found = Match::default();
        let mut open = vec![Id::default()];
        while let Some(id) = open.pop() {
            for child in self.children.get(&id).into_iter().flatten() {
                let entry = &self.entries[child];
                let common = entry.tokens.iter().zip(&tokens[entry.start..]).take_while(|(a, b)| a == b).count();
                let (common_tokens, remembered_tokens) = (entry.start + common, entry.end());
                if (common_tokens, remembered_tokens) > (found.common_tokens, found.remembered_tokens) {
                    (found.common_tokens, found.remembered_tokens) = (common_tokens, remembered_tokens);
                }
                if common == entry.tokens.len() {
                    open.push(*child);
                    if entry.end() <= usable && !entry.pending {
                        found.snapshot_tokens = found.snapshot_tokens.max(entry.end());
                    }
                }
            }
        }
        found
    }

    /// The state after `tokens`, for which a file was found, and the rows from position `from` on. A file that cannot be
    /// read is given up with all that continue it, and there is no state.
    pub fn load(&mut self, tokens: &[u32], from: usize) -> Option<(Snapshot, Vec<RowsAt>)> {
        let (mut id, mut snapshot, mut rows) = (id_of(tokens), None, Vec::new());
        while snapshot.is_none() || self.entries.get(&id).is_some_and(|entry| entry.end() > from) {
            let Some((read, state)) = self.read(&id) else {
                self.failures += 1;
                self.give_up(id);
                return None;
            };
            let used = (self.clock)();
            let entry = self.entries.get_mut(&id)?;
            entry.used = used;
            rows.push(RowsAt { start: entry.start, rows: Arc::new(read), tokens: from.max(entry.start)..entry.end() });
            snapshot.get_or_insert(state);
            id = entry.parent;
        }
        self.touch(id);
        rows.reverse();
        rows.retain(|rows| !rows.tokens.is_empty());
        snapshot.map(|snapshot| (snapshot, rows))
    }

    /// Has the snapshots on the way of `tokens` written, as far as they are not yet.
    pub fn save(&mut self, tokens: &[u32], tree: &mut Tree) {
        self.notice_written();
        let mut start = 0;
        for end in tree.snapshots(tokens) {
            let (id, parent) = (id_of(&tokens[..end]), id_of(&tokens[..start]));
            if !self.entries.contains_key(&id) {
                let bytes = file_bytes(&self.layout, end - start);
                let rows = tree.rows(tokens, start..end);
                let snapshot = tree.snapshot(&tokens[..end]).expect("a position with a snapshot");
                self.touch(parent);
                if self.pending == PENDING_MAX || !self.make_room(bytes) || !self.has(&parent) {
                    return;
                }
                let tokens = tokens[start..end].to_vec();
                let draft = Draft { key: self.key, id, parent, start, tokens: tokens.clone(), rows, snapshot };
                let used = (self.clock)();
                self.writer.write(self.path(&id), draft, used);
                self.pending += 1;
                self.add(id, Entry { parent, start, tokens, bytes, used, pending: true });
            }
            start = end;
        }
    }

    /// Gives up all files on the way of `tokens`.
    pub fn forget(&mut self, tokens: &[u32]) {
        self.notice_written();
        let begins = |id: &&Id| {
            let entry = &self.entries[*id];
            entry.start == 0 && tokens.starts_with(&entry.tokens)
        };
        let roots: Vec<Id> = self.entries.keys().filter(begins).copied().collect();
        roots.into_iter().for_each(|id| self.give_up(id));
    }

    /// Waits until everything is written.
    pub fn settle(&mut self) {
        self.writer.settle();
        self.note_written();
    }

    /// Whether a prefix has a file, or needs none.
    fn has(&self, id: &Id) -> bool {
        *id == Id::default() || self.entries.contains_key(id)
    }

    /// A file and all that it continues are used.
    fn touch(&mut self, mut id: Id) {
        let used = (self.clock)();
        while let Some(entry) = self.entries.get_mut(&id) {
            entry.used = used;
            id = entry.parent;
        }
    }

    fn path(&self, id: &Id) -> PathBuf {
        let name: String = id[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{name}.{ENDING}"))
    }

    fn read(&self, id: &Id) -> Option<(Rows, Snapshot)> {
        let entry = self.entries.get(id)?;
        let path = self.path(id);
        let (head, rows, snapshot) = file::read(&path, &self.layout, &self.key).ok()??;
        if (head.parent, head.start, &head.tokens) != (entry.parent, entry.start, &entry.tokens) {
            return None;
        }
        // So that the order of use outlives this process; who may not write it can still read it.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified((self.clock)()));
        Some((rows, snapshot))
    }

    fn notice_written(&mut self) {
        if self.notices {
            self.note_written();
        }
    }

    fn note_written(&mut self) {
        let written: Vec<_> = self.writer.written().collect();
        for written in written {
            self.pending -= 1;
            match self.entries.get_mut(&written.id) {
                Some(entry) if written.done => entry.pending = false,
                // Given up while it was being written.
                None => self.writer.remove(self.path(&written.id)),
                Some(_) => {
                    self.failures += 1;
                    self.give_up(written.id);
                }
            }
        }
    }

    fn add(&mut self, id: Id, entry: Entry) {
        self.bytes += entry.bytes;
        self.children.entry(entry.parent).or_default().push(id);
        self.entries.insert(id, entry);
    }

    /// Removes a file and all that continue it.
    fn give_up(&mut self, id: Id) {
        for child in self.children.remove(&id).unwrap_or_default() {
            self.give_up(child);
        }
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= entry.bytes;
            if let Some(siblings) = self.children.get_mut(&entry.parent) {
                siblings.retain(|sibling| *sibling != id);
                if siblings.is_empty() {
                    self.children.remove(&entry.parent);
                }
            }
            self.writer.remove(self.path(&id));
        }
    }

    /// Removes what was used longest ago until `bytes` more fit; false if they never do.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.bytes + bytes > self.limit_bytes {
            let last = |(id, entry): (&Id, &Entry)| {
                (!entry.pending && !self.children.contains_key(id)).then_some((entry.used, *id))
            };
            let own = self.entries.iter().filter_map(last).min();
            let other = self.others.iter().enumerate().map(|(index, other)| (other.used, index)).min();
            match (own, other) {
                (Some((used, id)), other) if other.is_none_or(|(other, _)| used <= other) => self.give_up(id),
                (_, Some((_, index))) => {
                    let other = self.others.swap_remove(index);
                    self.bytes -= other.bytes;
                    self.writer.remove(other.path);
                }
                _ => return false,
            }
        }
        true
    }

    fn scan(&mut self, dir: &Path) -> io::Result<()> {
        for folder in fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_dir()) {
            for file in fs::read_dir(&folder)?.filter_map(Result::ok) {
                let (path, Ok(meta)) = (file.path(), file.metadata()) else { continue };
                let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let ending = path.extension().and_then(|ending| ending.to_str());
                if ending == Some(PARTIAL) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    self.writer.remove(path);
                } else if ending == Some(ENDING) && folder != self.folder {
                    self.bytes += meta.len();
                    self.others.push(Other { path, bytes: meta.len(), used });
                } else if ending == Some(ENDING) {
                    self.scan_file(path, meta.len(), used);
                }
            }
        }
        self.drop_orphans();
        Ok(())
    }

    fn scan_file(&mut self, path: PathBuf, bytes: u64, used: SystemTime) {
        match file::read_head(&path, &self.layout, &self.key) {
            Ok(Some(head)) if self.path(&head.id) == path => {
                let file::Head { id, parent, start, tokens, .. } = head;
                self.add(id, Entry { parent, start, tokens, bytes, used, pending: false });
            }
            // Somebody's copy, or what nobody here wrote.
            Ok(Some(_)) => {}
            _ if !has_own_name(&path) => {}
            _ => self.writer.remove(path),
        }
    }

    /// Removes files whose beginning is not there, or that are not what they call themselves.
    fn drop_orphans(&mut self) {
        let (mut kept, mut open) = (HashSet::new(), vec![(Id::default(), Vec::new())]);
        while let Some((id, before)) = open.pop() {
            for child in self.children.get(&id).into_iter().flatten() {
                let entry = &self.entries[child];
                let tokens = [&before[..], &entry.tokens].concat();
                if entry.start == before.len() && id_of(&tokens) == *child {
                    kept.insert(*child);
                    open.push((*child, tokens));
                }
            }
        }
        let orphans: Vec<Id> = self.entries.keys().filter(|id| !kept.contains(*id)).copied().collect();
        orphans.into_iter().for_each(|id| self.give_up(id));
    }
}

/// Whether a file is called as this cache calls its own.
fn has_own_name(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
