//! Looks for accesses that nothing orders, and for accesses outside of what a launch binds.
//!
//! Instrumented libraries report every access of kernels ([`crate::Mode::Races`]). Two accesses to one byte of which at
//! least one writes and not both are atomic must be ordered:
//! - threads of one threadgroup by a threadgroup_barrier whose flags name the memory,
//! - lanes of one SIMD-group also by a simdgroup_barrier whose flags name the memory; other SIMD-group functions order
//!   nothing, although the lanes meet,
//! - threads of different threadgroups of a launch not at all, nor those of different launches of one span: launches that
//!   a device may run at the same time.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Read.
    Read,
    /// Written.
    Write,
    /// Read, written or both in one atomic operation.
    Atomic,
}

impl Kind {
    /// The number that instrumented code uses.
    pub fn of(number: u32) -> Self {
        match number {
            0 => Kind::Read,
            1 => Kind::Write,
            _ => Kind::Atomic,
        }
    }

    /// As a word of a report.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "written",
            Kind::Atomic => "changed atomically",
        }
    }
}

/// Which threads are in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Lanes of one SIMD-group.
    Simdgroup,
    /// Threads of different SIMD-groups of one threadgroup.
    Threadgroup,
    /// Threads of different threadgroups.
    Grid,
    /// Threads of different launches of one span.
    Span,
}

/// Who touches memory, and after how many barriers.
#[derive(Clone, Copy, Debug)]
pub struct Actor {
    /// Linear index of the threadgroup.
    pub group: u32,
    /// Index of the thread in its threadgroup.
    pub thread: u16,
    /// Threadgroup barriers passed that order device memory, and threadgroup memory.
    pub threadgroup_epochs: [u32; 2],
    /// The same of SIMD-group barriers.
    pub simdgroup_epochs: [u32; 2],
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug)]
pub struct Conflict {
    /// Who they are to each other.
    pub scope: Scope,
    /// The address of the later one.
    pub address: usize,
    /// Earlier and later: kind, code address, threadgroup, thread.
    pub accesses: [(Kind, usize, u32, u16); 2],
}

/// Memory that a kernel may touch.
#[derive(Clone, Debug)]
pub struct Place {
    /// Addresses.
    pub range: Range<usize>,
    /// Whether it may be written.
    pub writable: bool,
    /// Whether another launch of the span may write it.
    pub shared: bool,
    /// Whether it is as it will be when the launch starts, although launches before it may not have ended.
    pub early: bool,
}

/// What to do about an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// Nothing, if the launches before this one have ended.
    Late,
    /// It is outside of everything bound, or writes what is only read.
    Undeclared,
}

/// The last access of a kind to a granule.
#[derive(Clone, Copy, Default)]
struct Record {
    site: usize,
    launch: u32,
    group: u32,
    threadgroup_epoch: u32,
    simdgroup_epoch: u32,
    thread: u16,
    /// Bytes of the granule.
    bytes: u8,
    crowd: Crowd,
    atomic: bool,
}

/// Who else did the same since the last barrier.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Crowd {
    #[default]
    Nobody,
    /// Other lanes of the SIMD-group.
    Lanes,
    /// Other SIMD-groups.
    Simdgroups,
    /// Other threadgroups, whatever barriers lie between.
    Threadgroups,
    /// Other launches of the span.
    Launches,
}

#[derive(Clone, Copy, Default)]
struct Granule {
    write: Record,
    read: Record,
}

/// Bytes of a granule: elements that neighbours own are at least this large.
const GRANULE: usize = 2;
/// Granules that are allocated together.
const PAGE: usize = 1024;
/// Most different conflicts that are kept.
const CONFLICTS_MAX: usize = 16;

/// Pages that are found without a look into the map.
const RECENT: usize = 64;

/// Watches the accesses of launches, one after another.
pub struct Checker {
    launch: u32,
    /// First launch of the span.
    span: u32,
    places: Vec<Place>,
    ignored: Vec<Range<usize>>,
    arena: Range<usize>,
    /// Where the granules of a page are in `granules`.
    pages: HashMap<usize, usize>,
    granules: Vec<Granule>,
    /// Pages that were looked up last, by their lowest bits.
    recent: [(usize, usize); RECENT],
    conflicts: Vec<Conflict>,
    seen: HashSet<(usize, usize, Scope)>,
}

impl Default for Checker {
    fn default() -> Self {
        Self {
            launch: 0,
            span: 0,
            places: Vec::new(),
            ignored: Vec::new(),
            arena: 0..0,
            pages: HashMap::new(),
            granules: Vec::new(),
            // No address is in this page.
            recent: [(usize::MAX, 0); RECENT],
            conflicts: Vec::new(),
            seen: HashSet::new(),
        }
    }
}

impl Checker {
    /// Begins a launch, of the same span as the one before if it `continues`. `places` is what it binds, `arena` threadgroup
    /// memory, `ignored` what belongs to the run time.
    pub fn begin(&mut self, continues: bool, places: Vec<Place>, arena: Range<usize>, ignored: Vec<Range<usize>>) {
        self.launch += 1;
        if !continues {
            self.span = self.launch;
        }
        (self.places, self.arena, self.ignored) = (places, arena, ignored);
        self.conflicts.clear();
        self.seen.clear();
    }

    /// What was found since [`Checker::begin`].
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Takes note of an access. `arena_used` is how much of threadgroup memory the kernel has declared.
    pub fn access(
        &mut self,
        address: usize,
        bytes: usize,
        kind: Kind,
        site: usize,
        actor: Actor,
        arena_used: usize,
    ) -> Verdict {
        let mut late = false;
        let inside = |range: &Range<usize>| address >= range.start && address + bytes <= range.end;
        let memory = if self.arena.contains(&address) {
            if address + bytes > self.arena.start + arena_used {
                return Verdict::Undeclared;
            }
            1
        } else if let Some(place) = self.places.iter().find(|p| inside(&p.range)) {
            if !place.writable && kind != Kind::Read {
                return Verdict::Undeclared;
            }
            late = !place.early || kind != Kind::Read;
            if !place.writable && !place.shared {
                return if late { Verdict::Late } else { Verdict::Fine };
            }
            0
        } else {
            return if self.ignored.iter().any(inside) { Verdict::Fine } else { Verdict::Undeclared };
        };
        let mut at = address;
        while at < address + bytes {
            let first = at % GRANULE;
            let count = (GRANULE - first).min(address + bytes - at);
            let mask = ((1u8 << count) - 1) << first;
            self.touch(at, mask, kind, site, actor, memory);
            at += count;
        }
        if late { Verdict::Late } else { Verdict::Fine }
    }

    /// Where the granules of a page begin.
    fn page(&mut self, page: usize) -> usize {
        let (known, start) = self.recent[page % RECENT];
        if known == page {
            return start;
        }
        let granules = &mut self.granules;
        let start = *self.pages.entry(page).or_insert_with(|| {
            granules.resize(granules.len() + PAGE, Granule::default());
            granules.len() - PAGE
        });
        self.recent[page % RECENT] = (page, start);
        start
    }

    fn touch(&mut self, address: usize, mask: u8, kind: Kind, site: usize, actor: Actor, memory: usize) {
        let index = address / GRANULE;
        let at = self.page(index / PAGE) + index % PAGE;
        let granule = &mut self.granules[at];
        let new = Record {
            site,
            launch: self.launch,
            group: actor.group,
            threadgroup_epoch: actor.threadgroup_epochs[memory],
            simdgroup_epoch: actor.simdgroup_epochs[memory],
            thread: actor.thread,
            bytes: mask,
            crowd: Crowd::Nobody,
            atomic: kind == Kind::Atomic,
        };
        let writes = kind != Kind::Read;
        let mut found = [None; 2];
        let span = self.span;
        if let Some(scope) = conflict(&granule.write, &new, memory, span) {
            found[0] = Some((scope, if granule.write.atomic { Kind::Atomic } else { Kind::Write }, granule.write));
        }
        if writes && let Some(scope) = conflict(&granule.read, &new, memory, span) {
            found[1] = Some((scope, Kind::Read, granule.read));
        }
        if writes {
            granule.write = new;
        } else {
            granule.read = joined(&granule.read, new, memory, span);
        }
        for (scope, earlier, record) in found.into_iter().flatten() {
            let pair = (record.site.min(site), record.site.max(site), scope);
            if self.conflicts.len() < CONFLICTS_MAX && self.seen.insert(pair) {
                let accesses =
                    [(earlier, record.site, record.group, record.thread), (kind, site, actor.group, actor.thread)];
                self.conflicts.push(Conflict { scope, address, accesses });
            }
        }
    }
}

/// Whether nothing orders an access after an earlier one, and who they are to each other.
fn conflict(old: &Record, new: &Record, memory: usize, span: u32) -> Option<Scope> {
    if old.bytes & new.bytes == 0 || old.atomic && new.atomic || old.launch < span {
        return None;
    }
    if old.launch != new.launch || old.crowd == Crowd::Launches {
        // Every launch has threadgroup memory of its own.
        return (memory == 0).then_some(Scope::Span);
    }
    if old.group != new.group || memory == 0 && old.crowd == Crowd::Threadgroups {
        // Threadgroup memory of another threadgroup is other memory at the same address.
        return (memory == 0).then_some(Scope::Grid);
    }
    if old.threadgroup_epoch != new.threadgroup_epoch {
        return None;
    }
    if old.thread / 32 != new.thread / 32 || old.crowd == Crowd::Simdgroups {
        return Some(Scope::Threadgroup);
    }
    let same = old.thread == new.thread && old.crowd == Crowd::Nobody;
    (!same && old.simdgroup_epoch == new.simdgroup_epoch).then_some(Scope::Simdgroup)
}

/// The record of reads after one more.
fn joined(old: &Record, mut new: Record, memory: usize, span: u32) -> Record {
    if old.launch < span || old.bytes & new.bytes == 0 {
        return new;
    }
    if old.launch != new.launch || old.crowd == Crowd::Launches {
        if memory == 0 {
            new.crowd = Crowd::Launches;
            new.bytes |= old.bytes;
        }
        return new;
    }
    let elsewhere = old.group != new.group || old.crowd == Crowd::Threadgroups;
    if elsewhere && memory == 0 {
        new.crowd = Crowd::Threadgroups;
    } else if elsewhere || old.threadgroup_epoch != new.threadgroup_epoch {
        return new;
    } else if old.thread / 32 != new.thread / 32 || old.crowd == Crowd::Simdgroups {
        new.crowd = Crowd::Simdgroups;
    } else if old.simdgroup_epoch == new.simdgroup_epoch && (old.thread != new.thread || old.crowd == Crowd::Lanes) {
        new.crowd = Crowd::Lanes;
    }
    new.bytes |= old.bytes;
    new
}
