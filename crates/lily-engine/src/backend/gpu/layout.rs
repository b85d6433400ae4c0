//! Where the buffers of a model lie on a device with unified memory.
//!
//! Few, large areas: windows of the checkpoint's mapped files, which are used where they are; areas of the device's own
//! for vectors, scratch and the weights that cannot be used in place; and areas that every session has for its state. A
//! weight is copied if its file is not mapped (the model in the box, experts stacked at loading), or if it starts at an
//! offset that is not a multiple of 4, because kernels load stored matrices in words.

use crate::backend::BackendError;
use crate::plan::{BufferId, BufferTable, Home, Slot};
use crate::weights::FileRange;

/// Alignment that kernels count on.
pub const LOAD_ALIGN: usize = 4;
/// Alignment of buffers inside areas: two cache lines.
const AREA_ALIGN: usize = 256;
/// Bytes between used parts of a file that are still put into one window; skipping less would only make more windows.
const WINDOW_GAP: usize = 1 << 20;

/// What limits a device's areas.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size of a page; windows start and end on multiples of it.
    pub page_bytes: usize,
    /// Longest area.
    pub buffer_bytes_max: usize,
}

/// A file of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts {
    /// Its length.
    pub bytes: usize,
    /// Whether it is mapped, from a page's start on.
    pub mapped: bool,
}

/// Pages of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The file.
    pub file: usize,
    /// First byte, on a page's start.
    pub offset: usize,
    /// Length, whole pages; the last may reach past the end of the file.
    pub bytes: usize,
}

/// Where a buffer, or a part of it, lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a window.
    Window {
        /// Which.
        index: usize,
        /// First byte in it.
        offset: usize,
    },
    /// In an area of the device.
    Owned {
        /// Which.
        index: usize,
        /// First byte in it.
        offset: usize,
    },
    /// In an area of a session.
    State {
        /// Which.
        index: usize,
        /// First byte in it.
        offset: usize,
        /// Which session of the step.
        session: usize,
    },
    /// It has no bytes, and no kernel touches it.
    Nothing,
}

impl Place {
    /// First byte in its area.
    pub fn offset(self) -> usize {
        match self {
            Place::Window { offset, .. } | Place::Owned { offset, .. } | Place::State { offset, .. } => offset,
            Place::Nothing => 0,
        }
    }

    /// Whether kernels can load from it.
    pub fn aligned(self) -> bool {
        self.offset().is_multiple_of(LOAD_ALIGN)
    }

    fn part(self, by: usize) -> Self {
        match self {
            Place::Window { index, offset } => Place::Window { index, offset: offset + by },
            Place::Owned { index, offset } => Place::Owned { index, offset: offset + by },
            Place::State { index, offset, session } => Place::State { index, offset: offset + by, session },
            Place::Nothing => Place::Nothing,
        }
    }
}

/// All areas, and where buffers lie in them.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Windows of mapped files.
    pub windows: Vec<Window>,
    /// Lengths of the device's areas.
    pub owned: Vec<usize>,
    /// Lengths of a session's areas.
    pub state: Vec<usize>,
    /// Weights to copy into the device's areas.
    pub copies: Vec<(BufferId, FileRange)>,
    places: Vec<Place>,
}

impl Layout {
    /// Lays the buffers of `table` out, whose weights lie in `files`.
    ///
    /// # Errors
    /// If a buffer is longer than an area can be.
    pub fn new(table: &BufferTable, files: &[FileFacts], limits: Limits) -> Result<Self, BackendError> {
        let mut layout =
            Self { windows: Vec::new(), owned: Vec::new(), state: Vec::new(), copies: Vec::new(), places: Vec::new() };
        let mut in_place = Vec::new();
        for (id, info) in table.iter() {
            if info.bytes > limits.buffer_bytes_max.saturating_sub(limits.page_bytes) {
                let (what, most) = (info.name.clone(), limits.buffer_bytes_max);
                return Err(BackendError::TooLong { what, bytes: info.bytes, most });
            }
            let place = match &info.home {
                _ if info.bytes == 0 => Place::Nothing,
                Home::Weight(range) if files[range.file].mapped && range.offset.is_multiple_of(LOAD_ALIGN) => {
                    in_place.push((id, *range));
                    Place::Nothing // until the windows are known
                }
                Home::Weight(range) => {
                    layout.copies.push((id, *range));
                    owned(&mut layout.owned, info.bytes, limits)
                }
                Home::Vector(_) | Home::Scratch => owned(&mut layout.owned, info.bytes, limits),
                Home::State => match owned(&mut layout.state, info.bytes, limits) {
                    Place::Owned { index, offset } => Place::State { index, offset, session: 0 },
                    other => other,
                },
            };
            layout.places.push(place);
        }
        layout.map(in_place, limits);
        Ok(layout)
    }

    /// Puts ranges into windows, in the order of the files.
    fn map(&mut self, mut ranges: Vec<(BufferId, FileRange)>, limits: Limits) {
        ranges.sort_by_key(|(_, range)| (range.file, range.offset));
        for (id, range) in ranges {
            let end = (range.offset + range.bytes).next_multiple_of(limits.page_bytes);
            let fits = |w: &Window| {
                let near = range.offset <= w.offset + w.bytes + WINDOW_GAP;
                w.file == range.file && near && end - w.offset <= limits.buffer_bytes_max
            };
            match self.windows.last_mut().filter(|w| fits(w)) {
                Some(window) => window.bytes = window.bytes.max(end - window.offset),
                None => {
                    let offset = range.offset / limits.page_bytes * limits.page_bytes;
                    self.windows.push(Window { file: range.file, offset, bytes: end - offset });
                }
            }
            let index = self.windows.len() - 1;
            let offset = range.offset - self.windows[index].offset;
            self.places[id.0 as usize] = Place::Window { index, offset };
        }
    }

    /// Where a slot starts.
    pub fn place(&self, slot: Slot) -> Place {
        if slot.bytes == 0 {
            return Place::Nothing;
        }
        match self.places[slot.buffer.0 as usize].part(slot.offset) {
            Place::State { index, offset, .. } => Place::State { index, offset, session: slot.session as usize },
            place => place,
        }
    }

    /// Bytes of the device's areas.
    pub fn owned_bytes(&self) -> usize {
        self.owned.iter().sum()
    }
}

/// A part of one of a session's areas, and where among kept bytes a copy of it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which area.
    pub area: usize,
    /// First byte in it.
    pub offset: usize,
    /// First byte of what is kept.
    pub kept: usize,
    /// How many.
    pub bytes: usize,
}

/// The same with neighbours made one, where they are neighbours in the area and among what is kept: a copy costs a GPU as much as
/// megabytes of it do, and a recurrent state is dozens of buffers.
pub fn joined(stretches: impl IntoIterator<Item = Stretch>) -> Vec<Stretch> {
    let mut joined: Vec<Stretch> = Vec::new();
    for next in stretches.into_iter().filter(|stretch| stretch.bytes > 0) {
        match joined.last_mut() {
            Some(last)
                if (last.area, last.offset + last.bytes, last.kept + last.bytes)
                    == (next.area, next.offset, next.kept) =>
            {
                last.bytes += next.bytes;
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// Takes `bytes` of the last area, or of a new one where it would become too long.
fn owned(areas: &mut Vec<usize>, bytes: usize, limits: Limits) -> Place {
    let room = |used: usize| used.next_multiple_of(AREA_ALIGN) + bytes <= limits.buffer_bytes_max;
    if !areas.last().is_some_and(|used| room(*used)) {
        areas.push(0);
    }
    let index = areas.len() - 1;
    let offset = areas[index].next_multiple_of(AREA_ALIGN);
    areas[index] = offset + bytes;
    Place::Owned { index, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const LIMITS: Limits = Limits { page_bytes: PAGE, buffer_bytes_max: 4 << 20 };

    fn weight(table: &mut BufferTable, file: usize, offset: usize, bytes: usize) -> Slot {
        table.add(format!("weight {file}+{offset}"), bytes, Home::Weight(FileRange { file, offset, bytes }))
    }

    #[test]
    fn weights_stay_where_they_are_if_they_can() {
        let mut table = BufferTable::default();
        let late = weight(&mut table, 0, 10_000, 100);
        let early = weight(&mut table, 0, 5_000, 300);
        let odd = weight(&mut table, 0, 6_002, 6);
        let none = weight(&mut table, 0, 7_000, 0);
        let apart = weight(&mut table, 0, 3 << 20, 2 << 20);
        let boxed = weight(&mut table, 1, 8, 16);
        let files = [FileFacts { bytes: 6 << 20, mapped: true }, FileFacts { bytes: 100, mapped: false }];
        let layout = Layout::new(&table, &files, LIMITS).unwrap();
        let first = Window { file: 0, offset: 4096, bytes: 8192 };
        let second = Window { file: 0, offset: 3 << 20, bytes: 2 << 20 };
        assert_eq!(layout.windows, [first, second]);
        assert_eq!(layout.place(early), Place::Window { index: 0, offset: 904 });
        assert_eq!(layout.place(late), Place::Window { index: 0, offset: 5904 });
        assert_eq!(layout.place(late.part(20, 4)), Place::Window { index: 0, offset: 5924 });
        assert_eq!(layout.place(apart), Place::Window { index: 1, offset: 0 });
        assert_eq!(layout.place(odd), Place::Owned { index: 0, offset: 0 });
        assert_eq!(layout.place(boxed), Place::Owned { index: 0, offset: 256 });
        assert_eq!(layout.place(none), Place::Nothing);
        assert_eq!(layout.place(late.first(0)), Place::Nothing);
        assert_eq!(layout.copies.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [odd.buffer, boxed.buffer]);
    }

    #[test]
    fn no_area_is_longer_than_the_device_takes_and_none_overlap() {
        let mut table = BufferTable::default();
        for i in 0..40 {
            weight(&mut table, 0, i * 300_000, 299_996);
            table.add(format!("scratch {i}"), 100_000 + i, Home::Scratch);
            table.add(format!("state {i}"), 200_000 + i, Home::State);
        }
        let layout = Layout::new(&table, &[FileFacts { bytes: 40 * 300_000, mapped: true }], LIMITS).unwrap();
        let mut parts = Vec::new();
        for (id, info) in table.iter() {
            let place = layout.place(Slot::whole(id, info.bytes));
            let (kind, index, length) = match place {
                Place::Window { index, .. } => (0, index, layout.windows[index].bytes),
                Place::Owned { index, .. } => (1, index, layout.owned[index]),
                Place::State { index, .. } => (2, index, layout.state[index]),
                Place::Nothing => panic!("{} is nowhere", info.name),
            };
            assert!(length <= LIMITS.buffer_bytes_max && place.offset() + info.bytes <= length, "{}", info.name);
            parts.push((kind, index, place.offset(), place.offset() + info.bytes));
        }
        parts.sort();
        for pair in parts.windows(2).filter(|p| (p[0].0, p[0].1) == (p[1].0, p[1].1)) {
            assert!(pair[0].3 <= pair[1].2, "{pair:?}");
        }
        assert!(layout.windows.len() >= 3 && layout.owned.len() == 1 && layout.state.len() == 2);
    }

    #[test]
    fn neighbours_on_both_sides_are_joined() {
        let stretch = |area, offset, kept, bytes| Stretch { area, offset, kept, bytes };
        let parts = [stretch(0, 0, 0, 8), stretch(0, 8, 8, 0), stretch(0, 8, 8, 4), stretch(0, 16, 12, 4)];
        let others = [stretch(0, 20, 20, 4), stretch(1, 24, 24, 4)];
        let want = [stretch(0, 0, 0, 12), stretch(0, 16, 12, 4), stretch(0, 20, 20, 4), stretch(1, 24, 24, 4)];
        assert_eq!(joined(parts.into_iter().chain(others)), want);
    }

    #[test]
    fn a_buffer_that_is_too_long_is_named() {
        let mut table = BufferTable::default();
        table.add("layers.3.keys", 4 << 20, Home::State);
        let message = Layout::new(&table, &[], LIMITS).unwrap_err().to_string();
        assert!(message.contains("layers.3.keys") && message.contains("4.2 MB"), "{message}");
    }
}
