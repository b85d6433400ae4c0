//! From code addresses to lines of kernel text.

use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::{Object, ObjectSection};
use std::fs;
use std::path::{Path, PathBuf};

type Context<'a> = addr2line::Context<EndianSlice<'a, RunTimeEndian>>;

/// The line of kernel text that belongs to the code at each offset into a library: of a call, the innermost that is not
/// the shim's. `None` where the library says nothing.
pub fn lines(library: &Path, offsets: &[u64]) -> Vec<Option<String>> {
    let Ok(bytes) = fs::read(library) else { return vec![None; offsets.len()] };
    match context(&bytes) {
        Some(context) => offsets.iter().map(|offset| line(&context, *offset)).collect(),
        None => vec![None; offsets.len()],
    }
}

fn context(bytes: &[u8]) -> Option<Context<'_>> {
    let file = object::File::parse(bytes).ok()?;
    let load = |id: SectionId| -> Result<_, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|s| s.data().ok()).unwrap_or_default();
        Ok(EndianSlice::new(data, RunTimeEndian::Little))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

fn line(context: &Context<'_>, offset: u64) -> Option<String> {
    let mut frames = context.find_frames(offset).skip_all_loads().ok()?;
    let mut found = None;
    while let Ok(Some(frame)) = frames.next() {
        let Some(location) = frame.location else { continue };
        let (Some(file), Some(line)) = (location.file, location.line) else { continue };
        let text = format!("{}:{line}", shorten(file));
        if !file.contains("/shim/sm/") && !file.ends_with("generated") {
            return Some(text);
        }
        found = found.or(Some(text));
    }
    found
}

/// File name with at most two folders, enough to find it.
fn shorten(file: &str) -> String {
    let parts: Vec<_> = Path::new(file).components().collect();
    let start = parts.len().saturating_sub(3);
    parts[start..].iter().collect::<PathBuf>().display().to_string()
}
